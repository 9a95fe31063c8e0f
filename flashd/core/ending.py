"""How an attempt ends and what follows: the run's terminal word, or a back-off and another attempt."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from flashd.core.actions import Decision, EventKind, Save, SaveKind, StopAsking
from flashd.core.model import Attempt, End, PastAttempt, Reason, Run, State
from flashd.core.observations import Tick
from flashd.core.releasing import names_of
from flashd.core.retry import RULES as RETRY_RULES
from flashd.core.retry import Again, may_retry, retry_delay_s
from flashd.core.verdicts import Failure, Outcome, Success

AVOID_MAX = 8

_EVENT = {
    State.SUCCEEDED: EventKind.SUCCEEDED,
    State.FAILED: EventKind.FAILED,
    State.CANCELLED: EventKind.CANCELLED,
}


def past(attempt: Attempt, failure: Failure, now: float, *, refunded: bool = False) -> PastAttempt:
    """The attempt as history keeps it."""
    return PastAttempt(
        number=attempt.number,
        name=attempt.name,
        token=attempt.token,
        place=attempt.place,
        head=attempt.head,
        requested_at=attempt.requested_at,
        ended_at=now,
        reason=failure.reason,
        detail=failure.detail,
        machine_id=attempt.machine_id,
        commit=failure.commit,
        refunded=refunded,
    )


def finish(run: Run, end: End) -> Decision:
    """The terminal step. The present attempt's machine, if any, is handed to the releaser in the same step."""
    done = replace(run, state=end.state, end=end, sequence=run.sequence + 1, waiting=None, retry_at=None)
    return Decision(done, Save(SaveKind.FINISH, _EVENT[end.state], release=names_of(run)), (StopAsking(),))


def conclude(run: Run, attempt: Attempt, outcome: Outcome, tick: Tick) -> Decision:
    """End the run's present `attempt` with `outcome`."""
    match outcome:
        case Success(evidence, commit):
            end = End(State.SUCCEEDED, None, "", tick.now, evidence, commit, attempt.number)
            return finish(run, end)
        case Failure():
            return _failed(run, attempt, outcome, tick)
        case _ as never:
            assert_never(never)


def _failed(run: Run, attempt: Attempt, failure: Failure, tick: Tick) -> Decision:
    ended = replace(run, attempt=None, history=(*run.history, past(attempt, failure, tick.now)))
    if run.cancel is not None:
        return cancelled(ended, tick)
    return again_or_fail(ended, failure, tick, avoid=attempt)


def again_or_fail(run: Run, failure: Failure, tick: Tick, *, avoid: Attempt) -> Decision:
    """`run` has the ended attempt in its history and none in hand."""
    if not may_retry(run, failure.reason):
        return failed(run, failure.reason, failure.detail, tick)
    if run.deadline_at is not None and tick.now >= run.deadline_at:
        return failed(run, Reason.DEADLINE, f"deadline_s is reached; the last attempt: {failure.detail}", tick)
    return _back_off(run, tick, avoid)


def _back_off(run: Run, tick: Tick, avoid: Attempt) -> Decision:
    failures = sum(1 for past in run.history if RETRY_RULES[past.reason].again is not Again.NO)
    here = avoid.place.site
    sites = (*(site for site in run.avoid if site != here), here)[-AVOID_MAX:]
    waiting = replace(
        run,
        state=State.BACKOFF,
        sequence=run.sequence + 1,
        retry_at=tick.now + retry_delay_s(tick.policy, failures, tick.chance),
        waiting=None,
        avoid=sites,
    )
    return Decision(
        waiting, Save(SaveKind.REQUEUE, EventKind.ATTEMPT_FAILED, release=names_of(run)), wake_at=waiting.retry_at
    )


def failed(run: Run, reason: Reason, detail: str, tick: Tick) -> Decision:
    """The run fails for `reason`; its detail ends with the cause of every attempt that `detail` does not tell of."""
    number = run.history[-1].number if run.history else None
    return finish(run, End(State.FAILED, reason, _with_causes(run, detail), tick.now, attempt=number))


def cancelled(run: Run, tick: Tick) -> Decision:
    """The run ends as its cancel asked."""
    cancel = run.cancel
    why = cancel.reason if cancel else ""
    return finish(run, End(State.CANCELLED, Reason.CANCELLED, why, tick.now))


def _with_causes(run: Run, detail: str) -> str:
    """With every attempt's cause, newest first, unless there was only the one that `detail` is about."""
    if not run.history or (len(run.history) == 1 and run.history[0].detail in detail):
        return detail
    causes = "\n".join(
        f"attempt {past.number} ({past.place.provider} {past.place.region}): {past.reason.value}: {past.detail[:300]}"
        for past in reversed(run.history)
    )
    return f"{detail}\n{causes}"
