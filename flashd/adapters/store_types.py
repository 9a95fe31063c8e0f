"""What goes into the store and what it answers: plain values, no Redis. Times are Unix seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flashd.core.ledger import LedgerRow

GROUP = "flashd"
MAX_BLOCK_MS = 5000

# Contract, section 5: every field exists from acceptance; unset = empty string.
RUN_FIELDS = (
    "state", "sequence", "attempt", "attempts_used", "request", "request_sha256", "accepted_at", "updated_at",
    "finished_at", "released", "machine", "machine_id", "provider", "region", "gpu", "usd_per_hour", "cost_usd",
    "reason", "detail", "stage", "step", "heartbeat_at", "metrics", "last_event_id", "pending", "cancel_requested_at",
)  # fmt: skip


class Source(StrEnum):
    """The two streams that the group `flashd` consumes."""

    REQUESTS = "requests"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Token:
    """What a leader shows with every write: its process's random id and the fence it was given.

    The store shows its newest one, so work begun under an earlier fence must have been stopped before leading again.
    """

    owner: str
    fence: int


@dataclass(frozen=True, slots=True)
class EventOut:
    """One event to append: the CloudEvents envelope as JSON text and its flat copies, in stream order.

    A run's event carries the flat copies id, type, run_id, sequence, state; `request.rejected` only id and type.
    """

    envelope: str
    flat: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Write:
    """One atomic step of one run: state, events and ledger rows together.

    `expect` is the version that the caller decided on; `op_id` is drawn once per step and sent again unchanged when no
    answer came (the repeat answers what the first send did). `fields` are changes of the public run hash (the script
    sets `last_event_id` itself; `state`, `sequence`, `updated_at` are the caller's). `core` is the new private state as
    JSON. `events` must continue the run's sequence without a gap. `rows` sets ledger rows (None = the row goes); a row
    that is already gone stays gone. `progress` events go to the stream `progress` in the same step.
    """

    run_id: str
    expect: int
    op_id: str
    core: str
    fields: Mapping[str, str] = field(default_factory=dict)
    events: tuple[EventOut, ...] = ()
    rows: Mapping[str, LedgerRow | None] = field(default_factory=dict)
    progress: tuple[EventOut, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """The step is durable. `rows` are the rows it changed as they stand now; None = removed."""

    version: int
    last_event_id: str
    rows: Mapping[str, LedgerRow | None] = field(default_factory=dict)


class IntentWhy(StrEnum):
    """Why an intent was not recorded; nothing was written."""

    MAX_MACHINES = "limit:max_machines"
    MAX_USD_PER_HOUR = "limit:max_usd_per_hour"
    CANCELLED = "cancelled"
    NAME_USED = "name_used"


@dataclass(frozen=True, slots=True)
class IntentRefused:
    """The intent was not recorded, so no machine may be asked for."""

    why: IntentWhy


class RowFate(StrEnum):
    """What became of a ledger row, as far as its maker must know."""

    REQUESTED = "requested"
    LIVE = "live"
    DELETING = "deleting"
    ABANDONED = "abandoned"
    GONE = "gone"


class ConfirmWhy(StrEnum):
    """FENCED: another daemon leads. STALE, ENDED: the run moved on. MOVED: the row is not `requested` any more."""

    FENCED = "fenced"
    STALE = "stale"
    ENDED = "ended"
    MOVED = "moved"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class ConfirmRefused:
    """The machine is not this run's. Its maker deletes it only if `row` is ABANDONED or GONE: any other row is in the
    hands of the leader (a row found `requested` by a confirm of the leader was turned into `deleting` by it)."""

    why: ConfirmWhy
    row: RowFate


@dataclass(frozen=True, slots=True)
class StillHeld:
    """`released` was refused: these names still have a row that is not `abandoned`."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accept:
    """A parsed request to make durable. `entry_id` "" = not from the stream. `fields` are the public hash fields (the
    missing ones become empty); `core` the private state; `event` the `accepted` event, sequence 1."""

    op_id: str
    entry_id: str
    run_id: str
    hash10: str
    sha: str
    accepted_at: float
    core: str
    fields: Mapping[str, str]
    event: EventOut


class AcceptWord(StrEnum):
    """ACCEPTED and DUPLICATE acked and deleted the entry. CONFLICT and HASH_TAKEN wrote nothing: call `reject` next."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    HASH_TAKEN = "hash_taken"


@dataclass(frozen=True, slots=True)
class AcceptAnswer:
    """`last_event_id`: the run's newest event (of the remembered run for a duplicate). `cancelled`: a cancel that came
    first has been attached. `other_run_id`: who holds the name hash, for HASH_TAKEN."""

    word: AcceptWord
    last_event_id: str = ""
    cancelled: bool = False
    other_run_id: str = ""


@dataclass(frozen=True, slots=True)
class Rejection:
    """An entry for the stream `rejected`, and for a request its event. `request` None when it may hold a secret."""

    source: Source
    entry_id: str
    reason: str
    detail: str
    time: float
    run_id: str | None = None
    request: str | None = None
    event: EventOut | None = None


class RejectWord(StrEnum):
    """GONE: the entry is no longer in its stream (taken by an earlier leader, or trimmed): nothing was written."""

    REJECTED = "rejected"
    GONE = "gone"


class CancelWord(StrEnum):
    """FLAGGED by this command, ALREADY by an earlier one, ENDED: too late, REMEMBERED 24 h for a run not yet seen."""

    FLAGGED = "flagged"
    ALREADY = "already"
    ENDED = "ended"
    REMEMBERED = "remembered"


class GoneWord(StrEnum):
    """GONE: the row was removed (now or by an earlier send). ABSENT: no row. OTHER_ID: it holds another machine."""

    GONE = "gone"
    ABSENT = "absent"
    OTHER_ID = "other_id"


@dataclass(frozen=True, slots=True)
class Marked:
    """`done` False: the row was not in the expected state. `row` is the row as it stands (None = gone)."""

    done: bool
    row: LedgerRow | None


@dataclass(frozen=True, slots=True)
class Led:
    """This process leads under `fence`; `fresh` = it did not know this fence before (a takeover)."""

    fence: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Held:
    """Another process leads; its lease runs `remaining_ms` more of the server's milliseconds."""

    remaining_ms: int
    holder: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry read from a consumed stream. `payload` None = the field `request` or `command` is missing.
    `deliveries` counts this one: 1 = first time."""

    source: Source
    entry_id: str
    payload: bytes | None
    deliveries: int


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as stored: `core` is its private state JSON, `fields` the whole run hash."""

    run_id: str
    version: int
    core: str
    fields: Mapping[str, str]

    @property
    def request(self) -> str:
        return self.fields.get("request", "")

    @property
    def released(self) -> bool:
        """Every machine of it is proved gone."""
        return self.fields.get("released") == "1"


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One entry of a stream that is only read."""

    entry_id: str
    fields: Mapping[str, str]


class Notes(StrEnum):
    """Small private maps, text to JSON text, that must outlive the daemon."""

    BLIND = "blind"
    PLACES = "places"


@dataclass(frozen=True, slots=True)
class Totals:
    """The ledger's rows that are not `abandoned`, and their dollars per hour."""

    machines: int
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the start-up check looks at. None = the server does not tell (an embedded one has no INFO)."""

    version: tuple[int, ...] | None
    aof: bool | None
    appendfsync: str | None
    maxmemory_policy: str | None
    role: str | None
    replid: str | None
    time: float
    last_generated_id: str | None
    first_entry_id: str | None
    runs_empty: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """One fault that `repair` found. `what` says what was fixed, or what could not be."""

    subject: str
    what: str
