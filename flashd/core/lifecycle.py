"""The one decision: `decide(run, observation, tick) -> Decision`. Here are the state graph and the order of things."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from flashd.core import launching, resting, watching
from flashd.core.actions import (
    Decision,
    LookUp,
    ReadArtifacts,
    ReadMachine,
    Save,
    SaveKind,
)
from flashd.core.artifacts import with_told
from flashd.core.ending import cancelled, conclude, finish
from flashd.core.model import (
    TERMINAL,
    Attempt,
    AttemptPhase,
    CancelRequest,
    Claim,
    End,
    MetricsState,
    Reason,
    Run,
    State,
    Suspicion,
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
from flashd.core.resting import HUB_PATIENCE_S, HUB_RETRY_S, RECHECK_S
from flashd.core.verdicts import Due, Failure, Look, done_in_grace, grace_ends_at, host_dues, worker_said

_WAITS = frozenset({State.LAUNCHING, State.QUEUED})

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

READS_NEEDED = 2
DURABLE = (
    "active_at",
    "first_sign_at",
    "stage",
    "step",
    "training_at",
    "progress_at",
    "beat_key",
    "retriable",
    "claim",
)


def decide(run: Run, seen: Observation, tick: Tick) -> Decision:
    """What one observation makes of a run. A run that is over stays as it is."""
    if run.is_over:
        return Decision(run)
    match seen:
        case TimePassed() | ProvedGone() | MachineUnreadable():
            return evaluate(run, tick)
        case LookUpFailed():
            # Not at once again: asking into an outage without a pause would only keep it going.
            return Decision(run, wake_at=tick.now + launching.LOOK_UP_INTERVAL_S)
        case TakenOver():
            return _taken_over(run, tick)
        case CancelAsked(by, reason, at):
            asked = run.cancel or CancelRequest(by, reason, at)
            return evaluate(replace(run, cancel=asked), tick)
        case Granted() | MustWait() | NoMoneyLeft() | NowherePossible() | IntentRefused():
            return resting.placed(run, seen, tick) if run.attempt is None else evaluate(run, tick)
        case Made() | RefusedForSure() | NotSent() | Throttled() | NameTaken() | LaunchUnknown() | LookedUp():
            return _launched(run, seen, tick)
        case LateSuccess(number, claim):
            found = "found after the attempt was given up"
            return finish(run, End(State.SUCCEEDED, None, found, tick.now, claim.evidence, claim.commit, number))
        case NoLateSuccess():
            return resting.no_late_success(run, tick) if run.attempt is None else evaluate(run, tick)
        case HubUnreadable():
            return _hub_unreadable(run, run.attempt, tick)
        case FleetSeen() | MachineRead() | ArtifactsRead():
            return _observed(run, seen, tick)
        case _ as never:
            assert_never(never)


def evaluate(run: Run, tick: Tick) -> Decision:
    """What the time alone makes of a run."""
    attempt = run.attempt
    if attempt is None:
        return resting.rest(run, tick)
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
    claim = attempt.claim
    if claim is not None:
        claim = replace(claim, metrics=MetricsState.UNASKED)  # what was read is not in this process's memory
    calm = replace(run, attempt=replace(attempt, trouble=None, suspicion=None, claim=claim))
    return Decision(calm, acts=(ReadArtifacts(),), wake_at=tick.now + RECHECK_S)


# With a machine -------------------------------------------------------------------------------------------------------


def _observed(run: Run, seen: FleetSeen | MachineRead | ArtifactsRead, tick: Tick) -> Decision:
    attempt = was = run.attempt
    if attempt is None:
        return resting.rest(run, tick)
    if attempt.phase is not AttemptPhase.LIVE:
        return Decision(run, wake_at=tick.now + RECHECK_S)
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
    return _judge(replace(run, attempt=attempt), attempt, tick, was=was)


def _hub_unreadable(run: Run, attempt: Attempt | None, tick: Tick) -> Decision:
    if attempt is None:
        return resting.hub_unreadable(run, tick)
    suspicion = attempt.suspicion
    if attempt.claim is not None or suspicion is None:
        return Decision(run, wake_at=tick.now + HUB_RETRY_S)
    impatient = tick.now >= suspicion.since + HUB_PATIENCE_S
    if suspicion.reason is Reason.CANCELLED and impatient:
        return cancelled(run, tick)
    costly = suspicion.reason in (Reason.JOB_PREEMPTED, Reason.DEADLINE, Reason.BUDGET)
    if costly and impatient and not attempt.released:
        return _release_early(run, attempt, tick)
    return Decision(run, wake_at=tick.now + HUB_RETRY_S)


def _release_early(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """Let the machine go while its outcome waits for the Hub: nothing on it can change the outcome any more."""
    freed = replace(run, attempt=replace(attempt, released=True))
    return Decision(freed, Save(SaveKind.TRANSITION, release=(attempt.name,)), wake_at=tick.now + HUB_RETRY_S)


def _judge(run: Run, attempt: Attempt, tick: Tick, *, was: Attempt | None = None) -> Decision:
    """A live attempt: the worker's word, then progress, then a cancel, then the host."""
    look = Look(run, attempt, tick)
    if (outcome := worker_said(look)) is not None:
        return conclude(run, attempt, outcome, tick)
    claim = attempt.claim
    if claim is not None and not done_in_grace(look):
        return _await_metrics(run, attempt, claim, tick)
    if (stage := watching.stage_event(run, attempt)) is not None:
        moved = replace(run, state=stage[0], sequence=run.sequence + 1)
        return Decision(moved, Save(SaveKind.TRANSITION, stage[1]), wake_at=tick.now)
    if run.cancel is not None:
        return _cancel_running(run, attempt, run.cancel, tick)
    judged = Decision(run, wake_at=grace_ends_at(look, claim)) if claim is not None else _judge_host(look)
    decision = _confirm_trouble(judged, tick)
    now = decision.run.attempt
    if decision.save is None and was is not None and now is not None and _worth_saving(was, now):
        return replace(decision, save=Save(SaveKind.TRANSITION))
    return decision


