"""Events of a run, each derived from the run as it is after the step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from pydantic import JsonValue

from flashd.adapters.store_types import EventOut
from flashd.core.actions import EventKind
from flashd.core.cost import attempt_cost, run_cost
from flashd.core.ledger import Gone
from flashd.core.model import Attempt, End, PastAttempt, Reason, Run
from flashd.core.retry import fault_of
from flashd.daemon.desk import Desk
from flashd.wire import events as wire
from flashd.wire.request_model import RunRequest
from flashd.wire.strict_json import compact
from flashd.wire.token_shapes import token_kind


@dataclass(frozen=True, slots=True)
class Metrics:
    """metrics.json as read: its value, its strict JSON text, where it lies, and the file's size in bytes.

    `secret`: a token stands in it. It is never changed, so it is only referred to, and not shown in events or hashes.
    """

    value: Mapping[str, JsonValue]
    text: str
    path: str
    commit: str
    size: int
    secret: bool = False


def metrics_of(value: Mapping[str, JsonValue], path: str, commit: str, size: int) -> Metrics:
    """metrics.json as a value, with its strict text."""
    text = compact(dict(value))
    return Metrics(value, text, path, commit, size, secret=token_kind(text) is not None)


@dataclass(frozen=True, slots=True)
class Moment:
    """What an event is told besides the run: when, which machines are proved gone, and a success's metrics."""

    now: float
    gone: Mapping[str, Gone]
    metrics: Metrics | None = None


class Common(TypedDict):
    """What every event of a run says."""

    run_id: str
    phase: str
    seed: int
    attempt: int | None
    state: str
    group: str | None
    labels: Mapping[str, str] | None


def common(run: Run, request: RunRequest) -> Common:
    return Common(
        run_id=run.terms.run_id,
        phase=run.terms.phase,
        seed=run.terms.seed,
        attempt=run.last_number,
        state=run.state.value,
        group=request.group,
        labels=request.labels,
    )


def announced(desk: Desk, kind: EventKind, run: Run, request: RunRequest, moment: Moment) -> EventOut:
    """The event of a step as the store appends it; `run` is the run after the step."""
    stamp = wire.Stamp(
        id=f"{run.terms.run_id}:{run.sequence}:{desk.short_owner}",
        ns=desk.ns,
        time=moment.now,
        sequence=run.sequence,
        traceparent=request.traceparent,
    )
    return out(event_of(kind, run, request, moment), stamp)


def out(event: wire.EventData | wire.RequestRejected, stamp: wire.Stamp) -> EventOut:
    """The event as the store appends it."""
    flat = wire.stream_fields(wire.envelope(event, stamp))
    return EventOut(flat.pop("event"), flat)


def event_of(kind: EventKind, run: Run, request: RunRequest, moment: Moment) -> wire.EventData:
    """The event's data. Raises AssertionError when the run is not in a state that can announce `kind`."""
    base = common(run, request)
    match kind:
        case EventKind.ACCEPTED:
            return wire.Accepted(**base, request_sha256=request.sha256)
        case EventKind.WAITING:
            return _waiting(base, run)
        case EventKind.LAUNCHING | EventKind.BOOTING | EventKind.SETUP | EventKind.TRAINING:
            return _underway(kind, base, _attempt(run))
        case EventKind.ATTEMPT_FAILED:
            last = run.history[-1]
            return wire.AttemptFailed(
                **base,
                reason=last.reason.value,
                detail=last.detail,
                retry_at=run.retry_at,
                attempts_left=run.attempts_left,
            )
        case EventKind.SUCCEEDED | EventKind.FAILED | EventKind.CANCELLED:
            return _over(kind, base, run, moment)
        case EventKind.RELEASED:
            cost = run_cost(run, moment.gone, moment.now)
            return wire.Released(**base, machines=machines_of(moment.gone), cost_usd=cost.usd)


def _attempt(run: Run) -> Attempt:
    if run.attempt is None:
        raise AssertionError(f"run {run.terms.run_id} has no attempt to tell of")
    return run.attempt


def _end(run: Run) -> End:
    if run.end is None:
        raise AssertionError(f"run {run.terms.run_id} has not ended")
    return run.end


