"""The data of each event, one frozen type a name of the contract's section 4. Times: Unix seconds, None = absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue, SkipValidation, WithJsonSchema

STATES = ("queued", "launching", "booting", "setup", "training", "backoff", "succeeded", "failed", "cancelled")
WAITING_REASONS = (
    "no_capacity",
    "cooldown",
    "auth",
    "no_credit",
    "provider_unreachable",
    "hub_unreachable",
    "hub_forbidden",
    "hub_budget",
    "max_machines",
    "max_usd_per_hour",
    "draining",
    "ledger",
)
ATTEMPT_REASONS = (
    "job_preempted",
    "stalled",
    "never_active",
    "no_sign_of_life",
    "launch_unknown",
    "artifacts_unreadable",
)
FAILURE_REASONS = ("job_failed", *ATTEMPT_REASONS, "launch_refused", "deadline", "budget")
FAULTS = ("user", "infrastructure", "operator")


Instant = Annotated[float, WithJsonSchema({"type": "string", "format": "date-time"})]
State = Annotated[str, Field(json_schema_extra={"enum": list(STATES)})]
WaitingReason = Annotated[str, Field(json_schema_extra={"enum": list(WAITING_REASONS)})]
AttemptReason = Annotated[str, Field(json_schema_extra={"enum": list(ATTEMPT_REASONS)})]
FailureReason = Annotated[str, Field(json_schema_extra={"enum": list(FAILURE_REASONS)})]
Fault = Annotated[str, Field(json_schema_extra={"enum": list(FAULTS)})]
Evidence = Annotated[str, Field(json_schema_extra={"enum": ["marker", "done"]})]
CommitSha = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
AnyObject = Annotated[Mapping[str, JsonValue] | None, SkipValidation(), WithJsonSchema({"type": ["object", "null"]})]
Rows = Annotated[
    tuple[tuple[JsonValue, ...], ...], SkipValidation(), WithJsonSchema({"type": "array", "items": {"type": "array"}})
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place that was looked at and not taken. `text` is the provider's own words."""

    provider: str
    region: str
    gpu: str
    refusal: str
    text: str
    next_try: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSummary:
    """One attempt as terminal events list it. `commit` is the last one read for it."""

    attempt: int
    provider: str
    region: str
    gpu: str
    machine: str
    machine_id: str | None = None
    started: Instant | None = None
    ended: Instant | None = None
    reason: str | None = None
    cost_usd: float | None = None
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSummary:
    """A machine that was proved gone. `id` None: it never existed, or its id was never learnt."""

    name: str
    id: str | None
    created: Instant | None
    gone: Instant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Where the result is: `commit` is the one that was read."""

    repo: str
    prefix: str
    commit: CommitSha


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRef:
    """Where metrics are that do not fit into an event. `bytes` is the size of the file."""

    path: str
    commit: CommitSha
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventData:
    """What every event of a run says. `attempt` is None before the first intent."""

    NAME: ClassVar[str] = ""

    run_id: str
    phase: str
    seed: int
    attempt: int | None
    state: State
    group: str | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted(EventData):
    """The request is stored durably."""

    NAME: ClassVar[str] = "accepted"

    request_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(EventData):
    """Nothing can be launched now."""

    NAME: ClassVar[str] = "waiting"

    reason: WaitingReason
    places: tuple[Place, ...] = ()
    next_try: Instant | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching(EventData):
    """The intent is recorded; the create call comes next."""

    NAME: ClassVar[str] = "launching"

    machine: str
    provider: str
    region: str
    gpu: str
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Booting(EventData):
    """The machine's id is known."""

    NAME: ClassVar[str] = "booting"

    machine: str
    machine_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup(EventData):
    """The box has shown a first sign of life."""

    NAME: ClassVar[str] = "setup"

    stage: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(EventData):
    """The first step."""

    NAME: ClassVar[str] = "training"

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(EventData):
    """An attempt that had a machine ended; the run goes on."""

    NAME: ClassVar[str] = "attempt_failed"

    reason: AttemptReason
    detail: str
    retry_at: Instant | None
    attempts_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded(EventData):
    """Terminal. Give `metrics` and, so that they may be too large to be inlined, `metrics_ref`: one of them is sent."""

    NAME: ClassVar[str] = "succeeded"

    metrics: AnyObject
    metrics_ref: MetricsRef | None = None
    artifacts: Artifacts
    attempts: tuple[AttemptSummary, ...]
    cost_usd: float | None
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(EventData):
    """Terminal."""

    NAME: ClassVar[str] = "failed"

    reason: FailureReason
    detail: str
    fault: Fault
    attempts: tuple[AttemptSummary, ...]
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(EventData):
    """Terminal. `by` and `reason` are those of the command."""

    NAME: ClassVar[str] = "cancelled"

    by: str | None
    reason: str | None
    attempts: tuple[AttemptSummary, ...]
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(EventData):
    """Every machine of the run is proved gone; the cost is final."""

    NAME: ClassVar[str] = "released"

    machines: tuple[MachineSummary, ...]
    cost_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress(EventData):
    """A newer heartbeat's numbers. Rows of `history` are `[ts, step, loss, learning_rate]` as the box wrote them."""

    NAME: ClassVar[str] = "progress"

    stage: str | None
    step: int | None
    heartbeat_age_s: float
    epoch: float | None = None
    loss: float | None = None
    reward: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None
    setup_seconds: float | None = None
    train_wall: float | None = None
    gpu: AnyObject = None
    history: Rows = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRejected:
    """A request that was not taken; in `events` only. `entry_id` is its id in the requests stream."""

    NAME: ClassVar[str] = "rejected"

    entry_id: str
    run_id: str | None
    reason: str
    detail: str


RUN_EVENTS: tuple[type[EventData], ...] = (
    Accepted,
    Waiting,
    Launching,
    Booting,
    Setup,
    Training,
    AttemptFailed,
    Succeeded,
    Failed,
    Cancelled,
    Released,
    Progress,
)
