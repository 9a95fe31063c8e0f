"""What the core asks of the shell: one durable step first, then effects. The shell decides nothing of its own."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from flashd.core.ledger import LedgerRow
from flashd.core.model import Run


class EventKind(StrEnum):
    """Names of events; their data is derived from the run."""

    ACCEPTED = "accepted"
    WAITING = "waiting"
    LAUNCHING = "launching"
    BOOTING = "booting"
    SETUP = "setup"
    TRAINING = "training"
    ATTEMPT_FAILED = "attempt_failed"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RELEASED = "released"


class SaveKind(StrEnum):
    """Which script carries the step."""

    TRANSITION = "transition"
    INTENT = "intent"
    CONFIRM = "confirm"
    REQUEUE = "requeue"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class Save:
    """One atomic step in Redis. `rows`: ledger changes (None = the row goes). `release`: live rows turn deleting."""

    kind: SaveKind
    event: EventKind | None = None
    rows: tuple[tuple[str, LedgerRow | None], ...] = ()
    release: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskPlace:
    """Ask admission and placement for a place; answered by Granted, MustWait, NoMoneyLeft or NowherePossible."""


@dataclass(frozen=True, slots=True)
class StopAsking:
    """The run no longer wants a place."""


@dataclass(frozen=True, slots=True)
class Post:
    """Send the create call of the present attempt, once."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look the present attempt's name up."""


@dataclass(frozen=True, slots=True)
class ReadMachine:
    """GET the present attempt's machine."""


@dataclass(frozen=True, slots=True)
class ReadArtifacts:
    """Read the present attempt's terminal artifacts at a head asked for from now on."""


@dataclass(frozen=True, slots=True)
class LookForLateSuccess:
    """Read the earlier attempts' markers at a fresh head; answered by LateSuccess, NoLateSuccess or HubUnreadable."""


Act = AskPlace | StopAsking | Post | LookUp | ReadMachine | ReadArtifacts | LookForLateSuccess


@dataclass(frozen=True, slots=True)
class Decision:
    """The run as it will be once `save` is durable, then the effects, then when to look again (Unix seconds)."""

    run: Run
    save: Save | None = None
    acts: tuple[Act, ...] = ()
    wake_at: float | None = None
