"""Taking in what was seen of a live attempt: the machine, its signs of life, its artifacts. Facts in, no verdicts."""

from __future__ import annotations

from dataclasses import replace

from flashd.core.actions import EventKind
from flashd.core.machines import DEAD_PHASES, Machine, MachinePhase
from flashd.core.model import MISSING, Attempt, Run, State, Suspicion, Trouble
from flashd.core.observations import ArtifactsRead, Beat, FleetSeen, MachineRead, Tick
from flashd.core.verdicts import merge_claim

MISSING_PASSES = 2
LIST_LAG_S = 60.0
CONFIRM_RETRY_S = 15.0


def fleet_seen(attempt: Attempt, seen: FleetSeen, tick: Tick) -> Attempt:
    """Take in one complete listing. A young machine that it does not show proves nothing: lists lag."""
    if seen.machine is None or seen.machine.name != attempt.name:
        live_at = attempt.live_at if attempt.live_at is not None else tick.now
        if seen.started_at < live_at + LIST_LAG_S:
            return attempt
        return replace(attempt, trouble=_worse(attempt.trouble, MISSING, tick))
    if seen.machine.id != attempt.machine_id:
        return attempt
    return machine_seen(attempt, seen.machine, tick)


def machine_seen(attempt: Attempt, machine: Machine, tick: Tick) -> Attempt:
    """Take in the attempt's own machine as a listing or a look-up shows it."""
    if machine.phase in DEAD_PHASES:
        return replace(attempt, trouble=_worse(attempt.trouble, machine.raw_status, tick))
    return _alive(attempt, machine.phase, tick)


def _worse(trouble: Trouble | None, status: str, tick: Tick) -> Trouble:
    """A machine that is proved dead and then vanishes is still dead."""
    if trouble is None or (trouble.status != status and not trouble.confirmed):
        return Trouble(status, tick.now)
    return replace(trouble, passes=trouble.passes + 1)


def _alive(attempt: Attempt, phase: MachinePhase, tick: Tick) -> Attempt:
    calm = replace(attempt, trouble=None)
    if phase is MachinePhase.RUNNING and calm.active_at is None:
        return replace(calm, active_at=tick.now, active_blind_hub=tick.hub_blind)
    return calm


def confirmation_due_at(attempt: Attempt) -> float | None:
    """When the trouble is worth a GET of its own, if at all: a dead status at once, a missing machine after two
    passes, and again a while after a GET without an answer."""
    trouble = attempt.trouble
    if trouble is None or trouble.confirmed or (trouble.status == MISSING and trouble.passes < MISSING_PASSES):
        return None
    return trouble.since if trouble.asked_at is None else trouble.asked_at + CONFIRM_RETRY_S


def machine_read(attempt: Attempt, read: MachineRead, tick: Tick) -> Attempt:
    """Take in the GET that a trouble asked for. A heartbeat younger than the trouble vetoes a missing machine.

    A machine of another name is not this attempt's: the id that the create call answered was wrong.
    """
    if read.machine is None or read.machine.name != attempt.name:
        trouble = attempt.trouble or Trouble(MISSING, tick.now)
        beaten = attempt.heartbeat_at is not None and attempt.heartbeat_at > trouble.since
        if beaten and trouble.status == MISSING:
            return replace(attempt, trouble=Trouble(MISSING, tick.now, passes=0))
        return replace(attempt, trouble=replace(trouble, confirmed=True))
    if read.machine.phase in DEAD_PHASES:
        trouble = attempt.trouble or Trouble(read.machine.raw_status, tick.now)
        return replace(attempt, trouble=replace(trouble, status=read.machine.raw_status, confirmed=True))
    return _alive(attempt, read.machine.phase, tick)


def artifacts_read(attempt: Attempt, read: ArtifactsRead, tick: Tick) -> Attempt:
    """Take in one pinned read: claim and signs of life; a fresh one counts for the suspicion it was asked for."""
    attempt = replace(attempt, claim=merge_claim(attempt.claim, read.claim, tick.now, fresh=read.fresh))
    for beat in read.beats:
        attempt = beat_seen(attempt, beat, tick)
    if read.fresh and attempt.suspicion is not None:
        attempt = replace(attempt, suspicion=_read_once_more(attempt.suspicion, read, tick))
    return attempt


def _read_once_more(suspicion: Suspicion, read: ArtifactsRead, tick: Tick) -> Suspicion:
    """The first read must follow the suspicion; the second must be asked for `hub_settle_s` after the first."""
    suspicion = replace(suspicion, told=read.told or suspicion.told)
    if suspicion.read_at is None:
        if read.asked_at < suspicion.since:
            return suspicion
        return replace(suspicion, reads=1, read_at=tick.now)
    if read.asked_at < suspicion.read_at + tick.policy.hub_settle_s:
        return suspicion
    return replace(suspicion, reads=suspicion.reads + 1)


def beat_seen(attempt: Attempt, beat: Beat, tick: Tick) -> Attempt:
    """Take in one sign of life. Liveness alone is no progress; only a step >= 1 is training."""
    if beat.key and beat.key == attempt.beat_key:
        return attempt  # the file of before: seeing it again proves nothing
    at = min(max(beat.at, attempt.requested_at), tick.now)
    attempt = replace(
        attempt,
        first_sign_at=attempt.first_sign_at if attempt.first_sign_at is not None else at,
        stage=beat.stage or attempt.stage,
        heartbeat_at=max(at, attempt.heartbeat_at or at),
        beat_key=beat.key or attempt.beat_key,
        retriable=attempt.retriable if beat.retriable is None else beat.retriable,
    )
    if attempt.active_at is None:
        attempt = replace(attempt, active_at=at, active_blind_hub=tick.hub_blind)
    if beat.liveness:
        return attempt
    if attempt.progress_at is None or at > attempt.progress_at:
        attempt = replace(attempt, progress_at=at, progress_blind_hub=tick.hub_blind)
    if beat.step is not None:
        attempt = replace(attempt, step=max(beat.step, attempt.step or 0))
        if beat.step >= 1 and attempt.training_at is None:
            attempt = replace(attempt, training_at=at)
    return attempt


def stage_event(run: Run, attempt: Attempt) -> tuple[State, EventKind] | None:
    """The state that the signs of life call for, when it lies beyond the run's present one."""
    if attempt.training_at is not None and run.state in (State.BOOTING, State.SETUP):
        return State.TRAINING, EventKind.TRAINING
    if attempt.first_sign_at is not None and run.state is State.BOOTING:
        return State.SETUP, EventKind.SETUP
    return None
