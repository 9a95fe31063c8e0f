"""One flashd process from start to hand-over: standby or leader, its loops, and their restarts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
import structlog

from flashd.adapters.store_types import Notes
from flashd.core.blindness import Sight
from flashd.core.model import Run
from flashd.daemon.admission import AdmissionDesk
from flashd.daemon.conditions import Conditions
from flashd.daemon.desk import Cloud, Desk
from flashd.daemon.intake import Intake
from flashd.daemon.keeper import Keeper
from flashd.daemon.kept import KeptRun
from flashd.daemon.leadership import Leadership
from flashd.daemon.memory import StateDirectory
from flashd.daemon.releaser import Releaser
from flashd.daemon.sweeper import Sweeper, SweepSettings
from flashd.errors import FencedError, ProviderError, StoreError
from flashd.wire.request_model import RunRequest

log = structlog.get_logger(__name__)

LOOP_RETRY_S = 5.0
ACCOUNT_RETRY_S = 60.0
NOTE_INTERVAL_S = 15.0
FORGET_INTERVAL_S = 3600.0


@dataclass(slots=True)
class Rooms:
    """The loops of one term of leadership."""

    keeper: Keeper
    admission: AdmissionDesk
    intake: Intake
    releaser: Releaser
    sweepers: tuple[Sweeper, ...]
    started_at: float
    recovered: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What of the configuration the loops need besides the desk."""

    sweep: SweepSettings
    runs_per_repo: int
    runs_s: float
    remember_s: float
    secret_names: Callable[[], frozenset[str]]


