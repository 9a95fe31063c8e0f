"""What is known of a run: its terms, its attempts, its state. Values only; everything here survives a restart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashd.core.places import Place, PlaceRefusal


class State(StrEnum):
    """The run's states as subscribers see them."""

    QUEUED = "queued"
    LAUNCHING = "launching"
    BOOTING = "booting"
    SETUP = "setup"
    TRAINING = "training"
    BACKOFF = "backoff"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class Reason(StrEnum):
    """Why an attempt or a run ended, or why a run waits."""

    JOB_FAILED = "job_failed"
    JOB_PREEMPTED = "job_preempted"
    STALLED = "stalled"
    NEVER_ACTIVE = "never_active"
    NO_SIGN_OF_LIFE = "no_sign_of_life"
    LAUNCH_UNKNOWN = "launch_unknown"
    LAUNCH_REFUSED = "launch_refused"
    ARTIFACTS_UNREADABLE = "artifacts_unreadable"
    DEADLINE = "deadline"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    # reasons of `waiting` only
    NO_CAPACITY = "no_capacity"
    COOLDOWN = "cooldown"
    AUTH = "auth"
    NO_CREDIT = "no_credit"
    PROVIDER_UNREACHABLE = "provider_unreachable"
    HUB_UNREACHABLE = "hub_unreachable"
    HUB_FORBIDDEN = "hub_forbidden"
    HUB_BUDGET = "hub_budget"
    MAX_MACHINES = "max_machines"
    MAX_USD_PER_HOUR = "max_usd_per_hour"
    DRAINING = "draining"
    LEDGER = "ledger"


class Fault(StrEnum):
    """Whose fault an end is."""

    USER = "user"
    INFRASTRUCTURE = "infrastructure"
    OPERATOR = "operator"


class AttemptPhase(StrEnum):
    """REQUESTED: intent stored. UNKNOWN: the create call's outcome is not known. LIVE: the machine's id is known."""

    REQUESTED = "requested"
    UNKNOWN = "unknown"
    LIVE = "live"


@dataclass(frozen=True, slots=True)
class Terms:
    """What of the request the decisions need; fixed at acceptance."""

    run_id: str
    phase: str
    seed: int
    mode: str
    repo: str
    prefix: str
    max_wall_s: float
    max_attempts: int
    priority: int
    max_usd: float | None = None
    deadline_s: float | None = None
    gpu_classes: tuple[str, ...] = ()
    min_vram_gb: float | None = None
    min_disk_gb: float | None = None
    min_ram_gb: float | None = None
    max_usd_per_hour: float | None = None
    providers: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    exclude_regions: tuple[str, ...] = ()
    spot: bool = False


class MetricsState(StrEnum):
    """What a read of metrics.json beside a claimed success told."""

    UNASKED = "unasked"
    PRESENT = "present"
    ABSENT = "absent"  # proved absent, or no JSON object
    UNREADABLE = "unreadable"


class Evidence(StrEnum):
    """What the worker said its end with: its marker, or DONE without one."""

    MARKER = "marker"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Claim:
    """The worker's own word on its end."""

    evidence: Evidence
    ok: bool
    commit: str
    seen_at: float
    retriable: bool = False
    error: str = ""
    exit_code: int | None = None
    metrics: MetricsState = MetricsState.UNASKED
    read_at: float = 0.0  # the last answered read of it
    unread_s: float = 0.0  # how long answers have shown it with metrics that cannot be read


MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Trouble:
    """The provider shows the machine dead or not at all. Honoured only when `confirmed` by a GET of its own."""

    status: str  # MISSING or the provider's raw status
    since: float
    passes: int = 1
    confirmed: bool = False
    asked_at: float | None = None  # the last GET that should confirm it


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A rule about the host has fired; it counts only on artifacts read freshly after `since`, twice."""

    reason: Reason
    detail: str
    since: float
    reads: int = 0
    read_at: float | None = None  # the first of these reads
    told: str = ""  # the worker's own error file, as those reads found it


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try on one machine, from the intent on. `head` is the repository's head recorded with the intent ("" = none).

    The `*_blind_*` fields are the cumulative blind seconds of a source when the anchor beside them was set.
    """

    number: int
    name: str
    token: str
    place: Place
    head: str
    requested_at: float
    deadline_at: float
    deadline_reason: Reason
    phase: AttemptPhase = AttemptPhase.REQUESTED
    posted_at: float | None = None  # the last create call, None = at the intent
    resend_at: float | None = None  # after a 429: when the same call may be sent again
    settle_from: float | None = None
    settle_blind_cloud: float = 0.0
    last_choice: bool = False
    machine_id: str | None = None
    created_blind_cloud: float = 0.0
    created_blind_hub: float = 0.0
    live_at: float | None = None
    active_at: float | None = None
    active_blind_hub: float = 0.0
    first_sign_at: float | None = None
    stage: str = ""
    step: int | None = None
    training_at: float | None = None
    progress_at: float | None = None
    progress_blind_hub: float = 0.0
    heartbeat_at: float | None = None
    beat_key: str = ""  # the last heartbeat file taken in; the same one read again is no news
    retriable: bool = False  # the worker's last heartbeat said so
    released: bool = False  # the machine is on its way out while the outcome waits for the Hub
    trouble: Trouble | None = None
    suspicion: Suspicion | None = None
    claim: Claim | None = None

    @property
    def called_at(self) -> float:
        """The (last) create call."""
        return self.posted_at if self.posted_at is not None else self.requested_at


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that is over. `machine_id` None: no machine was ever seen. `refunded`: it does not count as used."""

    number: int
    name: str
    token: str
    place: Place
    head: str
    requested_at: float
    ended_at: float
    reason: Reason
    detail: str
    machine_id: str | None
    commit: str = ""
    refunded: bool = False


@dataclass(frozen=True, slots=True)
class Doom:
    """Why a run without an attempt will fail, unless an earlier attempt turns out to have succeeded."""

    reason: Reason
    detail: str
    since: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why the run cannot launch now."""

    reason: Reason
    places: tuple[PlaceRefusal, ...] = ()
    next_try_at: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class End:
    """The run's terminal word."""

    state: State
    reason: Reason | None
    detail: str
    at: float
    evidence: str = ""
    commit: str = ""
    attempt: int | None = None


@dataclass(frozen=True, slots=True)
class Refusals:
    """Places that refused this very run for itself, and those that refused it for want of stock until a time."""

    itself: tuple[str, ...] = ()
    cooling: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """A run, whole. `sequence` is that of the last event; `next_number` the next machine name's number."""

    terms: Terms
    accepted_at: float
    state: State = State.QUEUED
    sequence: int = 0
    next_number: int = 0
    attempts_used: int = 0
    attempt: Attempt | None = None
    history: tuple[PastAttempt, ...] = ()
    code_revision: str = ""
    retry_at: float | None = None
    waiting: Waiting | None = None
    cancel: CancelRequest | None = None
    doom: Doom | None = None
    refusals: Refusals = Refusals()
    avoid: tuple[str, ...] = ()  # sites of infrastructure failures, newest last
    end: End | None = None

    @property
    def is_over(self) -> bool:
        return self.state in TERMINAL

    @property
    def attempts(self) -> tuple[PastAttempt | Attempt, ...]:
        """Those that are over and the present one, oldest first."""
        return (*self.history, self.attempt) if self.attempt is not None else self.history

    @property
    def deadline_at(self) -> float | None:
        """When `deadline_s` is over; None without one."""
        deadline_s = self.terms.deadline_s
        return None if deadline_s is None else self.accepted_at + deadline_s

    @property
    def attempts_left(self) -> int:
        return max(0, self.terms.max_attempts - self.attempts_used)

    @property
    def last_number(self) -> int | None:
        """The number of the newest intent, None before the first."""
        if self.attempt is not None:
            return self.attempt.number
        return self.next_number - 1 if self.next_number else None
