"""From a granted place to a machine whose id is known: intent, one create call, and every way it can be answered."""

from __future__ import annotations

from dataclasses import replace

from flashd.core import watching
from flashd.core.actions import Decision, EventKind, LookUp, Post, Save, SaveKind
from flashd.core.cost import money_left, seconds_for
from flashd.core.ending import again_or_fail, failed, past
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.model import Attempt, AttemptPhase, Reason, Run, State
from flashd.core.names import launch_label
from flashd.core.observations import Granted, Made, RefusedForSure, Tick
from flashd.core.places import Place, RefusalKind
from flashd.core.verdicts import Failure

CLOCK_SKEW_S = 60.0
LOOK_UP_INTERVAL_S = 10.0
REFUSED_PLACES_MAX = 3
NOT_SENT_RETRY_S = 5.0


def machine_deadline(run: Run, place: Place, tick: Tick) -> tuple[float, Reason]:
    """When the machine must be gone, and for which reason: the smallest of wall limit, run deadline and money."""
    limits = [(tick.now + run.terms.max_wall_s + tick.policy.provision_grace_s, Reason.DEADLINE)]
    if run.deadline_at is not None:
        limits.append((run.deadline_at, Reason.DEADLINE))
    rest_usd = money_left(run, tick.gone, tick.now)
    if rest_usd is not None:
        limits.append((tick.now + seconds_for(rest_usd, place.usd_per_hour), Reason.BUDGET))
    return min(limits, key=lambda limit: limit[0])


def new_attempt(run: Run, granted: Granted, tick: Tick) -> Attempt:
    """The run's next attempt, at the granted place."""
    deadline_at, deadline_reason = machine_deadline(run, granted.place, tick)
    return Attempt(
        number=run.next_number,
        name=granted.name,
        token=granted.token,
        place=granted.place,
        head=granted.head,
        requested_at=tick.now,
        deadline_at=deadline_at,
        deadline_reason=deadline_reason,
        last_choice=granted.last_choice,
        created_blind_cloud=tick.cloud_blind,
        created_blind_hub=tick.hub_blind,
    )


def begin(run: Run, granted: Granted, tick: Tick) -> Decision:
    """Record the intent; the create call follows once it is durable."""
    attempt = new_attempt(run, granted, tick)
    launching = replace(
        run,
        state=State.LAUNCHING,
        sequence=run.sequence + 1,
        next_number=run.next_number + 1,
        attempts_used=run.attempts_used + 1,
        attempt=attempt,
        code_revision=run.code_revision or granted.code_revision,
        waiting=None,
        retry_at=None,
    )
    row = row_of(launching, attempt)
    return Decision(launching, Save(SaveKind.INTENT, EventKind.LAUNCHING, rows=((attempt.name, row),)), (Post(),))


def row_of(run: Run, attempt: Attempt) -> LedgerRow:
    """The attempt's ledger row as the intent writes it."""
    return LedgerRow(
        name=attempt.name,
        run_id=run.terms.run_id,
        attempt=attempt.number,
        provider=attempt.place.provider,
        account=attempt.place.account,
        region=attempt.place.region,
        gpu=attempt.place.gpu,
        machine_id=attempt.machine_id,
        state=RowState.REQUESTED,
        usd_per_hour=attempt.place.usd_per_hour,
        requested_at=attempt.requested_at,
        posted_at=attempt.posted_at,
        until=attempt.deadline_at,
        launch=launch_label(attempt.token),
    )


def made(run: Run, attempt: Attempt, answer: Made, tick: Tick) -> Decision:
    """The machine's id is known: confirm it."""
    live = replace(
        attempt,
        phase=AttemptPhase.LIVE,
        machine_id=answer.machine_id,
        live_at=tick.now,
        resend_at=None,
        settle_from=None,
    )
    booting = replace(run, state=State.BOOTING, sequence=run.sequence + 1, attempt=live)
    row = replace(row_of(run, live), state=RowState.LIVE, live_at=tick.now)
    return Decision(booting, Save(SaveKind.CONFIRM, EventKind.BOOTING, rows=((live.name, row),)), wake_at=tick.now)


def refused(run: Run, attempt: Attempt, answer: RefusedForSure, tick: Tick) -> Decision:
    """Nothing was made: the row goes, the attempt is taken back, the place is remembered; at once the next one."""
    key = attempt.place.key
    refusals = run.refusals
    if answer.itself:
        refusals = replace(refusals, itself=tuple(dict.fromkeys((*refusals.itself, key))))
    elif answer.kind is RefusalKind.REFUSED:  # want of stock and a pause hold the place for all, no longer than that
        cooling = tuple(item for item in refusals.cooling if item[0] != key and item[1] > tick.now)
        refusals = replace(refusals, cooling=(*cooling, (key, tick.now + tick.policy.cooldown_s)))
    back = taken_back(replace(run, refusals=refusals))
    save = Save(SaveKind.TRANSITION, rows=((attempt.name, None),))
    if len(refusals.itself) >= REFUSED_PLACES_MAX:
        ending = failed(back, Reason.LAUNCH_REFUSED, f"refused in {len(refusals.itself)} places: {answer.text}", tick)
        assert ending.save is not None
        return replace(ending, save=replace(ending.save, rows=save.rows))
    return Decision(back, save, wake_at=tick.now)


