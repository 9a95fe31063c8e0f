"""`progress` events: a newer heartbeat's numbers, at most one a minute per run."""

from __future__ import annotations

from flashd.adapters.store_types import EventOut
from flashd.core.model import Run
from flashd.daemon.announce import common, out
from flashd.daemon.desk import Desk
from flashd.wire import events as wire
from flashd.wire.artifacts import Heartbeat
from flashd.wire.request_model import RunRequest

INTERVAL_S = 60.0


class ProgressTeller:
    """Decides when one run's heartbeat is worth an event."""

    def __init__(self, desk: Desk, request: RunRequest) -> None:
        self._desk = desk
        self._request = request
        self._told_at = float("-inf")
        self._last: Heartbeat | None = None

    def event(self, run: Run, beat: Heartbeat) -> EventOut | None:
        """The event of `beat`, None when it was told before or the last one is younger than a minute."""
        now = self._desk.clock.now()
        if beat == self._last or now < self._told_at + INTERVAL_S:
            return None
        self._told_at, self._last = now, beat
        age_s = max(0.0, now - beat.ts) if beat.ts is not None else 0.0
        event = wire.Progress(
            **common(run, self._request),
            stage=beat.stage,
            step=beat.step,
            heartbeat_age_s=round(age_s, 3),
            epoch=beat.epoch,
            loss=beat.loss,
            reward=beat.reward,
            grad_norm=beat.grad_norm,
            learning_rate=beat.learning_rate,
            setup_seconds=beat.setup_seconds,
            train_wall=beat.train_wall,
            gpu=beat.gpu,
            history=tuple(beat.history),
        )
        stamp = wire.Stamp(
            id=f"{run.terms.run_id}:p{int(now * 1000)}:{self._desk.short_owner}",
            ns=self._desk.ns,
            time=now,
            traceparent=self._request.traceparent,
        )
        return out(event, stamp)