@dataclass(slots=True)
class Daemon:
    """The whole process; `serve` until `stop` is set. `state` is None in a simulation without a disk."""

    desk: Desk
    plan: Plan
    holder: str
    state: StateDirectory | None = None
    owns_directory: bool = True
    rooms: Rooms | None = None
    stop: anyio.Event = field(default_factory=anyio.Event)
    leadership: Leadership = field(init=False)

    def __post_init__(self) -> None:
        self.leadership = Leadership(self.desk, self.holder, owns_directory=self.owns_directory, term=self._term)

    async def serve(self) -> None:
        """Lead or stand by until `stop`; then hand over: machines stay, the lease is given back."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.leadership.serve)
            await self.stop.wait()
            if self.rooms is not None:
                self.rooms.intake.stop()
            group.cancel_scope.cancel()
        await self._hand_over()

    async def _hand_over(self) -> None:
        """Best effort: a Redis that does not answer must not turn an orderly end into a failure."""
        try:
            await self._remember()
        except StoreError as error:
            log.warning("memory_not_written", error=str(error))
        await self.leadership.resign()

    # One term of leadership ------------------------------------------------------------------------------------------

    async def _term(self) -> None:
        """Everything a leader does. Returns only when another daemon fenced this one off."""
        desk = self.desk
        try:
            async with anyio.create_task_group() as group:
                rooms = self._furnish(group)
                self.rooms = rooms
                for cloud in desk.clouds.values():
                    cloud.on_takeover()
                # Nobody may look, or note what was seen, before the blindness of the last leader is restored.
                await self._until_recovered(rooms)
                self._start(group)
                group.start_soon(self._loop, "intake", rooms.intake.serve)
                group.start_soon(self._loop, "releaser", rooms.releaser.serve)
                group.start_soon(self._loop, "admission", rooms.admission.serve)
                for sweeper in rooms.sweepers:
                    group.start_soon(self._loop, "sweeper", sweeper.serve)
                if self.state is not None:
                    group.start_soon(self._loop, "memory", partial(self.state.serve, desk))
                rooms.recovered = True
                log.info("working", runs=rooms.keeper.kept, machines=len(desk.ledger.rows))
        except* FencedError as fenced:
            log.error("fenced_off", error=str(fenced.exceptions[0]))
        finally:
            self.rooms = None
            for cloud in desk.clouds.values():
                cloud.observer.after_pass.clear()
            desk.ledger.on_change.clear()
            desk.alarms.end_term()

    def _furnish(self, group: anyio.abc.TaskGroup) -> Rooms:
        desk, plan = self.desk, self.plan
        desk.ledger.on_change.clear()
        admission = AdmissionDesk(desk, plan.runs_per_repo)
        releaser = Releaser(desk, self._gone, runs_s=plan.runs_s, remember_s=plan.remember_s, active=self._kept_run)
        releaser.on_released.append(self._released)
        releaser.on_late_cost.append(desk.tally.spent)
        keeper = Keeper(desk, admission, group, self._ended)
        intake = Intake(desk, secret_names=plan.secret_names, on_accepted=self._accepted, on_cancel=keeper.cancel)
        sweepers = tuple(Sweeper(desk, cloud, plan.sweep) for _, cloud in sorted(desk.clouds.items()))
        return Rooms(keeper, admission, intake, releaser, sweepers, desk.clock.now())

    def _start(self, group: anyio.abc.TaskGroup) -> None:
        for cloud in self.desk.clouds.values():
            group.start_soon(self._loop, "observer", cloud.observer.run)
            group.start_soon(self._loop, "account", partial(self._know_account, cloud))
        group.start_soon(self._loop, "watchers", self.desk.watchers.run)
        group.start_soon(self._loop, "notes", self._take_notes)
        group.start_soon(self._loop, "conditions", Conditions(self.desk).serve)

    async def _loop(self, name: str, serve: Callable[[], Awaitable[None]]) -> None:
        """Run a loop for the whole term; one that fails is started again, loudly."""
        while True:
            try:
                await serve()
                return
            except FencedError:
                raise
            except Exception:
                # A loop's failure must not take the others with it; what it left half done is in Redis.
                log.exception("loop_failed", loop=name)
                now = self.desk.clock.now()
                self.desk.alarms.incident(f"loop_failed_{name}", "it is started again; see the log", now)
                await anyio.sleep(LOOP_RETRY_S)

    async def _until_recovered(self, rooms: Rooms) -> None:
        while True:
            try:
                await self._recover(rooms)
                return
            except FencedError:
                raise
            except StoreError as error:
                log.error("recovery_failed", error=str(error))
                self.desk.alarms.set("recovery", f"{error}; nothing is launched or deleted until it succeeds")
                await anyio.sleep(LOOP_RETRY_S)

    async def _recover(self, rooms: Rooms) -> None:
        desk = self.desk
        await self._repair()
        desk.ledger.load(await desk.store.ledger())
        desk.places.load(await desk.store.notes(Notes.PLACES))
        notes = await desk.store.notes(Notes.BLIND)
        for name, cloud in desk.clouds.items():
            if (sight := _sight(notes.get(f"cloud:{name}"))) is not None:
                cloud.observer.restore(sight)
        repos = {key[5:]: sight for key in notes if key.startswith("repo:") if (sight := _sight(notes[key]))}
        desk.watchers.restore(repos)
        await self._check_memory()
        await rooms.keeper.recover()
        desk.alarms.set("recovery", None)

    async def _repair(self) -> None:
        """Reconcile indexes and totals with the runs and rows they stand for; every finding is a surprise."""
        store = self.desk.store
        op_id = self.desk.draw_op_id()
        for fault in await store.repair(await store.unsettled(), op_id):
            log.warning("store_repaired", subject=fault.subject, detail=fault.what)

    async def _check_memory(self) -> None:
        if self.state is None:
            return
        desk = self.desk
        reason = await self.state.check(desk)
        desk.safe_mode = reason or ""
        desk.alarms.set("safe_mode", reason)

    # What rooms tell each other --------------------------------------------------------------------------------------

    def _accepted(self, run: Run, request: RunRequest, version: int) -> None:
        if self.rooms is not None:
            self.rooms.keeper.start(KeptRun(run, request, version))

    def _kept_run(self, run_id: str) -> Run | None:
        runner = self.rooms.keeper.runners.get(run_id) if self.rooms is not None else None
        return runner.run if runner is not None else None

    def _released(self, run: Run, cost_usd: float) -> None:
        self.desk.tally.spent(cost_usd)
        if self.rooms is not None:
            self.rooms.admission.forget(run.terms.run_id)

    def _gone(self, run_id: str, name: str) -> None:
        if self.rooms is not None:
            self.rooms.keeper.gone(run_id, name)

    def _ended(self, kept: KeptRun) -> None:
        if self.rooms is not None:
            self.rooms.releaser.note_ended(kept)

    # Small loops -----------------------------------------------------------------------------------------------------

    async def _know_account(self, cloud: Cloud) -> None:
        """Learn which account the credential belongs to: nothing is proved under another one's key."""
        while True:
            try:
                cloud.account = await cloud.provider.account()
                return
            except ProviderError as error:
                log.warning("account_unknown", provider=cloud.provider.name, error=str(error))
            # A list that the key can read again, after a reload, ends the pause.
            with anyio.move_on_after(ACCOUNT_RETRY_S):
                await cloud.observer.pass_after(self.desk.clock.now())

    async def _take_notes(self) -> None:
        """Persist what must outlive this process: blindness in Redis, the memory in the state directory."""
        desk = self.desk
        forget_at = desk.clock.now()
        while True:
            sights = {f"cloud:{name}": cloud.observer.sight.to_json() for name, cloud in desk.clouds.items()}
            sights |= {f"repo:{repo}": sight.to_json() for repo, sight in desk.watchers.sights().items()}
            try:
                await desk.store.note(Notes.BLIND, sights)
                await desk.places.save(desk.store)
                await self._remember()
                if desk.clock.now() >= forget_at:
                    forget_at = desk.clock.now() + FORGET_INTERVAL_S
                    await desk.store.forget(desk.clock.now())
            except FencedError:
                raise
            except StoreError as error:
                log.warning("notes_not_taken", error=str(error))
            await anyio.sleep(NOTE_INTERVAL_S)

    async def _remember(self) -> None:
        if self.state is not None and not self.desk.safe_mode:
            await self.state.remember(self.desk)


def _sight(text: str | None) -> Sight | None:
    if text is None:
        return None
    try:
        return Sight.from_json(text)
    except ValueError as error:
        log.warning("blindness_note_unreadable", error=str(error))
        return None
