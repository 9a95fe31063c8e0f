"""Scripted faults: which requests they hit and what they do. The doing is in `cloud_effects`."""

from __future__ import annotations

import dataclasses
import random
import re
from dataclasses import dataclass, field
from enum import StrEnum

from flashd.sim.cloud_types import Json, bad_request


class Effect(StrEnum):
    """What a fault does to a request."""

    # Instead of the request: nothing is applied.
    STATUS = "status"  # answer `status` with `body` (object = JSON, text = HTML)
    HTML = "html"  # 200 with an HTML page
    HANG = "hang"  # say nothing for `seconds`, then close the connection
    RESET = "reset"  # reset the connection
    THROTTLE = "throttle"  # 429, and 429 for everything from that address until the minute (or `seconds`) is over
    NOT_FOUND = "not_found"  # 404 not_found for what exists
    CONFLICT = "conflict"  # 409, as for a delete under way
    UNAUTHORIZED = "unauthorized"  # 401, as for a revoked key
    LYING_DELETE = "lying_delete"  # 200 as for an accepted delete, and nothing happens
    # Before the request, which then goes its way.
    DELAY = "delay"  # wait `seconds` first
    ACCOUNT = "account"  # the key acts for `account`
    DROP_ROWS = "drop_rows"  # rows whose name fits `pattern` are missing; pages stay full
    # After the request, which was applied.
    APPLIED_STATUS = "applied_status"  # answer `status` (504 unless given) all the same
    APPLIED_LOST = "applied_lost"  # close the connection without an answer
    APPLIED_HANG = "applied_hang"  # say nothing for `seconds`, then close
    TRUNCATED = "truncated"  # promise the whole body, send half, close
    MALFORMED = "malformed"  # half a JSON document, as a whole answer
    NO_ID = "no_id"  # a create's answer without `id`
    SHRINK = "shrink"  # only the first `rows` rows of a page
    SHOW = "show"  # fields of a machine replaced by `fields` (`{"status": "WEIRD"}`, `{"labels": []}`)
    # On the machine that a create made.
    LIST_LAG = "list_lag"  # not in listings for `seconds`
    SLOW_BOOT = "slow_boot"  # ACTIVE after `seconds`
    STUCK = "stuck"  # in BUILD for ever
    BUILD_ERROR = "build_error"  # ERROR after `seconds` instead of ACTIVE
    STRIKE = "strike"  # `how` (die, shutoff, vanish) `seconds` after ACTIVE


INSTEAD = frozenset(
    {
        Effect.STATUS,
        Effect.HTML,
        Effect.HANG,
        Effect.RESET,
        Effect.THROTTLE,
        Effect.NOT_FOUND,
        Effect.CONFLICT,
        Effect.UNAUTHORIZED,
        Effect.LYING_DELETE,
    }
)
BEFORE = frozenset({Effect.DELAY, Effect.ACCOUNT, Effect.DROP_ROWS})
ON_MACHINE = frozenset({Effect.LIST_LAG, Effect.SLOW_BOOT, Effect.STUCK, Effect.BUILD_ERROR, Effect.STRIKE})


@dataclass(frozen=True, slots=True)
class Fault:
    """One rule. A request fits when method, path (regex searched in path and query) and name (regex searched in the
    body's `name` or the name of the machine addressed) fit; of the fitting ones it hits from the `nth` on,
    `times` times (0 = for ever), each with `probability`."""

    effect: Effect
    method: str = ""
    path: str = ""
    name: str = ""
    nth: int = 1
    times: int = 0
    probability: float = 1.0
    seed: int = 0
    status: int = 500
    body: object = None
    seconds: float = 0.0
    rows: int = 0
    pattern: str = ""
    account: str = ""
    how: str = "die"
    fields: Json = field(default_factory=dict)


def read_fault(body: Json) -> Fault:
    """A fault from JSON. Raises bad_request naming the field at fault."""
    known = {spec.name: spec for spec in dataclasses.fields(Fault)}
    for name in body:
        if name not in known:
            raise bad_request(f"a fault has no field {name!r}; known: {', '.join(known)}")
    try:
        values: Json = {**body, "effect": Effect(str(body.get("effect")))}
    except ValueError as error:
        raise bad_request(f"effect: one of {', '.join(Effect)}") from error
    sample = Fault(Effect.STATUS)
    for name, value in values.items():
        wanted = getattr(sample, name)
        if isinstance(wanted, float) and isinstance(value, int) and not isinstance(value, bool):
            values[name] = float(value)
        elif name not in ("effect", "body") and type(value) is not type(wanted):
            raise bad_request(f"{name}: {type(wanted).__name__} expected")
    for name in ("path", "name", "pattern"):
        try:
            re.compile(str(values.get(name, "")))
        except re.error as error:
            raise bad_request(f"{name}: not a regular expression: {error}") from error
    if values["effect"] is Effect.APPLIED_STATUS:
        values.setdefault("status", 504)
    return dataclasses.replace(sample, **values)  # type: ignore[arg-type]  # every value's type was compared above


@dataclass(slots=True)
class _Armed:
    id: int
    fault: Fault
    chance: random.Random
    seen: int = 0
    hits: int = 0

    def fits(self, method: str, path: str, name: str) -> bool:
        fault = self.fault
        return (
            fault.method.upper() in ("", method)
            and re.search(fault.path, path) is not None
            and re.search(fault.name, name) is not None
        )

    def strikes(self) -> bool:
        """Count one fitting request; tells whether it is hit."""
        self.seen += 1
        if self.seen < self.fault.nth or (self.fault.times and self.hits >= self.fault.times):
            return False
        if self.chance.random() >= self.fault.probability:
            return False
        self.hits += 1
        return True


class FaultBook:
    """The faults in force, in the order they were added."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []
        self._next_id = 0

    def add(self, fault: Fault) -> int:
        self._next_id += 1
        self._armed.append(_Armed(self._next_id, fault, random.Random(fault.seed)))
        return self._next_id

    def clear(self, fault_id: int | None = None) -> int:
        """Remove one fault, or all; returns how many were removed."""
        before = len(self._armed)
        self._armed = [armed for armed in self._armed if fault_id is not None and armed.id != fault_id]
        return before - len(self._armed)

    def hits(self, method: str, path: str, name: str) -> list[Fault]:
        """The faults that hit this request."""
        return [armed.fault for armed in self._armed if armed.fits(method, path, name) and armed.strikes()]

    def report(self) -> list[Json]:
        return [
            {"id": armed.id, "seen": armed.seen, "hits": armed.hits, **dataclasses.asdict(armed.fault)}
            for armed in self._armed
        ]
