"""The last step of a run: every machine is proved gone, so its cost is final and `released` is told."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import structlog

from flashd.adapters.store_types import StillHeld, Write
from flashd.core.actions import EventKind
from flashd.core.cost import run_cost
from flashd.core.model import Run
from flashd.core.releasing import final_proofs, names_of, released
from flashd.daemon.announce import Moment, announced
from flashd.daemon.desk import Desk
from flashd.daemon.kept import KeptRun
from flashd.daemon.records import decode_run, encode_run, record
from flashd.daemon.steps import persist
from flashd.errors import StaleError

log = structlog.get_logger(__name__)


class RunRelease:
    """Writes `released`; how long the run is remembered after it is the configuration's."""

    def __init__(self, desk: Desk, runs_s: float, remember_s: float) -> None:
        self._desk = desk
        self._runs_s = runs_s
        self._remember_s = remember_s

    async def release(self, ended: KeptRun) -> float | KeptRun | None:
        """The final cost in dollars when `released` is durable; the run as Redis has it, to be tried again; None when
        it was released before or Redis does not know it."""
        desk, run_id = self._desk, ended.run.terms.run_id
        proofs = await persist(desk, lambda: desk.store.gone(run_id))
        now = desk.clock.now()
        run = released(ended.run)
        moment = Moment(now, final_proofs(run, proofs, now))
        write = self._write(run, ended, moment)
        try:
            answer = await persist(
                desk, lambda: desk.store.released(write, names_of(run), now, self._runs_s, self._remember_s)
            )
        except StaleError as error:
            log.warning("release_outdated", run_id=run_id, error=str(error))
            return await self._reloaded(ended)
        if isinstance(answer, StillHeld):
            # The mirror missed a write: what Redis says about these names is what has to be worked off first.
            log.error("ledger_mirror_wrong", run_id=run_id, machines=answer.names)
            for name in answer.names:
                row = await persist(desk, partial(desk.store.row, name))
                desk.ledger.apply({name: row})
            return ended
        cost = run_cost(run, moment.gone, now)
        log.info("run_released", run_id=run_id, cost_usd=cost.usd, machines=len(proofs))
        return cost.usd

    def _write(self, run: Run, ended: KeptRun, moment: Moment) -> Write:
        return Write(
            run_id=run.terms.run_id,
            expect=ended.version,
            op_id=self._desk.draw_op_id(),
            core=encode_run(run),
            fields=record(run, moment),
            events=(announced(self._desk, EventKind.RELEASED, run, ended.request, moment),),
        )

    async def _reloaded(self, ended: KeptRun) -> KeptRun | None:
        run_id = ended.run.terms.run_id
        stored = await persist(self._desk, lambda: self._desk.store.load(run_id))
        if stored is None or stored.released:
            return None
        return replace(ended, run=decode_run(stored.core), version=stored.version)