def _await_metrics(run: Run, attempt: Attempt, claim: Claim, tick: Tick) -> Decision:
    """The worker claims success: its machine goes at once, metrics are read again until they can be judged."""
    if not attempt.released:
        return _release_early(run, attempt, tick)
    again_at = claim.read_at + HUB_RETRY_S
    if tick.now < again_at:
        return Decision(run, wake_at=again_at)
    return Decision(run, acts=(ReadArtifacts(),), wake_at=tick.now + HUB_RETRY_S)


def _cancel_running(run: Run, attempt: Attempt, cancel: CancelRequest, tick: Tick) -> Decision:
    """A success that is already visible wins: one fresh read first, and an unreadable Hub delays it a minute."""
    suspicion = attempt.suspicion
    if suspicion is None or suspicion.reason is not Reason.CANCELLED:
        asked = replace(attempt, suspicion=Suspicion(Reason.CANCELLED, cancel.reason, tick.now))
        return Decision(replace(run, attempt=asked), acts=(ReadArtifacts(),), wake_at=tick.now + RECHECK_S)
    if suspicion.reads > 0:
        return cancelled(run, tick)
    return Decision(run, acts=(ReadArtifacts(),), wake_at=tick.now + HUB_RETRY_S)


def _judge_host(look: Look) -> Decision:
    run, attempt, now = look.run, look.attempt, look.tick.now
    dues = host_dues(look)
    fired = next((due for due in dues if due.at <= now), None)
    if fired is not None:
        return _honour(run, attempt, fired, look.tick)
    calm = replace(run, attempt=replace(attempt, suspicion=None))
    soon = [] if look.tick.silence_counts else [now + RECHECK_S]
    return Decision(calm, wake_at=min([due.at for due in dues] + soon))


def _honour(run: Run, attempt: Attempt, fired: Due, tick: Tick) -> Decision:
    """Honour a rule about the host only on artifacts read freshly for it, twice, `hub_settle_s` apart."""
    suspicion = attempt.suspicion
    if suspicion is None or suspicion.reason is not fired.reason:
        suspicion = Suspicion(fired.reason, fired.detail, tick.now)
        doubted = replace(run, attempt=replace(attempt, suspicion=suspicion))
        return Decision(doubted, acts=(ReadArtifacts(),), wake_at=tick.now + HUB_RETRY_S)
    if suspicion.reads >= READS_NEEDED:
        return conclude(run, attempt, Failure(suspicion.reason, with_told(suspicion.detail, suspicion.told)), tick)
    settled_at = tick.now if suspicion.read_at is None else suspicion.read_at + tick.policy.hub_settle_s
    if tick.now < settled_at:
        return Decision(run, wake_at=settled_at)
    return Decision(run, acts=(ReadArtifacts(),), wake_at=tick.now + HUB_RETRY_S)


def _confirm_trouble(decision: Decision, tick: Tick) -> Decision:
    """Ask the provider about a machine that it shows dead or not at all, beside whatever else is due."""
    attempt = decision.run.attempt
    ask_at = watching.confirmation_due_at(attempt) if attempt is not None else None
    if attempt is None or attempt.trouble is None or ask_at is None:
        return decision
    wakes = [at for at in (decision.wake_at, ask_at) if at is not None]
    if tick.now < ask_at:
        return replace(decision, wake_at=min(wakes))
    asked = replace(decision.run, attempt=replace(attempt, trouble=replace(attempt.trouble, asked_at=tick.now)))
    return replace(decision, run=asked, acts=(*decision.acts, ReadMachine()))


def _worth_saving(was: Attempt, now: Attempt) -> bool:
    """Whether what was seen must survive a restart: clocks that rules start from, claims, progress."""
    return any(getattr(was, name) != getattr(now, name) for name in DURABLE)
