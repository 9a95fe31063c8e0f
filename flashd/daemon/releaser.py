"""Sees every machine off: works through the ledger until nothing is left that its run does not use any more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup

from flashd.core.cost import billed_usd
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.model import Run
from flashd.core.releasing import Duty, RunStanding, duty, held_by, names_of
from flashd.daemon.alarms import some
from flashd.daemon.desk import Desk
from flashd.daemon.kept import KeptRun, read_back
from flashd.daemon.observer import FleetSnapshot
from flashd.daemon.release_machine import MachineRelease, another_account
from flashd.daemon.release_run import RunRelease
from flashd.daemon.settling import Lost, Settling
from flashd.daemon.steps import persist
from flashd.errors import FencedError, FlashdError

log = structlog.get_logger(__name__)

PASS_INTERVAL_S = 15.0
FAILED_RETRY_S = 15.0
OVERDUE_S = 600.0
ABANDONED_KEEP_S = 86_400.0


class Releaser:
    """The leader's. One coroutine a row, so that no machine waits for another; the account's budget orders their calls.

    `active` tells the run that a live coroutine keeps, None when there is none at the moment.
    """

    def __init__(
        self,
        desk: Desk,
        on_gone: Callable[[str, str], None],
        *,
        runs_s: float,
        remember_s: float,
        active: Callable[[str], Run | None] = lambda _run_id: None,
    ) -> None:
        self.last_pass_at: float | None = None  # Unix seconds
        self.on_released: list[Callable[[Run, float], None]] = []  # with the final cost in dollars
        self.on_late_cost: list[Callable[[float], None]] = []  # dollars of machines found after `released`
        self._desk = desk
        self._on_gone = on_gone
        self._active = active
        self._run_release = RunRelease(desk, runs_s, remember_s)
        self._ended: dict[str, KeptRun] = {}
        self._run_of_name: dict[str, str] = {}
        self._changed_rows: dict[str, None] = {}
        self._changed_runs: dict[str, None] = {}
        self._sighted: dict[str, Machine] = {}
        self._late: set[str] = set()
        self._busy: set[str] = set()
        self._group: TaskGroup | None = None
        self._taken_over_at = desk.clock.now()
        self._kick = anyio.Event()

    def note_ended(self, ended: KeptRun) -> None:
        """The run is over: release its machines, then the run. Noting it twice is harmless."""
        run_id, names = ended.run.terms.run_id, names_of(ended.run)
        self._ended[run_id] = ended
        self._run_of_name.update(dict.fromkeys(names, run_id))
        self._changed_rows.update(dict.fromkeys(names))
        self._changed_runs[run_id] = None
        self._kick.set()

    def oldest_pending_s(self) -> float:
        """How long the oldest release is under way; 0 when none is."""
        rows = self._desk.ledger.in_state(RowState.DELETING)
        now = self._desk.clock.now()
        return max((now - row.deleting_at for row in rows if row.deleting_at is not None), default=0.0)

    async def serve(self) -> None:
        """Until cancelled. Raises FencedError when another daemon leads."""
        ledger = self._desk.ledger
        observers = [cloud.observer for _, cloud in sorted(self._desk.clouds.items())]
        ledger.on_change.append(self._row_changed)
        for observer in observers:
            observer.after_pass.append(self._listed)
        fenced = ""
        try:
            await self._work_until_cancelled()
        except* FencedError as group:
            fenced = str(group.exceptions[0])
        finally:
            self._group = None
            self._busy.clear()
            _drop(ledger.on_change, self._row_changed)
            for observer in observers:
                _drop(observer.after_pass, self._listed)
        if fenced:
            raise FencedError(fenced)

    async def _work_until_cancelled(self) -> None:
        """A whole pass at every interval; between them only what has changed."""
        clock = self._desk.clock
        async with anyio.create_task_group() as group:
            self._group = group
            while True:
                self._pass()
                next_at = clock.monotonic() + PASS_INTERVAL_S
                while (wait_s := next_at - clock.monotonic()) > 0:
                    with anyio.move_on_after(wait_s):
                        await self._kick.wait()
                    self._kick = anyio.Event()
                    self._catch_up()

    # What is to be done ----------------------------------------------------------------------------------------------

    def _pass(self) -> None:
        """Start what is due and not under way. Makes no request itself."""
        for row in tuple(self._desk.ledger.rows.values()):
            self._consider(row)
        self._consider_runs(tuple(self._ended))
        self._tell_alarms()
        self.last_pass_at = self._desk.clock.now()

    def _catch_up(self) -> None:
        names, runs = tuple(self._changed_rows), tuple(self._changed_runs)
        self._changed_rows.clear()
        self._changed_runs.clear()
        for name in names:
            if (row := self._desk.ledger.rows.get(name)) is not None:
                self._consider(row)
        self._consider_runs(runs)

    def _consider_runs(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            ended = self._ended.get(run_id)
            if ended is not None and not held_by(ended.run, self._desk.ledger.rows):
                self._start(f"run {run_id}", partial(self._release_run, run_id))

    def _consider(self, row: LedgerRow) -> None:
        run = self._active(row.run_id)
        match duty(row, self._standing(row.run_id, run), run):
            case Duty.RELEASE:
                self._start(row.name, partial(self._release, row.name))
            case Duty.SETTLE:
                self._start(row.name, partial(self._settle, row.name))
            case Duty.HAND_OVER:
                self._start(row.name, partial(self._hand_over, row))
            case Duty.WATCH:
                self._watch(row)
            case Duty.NONE:
                if run is None and row.run_id not in self._ended:
                    self._start(f"adrift {row.run_id}", partial(self._look_for_run, row))

    def _standing(self, run_id: str, run: Run | None) -> RunStanding:
        if run_id in self._ended:
            return RunStanding.ENDED
        return RunStanding.UNCERTAIN if run is None or run.is_over else RunStanding.ACTIVE

    def _start(self, key: str, job: Callable[[], Awaitable[None]]) -> None:
        if self._group is not None and key not in self._busy:
            self._busy.add(key)
            self._group.start_soon(self._do, key, job)

    async def _do(self, key: str, job: Callable[[], Awaitable[None]]) -> None:
        try:
            await job()
        except FencedError:
            raise
        except Exception:
            # One machine's trouble must not stop the release of the others; the next pass starts it again.
            log.exception("release_failed", subject=key)
            await anyio.sleep(FAILED_RETRY_S)
        finally:
            self._busy.discard(key)
            self._again(key)

    def _again(self, name: str) -> None:
        """Look at a row, and at the run that it may hold up, right after this."""
        self._changed_rows[name] = None
        if (run_id := self._run_of_name.get(name)) is not None:
            self._changed_runs[run_id] = None
        self._kick.set()

    # What others tell; none of it may block ---------------------------------------------------------------------------

    def _row_changed(self, name: str, row: LedgerRow | None) -> None:
        # A live row is changed by its own run, whose memory lags behind the row for a moment: the passes look at it.
        if row is None or row.state is not RowState.LIVE:
            self._again(name)

    def _listed(self, snapshot: FleetSnapshot) -> None:
        for row in self._desk.ledger.in_state(RowState.ABANDONED):
            found = snapshot.by_name.get(row.name)
            if row.provider == snapshot.provider and found:
                self._sighted[row.name] = found[0]
                self._again(row.name)

    # One row ---------------------------------------------------------------------------------------------------------

    async def _release(self, name: str) -> None:
        row = self._desk.ledger.rows.get(name)
        if row is not None and row.machine_id is None:
            await self._settle(name)
            return
        gone = await MachineRelease(self._desk, name, lambda: self._desk.ledger.rows.get(name)).prove_gone()
        if gone is not None:
            await self._record_gone(gone, gone.machine_id)

    async def _record_gone(self, row: LedgerRow, machine_id: str | None) -> None:
        """The proof goes into Redis first; only then does anybody hear of it."""
        now = self._desk.clock.now()
        proof = Gone(row.name, machine_id, row.requested_at, now)
        word = await persist(self._desk, lambda: self._desk.store.machine_gone(proof, row.run_id))
        log.info("machine_gone", machine=row.name, machine_id=machine_id, run_id=row.run_id, answer=word.value)
        self._desk.ledger.apply({row.name: None})
        if row.name in self._late:
            self._late.discard(row.name)
            for hook in self.on_late_cost:
                hook(billed_usd(row.usd_per_hour, now - row.requested_at))
        self._on_gone(row.run_id, row.name)

    async def _settle(self, name: str) -> None:
        """A name whose machine nobody knows: found = on its way out, else given up."""
        present = self._desk.ledger.rows.get
        answer = await Settling(self._desk, name, lambda: present(name), self._taken_over_at).outcome()
        row = present(name)
        if row is None or answer is None:
            return
        if not isinstance(answer, Lost):
            await self._mark(row, row.deleting(self._desk.clock.now(), answer.id))
        elif row.state is RowState.DELETING:
            await self._record_gone(row, None)
        else:
            await self._mark(row, answer.abandoned(row))

    async def _mark(self, row: LedgerRow, changed: LedgerRow) -> None:
        """A row's new state, if nobody changed it meanwhile."""
        marked = await persist(self._desk, lambda: self._desk.store.mark(row.state, changed))
        log.info("machine_row_marked", machine=row.name, state=changed.state.value, done=marked.done)
        self._desk.ledger.apply({row.name: marked.row})

    def _watch(self, row: LedgerRow) -> None:
        """An abandoned name: what appears under it goes at once; after a day of absence the name itself."""
        if row.name in self._sighted:
            self._start(row.name, partial(self._delete_sighted, row))
            return
        cloud = self._desk.clouds.get(row.provider)
        snapshot = cloud.observer.snapshot if cloud is not None else None
        since = max(row.called_at, row.deleting_at or 0.0)
        if snapshot is not None and snapshot.started_at >= since + ABANDONED_KEEP_S:
            self._start(row.name, partial(self._record_gone, row, None))

    async def _delete_sighted(self, row: LedgerRow) -> None:
        found = self._sighted.pop(row.name)
        log.error("abandoned_machine_found", machine=row.name, machine_id=found.id, run_id=row.run_id)
        if row.run_id not in self._ended and self._active(row.run_id) is None:
            self._late.add(row.name)
        await self._mark(row, row.deleting(self._desk.clock.now(), found.id))

    async def _look_for_run(self, row: LedgerRow) -> None:
        """A machine whose run nobody keeps: one that Redis does not know any more, or knows as released, goes."""
        try:
            stored = await persist(self._desk, lambda: self._desk.store.load(row.run_id))
            kept = read_back(self._desk, stored) if stored is not None and not stored.released else None
        except FencedError:
            raise
        except FlashdError as error:
            self._desk.alarms.incident("run_unreadable", f"{row.name} stays: {error}", self._desk.clock.now())
            await anyio.sleep(FAILED_RETRY_S)
            return
        present = self._desk.ledger.rows.get(row.name)
        if present != row or self._active(row.run_id) is not None:
            return
        if kept is None:
            log.error("machine_without_run", machine=row.name, machine_id=row.machine_id, run_id=row.run_id)
            await self._hand_over(row)
        elif kept.run.is_over:
            self.note_ended(kept)

    async def _hand_over(self, row: LedgerRow) -> None:
        await self._mark(row, row.deleting(self._desk.clock.now()))

    # One run ---------------------------------------------------------------------------------------------------------

    async def _release_run(self, run_id: str) -> None:
        ended = self._ended.get(run_id)
        if ended is None:
            return
        answer = await self._run_release.release(ended)
        if isinstance(answer, KeptRun):
            self.note_ended(answer)
            return
        self._ended.pop(run_id, None)
        for name in names_of(ended.run):
            self._run_of_name.pop(name, None)
        if answer is not None:
            for hook in self.on_released:
                hook(ended.run, answer)

    # Alarms ----------------------------------------------------------------------------------------------------------

    def _tell_alarms(self) -> None:
        desk, now = self._desk, self._desk.clock.now()
        rows = desk.ledger.in_state(RowState.DELETING)
        overdue = sorted(
            (row for row in rows if row.deleting_at is not None and now - row.deleting_at >= OVERDUE_S),
            key=lambda row: row.deleting_at or 0.0,
        )
        text = None
        if overdue:
            usd = sum(billed_usd(row.usd_per_hour, now - (row.deleting_at or now)) for row in overdue)
            names = some([f"{row.name} ({row.machine_id})" for row in overdue])
            text = f"not gone {OVERDUE_S / 60:.0f} min after the first DELETE, ${usd:.2f} so far: {names}"
        desk.alarms.set("release_overdue", text)
        desk.alarms.set("abandoned_machine", ", ".join(sorted(self._late)) or None)
        for name, cloud in desk.clouds.items():
            if all(row.account == cloud.account for row in desk.ledger.rows.values() if row.provider == name):
                desk.alarms.set(another_account(name), None)


def _drop(hooks: list[Callable[..., None]], hook: Callable[..., None]) -> None:
    """Remove a hook that may have been cleared away already."""
    if hook in hooks:
        hooks.remove(hook)
