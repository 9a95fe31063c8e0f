"""From a place to a machine: every way in which the one create call can be answered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.actions import Decision, EventKind, LookUp, Post, Save, SaveKind
from flashd.core.launching import LOOK_UP_INTERVAL_S, NOT_SENT_RETRY_S, begin, is_ours, machine_deadline
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.lifecycle import decide
from flashd.core.machines import Machine, MachinePhase
from flashd.core.model import AttemptPhase, Reason, Refusals, Run, State
from flashd.core.names import launch_label
from flashd.core.observations import (
    LaunchUnknown,
    LookedUp,
    LookUpFailed,
    Made,
    NameTaken,
    NotSent,
    Observation,
    RefusedForSure,
    TakenOver,
    Throttled,
    TimePassed,
)
from flashd.core.places import RefusalKind
from tests.core.kit import H100, L40, T0, TOKEN, a_run, attempt_of, granted, launching, tick

NAME = "flash-t-r1-aaaaaaaaaa-a0"
LABEL = f"launch={launch_label(TOKEN)}"
OURS = Machine("77", NAME, MachinePhase.PENDING, "BUILD", T0 + 3, labels=("until=1", LABEL))


def row(decision: Decision) -> LedgerRow | None:
    assert decision.save is not None
    ((name, changed),) = decision.save.rows
    assert name == NAME
    return changed


def tell(run: Run, *seen: Observation, at: float = T0 + 2, **changes: object) -> Decision:
    decision = Decision(run)
    for one in seen:
        decision = decide(decision.run, one, tick(at, **changes))
    return decision


# The intent ----------------------------------------------------------------------------------------------------------


def test_the_intent_reserves_number_name_and_token_before_the_call() -> None:
    decision = begin(a_run(max_wall_s=3600.0), granted(last_choice=True), tick(T0, hub_blind=1.0, cloud_blind=2.0))
    attempt = attempt_of(decision.run)
    assert decision.acts == (Post(),)
    assert (decision.run.state, decision.run.next_number, decision.run.attempts_used) == (State.LAUNCHING, 1, 1)
    assert (attempt.number, attempt.name, attempt.token, attempt.head) == (0, NAME, TOKEN, "c" * 40)
    assert (attempt.created_blind_hub, attempt.created_blind_cloud, attempt.last_choice) == (1.0, 2.0, True)
    assert attempt.called_at == T0
    assert decision.save is not None and decision.save.kind is SaveKind.INTENT
    assert decision.save.event is EventKind.LAUNCHING
    assert row(decision) == LedgerRow(
        name=NAME,
        run_id="r1",
        attempt=0,
        provider="hyperstack",
        account="acc",
        region="NORWAY-1",
        gpu="L40",
        machine_id=None,
        state=RowState.REQUESTED,
        usd_per_hour=1.0,
        requested_at=T0,
        until=T0 + 6600,
        launch=launch_label(TOKEN),
    )


def test_the_code_is_resolved_once() -> None:
    assert begin(a_run(code_revision="first"), granted(), tick()).run.code_revision == "first"
    assert launching().code_revision == "d" * 40


@pytest.mark.parametrize(
    ("terms", "seconds", "reason"),
    [
        ({}, 6600, Reason.DEADLINE),
        ({"deadline_s": 5000.0}, 5000, Reason.DEADLINE),
        ({"deadline_s": 50_000.0}, 6600, Reason.DEADLINE),
        ({"max_usd": 1.0}, 3600, Reason.BUDGET),
        ({"max_usd": 1.0, "deadline_s": 3000.0}, 3000, Reason.DEADLINE),
        ({"max_usd": 100.0}, 6600, Reason.DEADLINE),
    ],
)
def test_the_machines_deadline_is_the_smallest_of_wall_run_and_money(
    terms: dict[str, object], seconds: float, reason: Reason
) -> None:
    assert machine_deadline(a_run(**terms), L40, tick()) == (T0 + seconds, reason)


def test_the_runs_deadline_counts_from_acceptance() -> None:
    assert machine_deadline(a_run(deadline_s=5000.0), L40, tick(T0 + 4000))[0] == T0 + 5000


# The answers ---------------------------------------------------------------------------------------------------------


def test_made() -> None:
    decision = tell(launching(), Made("77"))
    attempt, live = attempt_of(decision.run), row(decision)
    assert decision.save is not None and (decision.save.kind, decision.save.event) == (
        SaveKind.CONFIRM,
        EventKind.BOOTING,
    )
    assert (decision.run.state, attempt.phase, attempt.machine_id, attempt.live_at) == (
        State.BOOTING,
        AttemptPhase.LIVE,
        "77",
        T0 + 2,
    )
    assert live is not None and (live.state, live.machine_id, live.live_at) == (RowState.LIVE, "77", T0 + 2)
    assert decision.wake_at == T0 + 2  # nobody else wakes a run whose machine was found by look-up


NO_STOCK = RefusedForSure(RefusalKind.NO_STOCK, "none left", itself=False)
DOUBTFUL = RefusedForSure(RefusalKind.REFUSED, "400 bad flavor", itself=False)
BAD = RefusedForSure(RefusalKind.REFUSED, "400 bad flavor", itself=True)


def test_scenario_34_want_of_stock_takes_the_attempt_back_and_is_held_against_no_run() -> None:
    decision = tell(launching(), NO_STOCK)
    assert row(decision) is None
    assert decision.save is not None and decision.save.event is None
    assert (decision.run.attempt, decision.run.attempts_used, decision.run.next_number) == (None, 0, 1)
    assert decision.run.refusals == Refusals()  # whoever waits longest gets what comes free there
    assert decision.wake_at == T0 + 2


def test_a_cooling_place_is_listed_once_and_past_ones_are_forgotten() -> None:
    old = Refusals(cooling=((L40.key, T0 + 50), (H100.key, T0 + 1), ("x", T0 + 99)))
    run = replace(launching(), refusals=old)
    assert tell(run, DOUBTFUL).run.refusals.cooling == (("x", T0 + 99), (L40.key, T0 + 182))


def test_scenario_41_a_refused_credential_cools_no_place() -> None:
    decision = tell(launching(), RefusedForSure(RefusalKind.PAUSED, "401", itself=False))
    assert decision.run.refusals == Refusals()
    assert (decision.run.attempts_used, row(decision)) == (0, None)


def test_refused_for_itself_in_three_places_is_the_end() -> None:
    once = tell(launching(), BAD)
    assert once.run.refusals == Refusals(itself=(L40.key,))
    assert tell(replace(launching(), refusals=once.run.refusals), BAD).run.state is State.LAUNCHING  # the same place
    third = tell(replace(launching(), refusals=Refusals(itself=("a", "b"))), BAD)
    assert third.run.end is not None
    assert (third.run.end.reason, third.run.end.detail) == (
        Reason.LAUNCH_REFUSED,
        "refused in 3 places: 400 bad flavor",
    )
    assert third.save is not None and (third.save.kind, row(third)) == (SaveKind.FINISH, None)
    assert third.run.attempts_used == 0


def test_a_call_that_was_not_sent_is_taken_back_and_not_repeated_at_once() -> None:
    decision = tell(launching(), NotSent("the lease is too short"))
    assert (decision.run.attempt, decision.run.attempts_used, row(decision)) == (None, 0, None)
    assert decision.run.retry_at == decision.wake_at == T0 + 2 + NOT_SENT_RETRY_S
    assert decision.run.refusals == Refusals()


@pytest.mark.parametrize("seen", [NameTaken(), LaunchUnknown("504")])
def test_a_machine_that_may_exist_is_looked_up(seen: Observation) -> None:
    decision = tell(launching(), seen, cloud_blind=9.0)
    attempt = attempt_of(decision.run)
    assert decision.acts == (LookUp(),)
    assert decision.save == Save(SaveKind.TRANSITION)
    assert (attempt.phase, attempt.settle_from, attempt.settle_blind_cloud) == (AttemptPhase.UNKNOWN, T0 + 2, 9.0)
    assert (decision.run.state, decision.run.attempts_used) == (State.LAUNCHING, 1)


# 429 -----------------------------------------------------------------------------------------------------------------


def test_scenario_39_the_window_is_waited_out_the_name_looked_up_once_and_the_same_call_sent_again() -> None:
    waits = tell(launching(), Throttled(40.0))
    assert (waits.save, waits.acts, waits.wake_at) == (None, (), T0 + 42)
    assert tell(waits.run, TimePassed(), at=T0 + 41).wake_at == T0 + 42
    looks = tell(waits.run, TimePassed(), at=T0 + 42)
    assert looks.acts == (LookUp(),)
    again = tell(looks.run, LookedUp(()), at=T0 + 43, cloud_blind=4.0, hub_blind=5.0)
    attempt, requested = attempt_of(again.run), row(again)
    assert again.acts == (Post(),)
    assert (attempt.number, attempt.token, attempt.called_at) == (0, TOKEN, T0 + 43)
    assert (attempt.created_blind_cloud, attempt.created_blind_hub, attempt.resend_at) == (4.0, 5.0, None)
    assert requested is not None and (requested.state, requested.posted_at) == (RowState.REQUESTED, T0 + 43)
    assert tell(again.run, Made("77"), at=T0 + 44).run.state is State.BOOTING


def test_a_throttled_call_that_made_a_machine_after_all_is_adopted() -> None:
    waits = tell(launching(), Throttled(40.0))
    adopted = tell(waits.run, LookedUp((OURS,)), at=T0 + 43)
    assert attempt_of(adopted.run).machine_id == "77"
    assert attempt_of(adopted.run).resend_at is None


def test_an_unanswered_look_up_is_not_repeated_at_once() -> None:
    waits = tell(launching(), Throttled(1.0))
    failed = tell(waits.run, LookUpFailed(), at=T0 + 43)
    assert (failed.acts, failed.wake_at) == ((), T0 + 43 + LOOK_UP_INTERVAL_S)


def test_a_call_throttled_until_its_machine_had_no_time_left_is_taken_back() -> None:
    waits = tell(launching(deadline_s=1000.0), Throttled(2000.0))
    late = tell(waits.run, LookedUp(()), at=T0 + 2002)
    assert (late.acts, late.run.attempt, row(late)) == ((), None, None)


def test_a_call_that_nobody_waits_for_is_an_unknown_one() -> None:
    decision = tell(launching(), TimePassed())
    assert (attempt_of(decision.run).phase, decision.acts) == (AttemptPhase.UNKNOWN, (LookUp(),))


def test_after_a_takeover_the_call_may_have_been_in_flight_and_settling_starts_anew() -> None:
    settling = tell(launching(), LaunchUnknown("504")).run
    for run in (launching(), settling, tell(launching(), Throttled(9.0)).run):
        taken = tell(run, TakenOver(), at=T0 + 500)
        assert attempt_of(taken.run).phase is AttemptPhase.UNKNOWN
        assert attempt_of(taken.run).settle_from == T0 + 500
        assert taken.acts == (LookUp(),)


# Whose is the machine under our name ---------------------------------------------------------------------------------

OWNERS: list[tuple[str, Machine, bool]] = [
    ("our label", OURS, True),
    ("our label, made long ago by its clock", replace(OURS, created_at=T0 - 9999), True),
    ("another label", replace(OURS, labels=("launch=00000000",)), False),
    ("no label, made after the intent", replace(OURS, labels=()), True),
    ("no label, within 60 s of skew", replace(OURS, labels=(), created_at=T0 - 60), True),
    ("no label, older", replace(OURS, labels=("until=1",), created_at=T0 - 60.1), False),
    ("no label, no time", replace(OURS, labels=(), created_at=None), True),
]


@pytest.mark.parametrize(("machine", "ours"), [item[1:] for item in OWNERS], ids=[item[0] for item in OWNERS])
def test_whose_a_machine_under_our_name_is(machine: Machine, ours: bool) -> None:
    assert is_ours(machine, attempt_of(launching())) is ours
    decision = tell(launching(), NameTaken(), LookedUp((machine,)))
    kept = row(decision)
    assert kept is not None and kept.machine_id == "77"
    if ours:
        assert (decision.run.state, kept.state) == (State.BOOTING, RowState.LIVE)
        return
    assert (decision.run.attempt, decision.run.attempts_used, decision.run.next_number) == (None, 0, 1)
    assert (kept.state, kept.deleting_at) == (RowState.DELETING, T0 + 2)
    assert decision.wake_at == T0 + 2


def test_of_several_machines_under_our_name_ours_is_adopted() -> None:
    decision = tell(launching(), NameTaken(), LookedUp((replace(OURS, id="5", labels=("launch=00000000",)), OURS)))
    assert attempt_of(decision.run).machine_id == "77"


@pytest.mark.parametrize(
    ("phase", "active", "in_trouble"),
    [(MachinePhase.PENDING, False, False), (MachinePhase.RUNNING, True, False), (MachinePhase.FAILED, False, True)],
)
def test_an_adopted_machine_is_known_as_it_was_found(phase: MachinePhase, active: bool, in_trouble: bool) -> None:
    found = replace(OURS, phase=phase, raw_status=phase.value)
    attempt = attempt_of(tell(launching(), LaunchUnknown("504"), LookedUp((found,))).run)
    assert (attempt.active_at == T0 + 2, attempt.trouble is not None) == (active, in_trouble)


# Settling ------------------------------------------------------------------------------------------------------------


def settling(**changes: object) -> Run:
    return tell(launching(T0, **changes), LaunchUnknown("504"), at=T0).run


def test_scenario_37_the_name_is_looked_up_until_the_machine_shows() -> None:
    run = settling()
    not_yet = tell(run, LookedUp(()), at=T0 + 60)
    assert (not_yet.run, not_yet.save, not_yet.wake_at) == (run, None, T0 + 70)
    assert tell(run, TimePassed(), at=T0 + 70).acts == (LookUp(),)
    assert tell(run, LookedUp((OURS,)), at=T0 + 71).run.state is State.BOOTING


def test_the_last_look_up_is_at_the_end_of_the_settling_time() -> None:
    assert tell(settling(), LookedUp(()), at=T0 + 115).wake_at == T0 + 120


def test_scenario_38_a_launch_that_never_showed_is_given_up_and_taken_back() -> None:
    decision = tell(settling(), LookedUp(()), at=T0 + 120)
    given_up = row(decision)
    assert given_up is not None and given_up.state is RowState.ABANDONED
    assert decision.save is not None and decision.save.event is EventKind.ATTEMPT_FAILED
    assert (decision.run.state, decision.run.attempts_used) == (State.BACKOFF, 0)
    (past,) = decision.run.history
    assert (past.reason, past.refunded, past.machine_id) == (Reason.LAUNCH_UNKNOWN, True, None)


def test_time_in_which_the_provider_gave_no_list_does_not_count() -> None:
    run = tell(launching(), LaunchUnknown("504"), at=T0, cloud_blind=50.0).run
    assert tell(run, LookedUp(()), at=T0 + 120, cloud_blind=51.0).run.attempt is not None
    assert tell(run, LookedUp(()), at=T0 + 121, cloud_blind=51.0).run.attempt is None


def test_outages_alone_never_settle_a_launch() -> None:
    decision = tell(settling(), LookUpFailed(), at=T0 + 99_999)
    assert (decision.run, decision.acts) == (settling(), ())


@pytest.mark.parametrize(("made_at", "used"), [(None, 0), (T0 - 1, 0), (T0, 1), (T0 + 50, 1)])
def test_an_attempt_is_not_taken_back_when_another_create_went_through_meanwhile(
    made_at: float | None, used: int
) -> None:
    decision = tell(settling(), LookedUp(()), at=T0 + 120, made_at=made_at)
    assert (decision.run.attempts_used, decision.run.history[0].refunded) == (used, used == 0)


def test_a_launch_that_counts_can_be_the_last_one() -> None:
    decision = tell(settling(max_attempts=1), LookedUp(()), at=T0 + 120, made_at=T0 + 50)
    given_up = row(decision)
    assert decision.run.end is not None and decision.run.end.reason is Reason.LAUNCH_UNKNOWN
    assert given_up is not None and given_up.state is RowState.ABANDONED
