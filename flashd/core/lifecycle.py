"""The one decision: `decide(run, observation, tick) -> Decision`. Here are the state graph and the order of things."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from flashd.core import launching, watching
from flashd.core.actions import (
    AskPlace,
    Decision,
    EventKind,
    LookForLateSuccess,
    LookUp,
    ReadArtifacts,
    ReadMachine,
    Save,
    SaveKind,
    StopAsking,
)
from flashd.core.ending import cancelled, conclude, failed, finish
from flashd.core.model import (
    TERMINAL,
    Attempt,
    AttemptPhase,
    CancelRequest,
    End,
    MetricsState,
    Reason,
    Run,
    State,
    Suspicion,
    Waiting,
)
from flashd.core.observations import (
    ArtifactsRead,
    CancelAsked,
    FleetSeen,
    Granted,
    HubUnreadable,
    IntentRefused,
    LateSuccess,
    LaunchUnknown,
    LookedUp,
    LookUpFailed,
    MachineRead,
    MachineUnreadable,
    Made,
    MustWait,
    NameTaken,
    NoLateSuccess,
    NoMoneyLeft,
    NotSent,
    NowherePossible,
    Observation,
    ProvedGone,
    RefusedForSure,
    TakenOver,
    Throttled,
    Tick,
    TimePassed,
)
from flashd.core.verdicts import Due, Failure, Look, host_dues, worker_said

_WAITS = frozenset({State.LAUNCHING, State.QUEUED})
_RUNS = frozenset({State.BOOTING, State.SETUP, State.TRAINING, State.BACKOFF})

GRAPH: dict[State, frozenset[State]] = {
    State.QUEUED: _WAITS | TERMINAL,
    State.LAUNCHING: _WAITS | {State.BOOTING, State.BACKOFF} | TERMINAL,
    State.BOOTING: frozenset({State.SETUP, State.TRAINING, State.BACKOFF}) | TERMINAL,
    State.SETUP: frozenset({State.TRAINING, State.BACKOFF}) | TERMINAL,
    State.TRAINING: frozenset({State.BACKOFF}) | TERMINAL,
    State.BACKOFF: frozenset({State.BACKOFF, State.LAUNCHING, State.QUEUED}) | TERMINAL,
    State.SUCCEEDED: frozenset({State.SUCCEEDED}),
    State.FAILED: frozenset({State.FAILED}),
    State.CANCELLED: frozenset({State.CANCELLED}),
}

RECHECK_S = 15.0
HUB_PATIENCE_S = 60.0  # how long an unreadable Hub may hold up a cancel, or keep a dead or overdue machine billed
METRICS_RETRY_S = 5.0


def decide(run: Run, seen: Observation, tick: Tick) -> Decision:
    """What one observation makes of a run. A run that is over stays as it is."""
    if run.is_over:
        return Decision(run)
    match seen:
        case TimePassed() | ProvedGone() | LookUpFailed() | MachineUnreadable():
            return evaluate(run, tick)
        case TakenOver():
            return _taken_over(run, tick)
        case CancelAsked(by, reason, at):
            asked = run.cancel or CancelRequest(by, reason, at)
            return evaluate(replace(run, cancel=asked), tick)
        case Granted() | MustWait() | NoMoneyLeft() | NowherePossible() | IntentRefused():
            return _placed(run, seen, tick)
        case Made() | RefusedForSure() | NotSent() | Throttled() | NameTaken() | LaunchUnknown() | LookedUp():
            return _launched(run, seen, tick)
        case FleetSeen() | MachineRead() | ArtifactsRead() | HubUnreadable() | LateSuccess() | NoLateSuccess():
            return _observed(run, seen, tick)
        case _ as never:
            assert_never(never)


def evaluate(run: Run, tick: Tick) -> Decision:
    """What the time alone makes of a run."""
    attempt = run.attempt
    if attempt is None:
        return _resting(run, tick)
    match attempt.phase:
        case AttemptPhase.REQUESTED:
            if run.cancel is not None:
                return cancelled(run, tick)
            return launching.resend_due(run, attempt, tick)
        case AttemptPhase.UNKNOWN:
            if run.cancel is not None:
                return cancelled(run, tick)
            return Decision(run, acts=(LookUp(),), wake_at=tick.now + launching.LOOK_UP_INTERVAL_S)
        case AttemptPhase.LIVE:
            return _judge(run, attempt, tick)
        case _ as never:
            assert_never(never)


# Without an attempt in hand -------------------------------------------------------------------------------------------


def _resting(run: Run, tick: Tick) -> Decision:
    if run.cancel is not None:
        if any(past.machine_id for past in run.history):
            return Decision(run, acts=(LookForLateSuccess(),), wake_at=tick.now + RECHECK_S)
        return cancelled(run, tick)
    deadline_s = run.terms.deadline_s
    end_at = run.accepted_at + deadline_s if deadline_s is not None else None
    if end_at is not None and tick.now >= end_at:
        return failed(run, Reason.DEADLINE, "deadline_s was reached before another launch", tick)
    ready_at = _ready_at(run, tick)
    if ready_at > tick.now:
        wake_at = ready_at if end_at is None else min(ready_at, end_at)
        return Decision(run, acts=(StopAsking(),), wake_at=wake_at)
    return Decision(run, acts=(AskPlace(),), wake_at=end_at)


def _ready_at(run: Run, tick: Tick) -> float:
    """From when on the run may launch: after its back-off, and after the proof that its earlier machine is gone."""
    ready_at = run.retry_at if run.retry_at is not None else tick.now
    for past in run.history:
        if past.machine_id is not None and past.name not in tick.gone:
            ready_at = max(ready_at, past.ended_at + tick.policy.release_wait_s)
    return ready_at


def waits_for_proof(run: Run, tick: Tick) -> bool:
    """Whether the next launch goes on without the proof that an earlier machine is gone: an alarm."""
    return any(past.machine_id is not None and past.name not in tick.gone for past in run.history)


Placed = Granted | MustWait | NoMoneyLeft | NowherePossible | IntentRefused


def _placed(run: Run, seen: Placed, tick: Tick) -> Decision:
    if run.attempt is not None or run.cancel is not None or _ready_at(run, tick) > tick.now:
        return evaluate(run, tick)
    match seen:
        case Granted():
            return launching.begin(run, seen, tick)
        case NoMoneyLeft(detail):
            return failed(run, Reason.BUDGET, detail, tick)
        case NowherePossible(detail):
            return failed(run, Reason.LAUNCH_REFUSED, detail, tick)
        case IntentRefused(why):
            return _wait(run, MustWait(Reason(why.value)), tick)
        case MustWait():
            return _wait(run, seen, tick)
        case _ as never:
            assert_never(never)


def _wait(run: Run, must: MustWait, tick: Tick) -> Decision:
    waiting = Waiting(must.reason, must.places, must.next_try_at, must.detail)
    state = State.BACKOFF if run.state is State.BACKOFF else State.QUEUED
    known = run.waiting is not None and run.waiting.reason is must.reason and run.state is state
    if known:
        return Decision(replace(run, waiting=waiting), wake_at=must.next_try_at)
    waits = replace(run, state=state, waiting=waiting, sequence=run.sequence + 1)
    return Decision(waits, Save(SaveKind.TRANSITION, EventKind.WAITING), wake_at=must.next_try_at)


# While the create call is open ----------------------------------------------------------------------------------------

Launch = Made | RefusedForSure | NotSent | Throttled | NameTaken | LaunchUnknown | LookedUp


def _launched(run: Run, seen: Launch, tick: Tick) -> Decision:
    attempt = run.attempt
    if attempt is None or attempt.phase is AttemptPhase.LIVE:
        return evaluate(run, tick)
    match seen:
        case Made():
            return launching.made(run, attempt, seen, tick)
        case RefusedForSure():
            return launching.refused(run, attempt, seen, tick)
        case NotSent():
            return launching.not_sent(run, attempt, tick)
        case Throttled(retry_after_s):
            return launching.throttled(run, attempt, retry_after_s, tick)
        case NameTaken() | LaunchUnknown():
            return launching.unknown(run, attempt, tick)
        case LookedUp(machines):
            return launching.looked_up(run, attempt, machines, tick)
        case _ as never:
            assert_never(never)


def _taken_over(run: Run, tick: Tick) -> Decision:
    attempt = run.attempt
    if attempt is None:
        return evaluate(run, tick)
    if attempt.phase is not AttemptPhase.LIVE:
        return launching.unknown(run, attempt, tick)
    calm = replace(run, attempt=replace(attempt, trouble=None, suspicion=None))
    return Decision(calm, acts=(ReadArtifacts(),), wake_at=tick.now + RECHECK_S)


# With a machine -------------------------------------------------------------------------------------------------------

Seen = FleetSeen | MachineRead | ArtifactsRead | HubUnreadable | LateSuccess | NoLateSuccess


def _observed(run: Run, seen: Seen, tick: Tick) -> Decision:
    attempt = run.attempt
    match seen:
        case LateSuccess(number, claim):
            end = End(State.SUCCEEDED, None, "found after the attempt was given up", tick.now)
            return finish(run, replace(end, evidence=claim.evidence, commit=claim.commit, attempt=number))
        case NoLateSuccess():
            return cancelled(run, tick) if run.cancel is not None and attempt is None else evaluate(run, tick)
        case HubUnreadable():
            return _hub_unreadable(run, tick)
        case _:
            pass
    if attempt is None or attempt.phase is not AttemptPhase.LIVE:
        return evaluate(run, tick) if attempt is None else Decision(run, wake_at=tick.now + RECHECK_S)
    match seen:
        case FleetSeen():
            attempt = watching.fleet_seen(attempt, seen, tick)
        case MachineRead():
            attempt = watching.machine_read(attempt, seen, tick)
        case ArtifactsRead(number):
            if number == attempt.number:
                attempt = watching.artifacts_read(attempt, seen, tick)
        case _ as never:
            assert_never(never)
    return _judge(replace(run, attempt=attempt), attempt, tick, was=run)


def _hub_unreadable(run: Run, tick: Tick) -> Decision:
    attempt = run.attempt
    if run.cancel is not None and tick.now >= run.cancel.at + HUB_PATIENCE_S:
        return cancelled(run, tick)
    if attempt is None or attempt.suspicion is None or attempt.released:
        return Decision(run, wake_at=tick.now + METRICS_RETRY_S)
    costly = attempt.suspicion.reason in (Reason.JOB_PREEMPTED, Reason.DEADLINE, Reason.BUDGET)
    if costly and tick.now >= attempt.suspicion.since + HUB_PATIENCE_S:
        return _release_early(run, attempt, tick)
    return Decision(run, wake_at=tick.now + METRICS_RETRY_S)


def _release_early(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """Let the machine go while its outcome waits for the Hub: nothing on it can change the outcome any more."""
    freed = replace(run, attempt=replace(attempt, released=True))
    return Decision(
        freed, Save(SaveKind.TRANSITION, release=(attempt.name,)), (ReadArtifacts(),), tick.now + METRICS_RETRY_S
    )


def _judge(run: Run, attempt: Attempt, tick: Tick, *, was: Run | None = None) -> Decision:
    """A live attempt: the worker's word, then progress, then a cancel, then the host."""
    look = Look(run, attempt, tick)
    if (outcome := worker_said(look)) is not None:
        return conclude(run, outcome, tick)
    if attempt.claim is not None and attempt.claim.ok and attempt.claim.evidence == "marker":
        return _await_metrics(run, attempt, tick)
    if (stage := watching.stage_event(run, attempt)) is not None:
        moved = replace(run, state=stage[0], sequence=run.sequence + 1)
        return Decision(moved, Save(SaveKind.TRANSITION, stage[1]), wake_at=tick.now)
    if run.cancel is not None:
        return _cancel_running(run, attempt, tick)
    decision = _judge_host(run, attempt, tick)
    if decision.save is None and was is not None and _worth_saving(was, decision.run):
        return replace(decision, save=Save(SaveKind.TRANSITION))
    return decision


