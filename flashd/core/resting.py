"""A run without an attempt in hand: it waits, asks for a place, or ends, never before a last look at what was paid."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from flashd.core import launching
from flashd.core.actions import AskPlace, Decision, EventKind, LookForLateSuccess, Save, SaveKind, StopAsking
from flashd.core.cost import money_left, worth_launching
from flashd.core.ending import cancelled, failed
from flashd.core.model import Doom, Reason, Run, State, Waiting
from flashd.core.observations import (
    Granted,
    IntentRefused,
    MustWait,
    NoMoneyLeft,
    NowherePossible,
    StoreRefusal,
    Tick,
)

RECHECK_S = 15.0
HUB_PATIENCE_S = 60.0  # how long an unreadable Hub may hold up a cancel, a doomed run, or keep a dead machine billed
HUB_RETRY_S = 5.0

Placed = Granted | MustWait | NoMoneyLeft | NowherePossible | IntentRefused


def rest(run: Run, tick: Tick) -> Decision:
    """What the time alone makes of a run without an attempt."""
    if run.cancel is not None or run.doom is not None:
        return _last_look(run, tick)
    if run.deadline_at is not None and tick.now >= run.deadline_at:
        return _doomed(run, Reason.DEADLINE, "deadline_s was reached before another launch", tick)
    ready_at = _ready_at(run, tick)
    if ready_at > tick.now:
        return Decision(run, acts=(StopAsking(),), wake_at=_earliest(ready_at, run.deadline_at))
    return Decision(run, acts=(AskPlace(),), wake_at=run.deadline_at)


def placed(run: Run, seen: Placed, tick: Tick) -> Decision:
    """What admission, placement or the store said. An answer that the run no longer waits for changes nothing."""
    late = run.deadline_at is not None and tick.now >= run.deadline_at
    if run.cancel is not None or run.doom is not None or late or _ready_at(run, tick) > tick.now:
        return rest(run, tick)
    match seen:
        case Granted(place):
            if not worth_launching(money_left(run, tick.gone, tick.now), place.usd_per_hour):
                return rest(run, tick)  # the money went while the launch was made ready
            return launching.begin(run, seen, tick)
        case NoMoneyLeft(detail):
            return _doomed(run, Reason.BUDGET, detail, tick)
        case NowherePossible(detail):
            return _doomed(run, Reason.LAUNCH_REFUSED, detail, tick)
        case IntentRefused(why):
            return _intent_refused(run, why, tick)
        case MustWait():
            return _wait(run, seen)
        case _ as never:
            assert_never(never)


def no_late_success(run: Run, tick: Tick) -> Decision:
    """The last look found nothing: a run that only waited for it ends."""
    if run.cancel is not None:
        return cancelled(run, tick)
    if run.doom is not None:
        return failed(run, run.doom.reason, run.doom.detail, tick)
    return rest(run, tick)


def hub_unreadable(run: Run, tick: Tick) -> Decision:
    """The last look found no Hub: it is tried again for a while, then the run ends without it."""
    since = run.cancel.at if run.cancel is not None else run.doom.since if run.doom is not None else None
    if since is not None and tick.now >= since + HUB_PATIENCE_S:
        return no_late_success(run, tick)
    return Decision(run, wake_at=tick.now + HUB_RETRY_S)


def _doomed(run: Run, reason: Reason, detail: str, tick: Tick) -> Decision:
    return _last_look(replace(run, doom=Doom(reason, detail, tick.now)), tick)


def _last_look(run: Run, tick: Tick) -> Decision:
    """An earlier attempt may have succeeded after it was given up: no paid result is lost for want of a look."""
    if not any(past.machine_id for past in run.history):
        return no_late_success(run, tick)
    return Decision(run, acts=(StopAsking(), LookForLateSuccess()), wake_at=tick.now + RECHECK_S)


def _ready_at(run: Run, tick: Tick) -> float:
    """From when on the run may launch: after its back-off, and after the proof that its earlier machine is gone."""
    ready_at = run.retry_at if run.retry_at is not None else tick.now
    for past in run.history:
        if past.machine_id is not None and past.name not in tick.gone:
            ready_at = max(ready_at, past.ended_at + tick.policy.release_wait_s)
    return ready_at


def _earliest(at: float | None, or_at: float | None) -> float | None:
    return min((moment for moment in (at, or_at) if moment is not None), default=None)


def _intent_refused(run: Run, why: StoreRefusal, tick: Tick) -> Decision:
    """Admission has forgotten the run with its grant, so the run asks again by itself."""
    next_try_at = tick.now + RECHECK_S
    match why:
        case StoreRefusal.CANCELLED:
            return Decision(run, wake_at=next_try_at)  # the cancel itself is on its way
        case StoreRefusal.MAX_MACHINES:
            return _wait(run, MustWait(Reason.MAX_MACHINES, next_try_at=next_try_at))
        case StoreRefusal.MAX_USD_PER_HOUR:
            return _wait(run, MustWait(Reason.MAX_USD_PER_HOUR, next_try_at=next_try_at))
        case _ as never:
            assert_never(never)


def _wait(run: Run, must: MustWait) -> Decision:
    waiting = Waiting(must.reason, must.places, must.next_try_at, must.detail)
    state = State.BACKOFF if run.state is State.BACKOFF else State.QUEUED
    known = run.waiting is not None and run.waiting.reason is must.reason and run.state is state
    wake_at = _earliest(must.next_try_at, run.deadline_at)
    if known:
        return Decision(replace(run, waiting=waiting), wake_at=wake_at)
    waits = replace(run, state=state, waiting=waiting, sequence=run.sequence + 1)
    return Decision(waits, Save(SaveKind.TRANSITION, EventKind.WAITING), wake_at=wake_at)
