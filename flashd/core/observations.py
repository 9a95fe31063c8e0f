"""What the shell can tell the core. Absent, unreadable and not asked are different values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from flashd.core.ledger import Gone
from flashd.core.machines import Machine
from flashd.core.model import Claim, Reason
from flashd.core.places import Place, PlaceRefusal, RefusalKind
from flashd.core.policy import Policy


@dataclass(frozen=True, slots=True)
class Tick:
    """Everything a decision may look at besides the run: time, policy, blindness, proofs, one drop of chance."""

    now: float
    policy: Policy
    hub_blind: float = 0.0  # cumulative seconds without a readable repository
    cloud_blind: float = 0.0  # cumulative seconds without a complete listing
    silence_counts: bool = True  # False while the repository's commit budget is nearly spent
    gone: Mapping[str, Gone] = field(default_factory=dict)
    made_at: float | None = None  # last create at the attempt's provider that was answered with an id
    chance: float = 0.5  # uniform in [0, 1)


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Nothing but the time."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """This process has just become the run's keeper; a create call may have been in flight."""


@dataclass(frozen=True, slots=True)
class CancelAsked:
    by: str
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Granted:
    """Admission and placement: this place, now. `head` was read for this launch; `token` is new for this name."""

    place: Place
    name: str
    token: str
    head: str
    code_revision: str
    last_choice: bool = False


@dataclass(frozen=True, slots=True)
class MustWait:
    """No launch now, why, and what holds each place that could take the run."""

    reason: Reason
    places: tuple[PlaceRefusal, ...] = ()
    next_try_at: float | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class NoMoneyLeft:
    """No place that fits can be paid for 900 s from what is left of `max_usd`."""

    detail: str


@dataclass(frozen=True, slots=True)
class NowherePossible:
    """Refused for itself at three places, or everywhere it fits."""

    detail: str


@dataclass(frozen=True, slots=True)
class Made:
    """The create call was answered with an id."""

    machine_id: str


@dataclass(frozen=True, slots=True)
class RefusedForSure:
    """No machine was made. `itself`: the run is at fault, not the place's stock."""

    kind: RefusalKind
    text: str
    itself: bool


@dataclass(frozen=True, slots=True)
class NotSent:
    """The create call was not sent (the lease does not cover it, launches are paused): nothing was made."""

    text: str


@dataclass(frozen=True, slots=True)
class Throttled:
    """429: nothing was made; the same call may be sent again when the window is over."""

    retry_after_s: float


@dataclass(frozen=True, slots=True)
class NameTaken:
    """409 on our own name."""


@dataclass(frozen=True, slots=True)
class LaunchUnknown:
    """A machine may exist."""

    text: str


PostOutcome = Made | RefusedForSure | NotSent | Throttled | NameTaken | LaunchUnknown


@dataclass(frozen=True, slots=True)
class LookedUp:
    """A complete answer to a look-up by exact name."""

    machines: tuple[Machine, ...]


@dataclass(frozen=True, slots=True)
class LookUpFailed:
    """The provider did not answer: nothing is known."""


@dataclass(frozen=True, slots=True)
class FleetSeen:
    """The machine in a complete listing that began at `started_at`; None = not in it."""

    machine: Machine | None
    started_at: float


@dataclass(frozen=True, slots=True)
class MachineRead:
    """The answer to a GET of the machine; None = the provider proved that it does not exist."""

    machine: Machine | None


@dataclass(frozen=True, slots=True)
class MachineUnreadable:
    """The GET was not answered usably."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life of the present attempt: a commit title or a heartbeat file.

    `key` tells one heartbeat file from the next; "" for a title. `retriable` None: a title does not say.
    """

    stage: str
    step: int | None
    liveness: bool
    at: float  # commit time or when it was seen
    retriable: bool | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class ArtifactsRead:
    """Artifacts of an attempt, all pinned to one head that was asked for at `asked_at`.

    `claim` is None when neither a marker of this attempt nor a DONE that counts is there. `told`: the end of the error
    file that a worker uploaded for itself; "" when there is none, or nobody looked.
    """

    attempt: int
    head: str
    asked_at: float
    claim: Claim | None
    beats: tuple[Beat, ...] = ()
    fresh: bool = False
    told: str = ""


@dataclass(frozen=True, slots=True)
class HubUnreadable:
    """The Hub could not be read: nothing is known of the artifacts."""

    reason: Reason = Reason.HUB_UNREACHABLE
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LateSuccess:
    """An earlier attempt turned out to have succeeded."""

    attempt: int
    claim: Claim


@dataclass(frozen=True, slots=True)
class NoLateSuccess:
    """What the earlier attempts left was read; none of them succeeded."""


@dataclass(frozen=True, slots=True)
class ProvedGone:
    """A machine of this run is proved absent (the proof is in `Tick.gone`)."""

    name: str


class StoreRefusal(StrEnum):
    MAX_MACHINES = "max_machines"
    MAX_USD_PER_HOUR = "max_usd_per_hour"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class IntentRefused:
    """The store refused the intent: a limit of the namespace is reached, or a cancel is in."""

    why: StoreRefusal


Observation = (
    TimePassed
    | TakenOver
    | CancelAsked
    | Granted
    | MustWait
    | NoMoneyLeft
    | NowherePossible
    | Made
    | RefusedForSure
    | NotSent
    | Throttled
    | NameTaken
    | LaunchUnknown
    | LookedUp
    | LookUpFailed
    | FleetSeen
    | MachineRead
    | MachineUnreadable
    | ArtifactsRead
    | HubUnreadable
    | LateSuccess
    | NoLateSuccess
    | ProvedGone
    | IntentRefused
)