def _await_metrics(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    if not attempt.released:
        return _release_early(run, attempt, tick)
    return Decision(run, acts=(ReadArtifacts(),) if _retry_metrics(attempt) else (), wake_at=tick.now + METRICS_RETRY_S)


def _retry_metrics(attempt: Attempt) -> bool:
    return attempt.claim is not None and attempt.claim.metrics is not MetricsState.PRESENT


def _cancel_running(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """A success that is already visible wins: one fresh read first, and an unreadable Hub delays it a minute."""
    assert run.cancel is not None
    suspicion = attempt.suspicion
    if suspicion is None or suspicion.reason is not Reason.CANCELLED:
        asked = replace(attempt, suspicion=Suspicion(Reason.CANCELLED, run.cancel.reason, tick.now))
        return Decision(replace(run, attempt=asked), acts=(ReadArtifacts(),), wake_at=tick.now + RECHECK_S)
    if suspicion.reads > 0 or tick.now >= run.cancel.at + HUB_PATIENCE_S:
        return cancelled(run, tick)
    return Decision(run, acts=(ReadArtifacts(),), wake_at=tick.now + METRICS_RETRY_S)


def _judge_host(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    if watching.wants_confirmation(attempt):
        return Decision(run, acts=(ReadMachine(),), wake_at=tick.now + RECHECK_S)
    dues = host_dues(Look(run, attempt, tick))
    fired = next((due for due in dues if due.at <= tick.now), None)
    if fired is None:
        calm = replace(run, attempt=watching.suspect(attempt, None))
        wakes = [due.at for due in dues]
        if attempt.claim is not None and attempt.claim.evidence == "done":
            wakes.append(attempt.claim.seen_at + tick.policy.done_grace_s)
        return Decision(calm, wake_at=min(wakes, default=None) if tick.silence_counts else tick.now + RECHECK_S)
    return _honour(run, attempt, fired, tick)


def _honour(run: Run, attempt: Attempt, fired: Due, tick: Tick) -> Decision:
    """Honour a rule about the host only on artifacts read freshly for it, twice, `hub_settle_s` apart."""
    suspicion = attempt.suspicion
    if suspicion is None or suspicion.reason is not fired.reason:
        suspicion = Suspicion(fired.reason, fired.detail, tick.now)
        doubted = replace(run, attempt=replace(attempt, suspicion=suspicion))
        return Decision(doubted, acts=(ReadArtifacts(),), wake_at=tick.now + METRICS_RETRY_S)
    settled_at = suspicion.since + tick.policy.hub_settle_s
    if suspicion.reads >= 2:
        return _give_up(run, attempt, suspicion, tick)
    if suspicion.reads == 0 or tick.now >= settled_at:
        return Decision(run, acts=(ReadArtifacts(),), wake_at=tick.now + METRICS_RETRY_S)
    return Decision(run, wake_at=settled_at)


def _give_up(run: Run, attempt: Attempt, suspicion: Suspicion, tick: Tick) -> Decision:
    return conclude(run, Failure(suspicion.reason, suspicion.detail), tick)


def _worth_saving(was: Run, now: Run) -> bool:
    """Whether what was seen must survive a restart: clocks that rules start from, claims, progress."""
    before, after = was.attempt, now.attempt
    if before is None or after is None:
        return before is not after
    durable = ("active_at", "first_sign_at", "stage", "step", "training_at", "progress_at", "claim", "retriable")
    return any(getattr(before, name) != getattr(after, name) for name in durable)
