"""How an attempt ends, and what follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core import ending
from flashd.core.actions import Decision, EventKind, Save, SaveKind, StopAsking
from flashd.core.ending import AVOID_MAX, failed
from flashd.core.model import CancelRequest, End, Evidence, PastAttempt, Reason, Run, State
from flashd.core.observations import Tick
from flashd.core.verdicts import Failure, Outcome, Success
from tests.core.kit import T0, a_run, attempt_of, tick, training

NOW = T0 + 2000
PREEMPTED = Failure(Reason.JOB_PREEMPTED, "the machine is ERROR", "c" * 40)


def conclude(run: Run, outcome: Outcome, at: Tick) -> Decision:
    return ending.conclude(run, attempt_of(run), outcome, at)


def lost(run: Run, failure: Failure = PREEMPTED, now: float = NOW) -> Run:
    return conclude(run, failure, tick(now)).run


def retried(run: Run, number: int) -> Run:
    """The run with another attempt in training."""
    again = replace(attempt_of(training()), number=number, name=f"flash-t-r1-aaaaaaaaaa-a{number}")
    return replace(
        run, attempt=again, state=State.TRAINING, next_number=number + 1, attempts_used=run.attempts_used + 1
    )


def test_success_ends_the_run_with_its_evidence_and_hands_the_machine_over() -> None:
    run = training()
    decision = conclude(run, Success(Evidence.MARKER, "e" * 40), tick(NOW))
    name = attempt_of(run).name
    assert decision.save == Save(SaveKind.FINISH, EventKind.SUCCEEDED, release=(name,))
    assert decision.acts == (StopAsking(),)
    assert decision.run.end == End(State.SUCCEEDED, None, "", NOW, "marker", "e" * 40, 0)
    assert decision.run.is_over and decision.run.sequence == run.sequence + 1
    assert attempt_of(decision.run).name == name  # its cost goes on until it is proved gone


def test_a_lost_machine_is_followed_by_a_pause_and_is_handed_over() -> None:
    run = training()
    decision = conclude(run, PREEMPTED, tick(NOW))
    after, name = decision.run, attempt_of(run).name
    assert decision.save == Save(SaveKind.REQUEUE, EventKind.ATTEMPT_FAILED, release=(name,))
    assert (after.state, after.attempt, after.retry_at) == (State.BACKOFF, None, NOW + 30)
    assert decision.wake_at == after.retry_at
    assert after.avoid == ("hyperstack/NORWAY-1",)
    assert after.history == (
        PastAttempt(
            number=0,
            name=name,
            token=attempt_of(run).token,
            place=attempt_of(run).place,
            head="c" * 40,
            requested_at=T0,
            ended_at=NOW,
            reason=Reason.JOB_PREEMPTED,
            detail="the machine is ERROR",
            machine_id="77",
            commit="c" * 40,
        ),
    )


def test_a_workers_own_error_is_the_end_and_blames_no_place() -> None:
    decision = conclude(training(), Failure(Reason.JOB_FAILED, "OOM"), tick(NOW))
    assert decision.save is not None and decision.save.event is EventKind.FAILED
    assert decision.run.end == End(State.FAILED, Reason.JOB_FAILED, "OOM", NOW, attempt=0)
    assert decision.run.avoid == ()


def test_scenario_68_the_last_failure_tells_every_attempts_cause() -> None:
    run = retried(lost(training(max_attempts=2)), 1)
    end = lost(run, Failure(Reason.STALLED, "no progress")).end
    assert end is not None and (end.reason, end.attempt) == (Reason.STALLED, 1)
    assert end.detail.split("\n") == [
        "no progress",
        "attempt 1 (hyperstack NORWAY-1): stalled: no progress",
        "attempt 0 (hyperstack NORWAY-1): job_preempted: the machine is ERROR",
    ]


def test_an_end_between_attempts_tells_every_attempts_cause() -> None:
    end = failed(lost(training()), Reason.BUDGET, "the rest buys nothing", tick(NOW)).run.end
    assert end is not None and end.detail.split("\n") == [
        "the rest buys nothing",
        "attempt 0 (hyperstack NORWAY-1): job_preempted: the machine is ERROR",
    ]


def test_every_machine_of_the_run_is_handed_over_again_at_each_end() -> None:
    first = lost(training())
    second = conclude(retried(first, 1), PREEMPTED, tick(NOW))
    assert second.save is not None and second.save.release == tuple(f"flash-t-r1-aaaaaaaaaa-a{n}" for n in (0, 1))
    assert second.run.retry_at == NOW + 60


def test_scenario_6_unreadable_artifacts_are_tried_again_once() -> None:
    unreadable = Failure(Reason.ARTIFACTS_UNREADABLE, "no object")
    once = lost(training(), unreadable)
    assert once.state is State.BACKOFF
    assert lost(retried(once, 1), unreadable).state is State.FAILED


def test_no_attempt_follows_the_runs_deadline() -> None:
    end = lost(training(deadline_s=1000.0)).end
    assert end is not None and end.reason is Reason.DEADLINE
    assert end.detail == "deadline_s is reached; the last attempt: the machine is ERROR"


@pytest.mark.parametrize("reason", [Reason.JOB_FAILED, Reason.DEADLINE, Reason.BUDGET])
def test_after_the_deadline_a_cause_of_its_own_keeps_its_name(reason: Reason) -> None:
    end = lost(training(deadline_s=1000.0), Failure(reason, "own")).end
    assert end is not None and (end.reason, end.detail) == (reason, "own")


def test_after_the_deadline_the_last_attempt_of_all_keeps_its_cause() -> None:
    end = lost(training(deadline_s=1000.0, max_attempts=1)).end
    assert end is not None and (end.reason, end.detail) == (Reason.JOB_PREEMPTED, "the machine is ERROR")


def test_a_cancelled_runs_failure_is_its_cancel() -> None:
    run = replace(training(), cancel=CancelRequest("me", "wrong data", NOW - 5))
    decision = conclude(run, PREEMPTED, tick(NOW))
    assert decision.run.end == End(State.CANCELLED, Reason.CANCELLED, "wrong data", NOW)
    assert decision.save is not None and decision.save.release == (attempt_of(run).name,)
    assert decision.run.history[0].reason is Reason.JOB_PREEMPTED


def test_regions_that_lost_attempts_are_remembered_newest_last_and_not_for_ever() -> None:
    run = lost(replace(training(), avoid=("hyperstack/NORWAY-1", "hyperstack/US-1")))
    assert run.avoid == ("hyperstack/US-1", "hyperstack/NORWAY-1")
    many = lost(replace(training(), avoid=tuple(f"hyperstack/R{n}" for n in range(AVOID_MAX))))
    assert len(many.avoid) == AVOID_MAX and many.avoid[-1] == "hyperstack/NORWAY-1"


def test_a_run_that_never_had_an_attempt_fails_without_a_number() -> None:
    decision = failed(a_run(), Reason.BUDGET, "no money", tick(NOW))
    assert decision.run.end == End(State.FAILED, Reason.BUDGET, "no money", NOW)
