"""Hyperstack's JSON as types, its statuses as phases, its refusals as errors. Pure: no request is made here.

Source: Hyperstack API guide and the provider's OpenAPI models. Every field may be null or missing there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Generic, TypeVar

import msgspec

from flashd.adapters.http import Answer
from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    ForbiddenError,
    NameTakenError,
    NotFoundError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import Machine, MachinePhase

T_co = TypeVar("T_co", covariant=True)
MAX_WORDS = 300  # of the provider's own text in an error
UNSURE_4XX = frozenset({408, 429, 499})  # a machine may exist, or the same call may be sent again

PHASES = {
    "CREATING": MachinePhase.PENDING,
    "BUILD": MachinePhase.PENDING,
    "BUILDING": MachinePhase.PENDING,
    "ACTIVE": MachinePhase.RUNNING,
    "SHUTOFF": MachinePhase.STOPPED,
    "STOPPED": MachinePhase.STOPPED,
    "HIBERNATED": MachinePhase.STOPPED,
    "PAUSED": MachinePhase.STOPPED,
    "SUSPENDED": MachinePhase.STOPPED,
    "SHELVED": MachinePhase.STOPPED,
    "SHELVED_OFFLOADED": MachinePhase.STOPPED,
    "ERROR": MachinePhase.FAILED,
    "DELETING": MachinePhase.DELETING,
    "SOFT_DELETED": MachinePhase.DELETING,
    "DELETED": MachinePhase.DELETING,  # only a 404 proves absence
}
"""Every other status is UNKNOWN: not usable yet, never dead. That includes what passes by itself (STOPPING, REBOOTING,
MIGRATING, ...): its end is one of these."""


class Place(msgspec.Struct):
    name: str | None = None
    region: str | None = None


class Instance(msgspec.Struct):
    id: int | str
    name: str | None = None
    status: str | None = None
    created_at: str | float | None = None
    labels: list[str] | None = None
    environment: Place | None = None
    flavor: Place | None = None


class Environment(msgspec.Struct):
    id: int | str
    name: str | None = None
    region: str | None = None


class Keypair(msgspec.Struct):
    id: int | str
    name: str | None = None
    environment: Place | None = None


class Envelope(msgspec.Struct):
    status: bool | str | None = None


class InstancePage(Envelope):
    instances: list[Instance] | msgspec.UnsetType | None = msgspec.UNSET
    count: int | None = None

    @property
    def rows(self) -> list[Instance] | msgspec.UnsetType | None:
        return self.instances


class EnvironmentPage(Envelope):
    environments: list[Environment] | msgspec.UnsetType | None = msgspec.UNSET
    count: int | None = None

    @property
    def rows(self) -> list[Environment] | msgspec.UnsetType | None:
        return self.environments


class KeypairPage(Envelope):
    keypairs: list[Keypair] | msgspec.UnsetType | None = msgspec.UNSET
    count: int | None = None

    @property
    def rows(self) -> list[Keypair] | msgspec.UnsetType | None:
        return self.keypairs


class InstanceAnswer(Envelope):
    instance: Instance | None = None


class CreateAnswer(Envelope):
    instances: list[Instance] | None = None
    instance: Instance | None = None


class EnvironmentAnswer(Envelope):
    environment: Environment | None = None


class KeypairAnswer(Envelope):
    keypair: Keypair | None = None


class ErrorBody(msgspec.Struct):
    status: bool | None = None
    message: str | None = None
    error_reason: str | None = None


class Parsed(Generic[T_co]):
    """A typed decoder that turns everything unexpected into UnavailableError."""

    def __init__(self, kind: type[T_co]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def __call__(self, answer: Answer, where: str) -> T_co:
        try:
            found = self._decoder.decode(answer.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UnavailableError(f"{where}: an answer that cannot be read ({error})", answer.status) from error
        if isinstance(found, Envelope) and found.status is False:
            raise UnavailableError(f"{where}: {words(answer)}", answer.status)
        return found


_ERROR = msgspec.json.Decoder(ErrorBody)


def error_body(answer: Answer) -> ErrorBody | None:
    """The provider's own error object; None when the body is something else (a gateway's page, half a document)."""
    try:
        found = _ERROR.decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.message is not None or found.error_reason is not None else None


def words(answer: Answer) -> str:
    """The provider's message, for people only: nothing is decided by it."""
    body = error_body(answer)
    if body is None:
        return f"an answer of {len(answer.body)} bytes that is no Hyperstack error"
    text = " ".join((body.message or body.error_reason or "").split())
    return "".join(letter for letter in text if letter.isprintable())[:MAX_WORDS]


def is_proven_absence(answer: Answer) -> bool:
    """404 alone may be a gateway's; only the provider's own `not_found` proves that there is no such thing."""
    body = error_body(answer)
    return answer.status == 404 and body is not None and body.error_reason == "not_found"


def failure(answer: Answer, where: str, scrub: Callable[[str], str] = str) -> ProviderError:
    """What an answer other than 2xx means for anything but a create."""
    text = f"{where}: {scrub(words(answer))}"
    match answer.status:
        case 401:
            return AuthError(text, 401)
        case 403:
            return ForbiddenError(text, 403)
        case 429:
            return RateLimitedError(text, answer.retry_after_s)
        case 404 if is_proven_absence(answer):
            return NotFoundError(text, 404)
        case code:
            return UnavailableError(text, code)


def create_failure(answer: Answer, scrub: Callable[[str], str] = str) -> ProviderError:
    """What an answer other than a good one means for a create: by status and shape, never by text.

    Only the provider's own JSON error counts as a refusal; a gateway's page may stand in front of a machine.
    """
    text = f"create: {scrub(words(answer))}"
    code = answer.status
    if code == 429:
        return RateLimitedError(text, answer.retry_after_s)
    if not 400 <= code < 500 or code in UNSURE_4XX or error_body(answer) is None:
        return AmbiguousLaunchError(text, code)
    match code:
        case 401:
            return AuthError(text, code)
        case 403:
            return ForbiddenError(text, code)
        case 409:
            return NameTakenError(text, code)
        case _:
            return RejectedError(text, code)


def machine(row: Instance) -> Machine:
    """A row as flashd's own value."""
    status = (row.status or "").upper()
    return Machine(
        id=str(row.id),
        name=row.name or "",
        phase=PHASES.get(status, MachinePhase.UNKNOWN),
        raw_status=status,
        created_at=unix_time(row.created_at),
        region=(row.environment.region if row.environment else None) or "",
        sku=(row.flavor.name if row.flavor else None) or "",
        labels=tuple(row.labels or ()),
    )


def unix_time(stamp: str | float | None) -> float | None:
    """Unix seconds of a zoned or naive (then UTC) stamp; None when there is none that can be read."""
    if stamp is None:
        return None
    if not isinstance(stamp, str):
        return float(stamp) if 0 < stamp < 1e11 else None
    try:
        read = datetime.fromisoformat(stamp.strip())
    except ValueError:
        return None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
