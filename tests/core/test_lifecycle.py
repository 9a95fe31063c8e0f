"""A run with a machine: whose word counts, in which order, and what is read again before anything is given up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.actions import Decision, EventKind, LookUp, ReadArtifacts, ReadMachine, Save, SaveKind
from flashd.core.ledger import RowState
from flashd.core.model import AttemptPhase, MetricsState, Reason, Run, State, Suspicion, Trouble
from flashd.core.observations import (
    Beat,
    CancelAsked,
    FleetSeen,
    HubUnreadable,
    LateSuccess,
    LookedUp,
    MachineRead,
    MachineUnreadable,
    NoLateSuccess,
    Observation,
    TakenOver,
    TimePassed,
)
from tests.core.kit import T0, attempt_of, booting, claim, launching, training, with_attempt
from tests.core.phases import DONE, ERROR, NAME, OK, OK_UNREADABLE, PHASES, RUNNING, backoff, end_of, read, tell

STALL_AT = T0 + 2100  # of `training()`


# Signs of life -------------------------------------------------------------------------------------------------------


def test_scenario_1_a_plain_run_passes_every_state_once() -> None:
    run, events = booting(), []
    steps: list[tuple[float, Observation]] = [
        (120, FleetSeen(RUNNING, T0 + 119)),
        (180, read(T0 + 180, None, Beat("boot", None, True, T0 + 180), fresh=False)),
        (600, read(T0 + 600, None, Beat("train", 1, False, T0 + 600), fresh=False)),
        (700, read(T0 + 700, None, Beat("train", 9, False, T0 + 700), fresh=False)),
        (3600, read(T0 + 3600, OK, fresh=False)),
    ]
    for at, seen in steps:
        decision = tell(run, seen, T0 + at)
        run = decision.run
        assert decision.save is not None  # each of them moved a clock that must survive a restart
        events += [decision.save.event] if decision.save.event else []
    assert events == [EventKind.SETUP, EventKind.TRAINING, EventKind.SUCCEEDED]


def test_setup_may_be_skipped() -> None:
    decision = tell(booting(), read(T0 + 90, None, Beat("train", 1, False, T0 + 90), fresh=False), T0 + 90)
    assert decision.run.state is State.TRAINING
    assert decision.wake_at == T0 + 90  # the clocks are looked at right after


def test_a_run_sleeps_until_the_first_rule_is_due() -> None:
    assert tell(booting(), TimePassed(), T0 + 10).wake_at == T0 + 900
    assert tell(training(), TimePassed(), T0 + 1000).wake_at == STALL_AT
    assert tell(training(deadline_s=1500.0), TimePassed(), T0 + 1000).wake_at == T0 + 1500


def test_while_silence_says_nothing_it_looks_again_soon_and_still_keeps_its_deadline() -> None:
    assert tell(training(), TimePassed(), STALL_AT + 99, silence_counts=False) == Decision(
        training(), wake_at=STALL_AT + 114
    )
    near = tell(training(deadline_s=1500.0), TimePassed(), T0 + 1495, silence_counts=False)
    assert near.wake_at == T0 + 1500


def test_what_was_only_seen_again_is_not_saved() -> None:
    run = tell(booting(), FleetSeen(RUNNING, T0 + 119), T0 + 120).run
    assert tell(run, FleetSeen(RUNNING, T0 + 134), T0 + 135).save is None


# The worker's word ---------------------------------------------------------------------------------------------------


def test_an_ok_marker_ends_the_machine_at_once_and_waits_for_metrics() -> None:
    claims = tell(training(), read(T0 + 1000, OK_UNREADABLE, fresh=False), T0 + 1000)
    assert claims.save == Save(SaveKind.TRANSITION, release=(NAME,))
    assert attempt_of(claims.run).released
    assert (claims.acts, claims.wake_at) == ((), T0 + 1005)
    again = tell(claims.run, TimePassed(), T0 + 1005)
    assert (again.acts, again.save) == ((ReadArtifacts(),), None)
    early = tell(claims.run, FleetSeen(RUNNING, T0 + 1001), T0 + 1002)
    assert (early.acts, early.wake_at) == ((), T0 + 1005)
    assert end_of(tell(again.run, read(T0 + 1020, OK), T0 + 1020)) == (State.SUCCEEDED, None)


def test_scenario_5_metrics_that_no_answer_brings_are_given_up_after_a_minute_of_answers() -> None:
    run, at = training(), T0 + 1000.0
    while run.attempt is not None:
        run = tell(run, read(at, OK_UNREADABLE), at).run
        at += 5.0
    assert at == T0 + 1000 + 60 + 5
    assert run.history[0].reason is Reason.ARTIFACTS_UNREADABLE


def test_i14_a_hub_that_is_away_is_waited_for_with_the_claim_in_hand() -> None:
    run = tell(training(), read(T0 + 1000, OK_UNREADABLE, fresh=False), T0 + 1000).run
    for at in range(1005, 9000, 5):
        waits = tell(run, TimePassed(), T0 + at)
        assert waits.acts == (ReadArtifacts(),)
        run = tell(waits.run, HubUnreadable(), T0 + at).run
    assert run.attempt is not None
    assert end_of(tell(run, read(T0 + 9000, OK), T0 + 9000)) == (State.SUCCEEDED, None)


def test_scenario_3_done_without_a_marker_counts_after_its_grace() -> None:
    grace = tell(training(), read(T0 + 1000, DONE, fresh=False), T0 + 1000)
    assert (grace.acts, grace.wake_at) == ((), T0 + 1180)
    assert grace.save == Save(SaveKind.TRANSITION)
    over = tell(grace.run, TimePassed(), T0 + 1180)
    assert over.run.end is not None and over.run.end.evidence == "done"


def test_f35_the_marker_that_comes_within_the_grace_decides() -> None:
    grace = tell(training(), read(T0 + 1000, DONE, fresh=False), T0 + 1000).run
    assert end_of(tell(grace, read(T0 + 1060, OK, fresh=False), T0 + 1060)) == (State.SUCCEEDED, None)
    failed = tell(grace, read(T0 + 1060, claim(False), fresh=False), T0 + 1060)
    assert end_of(failed) == (State.FAILED, Reason.JOB_FAILED)


def test_done_whose_metrics_could_not_be_read_is_read_again_after_its_grace() -> None:
    unread = replace(DONE, metrics=MetricsState.UNREADABLE)
    grace = tell(training(), read(T0 + 1000, unread, fresh=False), T0 + 1000).run
    frees = tell(grace, TimePassed(), T0 + 1180)
    assert frees.save is not None and frees.save.release == (NAME,)
    assert tell(frees.run, TimePassed(), T0 + 1185).acts == (ReadArtifacts(),)
    assert end_of(tell(frees.run, read(T0 + 1186, DONE), T0 + 1186)) == (State.SUCCEEDED, None)


def test_scenario_19_done_just_before_the_stall_limit_is_not_a_stall() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT).run
    grace = tell(doubts, read(STALL_AT + 1, DONE), STALL_AT + 1)
    assert grace.wake_at == STALL_AT + 181
    for at in (20, 25, 60, 179):
        grace = tell(grace.run, read(STALL_AT + at, DONE), STALL_AT + at)
        assert grace.acts == ()
    assert end_of(tell(grace.run, TimePassed(), STALL_AT + 181)) == (State.SUCCEEDED, None)


def test_scenario_21_done_on_a_machine_that_dies_counts_at_once() -> None:
    grace = tell(training(), read(T0 + 1000, DONE, fresh=False), T0 + 1000).run
    asks = tell(grace, FleetSeen(ERROR, T0 + 1010), T0 + 1010)
    assert asks.acts == (ReadMachine(),)
    assert end_of(tell(asks.run, MachineRead(ERROR), T0 + 1011)) == (State.SUCCEEDED, None)


def test_scenario_33_a_success_at_the_deadline_wins() -> None:
    run = training(deadline_s=1500.0)
    doubts = tell(run, TimePassed(), T0 + 1500)
    assert doubts.acts == (ReadArtifacts(),)
    assert end_of(tell(doubts.run, read(T0 + 1501, OK), T0 + 1501)) == (State.SUCCEEDED, None)
    assert end_of(tell(doubts.run, read(T0 + 1501, DONE), T0 + 1501)) == (State.SUCCEEDED, None)


# The host ------------------------------------------------------------------------------------------------------------


def test_a_verdict_about_the_host_needs_two_fresh_reads_a_settling_time_apart() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT)
    assert doubts.acts == (ReadArtifacts(),)
    first = tell(doubts.run, read(STALL_AT + 1), STALL_AT + 2)
    assert (first.acts, first.wake_at) == ((), STALL_AT + 22)
    assert tell(first.run, read(STALL_AT + 10), STALL_AT + 10).run.attempt is not None
    asks = tell(first.run, TimePassed(), STALL_AT + 22)
    assert asks.acts == (ReadArtifacts(),)
    ends = tell(asks.run, read(STALL_AT + 23), STALL_AT + 24)
    assert ends.save is not None and ends.save.event is EventKind.ATTEMPT_FAILED
    assert ends.run.history[0].reason is Reason.STALLED


def test_a_late_first_read_moves_the_second_one() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT).run
    for at in range(5, 300, 5):
        blind = tell(doubts, HubUnreadable(), STALL_AT + at)
        assert (blind.run, blind.acts) == (doubts, ())
        assert tell(blind.run, TimePassed(), STALL_AT + at + 5).acts == (ReadArtifacts(),)
    first = tell(doubts, read(STALL_AT + 300), STALL_AT + 300)
    assert first.wake_at == STALL_AT + 320


def test_progress_ends_the_doubt() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT).run
    calm = tell(doubts, read(STALL_AT + 1, None, Beat("train", 2, False, STALL_AT - 5)), STALL_AT + 1)
    assert attempt_of(calm.run).suspicion is None
    assert calm.wake_at == STALL_AT - 5 + 1500


def test_a_doubt_about_silence_ends_when_silence_stops_counting() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT).run
    assert attempt_of(tell(doubts, TimePassed(), STALL_AT + 5, silence_counts=False).run).suspicion is None


def test_a_graver_doubt_replaces_a_lesser_one_and_is_read_for_anew() -> None:
    doubts = tell(training(), TimePassed(), STALL_AT).run
    once = tell(doubts, read(STALL_AT + 1), STALL_AT + 1).run
    dead = with_attempt(once, trouble=Trouble("ERROR", STALL_AT + 2, confirmed=True))
    graver = tell(dead, TimePassed(), STALL_AT + 3)
    assert attempt_of(graver.run).suspicion == Suspicion(
        Reason.JOB_PREEMPTED, "the machine is ERROR without our doing", STALL_AT + 3
    )
    assert graver.acts == (ReadArtifacts(),)


def test_scenario_20_a_dead_machine_is_confirmed_then_read_for_then_given_up() -> None:
    asks = tell(training(), FleetSeen(ERROR, T0 + 999), T0 + 1000)
    assert asks.acts == (ReadMachine(),)
    doubts = tell(asks.run, MachineRead(ERROR), T0 + 1001)
    assert doubts.acts == (ReadArtifacts(),)
    once = tell(doubts.run, read(T0 + 1002), T0 + 1002)
    ends = tell(once.run, read(T0 + 1022), T0 + 1023)
    assert ends.run.history[0].reason is Reason.JOB_PREEMPTED
    assert ends.run.state is State.BACKOFF


def test_a_get_without_an_answer_is_asked_again_after_a_while_only() -> None:
    asks = tell(training(), FleetSeen(ERROR, T0 + 999), T0 + 1000)
    waits = tell(asks.run, MachineUnreadable(), T0 + 1001)
    assert (waits.acts, waits.wake_at) == ((), T0 + 1015)
    assert tell(waits.run, TimePassed(), T0 + 1015).acts == (ReadMachine(),)


def test_an_unanswered_get_does_not_hold_up_the_deadline() -> None:
    run = with_attempt(training(deadline_s=1500.0), trouble=Trouble("ERROR", T0 + 1490, asked_at=T0 + 1495))
    assert tell(run, TimePassed(), T0 + 1500).acts == (ReadArtifacts(),)
    late = with_attempt(run, trouble=Trouble("ERROR", T0 + 1400, asked_at=T0 + 1400))
    assert tell(late, TimePassed(), T0 + 1500).acts == (ReadArtifacts(), ReadMachine())


def test_scenario_24_a_machine_that_is_well_after_all_goes_on() -> None:
    asks = tell(training(), FleetSeen(ERROR, T0 + 999), T0 + 1000).run
    calm = tell(asks, MachineRead(RUNNING), T0 + 1001)
    assert (calm.run, calm.wake_at) == (training(), STALL_AT)


# While the Hub cannot be read ----------------------------------------------------------------------------------------


def doubted(reason: Reason, since: float) -> Run:
    return with_attempt(training(), suspicion=Suspicion(reason, "x", since))


def test_a_verdict_about_the_host_tells_what_the_worker_wrote_before() -> None:
    run = with_attempt(
        training(),
        trouble=Trouble("ERROR", T0 + 900, confirmed=True),
        suspicion=Suspicion(Reason.JOB_PREEMPTED, "the machine is ERROR", T0 + 900, 2, T0 + 930, "CUDA error"),
    )
    (failed,) = tell(run, TimePassed(), T0 + 960).run.history
    assert failed.detail == "the machine is ERROR\nCUDA error"


@pytest.mark.parametrize("reason", [Reason.JOB_PREEMPTED, Reason.DEADLINE, Reason.BUDGET])
def test_a_machine_that_cannot_change_the_outcome_any_more_is_not_paid_for_while_the_hub_is_away(
    reason: Reason,
) -> None:
    run = doubted(reason, T0 + 1000)
    waits = tell(run, HubUnreadable(), T0 + 1059)
    assert (waits.save, waits.wake_at) == (None, T0 + 1064)
    frees = tell(run, HubUnreadable(), T0 + 1060)
    assert frees.save == Save(SaveKind.TRANSITION, release=(NAME,))
    assert attempt_of(frees.run).released
    assert tell(frees.run, HubUnreadable(), T0 + 1065).save is None


def test_f24_a_silent_machine_is_kept_while_the_hub_is_away() -> None:
    run = doubted(Reason.STALLED, T0 + 1000)
    assert tell(run, HubUnreadable(), T0 + 9000) == Decision(run, wake_at=T0 + 9005)


def test_scenario_32_a_deadline_under_an_outage_ends_when_the_hub_answers_twice() -> None:
    run = training(deadline_s=1500.0)
    doubts = tell(run, TimePassed(), T0 + 1500).run
    freed = tell(doubts, HubUnreadable(), T0 + 1560).run
    once = tell(freed, read(T0 + 9000), T0 + 9000)
    assert once.wake_at == T0 + 9020
    ends = tell(once.run, read(T0 + 9020), T0 + 9021)
    assert end_of(ends) == (State.FAILED, Reason.DEADLINE)
    assert ends.save is not None and ends.save.release == (NAME,)


def test_scenario_69_money_that_ran_out_is_named() -> None:
    run = training(max_usd=0.5)
    doubts = tell(run, TimePassed(), T0 + 1800).run
    once = tell(doubts, read(T0 + 1800), T0 + 1800).run
    assert end_of(tell(once, read(T0 + 1820), T0 + 1820)) == (State.FAILED, Reason.BUDGET)


# Cancel --------------------------------------------------------------------------------------------------------------

CANCEL = CancelAsked("me", "wrong data", T0 + 1000)


@pytest.mark.parametrize("phase", ["queued", "requested", "throttled", "unknown"])
def test_a_cancel_before_the_machine_is_known_ends_at_once(phase: str) -> None:
    decision = tell(PHASES[phase], CANCEL, T0 + 1000)
    assert end_of(decision) == (State.CANCELLED, Reason.CANCELLED)
    assert decision.save is not None
    assert decision.save.release == (() if phase == "queued" else (NAME,))


@pytest.mark.parametrize("phase", ["booting", "setup", "training"])
def test_a_cancel_of_a_live_run_reads_once_more(phase: str) -> None:
    asks = tell(PHASES[phase], CANCEL, T0 + 1000)
    assert (asks.acts, asks.wake_at) == ((ReadArtifacts(),), T0 + 1015)
    assert end_of(tell(asks.run, read(T0 + 1001), T0 + 1001)) == (State.CANCELLED, Reason.CANCELLED)
    for won in (OK, DONE):
        assert end_of(tell(asks.run, read(T0 + 1001, won), T0 + 1001)) == (State.SUCCEEDED, None)


def test_a_failure_that_a_cancel_finds_is_still_a_cancel() -> None:
    asks = tell(training(), CANCEL, T0 + 1000)
    assert end_of(tell(asks.run, read(T0 + 1001, claim(False)), T0 + 1001)) == (State.CANCELLED, Reason.CANCELLED)


def test_an_unreadable_hub_delays_a_cancel_a_minute() -> None:
    asks = tell(training(), CANCEL, T0 + 1000).run
    waits = tell(asks, HubUnreadable(), T0 + 1059)
    assert (waits.run, waits.wake_at) == (asks, T0 + 1064)
    assert tell(asks, TimePassed(), T0 + 1059).acts == (ReadArtifacts(),)
    assert end_of(tell(asks, HubUnreadable(), T0 + 1060)) == (State.CANCELLED, Reason.CANCELLED)


def test_scenario_57_a_success_that_was_seen_first_outlives_the_cancel() -> None:
    claims = tell(training(), read(T0 + 990, OK_UNREADABLE, fresh=False), T0 + 990).run
    waits = tell(claims, CANCEL, T0 + 1000)
    assert waits.run.end is None
    assert tell(waits.run, HubUnreadable(), T0 + 5000).run.end is None
    assert end_of(tell(waits.run, read(T0 + 5001, OK), T0 + 5001)) == (State.SUCCEEDED, None)
    grace = tell(training(), read(T0 + 990, DONE, fresh=False), T0 + 990).run
    assert end_of(tell(grace, CANCEL, T0 + 1000)) == (State.SUCCEEDED, None)


def test_a_cancel_waits_for_no_host_rule() -> None:
    asks = tell(with_attempt(training(), trouble=Trouble("ERROR", T0, confirmed=True)), CANCEL, T0 + 9000)
    assert attempt_of(asks.run).suspicion == Suspicion(Reason.CANCELLED, "wrong data", T0 + 9000)


# Takeover ------------------------------------------------------------------------------------------------------------


def test_scenario_47_a_takeover_keeps_the_attempt_and_reads_first() -> None:
    run = with_attempt(training(), trouble=Trouble("missing", T0), suspicion=Suspicion(Reason.STALLED, "x", T0, 2, T0))
    taken = tell(run, TakenOver(), T0 + 9000)
    assert (taken.run, taken.acts, taken.save) == (training(), (ReadArtifacts(),), None)
    assert taken.wake_at == T0 + 9015


def test_scenario_48_after_an_outage_past_the_deadline_the_ok_marker_counts() -> None:
    taken = tell(training(), TakenOver(), T0 + 99_000)
    assert end_of(tell(taken.run, read(T0 + 99_001, OK), T0 + 99_001)) == (State.SUCCEEDED, None)


def test_metrics_read_by_an_earlier_process_are_read_again() -> None:
    grace = tell(training(), read(T0 + 1000, DONE, fresh=False), T0 + 1000).run
    taken = tell(grace, TakenOver(), T0 + 1100)
    assert taken.acts == (ReadArtifacts(),)
    unread = tell(taken.run, TimePassed(), T0 + 1180)
    assert unread.run.end is None  # the event would have no metrics
    assert end_of(tell(unread.run, read(T0 + 1190, DONE), T0 + 1190)) == (State.SUCCEEDED, None)


def test_scenario_46_a_create_call_in_flight_is_looked_up() -> None:
    taken = tell(launching(), TakenOver(), T0 + 60)
    assert taken.acts == (LookUp(),)
    adopted = tell(taken.run, LookedUp((RUNNING,)), T0 + 61)
    assert attempt_of(adopted.run).phase is AttemptPhase.LIVE
    assert adopted.save is not None and adopted.save.rows[0][1] is not None
    assert adopted.save.rows[0][1].state is RowState.LIVE


def test_a_late_success_ends_the_run_whatever_it_is_doing() -> None:
    decision = tell(replace(training(), history=backoff().history), LateSuccess(0, OK), T0 + 1000)
    assert end_of(decision) == (State.SUCCEEDED, None)
    assert tell(training(), NoLateSuccess(), T0 + 1000).run == training()
