"""What all coroutines of a leading daemon share: store, clouds, watchers, lease, the ledger's mirror, alarms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from flashd.adapters.clock import Clock, Random
from flashd.adapters.hub import Hub
from flashd.adapters.store import Store
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.placement import Pause
from flashd.core.policy import Policy
from flashd.daemon.alarms import Alarms
from flashd.daemon.observer import FleetObserver
from flashd.daemon.places import PlaceBook
from flashd.daemon.watcher import Watchers
from flashd.providers.base import Provider


class Lease:
    """How long this process may still act as the leader, by its own monotonic clock."""

    def __init__(self, clock: Clock, margin_s: float) -> None:
        self._clock = clock
        self._margin_s = margin_s
        self._until = float("-inf")

    def extend(self, asked_at: float, ttl_s: float) -> None:
        """Redis granted `ttl_s` to a request that was sent at monotonic `asked_at`."""
        self._until = asked_at + ttl_s

    def drop(self) -> None:
        self._until = float("-inf")

    def covers(self, seconds: float) -> bool:
        """Whether an act of that length ends within the lease, margin included."""
        return self._clock.monotonic() + seconds + self._margin_s <= self._until

    @property
    def held(self) -> bool:
        return self.covers(0.0)


class Ledger:
    """The ledger as the leader, its only writer, knows it: loaded at takeover, then every answered write."""

    def __init__(self) -> None:
        self.rows: dict[str, LedgerRow] = {}
        self.loaded = False
        self.on_change: list[Callable[[str, LedgerRow | None], None]] = []

    def load(self, rows: Mapping[str, LedgerRow]) -> None:
        self.rows = dict(rows)
        self.loaded = True

    def apply(self, changes: Mapping[str, LedgerRow | None]) -> None:
        """What an answered write changed; None = the row went."""
        for name, row in changes.items():
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = row
            for hook in self.on_change:
                hook(name, row)

    def of_run(self, run_id: str) -> tuple[LedgerRow, ...]:
        return tuple(row for row in self.rows.values() if row.run_id == run_id)

    def counted(self) -> tuple[LedgerRow, ...]:
        """Rows that limits and dollars count: a machine may stand behind each."""
        return tuple(row for row in self.rows.values() if row.state is not RowState.ABANDONED)

    def accounts(self, provider: str) -> frozenset[str]:
        """Whose machines there may be at a provider."""
        rows = self.rows.values()
        return frozenset(
            row.account for row in rows if row.provider == provider and row.state is not RowState.ABANDONED
        )

    def in_state(self, state: RowState) -> tuple[LedgerRow, ...]:
        return tuple(row for row in self.rows.values() if row.state is state)


@dataclass(slots=True)
class Cloud:
    """One provider under one account, its only reader, and what holds its launches."""

    provider: Provider
    observer: FleetObserver
    account: str = ""
    pause: Pause | None = None
    made_at: float | None = None  # last create that was answered with an id
    on_takeover: Callable[[], None] = lambda: None  # the account's budget counts as spent

    async def is_of(self, account: str) -> bool:
        """Whether the present key belongs to `account`: under another one's nothing is proved. Raises ProviderError."""
        self.account = await self.provider.account()
        return self.account == account


@dataclass(frozen=True, slots=True)
class BootSettings:
    """What the daemon puts into every boot payload."""

    ns: str
    hub_endpoint: str
    box_token: Callable[[], str]
    first_commit_after_s: float
    commit_interval_s: float
    secret: Callable[[str], str | None]  # a run secret by name, None when there is none


@dataclass(frozen=True, slots=True)
class FleetLimits:
    max_machines: int
    max_usd_per_hour: float


class Tally(Protocol):
    """What is counted as it happens."""

    def launched(self, provider: str, result: str) -> None: ...
    def ended(self, outcome: str, reason: str) -> None: ...
    def spent(self, usd: float) -> None: ...


class NoTally:
    """Counts nothing."""

    def launched(self, provider: str, result: str) -> None:
        return None

    def ended(self, outcome: str, reason: str) -> None:
        return None

    def spent(self, usd: float) -> None:
        return None


@dataclass(slots=True)
class Desk:
    """Everything a run's coroutine and the daemon's loops work with."""

    ns: str
    owner: str
    policy: Policy
    limits: FleetLimits
    clock: Clock
    random: Random
    store: Store
    hub: Hub
    clouds: Mapping[str, Cloud]
    watchers: Watchers
    lease: Lease
    ledger: Ledger
    boot: BootSettings
    gpu_names: Mapping[str, str]  # every name and alias -> the catalogue's own name
    default_image: str
    alarms: Alarms
    tally: Tally = field(default_factory=NoTally)
    places: PlaceBook = field(default_factory=PlaceBook)
    safe_mode: str = ""  # why nothing may be launched or deleted; "" = normal
    draining: bool = False

    @property
    def short_owner(self) -> str:
        """Tells this process's event ids from those of an earlier leader."""
        return self.owner[:8]

    def draw_op_id(self) -> str:
        """A name for one write: a repeat under the same name answers what the first send did."""
        return self.random.randbytes(8).hex()
