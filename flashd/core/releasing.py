"""What the releaser owes to each ledger row, and when a run that has ended is rid of all its machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import assert_never

from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.core.model import Run


class Duty(StrEnum):
    """NONE: the row is its run's. HAND_OVER: turn it into `deleting`. RELEASE: delete until absence is proved.
    SETTLE: look the name up as an unknown launch. WATCH: delete at first sight."""

    NONE = "none"
    HAND_OVER = "hand_over"
    RELEASE = "release"
    SETTLE = "settle"
    WATCH = "watch"


class RunStanding(StrEnum):
    """UNCERTAIN: its coroutine is being started, nothing may be concluded."""

    ENDED = "ended"
    ACTIVE = "active"
    UNCERTAIN = "uncertain"


def duty(row: LedgerRow, standing: RunStanding, run: Run | None) -> Duty:
    """What has to be done about a row; `run` is the row's run while it is active."""
    match row.state:
        case RowState.DELETING:
            return Duty.RELEASE
        case RowState.ABANDONED:
            return Duty.WATCH
        case RowState.REQUESTED:
            # Under a requested name the machine belongs to its runner for as long as the run is active.
            return Duty.SETTLE if standing is RunStanding.ENDED else Duty.NONE
        case RowState.LIVE:
            if standing is RunStanding.ENDED:
                return Duty.HAND_OVER
            later = run is not None and (run.attempt is None or run.attempt.number != row.attempt)
            return Duty.HAND_OVER if standing is RunStanding.ACTIVE and later else Duty.NONE
        case _ as never:
            assert_never(never)


def names_of(run: Run) -> tuple[str, ...]:
    """Every machine name that the run asked for and that was not refused for sure, oldest first."""
    return tuple(attempt.name for attempt in run.attempts)


def held_by(run: Run, rows: Mapping[str, LedgerRow]) -> tuple[str, ...]:
    """Names that hold up `released`: those with a row that is not abandoned."""
    found = (rows.get(name) for name in names_of(run))
    return tuple(row.name for row in found if row is not None and row.state is not RowState.ABANDONED)


def final_proofs(run: Run, gone: Mapping[str, Gone], now: float) -> dict[str, Gone]:
    """The proofs that the final cost is made of: a name under which no machine was ever seen never existed."""
    never = {
        attempt.name: Gone(attempt.name, None, attempt.requested_at, now)
        for attempt in run.attempts
        if attempt.machine_id is None
    }
    return {**never, **gone}


def released(run: Run) -> Run:
    """The run as its `released` event leaves it."""
    return replace(run, sequence=run.sequence + 1)


def settles_at(row: LedgerRow, taken_over_at: float, settle_s: float, blind_s: float) -> float:
    """When an unknown launch counts as lost: counted from the later of its last create call and the takeover."""
    return max(row.called_at, taken_over_at) + settle_s + blind_s
