"""What the releaser owes to a row, and what holds a run up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.cost import run_cost
from flashd.core.launching import row_of
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.core.model import PastAttempt, Reason, Run
from flashd.core.releasing import Duty, RunStanding, duty, final_proofs, held_by, names_of, released, settles_at
from tests.core.kit import H100, T0, attempt_of, booting, launching

ENDED, ACTIVE, UNCERTAIN = RunStanding.ENDED, RunStanding.ACTIVE, RunStanding.UNCERTAIN


def row(state: RowState, attempt: int = 0) -> LedgerRow:
    run = booting()
    return replace(row_of(run, attempt_of(run)), state=state, attempt=attempt)


def lost_one(run: Run, machine_id: str | None) -> Run:
    """The run with an earlier attempt numbered 0; its present one is number 1."""
    earlier = PastAttempt(0, "m0", "t", H100, "", T0, T0 + 600, Reason.LAUNCH_UNKNOWN, "", machine_id)
    return replace(run, history=(earlier,), attempt=replace(attempt_of(run), number=1, name="m1"))


@pytest.mark.parametrize(
    ("state", "standing", "number", "expected"),
    [
        (RowState.DELETING, ENDED, None, Duty.RELEASE),
        (RowState.DELETING, ACTIVE, 0, Duty.RELEASE),
        (RowState.DELETING, UNCERTAIN, None, Duty.RELEASE),
        (RowState.ABANDONED, ACTIVE, 1, Duty.WATCH),
        (RowState.ABANDONED, ENDED, None, Duty.WATCH),
        (RowState.ABANDONED, UNCERTAIN, None, Duty.WATCH),
        (RowState.REQUESTED, ACTIVE, 0, Duty.NONE),
        (RowState.REQUESTED, ACTIVE, 1, Duty.NONE),
        (RowState.REQUESTED, UNCERTAIN, None, Duty.NONE),
        (RowState.REQUESTED, ENDED, None, Duty.SETTLE),
        (RowState.LIVE, ACTIVE, 0, Duty.NONE),
        (RowState.LIVE, ACTIVE, 1, Duty.HAND_OVER),
        (RowState.LIVE, ACTIVE, -1, Duty.HAND_OVER),
        (RowState.LIVE, UNCERTAIN, None, Duty.NONE),
        (RowState.LIVE, ENDED, None, Duty.HAND_OVER),
    ],
)
def test_what_is_owed_to_a_row(state: RowState, standing: RunStanding, number: int | None, expected: Duty) -> None:
    run = booting()
    if number is None:
        active = None
    elif number < 0:
        active = replace(run, attempt=None)
    else:
        active = replace(run, attempt=replace(attempt_of(run), number=number))
    assert duty(row(state), standing, active) is expected


def test_abandoned_names_do_not_hold_a_run_up_and_all_others_do() -> None:
    run = lost_one(booting(), None)
    assert names_of(run) == ("m0", "m1")
    rows = {"m0": replace(row(RowState.ABANDONED), name="m0"), "m1": replace(row(RowState.DELETING), name="m1")}
    assert held_by(run, rows) == ("m1",)
    assert held_by(run, {"m0": rows["m0"], "other": rows["m1"]}) == ()
    assert held_by(replace(run, attempt=None), rows) == ()


def test_a_name_without_a_machine_costs_nothing_and_a_late_proof_with_one_counts() -> None:
    run = lost_one(launching(), None)
    proofs = final_proofs(run, {}, T0 + 3600)
    cost = run_cost(run, proofs, T0 + 3600)
    assert (cost.usd, cost.final) == (0.0, True)
    seen = {"m0": Gone("m0", "9", T0, T0 + 3600)}
    cost = run_cost(run, final_proofs(run, seen, T0 + 7200), T0 + 7200)
    assert (cost.usd, cost.final) == (2.5, True)


def test_a_machine_without_proof_keeps_its_cost_open() -> None:
    run = booting()
    assert final_proofs(run, {}, T0 + 60) == {}
    assert not run_cost(run, final_proofs(run, {}, T0 + 60), T0 + 60).final


def test_a_run_without_attempts_has_no_names() -> None:
    run = replace(booting(), attempt=None)
    assert (names_of(run), final_proofs(run, {}, T0)) == ((), {})


def test_released_is_one_more_event() -> None:
    run = booting()
    assert released(run) == replace(run, sequence=run.sequence + 1)


@pytest.mark.parametrize(
    ("posted_at", "taken_over_at", "blind_s", "over_at"),
    [
        (None, T0 - 500, 0.0, T0 + 120),
        (T0 + 40, T0 - 500, 0.0, T0 + 160),
        (T0 + 40, T0 + 900, 0.0, T0 + 1020),
        (None, T0 - 500, 300.0, T0 + 420),
    ],
)
def test_settling_counts_from_the_later_of_last_call_and_takeover(
    posted_at: float | None, taken_over_at: float, blind_s: float, over_at: float
) -> None:
    requested = replace(row(RowState.REQUESTED), requested_at=T0, posted_at=posted_at)
    assert settles_at(requested, taken_over_at, 120.0, blind_s) == over_at
