"""What flashd needs of a GPU cloud: one Protocol, its values, and what differs between clouds as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from flashd.core.machines import Machine, MachinePhase
from flashd.core.places import Offer, Place, PlaceRefusal

__all__ = [
    "Capabilities",
    "Credit",
    "DeleteAnswer",
    "LaunchOrder",
    "Launched",
    "Machine",
    "MachinePhase",
    "Provider",
    "Stock",
]


class DeleteAnswer(StrEnum):
    """What a delete call was answered. None of them proves absence."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    NOT_FOUND = "not_found"


@dataclass(frozen=True, slots=True)
class Stock:
    """What can be rented now. `refusals`: places that cannot be used, and why (no image, no key, blocked)."""

    offers: tuple[Offer, ...]
    refusals: tuple[PlaceRefusal, ...]
    read_at: float


@dataclass(frozen=True, slots=True)
class Credit:
    """The account's money; `can_create` is the provider's own word, None when it does not say."""

    balance_usd: float | None
    can_create: bool | None


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What differs between clouds, as data."""

    name_max: int
    names_unique: bool
    boot_bytes_max: int
    storage_attach: str  # "after_running" | "at_launch" | "none"
    labels: bool
    console_log: bool
    extra_usd_per_hour: float = 0.0  # public address and the like, added to every machine


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """One create call. Sent once; the same order again only after a 429."""

    name: str
    place: Place
    user_data: str = field(repr=False)
    labels: tuple[str, ...] = ()
    timeout_s: float = 30.0
    volume: str = ""  # logical cache volume; "" = cold
    # Called right before the POST, after every wait for the budget; what it raises means that nothing was sent.
    guard: Callable[[], None] | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Launched:
    """A create call's good answer."""

    machine_id: str
    raw: dict[str, str] = field(default_factory=dict)


class Provider(Protocol):
    """A GPU cloud under one account. All calls go through its limiter and map every answer to `flashd.errors`.

    Every method may raise RateLimitedError, AuthError, ForbiddenError or UnavailableError.
    """

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    async def account(self) -> str:
        """A stable id of the account that the credential belongs to."""

    async def stock(self, *, fresh: bool = False) -> Stock:
        """What can be rented, with live prices. `fresh` bypasses the short cache."""

    async def launch(self, order: LaunchOrder) -> Launched:
        """POST once, never repeated inside.

        Raises CapacityError, NoCreditError, ForbiddenError, RejectedError (nothing was made), RateLimitedError
        (nothing was made, may be sent again), NameTakenError, AmbiguousLaunchError (a machine may exist), AuthError;
        NotSentError when a read before the POST failed or no connection was made, and what `order.guard` raises.
        """

    async def find(self, name: str) -> tuple[Machine, ...]:
        """Machines of exactly this name, oldest first; complete or raises. Uses the confirm lane."""

    async def get(self, machine_id: str) -> Machine | None:
        """One machine. None only when the provider proves that it does not exist. Uses the confirm lane."""

    async def list(self) -> tuple[Machine, ...]:
        """Every machine of the account, all pages, de-duplicated by id; complete or raises UnavailableError."""

    async def delete(self, machine_id: str) -> DeleteAnswer:
        """Ask for deletion. Uses the delete lane."""

    async def console_log(self, machine_id: str) -> str:
        """The machine's serial console, for boot failures; "" where the cloud has none."""

    async def credit(self) -> Credit: ...
