"""The one reader of a provider account: it pages through the machine list and publishes snapshots.

Runs subscribe by machine name and are woken only when something about their machine changed. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import anyio
import structlog

from flashd.adapters.clock import Clock, Random
from flashd.core.blindness import Sight
from flashd.errors import AuthError, ForbiddenError, ProviderError, RateLimitedError, UnavailableError
from flashd.providers.base import Machine, Provider

AUTH_RETRY_S = 60.0  # a refused credential is tried again every 60 s (CONTRACT 8)
PASS_TIMEOUT_S = 300.0  # a list that takes longer counts as no answer; 10,000 machines need about 15 s
THROTTLE_MAX_S = 300.0  # a longer Retry-After is not believed
FIRST_PHASE_S = 1.0  # observers of several accounts do not start on the same instant
PERIOD_JITTER = 0.05
LEAST_SLACK_S = 60.0

log = structlog.get_logger(__name__)


class FleetProblem(StrEnum):
    """Why the last pass gave no list."""

    AUTH = "auth"
    FORBIDDEN = "forbidden"
    THROTTLED = "throttled"
    UNREACHABLE = "provider_unreachable"


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """One complete list of the namespace's machines; what is not in it was not listed. Times are Unix seconds.

    A name that the provider allows twice holds all its machines, in the provider's order.
    """

    provider: str
    sequence: int
    started_at: float
    completed_at: float
    by_name: Mapping[str, tuple[Machine, ...]]
    by_id: Mapping[str, Machine]
    foreign_ids: frozenset[str] = frozenset()  # only to be kept away from: an id that a create answered may be wrong


Look = tuple[tuple[str, str, str], ...]  # id, phase and raw status of all machines of one name


@dataclass(eq=False, slots=True)
class FleetSubscription:
    """Interest in one machine name. `close` ends it; closing twice is harmless."""

    name: str
    wake: Callable[[], None]
    closed: bool = False
    last_look: Look | None = None  # None: not told anything yet

    def close(self) -> None:
        self.closed = True

    def tell(self, snapshot: FleetSnapshot) -> None:
        """Wake when the machine looks different, or is missing."""
        look = tuple((m.id, str(m.phase), m.raw_status) for m in snapshot.by_name.get(self.name, ()))
        if not self.closed and (look != self.last_look or not look):
            self.last_look = look
            self.wake()


@dataclass(eq=False, slots=True)
class _Waiter:
    moment: float
    done: anyio.Event


class FleetObserver:
    """Lists one account for ever, never with more than one list in flight.

    `after_pass` hooks are called with every complete snapshot, in order, before the subscribers; they must not block.
    `owners` tells whose machines there are: under another account's key the list says nothing about them, so that none
    is published.
    """

    def __init__(
        self, provider: Provider, namespace: str, clock: Clock, random: Random, poll_interval_s: float
    ) -> None:
        self.after_pass: list[Callable[[FleetSnapshot], None]] = []
        self.owners: Callable[[], Collection[str]] = tuple
        self._provider = provider
        self._prefix = f"flash-{namespace}-"
        self._clock = clock
        self._random = random
        self._interval_s = poll_interval_s
        self._slack_s = max(LEAST_SLACK_S, 3 * poll_interval_s)
        self._sight = Sight(clock.now())
        self._snapshot: FleetSnapshot | None = None
        self._problem: FleetProblem | None = None
        self._problem_text = ""
        self._subscriptions: list[FleetSubscription] = []
        self._waiters: list[_Waiter] = []
        self._kick = anyio.Event()
        self._last_try_at: float | None = None

    @property
    def snapshot(self) -> FleetSnapshot | None:
        """The last complete pass; None before the first."""
        return self._snapshot

    @property
    def problem(self) -> FleetProblem | None:
        """What stopped the last pass; None after a complete one and before the first."""
        return self._problem

    @property
    def problem_text(self) -> str:
        """The provider's words of the last failure; "" after a complete pass."""
        return self._problem_text

    @property
    def last_pass_at(self) -> float | None:
        """When the last complete pass ended, for readiness."""
        return None if self._snapshot is None else self._snapshot.completed_at

    @property
    def last_try_at(self) -> float | None:
        """When the last pass began, complete or not: the loop turns."""
        return self._last_try_at

    @property
    def slack_s(self) -> float:
        """A complete list may be that old before the provider counts as unreadable."""
        return self._slack_s

    @property
    def longest_turn_s(self) -> float:
        """No pass takes longer, the pause after it included, unless the loop is stuck."""
        return (
            PASS_TIMEOUT_S + max(THROTTLE_MAX_S, AUTH_RETRY_S, self._interval_s * (1 + PERIOD_JITTER)) + LEAST_SLACK_S
        )

    @property
    def sight(self) -> Sight:
        """To be persisted by the daemon."""
        return self._sight

    def restore(self, sight: Sight) -> None:
        """Take over persisted blindness; before `run`."""
        self._sight = sight

    def blind_at(self, now: float) -> float:
        """Blind seconds of this provider up to `now`, the present outage included."""
        return self._sight.blind_at(now, self._slack_s)

    def subscribe(self, name: str, wake: Callable[[], None]) -> FleetSubscription:
        """`wake` is called after the first complete pass, after each in which the machine's id, phase, status or
        presence changed, and after each in which it is missing. It must not block."""
        subscription = FleetSubscription(name, wake)
        self._subscriptions.append(subscription)
        return subscription

    def retry_now(self) -> None:
        """End the present pause (SIGHUP, a new credential, a look wanted at once)."""
        self._kick.set()

    async def pass_after(self, moment: float) -> FleetSnapshot:
        """The first complete pass that started after `moment`; waits for as long as it takes."""
        while self._snapshot is None or self._snapshot.started_at <= moment:
            waiter = _Waiter(moment, anyio.Event())
            self._waiters.append(waiter)
            try:
                await waiter.done.wait()
            finally:
                self._waiters.remove(waiter)
        return self._snapshot

    async def run(self) -> None:
        """List until cancelled."""
        await self._pause(self._random.uniform(0.0, min(FIRST_PHASE_S, self._interval_s)))
        while True:
            started_at = self._last_try_at = self._clock.now()
            pause_s = await self._pass(started_at)
            await self._pause(max(0.0, pause_s - (self._clock.now() - started_at)))

    async def _pass(self, started_at: float) -> float:
        """One list; seconds from its start to the start of the next."""
        period_s = self._interval_s * self._random.uniform(1 - PERIOD_JITTER, 1 + PERIOD_JITTER)
        try:
            await self._check_account()
            machines = await self._list()
        except RateLimitedError as error:
            self._fail(FleetProblem.THROTTLED, error)
            answered_after_s = self._clock.now() - started_at
            return answered_after_s + max(period_s, min(error.retry_after_s, THROTTLE_MAX_S))
        except AuthError as error:
            self._fail(FleetProblem.AUTH, error)
            return AUTH_RETRY_S
        except ForbiddenError as error:
            self._fail(FleetProblem.FORBIDDEN, error)
            return AUTH_RETRY_S
        except ProviderError as error:
            self._fail(FleetProblem.UNREACHABLE, error)
            return max(period_s, self._clock.now() - started_at + period_s / 2)  # never back to back into an outage
        self._publish(self._snapshot_of(machines, started_at))
        return period_s

    async def _check_account(self) -> None:
        if not self.owners():
            return
        account = await self._provider.account()
        others = sorted(set(self.owners()) - {account})
        if others:
            raise AuthError(f"the key belongs to {account}, machines to {', '.join(others)}: put their key back", 0)

    async def _list(self) -> tuple[Machine, ...]:
        with anyio.move_on_after(PASS_TIMEOUT_S):
            return await self._provider.list()
        raise UnavailableError(f"no complete machine list within {PASS_TIMEOUT_S:.0f} s")

    def _fail(self, problem: FleetProblem, error: ProviderError) -> None:
        if problem is not self._problem:
            log.warning("fleet_unreadable", provider=self._provider.name, problem=problem, error=str(error))
        self._problem, self._problem_text = problem, str(error)

    def _snapshot_of(self, machines: tuple[Machine, ...], started_at: float) -> FleetSnapshot:
        ours = [machine for machine in machines if machine.name.startswith(self._prefix)]
        by_name: dict[str, tuple[Machine, ...]] = {}
        for machine in ours:
            by_name[machine.name] = (*by_name.get(machine.name, ()), machine)
        return FleetSnapshot(
            provider=self._provider.name,
            sequence=1 if self._snapshot is None else self._snapshot.sequence + 1,
            started_at=started_at,
            completed_at=self._clock.now(),
            by_name=MappingProxyType(by_name),
            by_id=MappingProxyType({machine.id: machine for machine in ours}),
            foreign_ids=frozenset(machine.id for machine in machines) - {machine.id for machine in ours},
        )

    def _publish(self, snapshot: FleetSnapshot) -> None:
        self._snapshot = snapshot
        if self._problem is not None:
            log.info("fleet_readable_again", provider=snapshot.provider, problem=self._problem)
        self._problem, self._problem_text = None, ""
        self._sight = self._sight.seen(snapshot.completed_at, self._slack_s)
        for hook in self.after_pass:
            hook(snapshot)
        for subscription in tuple(self._subscriptions):  # a woken run may close its own
            subscription.tell(snapshot)
        self._subscriptions = [subscription for subscription in self._subscriptions if not subscription.closed]
        for waiter in self._waiters:
            if snapshot.started_at > waiter.moment:
                waiter.done.set()

    async def _pause(self, seconds: float) -> None:
        """Wait, or until `retry_now`."""
        with anyio.move_on_after(seconds):
            await self._kick.wait()
        self._kick = anyio.Event()
