"""The one reader of a provider account: it pages through the machine list and publishes snapshots.

Runs subscribe by machine name and are woken only when something about their machine changed. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import anyio

from flashd.adapters.clock import Clock, Random
from flashd.core.blindness import Sight
from flashd.errors import (
    AuthError,
    ForbiddenError,
    ProviderError,
    RateLimitedError,
    UnavailableError,
)
from flashd.providers.base import Machine, Provider

AUTH_RETRY_S = 60.0  # a refused credential is tried again every 60 s (CONTRACT 8)
PASS_TIMEOUT_S = 300.0  # a list that takes longer counts as no answer; 10,000 machines need about 15 s
FIRST_PHASE_S = 1.0  # observers of several accounts do not start on the same instant
LEAST_SLACK_S = 60.0


class FleetProblem(StrEnum):
    """Why the last pass gave no list."""

    AUTH = "auth"
    FORBIDDEN = "forbidden"
    THROTTLED = "throttled"
    UNREACHABLE = "provider_unreachable"


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One complete list of the namespace's machines; what is not in it was not listed. Times are Unix seconds.

    A name that the provider allows twice holds all its machines, oldest first.
    """

    provider: str
    sequence: int
    started_at: float
    completed_at: float
    by_name: Mapping[str, tuple[Machine, ...]]
    by_id: Mapping[str, Machine]


@dataclass(eq=False, slots=True)
class FleetSubscription:
    """Interest in one machine name. `close` ends it; closing twice is harmless."""

    name: str
    wake: Callable[[], None]
    _close: Callable[[FleetSubscription], None]
    _seen: tuple[tuple[str, str, str], ...] | None = None  # None: not told anything yet

    def close(self) -> None:
        self._close(self)


class FleetObserver:
    """Lists one account for ever, never with more than one list in flight.

    `after_pass` hooks are called with every complete snapshot, in order, before the subscribers; they must not block.
    """

    def __init__(
        self, provider: Provider, namespace: str, clock: Clock, random: Random, poll_interval_s: float
    ) -> None:
        self.after_pass: list[Callable[[FleetSnapshot], None]] = []
        raise NotImplementedError

    @property
    def snapshot(self) -> FleetSnapshot | None:
        """The last complete pass; None before the first."""
        raise NotImplementedError

    @property
    def problem(self) -> FleetProblem | None:
        """What stopped the last pass; None after a complete one and before the first."""
        raise NotImplementedError

    @property
    def problem_text(self) -> str:
        raise NotImplementedError

    @property
    def last_pass_at(self) -> float | None:
        """When the last complete pass ended, for readiness."""
        raise NotImplementedError

    @property
    def sight(self) -> Sight:
        """To be persisted by the daemon."""
        raise NotImplementedError

    def restore(self, sight: Sight) -> None:
        """Take over persisted blindness; before `run`."""

    def blind_at(self, now: float) -> float:
        """Blind seconds of this provider up to `now`."""
        raise NotImplementedError

    def subscribe(self, name: str, wake: Callable[[], None]) -> FleetSubscription:
        """`wake` is called after a complete pass in which the machine's id, phase, status or presence changed, and
        after every complete pass in which it is missing. It must not block."""
        raise NotImplementedError

    def retry_now(self) -> None:
        """End the present pause (SIGHUP, a new credential)."""

    async def pass_after(self, moment: float) -> FleetSnapshot:
        """The first complete pass that started after `moment`; waits for as long as it takes."""
        raise NotImplementedError

    async def run(self) -> None:
        """List until cancelled."""
        raise NotImplementedError
