"""A run as it is stored: private state as JSON, and the public hash fields, both derived from the run."""

from __future__ import annotations

import msgspec

from flashd.core.cost import run_cost
from flashd.core.model import Attempt, AttemptPhase, MetricsState, Run
from flashd.daemon.announce import Moment
from flashd.errors import StoreError
from flashd.wire.request_model import RunRequest

DETAIL_HASH_MAX_BYTES = 16 * 1024
METRICS_HASH_MAX_BYTES = 64 * 1024

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Run)


def encode_run(run: Run) -> str:
    """The private state, as `decode_run` reads it."""
    return _ENCODER.encode(run).decode()


def decode_run(text: str) -> Run:
    """Raises StoreError when the stored state is not a run."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreError(f"the stored state of a run is unreadable: {error}") from error


def record(run: Run, moment: Moment) -> dict[str, str]:
    """The public hash fields that change with the run; the rest is set once, at acceptance."""
    shown = run.attempt or (run.history[-1] if run.history else None)
    fields = {
        "state": run.state.value,
        "sequence": str(run.sequence),
        "attempt": "" if run.last_number is None else str(run.last_number),
        "attempts_used": str(run.attempts_used),
        "updated_at": repr(moment.now),
        "finished_at": repr(run.end.at) if run.end else "",
        "machine": shown.name if shown else "",
        "machine_id": (shown.machine_id or "") if shown else "",
        "provider": shown.place.provider if shown else "",
        "region": shown.place.region if shown else "",
        "gpu": shown.place.gpu if shown else "",
        "usd_per_hour": repr(shown.place.usd_per_hour) if shown else "",
        "cost_usd": repr(run_cost(run, moment.gone, moment.now).usd),
        "reason": _reason(run),
        "detail": _cut(_detail(run), DETAIL_HASH_MAX_BYTES),
        "pending": pending_of(run),
    }
    if run.attempt is not None or not run.is_over:
        fields |= _how_far(run.attempt)  # a run that ended keeps how far its last attempt came
    metrics = moment.metrics
    if metrics is not None and not metrics.secret and len(metrics.text.encode()) <= METRICS_HASH_MAX_BYTES:
        fields["metrics"] = metrics.text
    return fields


def _how_far(attempt: Attempt | None) -> dict[str, str]:
    step, heartbeat_at = (attempt.step, attempt.heartbeat_at) if attempt is not None else (None, None)
    return {
        "stage": attempt.stage if attempt is not None else "",
        "step": str(step) if step is not None else "",
        "heartbeat_at": repr(heartbeat_at) if heartbeat_at is not None else "",
    }


def first_record(run: Run, request: RunRequest, now: float) -> dict[str, str]:
    """All hash fields at acceptance."""
    return record(run, Moment(now, {})) | {
        "request": request.canonical_json,
        "request_sha256": request.sha256,
        "accepted_at": repr(run.accepted_at),
        "released": "0",
    }


def pending_of(run: Run) -> str:
    """What of the run waits for an outside answer."""
    attempt = run.attempt
    if run.is_over:
        return ""
    if run.cancel is not None:
        return "cancel"
    if attempt is None or attempt.phase is not AttemptPhase.LIVE:
        return ""
    if attempt.claim is not None and attempt.claim.ok and attempt.claim.metrics is not MetricsState.PRESENT:
        return "metrics"
    return "outcome" if attempt.released or attempt.suspicion is not None else ""


def _reason(run: Run) -> str:
    if run.end is not None:
        return run.end.reason.value if run.end.reason else ""
    if run.waiting is not None:
        return run.waiting.reason.value
    return run.history[-1].reason.value if run.history and run.attempt is None else ""


def _detail(run: Run) -> str:
    if run.end is not None:
        return run.end.detail
    if run.waiting is not None:
        lines = [f"{p.provider} {p.region} {p.gpu}: {p.kind.value}: {p.text}" for p in run.waiting.places]
        return "\n".join([run.waiting.detail, *lines] if run.waiting.detail else lines)
    return run.history[-1].detail if run.history and run.attempt is None else ""


def _cut(text: str, limit: int) -> str:
    raw = text.encode()
    return text if len(raw) <= limit else raw[: limit - 16].decode(errors="ignore") + " … (cut)"
