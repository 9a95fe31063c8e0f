"""A run without an attempt: when it asks, why it waits, and that it never ends before a last look at what was paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.actions import AskPlace, Decision, EventKind, LookForLateSuccess, Post, Save, SaveKind, StopAsking
from flashd.core.ending import conclude
from flashd.core.lifecycle import decide
from flashd.core.model import CancelRequest, Doom, Reason, Run, State, Waiting
from flashd.core.observations import (
    CancelAsked,
    HubUnreadable,
    IntentRefused,
    LateSuccess,
    MustWait,
    NoLateSuccess,
    NoMoneyLeft,
    NowherePossible,
    Observation,
    ProvedGone,
    StoreRefusal,
    TakenOver,
    TimePassed,
)
from flashd.core.places import PlaceRefusal, RefusalKind
from flashd.core.verdicts import Failure
from tests.core.kit import T0, a_run, attempt_of, claim, gone, granted, tick, training

LOST_AT = T0 + 2000
NAME = "flash-t-r1-aaaaaaaaaa-a0"
CANCEL = CancelAsked("me", "wrong data", T0 + 2500)


def backoff(**changes: object) -> Run:
    """A run whose first machine was lost at LOST_AT."""
    run = training(T0, **changes)
    return conclude(run, attempt_of(run), Failure(Reason.JOB_PREEMPTED, "lost"), tick(LOST_AT)).run


def tell(run: Run, seen: Observation, at: float = T0 + 5, **changes: object) -> Decision:
    return decide(run, seen, tick(at, **changes))


# When it asks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [TimePassed(), TakenOver(), ProvedGone(NAME), NoLateSuccess()])
def test_a_run_that_may_launch_asks_for_a_place(seen: Observation) -> None:
    run = a_run()
    assert tell(run, seen) == Decision(run, acts=(AskPlace(),))
    assert tell(a_run(deadline_s=900.0), seen).wake_at == T0 + 900


def test_a_back_off_is_waited_out() -> None:
    run = backoff()
    proofs = gone(run, NAME, LOST_AT + 5)
    waits = tell(run, TimePassed(), LOST_AT + 10, gone=proofs)
    assert (waits.acts, waits.wake_at) == ((StopAsking(),), LOST_AT + 30)
    assert tell(run, TimePassed(), LOST_AT + 30, gone=proofs).acts == (AskPlace(),)


def test_scenario_9_the_next_attempt_waits_for_the_proof_that_the_machine_is_gone_but_not_for_ever() -> None:
    run = backoff()
    waits = tell(run, TimePassed(), LOST_AT + 100)
    assert (waits.acts, waits.wake_at) == ((StopAsking(),), LOST_AT + 600)
    proved = tell(run, ProvedGone(NAME), LOST_AT + 100, gone=gone(run, NAME, LOST_AT + 99))
    assert proved.acts == (AskPlace(),)
    assert tell(run, TimePassed(), LOST_AT + 600).acts == (AskPlace(),)


def test_a_place_that_comes_too_early_is_not_taken() -> None:
    early = tell(backoff(), granted(number=1), LOST_AT + 100)
    assert (early.run.attempt, early.acts) == (None, (StopAsking(),))


def test_a_machine_that_never_was_holds_nothing_up() -> None:
    run = backoff()
    never = replace(run, history=(replace(run.history[0], machine_id=None),))
    assert tell(never, TimePassed(), LOST_AT + 30).acts == (AskPlace(),)


def test_the_next_number_is_used_after_a_back_off() -> None:
    run = backoff()
    decision = tell(run, granted(number=1), LOST_AT + 60, gone=gone(run, NAME, LOST_AT + 5))
    assert decision.acts == (Post(),)
    assert (attempt_of(decision.run).number, decision.run.attempts_used, decision.run.retry_at) == (1, 2, None)


# Why it waits --------------------------------------------------------------------------------------------------------

FULL = MustWait(Reason.NO_CAPACITY, (PlaceRefusal("hyperstack", "US-1", "L40", RefusalKind.NO_STOCK, "none"),), T0 + 35)


def test_scenario_36_waiting_is_told_at_first_and_when_the_reason_changes() -> None:
    first = tell(a_run(), FULL)
    assert first.save == Save(SaveKind.TRANSITION, EventKind.WAITING)
    assert (first.run.state, first.run.sequence, first.wake_at) == (State.QUEUED, 2, T0 + 35)
    same = tell(first.run, replace(FULL, places=(), next_try_at=None), T0 + 40)
    assert (same.save, same.run.sequence, same.wake_at) == (None, 2, None)
    assert same.run.waiting == Waiting(Reason.NO_CAPACITY)
    other = tell(same.run, replace(FULL, reason=Reason.AUTH), T0 + 50)
    assert other.save is not None and other.run.sequence == 3


def test_a_waiting_run_still_wakes_for_its_deadline() -> None:
    assert tell(a_run(deadline_s=20.0), FULL).wake_at == T0 + 20
    assert tell(a_run(deadline_s=20.0), replace(FULL, next_try_at=None)).wake_at == T0 + 20


def test_a_run_that_waits_after_an_attempt_stays_in_backoff() -> None:
    run = backoff()
    waits = tell(run, FULL, LOST_AT + 60, gone=gone(run, NAME, LOST_AT))
    assert (waits.run.state, waits.run.sequence) == (State.BACKOFF, run.sequence + 1)


def test_a_run_that_was_refused_and_must_wait_is_queued_again() -> None:
    run = replace(a_run(), state=State.LAUNCHING, next_number=1)
    assert tell(run, FULL).run.state is State.QUEUED


@pytest.mark.parametrize(
    ("why", "reason"),
    [(StoreRefusal.MAX_MACHINES, Reason.MAX_MACHINES), (StoreRefusal.MAX_USD_PER_HOUR, Reason.MAX_USD_PER_HOUR)],
)
def test_an_intent_that_the_store_refuses_is_asked_for_again(why: StoreRefusal, reason: Reason) -> None:
    decision = tell(a_run(), IntentRefused(why))
    assert decision.run.waiting is not None and decision.run.waiting.reason is reason
    assert decision.wake_at == decision.run.waiting.next_try_at == T0 + 20


def test_an_intent_refused_for_a_cancel_is_no_reason_to_wait() -> None:
    decision = tell(a_run(), IntentRefused(StoreRefusal.CANCELLED))
    assert decision == Decision(a_run(), wake_at=T0 + 20)


# How it ends ---------------------------------------------------------------------------------------------------------

ENDS: list[tuple[str, Run, Observation, Reason]] = [
    ("no money", a_run(), NoMoneyLeft("$0.10 are left"), Reason.BUDGET),
    ("nowhere", a_run(), NowherePossible("refused at every place"), Reason.LAUNCH_REFUSED),
    ("deadline", a_run(deadline_s=5.0), TimePassed(), Reason.DEADLINE),
    ("deadline comes with a place", a_run(deadline_s=5.0), granted(), Reason.DEADLINE),
    ("deadline comes with a reason to wait", a_run(deadline_s=5.0), FULL, Reason.DEADLINE),
]


@pytest.mark.parametrize(("run", "seen", "reason"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_a_run_that_never_had_a_machine_ends_at_once(run: Run, seen: Observation, reason: Reason) -> None:
    end = tell(run, seen).run.end
    assert end is not None and (end.state, end.reason) == (State.FAILED, reason)


def test_money_that_went_while_the_launch_was_made_ready_is_asked_about_again() -> None:
    run = backoff(max_usd=0.7)
    proofs = gone(run, NAME, LOST_AT)
    assert tell(run, granted(number=1), LOST_AT + 60, gone=proofs).acts == (AskPlace(),)


def test_f39_no_run_fails_before_a_last_look_at_its_earlier_machines() -> None:
    run = backoff(deadline_s=2300.0)
    looks = tell(run, TimePassed(), T0 + 2300)
    assert looks.acts == (StopAsking(), LookForLateSuccess())
    assert looks.run.doom == Doom(Reason.DEADLINE, "deadline_s was reached before another launch", T0 + 2300)
    assert tell(looks.run, TimePassed(), T0 + 2310).acts == looks.acts
    found = tell(looks.run, LateSuccess(0, claim()), T0 + 2311)
    assert found.run.end is not None
    assert (found.run.state, found.run.end.attempt, found.run.end.evidence) == (State.SUCCEEDED, 0, "marker")
    assert found.save is not None and found.save.release == (NAME,)
    lost = tell(looks.run, NoLateSuccess(), T0 + 2311).run.end
    assert lost is not None and (lost.reason, lost.attempt) == (Reason.DEADLINE, 0)


@pytest.mark.parametrize("seen", [NoMoneyLeft("x"), NowherePossible("x")])
def test_want_of_money_or_places_looks_first_too(seen: Observation) -> None:
    run = backoff()
    looks = tell(run, seen, LOST_AT + 700)
    assert looks.acts == (StopAsking(), LookForLateSuccess())
    assert tell(looks.run, granted(number=1), LOST_AT + 701).run.attempt is None


def test_scenario_56_a_cancel_before_any_machine_ends_at_once() -> None:
    decision = tell(a_run(), CANCEL, T0 + 2500)
    assert decision.run.end is not None
    assert (decision.run.state, decision.run.end.detail) == (State.CANCELLED, "wrong data")


def test_a_cancel_in_backoff_loses_to_a_late_success() -> None:
    looks = tell(backoff(), CANCEL, T0 + 2500)
    assert looks.acts == (StopAsking(), LookForLateSuccess())
    assert tell(looks.run, LateSuccess(0, claim()), T0 + 2501).run.state is State.SUCCEEDED
    assert tell(looks.run, NoLateSuccess(), T0 + 2501).run.state is State.CANCELLED


def test_the_first_cancel_is_the_one_that_counts() -> None:
    looks = tell(backoff(), CANCEL, T0 + 2500)
    again = tell(looks.run, CancelAsked("you", "other", T0 + 2550), T0 + 2550)
    assert again.run.cancel == CancelRequest("me", "wrong data", T0 + 2500)


@pytest.mark.parametrize("doomed", [False, True])
def test_an_unreadable_hub_holds_the_end_up_for_a_minute(doomed: bool) -> None:
    waits = tell(backoff(), NoMoneyLeft("x") if doomed else CANCEL, T0 + 2700).run
    since = T0 + 2700 if doomed else T0 + 2500
    blind = tell(waits, HubUnreadable(), since + 59)
    assert (blind.run, blind.acts, blind.wake_at) == (waits, (), since + 64)
    assert tell(waits, HubUnreadable(), since + 60).run.state is (State.FAILED if doomed else State.CANCELLED)


def test_an_unreadable_hub_means_nothing_to_a_run_that_only_waits() -> None:
    assert tell(a_run(), HubUnreadable(), T0 + 9999) == Decision(a_run(), wake_at=T0 + 10_004)
