"""All runs of a leading daemon: one coroutine each, restarted from Redis when it fails, handed on when the run ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio
import structlog
from anyio.abc import TaskGroup

from flashd.adapters.store_types import StoredRun
from flashd.core.ledger import Gone
from flashd.core.model import Run
from flashd.core.observations import CancelAsked, Observation, ProvedGone
from flashd.daemon.admission import AdmissionDesk
from flashd.daemon.desk import Desk
from flashd.daemon.kept import KeptRun, read_back
from flashd.daemon.runner import AFTER_TAKEOVER, FIRST_SIGHT, Runner
from flashd.daemon.steps import Journal, persist
from flashd.errors import FencedError, FlashdError, StaleError, StoreError, StoreUnavailableError

log = structlog.get_logger(__name__)

STALE_RETRY_S = 1.0
FAILED_RETRY_S = 15.0
LOAD_CHUNK = 500


class Keeper:
    """Starts, finds and ends runners. `on_ended` is told every run that is over and not yet released."""

    def __init__(
        self, desk: Desk, admission: AdmissionDesk, group: TaskGroup, on_ended: Callable[[KeptRun], None]
    ) -> None:
        self.runners: dict[str, Runner] = {}
        self._desk = desk
        self._admission = admission
        self._group = group
        self._on_ended = on_ended
        self._held: set[str] = set()  # runs with a coroutine, from the moment it is asked for
        self._early_cancels: dict[str, CancelAsked] = {}
        self.broken: dict[str, str] = {}  # run id -> why its stored state cannot be kept

    async def recover(self) -> None:
        """Take over every run that has not ended, and those that are ended and not released."""
        store = self._desk.store
        active, unreleased = await store.active(), await store.unreleased()
        for run_ids, ended in ((active, False), (unreleased, True)):
            for start in range(0, len(run_ids), LOAD_CHUNK):
                for kept in await self._load(run_ids[start : start + LOAD_CHUNK]):
                    self._adopt(kept, ended=ended)
        log.info("runs_recovered", active=len(active), unreleased=len(unreleased))

    @property
    def kept(self) -> int:
        """How many runs have a coroutine."""
        return len(self._held)

    def start(self, kept: KeptRun, first: Observation = FIRST_SIGHT) -> None:
        """A coroutine for this run, unless it has one."""
        run_id = kept.run.terms.run_id
        if run_id not in self._held:
            self._held.add(run_id)
            self._admission.know(kept.run)
            self._group.start_soon(self._hold, kept, first)

    def cancel(self, run_id: str, asked: CancelAsked) -> None:
        """Tell the run's coroutine; one that is just being made, or made again, is told when it is there."""
        if (runner := self.runners.get(run_id)) is not None:
            runner.mailbox.put(asked)
        elif run_id in self._held:
            self._early_cancels[run_id] = asked

    def gone(self, run_id: str, name: str) -> None:
        """A machine of the run is proved gone."""
        if (runner := self.runners.get(run_id)) is not None:
            runner.mailbox.put(ProvedGone(name))

    async def _load(self, run_ids: Sequence[str]) -> list[KeptRun]:
        """Those that can be read; one that cannot must not keep the others waiting. Raises StoreUnavailableError."""
        try:
            stored = await self._desk.store.load_many(run_ids)
            found = [self._kept(stored[run_id]) for run_id in sorted(stored)]
        except StoreUnavailableError:
            raise
        except StoreError as error:
            log.warning("runs_loaded_one_by_one", error=str(error))
            found = [await self._reloaded(run_id) for run_id in run_ids]
        return [kept for kept in found if kept is not None]

    def _adopt(self, kept: KeptRun, *, ended: bool) -> None:
        if ended or kept.run.is_over:
            self._on_ended(kept)
        else:
            self.start(kept, AFTER_TAKEOVER)

    def _kept(self, stored: StoredRun) -> KeptRun | None:
        try:
            return read_back(self._desk, stored)
        except FlashdError as error:
            self._unreadable(stored.run_id, error)
            return None

    def _unreadable(self, run_id: str, error: FlashdError) -> None:
        self.broken[run_id] = str(error)
        self._desk.alarms.set("runs_unreadable", f"{len(self.broken)} stored runs cannot be read")
        log.error("run_unreadable", run_id=run_id, error=str(error))

    async def _hold(self, kept: KeptRun, first: Observation) -> None:
        run_id = kept.run.terms.run_id
        try:
            await self._keep(kept, first)
        finally:
            self._held.discard(run_id)
            self._early_cancels.pop(run_id, None)

    async def _keep(self, kept: KeptRun, first: Observation) -> None:
        run_id = kept.run.terms.run_id
        while True:
            try:
                journal = Journal(self._desk, kept.request, kept.version)
                runner = Runner(self._desk, self._admission, kept.run, journal, await self._gone(kept.run))
                self.runners[run_id] = runner
                if (asked := self._early_cancels.pop(run_id, None)) is not None:
                    runner.mailbox.put(asked)
                await runner.keep(first)
                self._on_ended(KeptRun(runner.run, kept.request, journal.version))
                return
            except FencedError:
                raise
            except StaleError:
                await anyio.sleep(STALE_RETRY_S)
            except Exception:
                # One run's failure must never stop the daemon or another run.
                log.exception("run_coroutine_failed", run_id=run_id)
                text = f"run {run_id}; it is tried again from Redis"
                self._desk.alarms.incident("run_coroutine_failed", text, self._desk.clock.now())
                await anyio.sleep(FAILED_RETRY_S)
            finally:
                self.runners.pop(run_id, None)
            reloaded = await self._reloaded(run_id)
            if reloaded is None:
                return
            if reloaded.run.is_over:
                self._on_ended(reloaded)
                return
            kept, first = reloaded, AFTER_TAKEOVER

    async def _gone(self, run: Run) -> dict[str, Gone]:
        """The proofs of absence so far; a run without an attempt has none."""
        if not run.history and run.attempt is None:
            return {}
        return dict(await persist(self._desk, lambda: self._desk.store.gone(run.terms.run_id)))

    async def _reloaded(self, run_id: str) -> KeptRun | None:
        """The run as Redis has it; None when it is not there, or cannot be read."""
        try:
            stored = await persist(self._desk, lambda: self._desk.store.load(run_id))
        except StoreError as error:
            self._unreadable(run_id, error)
            return None
        return self._kept(stored) if stored is not None else None
