"""Looks for machines that nobody owns: the provider's complete list first, then the books, then the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import anyio
import structlog

from flashd.adapters.store import Store
from flashd.core.machines import Machine
from flashd.core.orphans import Books, Ownership, Sighting, SweepPlan, SweepRules, hashes_of, plan
from flashd.daemon.alarms import some
from flashd.daemon.desk import Cloud, Desk
from flashd.errors import FencedError, ProviderError, StoreError

log = structlog.get_logger(__name__)

FAST_PASSES = 10
RETRY_S = 15.0


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """The first passes after a takeover come faster. Seconds."""

    interval_s: float
    initial_interval_s: float
    grace_s: float
    max_deletes: int
    dry_run: bool

    @property
    def rules(self) -> SweepRules:
        return SweepRules(self.grace_s, self.max_deletes)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """The last whole pass: every machine of our prefix and whose it is, and what was or would be deleted."""

    at: float
    machines: tuple[tuple[Machine, Ownership], ...]
    deletes: tuple[str, ...]
    dry_run: bool
    too_many: bool


class Sweeper:
    """Sweeps one account on its observer's own lists. An error or a truncated list means that nothing is deleted."""

    def __init__(self, desk: Desk, cloud: Cloud, settings: SweepSettings) -> None:
        self.last_success_at: float | None = None  # Unix seconds
        self._desk = desk
        self._cloud = cloud
        self._settings = settings
        self._sightings: Mapping[str, Sighting] = {}
        self._report: SweepReport | None = None
        self._passes = 0

    @property
    def provider(self) -> str:
        return self._cloud.provider.name

    def report(self) -> SweepReport | None:
        """What the last whole pass found; None before the first."""
        return self._report

    def counts(self) -> Mapping[str, int]:
        """Listed machines of our prefix by whose they are."""
        report = self._report
        return Counter(whose.value for _, whose in report.machines) if report is not None else {}

    async def serve(self) -> None:
        """Sweep at every interval until cancelled. Raises FencedError when another daemon leads."""
        while True:
            done = await self._sweep()
            if done:
                self._passes += 1
            settings = self._settings
            usual_s = settings.initial_interval_s if self._passes < FAST_PASSES else settings.interval_s
            await anyio.sleep(usual_s if done else min(usual_s, RETRY_S))

    async def _sweep(self) -> bool:
        desk = self._desk
        snapshot = await self._cloud.observer.pass_after(desk.clock.now())
        machines = tuple(machine for machine in snapshot.by_id.values() if machine.name)
        try:
            books = await read_books(desk.store, desk.ns, machines)
        except FencedError:
            raise
        except StoreError as error:
            log.warning("sweep_skipped", provider=self.provider, error=str(error))
            self._sightings = {}  # two complete passes in a row: one that could not be judged breaks the row
            return False
        found = plan(machines, books, self._sightings, self._settings.rules, snapshot.started_at)
        self._sightings = found.sightings
        self._report = SweepReport(
            desk.clock.now(),
            found.report,
            tuple(machine.name for machine in found.deletes),
            self._settings.dry_run,
            found.too_many,
        )
        self._tell_alarms(found)
        await self._delete(found)
        self.last_success_at = desk.clock.now()
        return True

    async def _delete(self, found: SweepPlan) -> None:
        if not found.deletes:
            return
        if self._settings.dry_run:
            log.info("sweep_would_delete", provider=self.provider, machines=_names(found.deletes))
            return
        async with anyio.create_task_group() as group:
            for machine in found.deletes:
                group.start_soon(self._delete_one, machine)

    async def _delete_one(self, machine: Machine) -> None:
        """Ask once; a machine that the next passes still show is asked again, so absence is proved by the lists."""
        if self._desk.safe_mode or not self._desk.lease.held:
            log.warning("orphan_kept", machine=machine.name, why=self._desk.safe_mode or "the lease does not cover it")
            return
        try:
            answer = await self._cloud.provider.delete(machine.id)
        except ProviderError as error:
            log.warning("orphan_delete_failed", machine=machine.name, machine_id=machine.id, error=str(error))
            return
        log.warning("orphan_deleted", machine=machine.name, machine_id=machine.id, answer=answer.value)

    def _tell_alarms(self, found: SweepPlan) -> None:
        alarms, provider = self._desk.alarms, self.provider
        unknown = found.found(Ownership.UNKNOWN)
        text = None
        if unknown:
            text = f"{len(unknown)} named like ours, but nobody's: {_names(unknown)}; look at `flashd machines`"
        alarms.set(f"unknown_machines_{provider}", text)
        text = None
        if found.too_many:
            limit = self._settings.max_deletes
            text = f"{len(found.due)} orphans are more than sweep.max_deletes = {limit}: {_names(found.due)}"
        alarms.set(f"too_many_orphans_{provider}", text)


async def read_books(store: Store, ns: str, machines: Iterable[Machine]) -> Books:
    """The ledger and the runs behind the machines' names, read now: after the list. Raises StoreError."""
    machines = tuple(machines)
    rows = await store.ledger()
    return Books(ns, rows, await store.run_for_hash(hashes_of(ns, machines)))


def _names(machines: Iterable[Machine]) -> str:
    return some([f"{machine.name} ({machine.id})" for machine in machines])