def _underway(kind: EventKind, base: Common, attempt: Attempt) -> wire.EventData:
    place = attempt.place
    match kind:
        case EventKind.LAUNCHING:
            return wire.Launching(
                **base,
                machine=attempt.name,
                provider=place.provider,
                region=place.region,
                gpu=place.gpu,
                usd_per_hour=place.usd_per_hour,
            )
        case EventKind.BOOTING:
            return wire.Booting(**base, machine=attempt.name, machine_id=attempt.machine_id or "")
        case EventKind.SETUP:
            return wire.Setup(**base, stage=attempt.stage or None)
        case _:
            return wire.Training(**base, step=attempt.step or 1)


def _over(kind: EventKind, base: Common, run: Run, moment: Moment) -> wire.EventData:
    end, metrics, cancel = _end(run), moment.metrics, run.cancel
    attempts = attempts_of(run, moment.gone, moment.now)
    cost_usd = run_cost(run, moment.gone, moment.now).usd
    if kind is EventKind.SUCCEEDED:
        ref = wire.MetricsRef(path=metrics.path, commit=metrics.commit, bytes=metrics.size) if metrics else None
        return wire.Succeeded(
            **base,
            metrics=metrics.value if metrics and not metrics.secret else None,
            metrics_ref=ref,
            artifacts=wire.Artifacts(repo=run.terms.repo, prefix=run.terms.prefix, commit=end.commit),
            attempts=attempts,
            cost_usd=cost_usd,
            evidence=end.evidence,
        )
    if kind is EventKind.FAILED:
        reason = end.reason or Reason.JOB_FAILED
        return wire.Failed(
            **base,
            reason=reason.value,
            detail=end.detail,
            fault=fault_of(reason).value,
            attempts=attempts,
            cost_usd=cost_usd,
        )
    by, why = (cancel.by, cancel.reason) if cancel else (None, None)
    return wire.Cancelled(**base, by=by, reason=why, attempts=attempts, cost_usd=cost_usd)


def _waiting(base: Common, run: Run) -> wire.Waiting:
    if run.waiting is None:
        raise AssertionError(f"run {run.terms.run_id} does not wait")
    places = tuple(
        wire.Place(
            provider=item.provider,
            region=item.region,
            gpu=item.gpu,
            refusal=item.kind.value,
            text=item.text,
            next_try=item.next_try_at,
        )
        for item in run.waiting.places
    )
    return wire.Waiting(**base, reason=run.waiting.reason.value, places=places, next_try=run.waiting.next_try_at)


def attempts_of(run: Run, gone: Mapping[str, Gone], now: float) -> tuple[wire.AttemptSummary, ...]:
    """Every attempt, oldest first, with its own cost."""

    def cost(attempt: Attempt | PastAttempt) -> float:
        return attempt_cost(attempt, gone, now).usd

    summaries = [_summary(past, cost(past), past.reason, past.commit, past.ended_at) for past in run.history]
    if run.attempt is not None and run.end is not None:
        summaries.append(_summary(run.attempt, cost(run.attempt), run.end.reason, run.end.commit, run.end.at))
    return tuple(summaries)


def _summary(
    attempt: Attempt | PastAttempt,
    cost_usd: float,
    reason: Reason | None,
    commit: str,
    ended: float,
) -> wire.AttemptSummary:
    return wire.AttemptSummary(
        attempt=attempt.number,
        provider=attempt.place.provider,
        region=attempt.place.region,
        gpu=attempt.place.gpu,
        machine=attempt.name,
        machine_id=attempt.machine_id,
        started=attempt.requested_at,
        ended=ended,
        reason=reason.value if reason else None,
        cost_usd=cost_usd,
        commit=commit or None,
    )


def machines_of(gone: Mapping[str, Gone]) -> tuple[wire.MachineSummary, ...]:
    """Every machine of the run that was proved gone, by name."""
    return tuple(
        wire.MachineSummary(name=item.name, id=item.machine_id, created=item.requested_at, gone=item.gone_at)
        for item in sorted(gone.values(), key=lambda item: item.requested_at)
        if item.machine_id is not None
    )