def not_sent(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """The create call never left: as a sure refusal, without blame for the place, and not at once again."""
    later = replace(taken_back(run), retry_at=tick.now + NOT_SENT_RETRY_S)
    return Decision(later, Save(SaveKind.TRANSITION, rows=((attempt.name, None),)), wake_at=later.retry_at)


def taken_back(run: Run) -> Run:
    """The intent is undone; its number stays used."""
    return replace(run, attempt=None, attempts_used=max(0, run.attempts_used - 1))


def throttled(run: Run, attempt: Attempt, retry_after_s: float, tick: Tick) -> Decision:
    """429: wait the window out, look the name up once, send the same call again."""
    waiting = replace(attempt, resend_at=tick.now + retry_after_s)
    return Decision(replace(run, attempt=waiting), wake_at=waiting.resend_at)


def unknown(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """A machine may exist: look it up by name until it is found or the settling time is over."""
    settling = replace(
        attempt,
        phase=AttemptPhase.UNKNOWN,
        resend_at=None,
        settle_from=tick.now,
        settle_blind_cloud=tick.cloud_blind,
    )
    return Decision(replace(run, attempt=settling), Save(SaveKind.TRANSITION), (LookUp(),))


def resend_due(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    """A throttled call's window: look the name up when it is over. A call nobody waits for is an unknown one."""
    if attempt.resend_at is None:
        return unknown(run, attempt, tick)
    if tick.now < attempt.resend_at:
        return Decision(run, wake_at=attempt.resend_at)
    return Decision(run, acts=(LookUp(),), wake_at=tick.now + LOOK_UP_INTERVAL_S)


def is_ours(machine: Machine, attempt: Attempt) -> bool:
    """Whether a machine of our name came from this very intent: by its label, else by its time of creation."""
    if machine.launch is not None:
        return machine.launch == launch_label(attempt.token)
    return machine.created_at is None or machine.created_at >= attempt.requested_at - CLOCK_SKEW_S


def looked_up(run: Run, attempt: Attempt, machines: tuple[Machine, ...], tick: Tick) -> Decision:
    """A complete answer to the look-up of the attempt's name."""
    ours = [machine for machine in machines if is_ours(machine, attempt)]
    if ours:
        return made(run, watching.machine_seen(attempt, ours[0], tick), Made(ours[0].id), tick)
    if machines:
        row = row_of(run, attempt).deleting(tick.now, machines[0].id)
        return Decision(taken_back(run), Save(SaveKind.TRANSITION, rows=((attempt.name, row),)), wake_at=tick.now)
    if attempt.resend_at is not None and tick.now >= attempt.deadline_at:
        return not_sent(run, attempt, tick)  # throttled until there was no time left for a machine
    if attempt.resend_at is not None:
        again = replace(
            attempt,
            posted_at=tick.now,
            resend_at=None,
            created_blind_cloud=tick.cloud_blind,
            created_blind_hub=tick.hub_blind,
        )
        resent = replace(run, attempt=again)
        row = row_of(resent, again)
        return Decision(resent, Save(SaveKind.TRANSITION, rows=((again.name, row),)), (Post(),))
    return _settle(run, attempt, tick)


def _settle(run: Run, attempt: Attempt, tick: Tick) -> Decision:
    settle_from = attempt.settle_from if attempt.settle_from is not None else tick.now
    blind_s = tick.cloud_blind - attempt.settle_blind_cloud
    over_at = settle_from + tick.policy.launch_settle_s + blind_s
    if tick.now < over_at:
        return Decision(run, wake_at=min(over_at, tick.now + LOOK_UP_INTERVAL_S))
    # A launch that complete lists never showed, while no other create went through, was lost before it arrived.
    refunded = tick.made_at is None or tick.made_at < attempt.requested_at
    failure = Failure(Reason.LAUNCH_UNKNOWN, "the create call was neither answered nor seen in complete lists")
    used = run.attempts_used - 1 if refunded else run.attempts_used
    ended = replace(
        run,
        attempt=None,
        attempts_used=max(0, used),
        history=(*run.history, past(attempt, failure, tick.now, refunded=refunded)),
    )
    row = replace(row_of(run, attempt), state=RowState.ABANDONED)
    decision = again_or_fail(ended, failure, tick, avoid=attempt)
    assert decision.save is not None
    # The given-up name is no machine to release: what appears under it is deleted at first sight.
    release = tuple(name for name in decision.save.release if name != attempt.name)
    return replace(decision, save=replace(decision.save, rows=((attempt.name, row),), release=release))
