"""Making one decision of a run durable: the core's `Save` as one atomic write, asked again until Redis answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio
import structlog

from flashd.adapters.store_link import settle
from flashd.adapters.store_types import ConfirmRefused, ConfirmWhy, EventOut, IntentWhy, RowFate, Write, Written
from flashd.adapters.store_types import IntentRefused as StoreIntentRefused
from flashd.core.actions import Save, SaveKind
from flashd.core.ledger import LedgerRow, RowState
from flashd.core.model import Run
from flashd.core.observations import IntentRefused, StoreRefusal
from flashd.daemon.announce import Moment, announced
from flashd.daemon.desk import Desk
from flashd.daemon.records import encode_run, record
from flashd.errors import StaleError, StoreAuthError, StoreFullError
from flashd.wire.request_model import RunRequest

log = structlog.get_logger(__name__)

T = TypeVar("T")
REFUSED_RETRY_S = 5.0

_WHY = {
    IntentWhy.MAX_MACHINES: StoreRefusal.MAX_MACHINES,
    IntentWhy.MAX_USD_PER_HOUR: StoreRefusal.MAX_USD_PER_HOUR,
    IntentWhy.CANCELLED: StoreRefusal.CANCELLED,
}


@dataclass(frozen=True, slots=True)
class LostMachine:
    """A machine was made whose row is not this run's to keep. `mine_to_delete`: nobody else will.

    `fenced`: another daemon leads; otherwise the run or its row moved on under this very leader.
    """

    mine_to_delete: bool
    fenced: bool
    why: str


Kept = Written | IntentRefused | LostMachine


@dataclass(slots=True)
class Journal:
    """One run's durable side: its version, and what turns its decisions into writes."""

    desk: Desk
    request: RunRequest
    version: int

    async def keep(self, run: Run, save: Save, moment: Moment, progress: EventOut | None = None) -> Kept:
        """Make `save` durable; `run` is the run after it. Raises FencedError or StaleError: stop acting."""
        write = self._write(run, save, moment)
        if progress is not None:
            write = replace(write, progress=(progress,))
        answer = await persist(self.desk, lambda: self._send(write, run, save, moment))
        if isinstance(answer, Written):
            self.version = answer.version
            self.desk.ledger.apply(answer.rows)
            self._log(run, save)
            if run.end is not None:
                self.desk.tally.ended(run.state.value, run.end.reason.value if run.end.reason else "")
        return answer

    async def _send(self, write: Write, run: Run, save: Save, moment: Moment) -> Kept:
        store, limits = self.desk.store, self.desk.limits
        match save.kind:
            case SaveKind.TRANSITION:
                return await store.transition(write)
            case SaveKind.INTENT:
                answer = await store.intent(write, _only(save), limits.max_machines, limits.max_usd_per_hour)
                return _intent_refused(answer, write) if isinstance(answer, StoreIntentRefused) else answer
            case SaveKind.CONFIRM:
                confirmed = await store.confirm(write, _only(save))
                return _lost(confirmed) if isinstance(confirmed, ConfirmRefused) else confirmed
            case SaveKind.REQUEUE:
                return await store.requeue(write, save.release, moment.now)
            case SaveKind.FINISH:
                return await store.finish(write, save.release, moment.now)

    def _write(self, run: Run, save: Save, moment: Moment) -> Write:
        events: tuple[EventOut, ...] = ()
        if save.event is not None:
            events = (announced(self.desk, save.event, run, self.request, moment),)
        rows = dict(save.rows)
        if save.kind in (SaveKind.INTENT, SaveKind.CONFIRM):
            rows = {}
        elif save.kind is SaveKind.TRANSITION:
            rows |= self._deleting(save.release, moment.now)
        return Write(
            run_id=run.terms.run_id,
            expect=self.version,
            op_id=self.desk.draw_op_id(),
            core=encode_run(run),
            fields=record(run, moment),
            events=events,
            rows=rows,
        )

    def _deleting(self, names: tuple[str, ...], now: float) -> Mapping[str, LedgerRow | None]:
        rows = (self.desk.ledger.rows.get(name) for name in names)
        return {row.name: row.deleting(now) for row in rows if row is not None and row.state is RowState.LIVE}

    def _log(self, run: Run, save: Save) -> None:
        if save.event is None:
            return
        attempt = run.attempt or (run.history[-1] if run.history else None)
        log.info(
            f"run_{save.event.value}",
            run_id=run.terms.run_id,
            attempt=run.last_number,
            state=run.state.value,
            machine=attempt.name if attempt else None,
            machine_id=attempt.machine_id if attempt else None,
            reason=run.end.reason.value if run.end and run.end.reason else None,
        )


async def persist(desk: Desk, call: Callable[[], Awaitable[T]]) -> T:
    """Repeat an idempotent write until Redis has room, lets us in and answers; only being fenced off ends it early.

    Raises FencedError and StaleError.
    """
    while True:
        try:
            answer = await settle(call, desk.random)
        except (StoreFullError, StoreAuthError) as error:
            desk.alarms.set("redis_refuses_writes", str(error))
            await anyio.sleep(REFUSED_RETRY_S)
        else:
            desk.alarms.set("redis_refuses_writes", None)
            return answer


def _only(save: Save) -> LedgerRow:
    rows = [row for _, row in save.rows if row is not None]
    if len(rows) != 1:
        raise AssertionError(f"a step of one machine has {len(rows)} rows")
    return rows[0]


def _intent_refused(answer: StoreIntentRefused, write: Write) -> IntentRefused:
    why = _WHY.get(answer.why)
    if why is None:
        raise StaleError(f"run {write.run_id}: the machine name of its next attempt was used before")
    return IntentRefused(why)


def _lost(answer: ConfirmRefused) -> LostMachine:
    mine = answer.row in (RowFate.ABANDONED, RowFate.GONE)
    return LostMachine(mine, answer.why is ConfirmWhy.FENCED, f"{answer.why}: its row is {answer.row}")
