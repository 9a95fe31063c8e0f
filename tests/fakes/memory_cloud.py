"""A provider in memory, at the level of the Protocol: machines the test sets, deletions that lag, lie, fail or hang."""

from __future__ import annotations

import builtins
from collections import Counter
from dataclasses import replace

import anyio

from flashd.adapters.clock import Clock
from flashd.core.places import Offer, Place
from flashd.errors import ProviderError, UnavailableError
from flashd.providers.base import (
    Capabilities,
    Credit,
    DeleteAnswer,
    Launched,
    LaunchOrder,
    Machine,
    MachinePhase,
    Stock,
)

LATENCY_S = 0.1


class MemoryCloud:
    """Launches nothing by itself. Every call takes LATENCY_S; `calls` holds when each kind was made."""

    def __init__(self, clock: Clock, name: str = "hyperstack") -> None:
        self.clock = clock
        self.calls: list[tuple[float, str, str]] = []  # time, kind, machine id or name
        self.account_id = "acc"
        self.deleting_s = 20.0
        self.lies = 0  # so many deletes are accepted and forgotten
        self.conflicts = 0  # so many deletes are answered with 409 and do nothing
        self.hanging: set[str] = set()  # machine ids whose delete never answers
        self.errors: dict[str, ProviderError] = {}  # by kind of call, for as long as they are set
        self.unlisted: set[str] = set()  # names that lists and look-ups do not show though they exist
        self._name = name
        self._machines: dict[str, Machine] = {}
        self._gone_at: dict[str, float] = {}
        self._next_id = 1

    # For tests

    def put(self, name: str, *, created_at: float | None = None, machine_id: str = "") -> Machine:
        """A machine that exists from now on."""
        machine_id = machine_id or str(self._next_id)
        self._next_id += 1
        created_at = self.clock.now() if created_at is None else created_at
        machine = Machine(machine_id, name, MachinePhase.RUNNING, "ACTIVE", created_at)
        self._machines[machine.id] = machine
        return machine

    def forget_creation(self, machine_id: str) -> None:
        self._machines[machine_id] = replace(self._machines[machine_id], created_at=None)

    def alive(self) -> builtins.list[str]:
        """Names of all machines that exist."""
        now = self.clock.now()
        return sorted(one.name for one in self._machines.values() if now < self._gone_at.get(one.id, now + 1))

    def count(self, kind: str) -> int:
        return Counter(call[1] for call in self.calls)[kind]

    # Provider

    @property
    def name(self) -> str:
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(50, True, 45_000, "none", True, False)

    async def account(self) -> str:
        return self.account_id

    async def stock(self, *, fresh: bool = False) -> Stock:
        place = Place(self._name, self.account_id, "NORWAY-1", "L40", "n3-L40x1", 1.0)
        return Stock((Offer(place, available=True, vram_gb=48, disk_gb=100, ram_gb=58),), (), self.clock.now())

    async def launch(self, order: LaunchOrder) -> Launched:
        raise UnavailableError("launches nothing")

    async def find(self, name: str) -> tuple[Machine, ...]:
        await self._call("find", name)
        return tuple(machine for machine in self._shown() if machine.name == name)

    async def get(self, machine_id: str) -> Machine | None:
        await self._call("get", machine_id)
        return next((machine for machine in self._existing() if machine.id == machine_id), None)

    async def list(self) -> tuple[Machine, ...]:
        await self._call("list", "")
        return self._shown()

    async def delete(self, machine_id: str) -> DeleteAnswer:
        await self._call("delete", machine_id)
        if machine_id in self.hanging:
            await anyio.sleep_forever()
        if all(machine.id != machine_id for machine in self._existing()):
            return DeleteAnswer.NOT_FOUND
        if self.conflicts > 0:
            self.conflicts -= 1
            return DeleteAnswer.IN_PROGRESS
        if self.lies > 0:
            self.lies -= 1
            return DeleteAnswer.ACCEPTED
        if machine_id in self._gone_at:
            return DeleteAnswer.IN_PROGRESS
        self._gone_at[machine_id] = self.clock.now() + self.deleting_s
        return DeleteAnswer.ACCEPTED

    async def console_log(self, machine_id: str) -> str:
        return ""

    async def credit(self) -> Credit:
        return Credit(100.0, True)

    async def _call(self, kind: str, what: str) -> None:
        self.calls.append((self.clock.now(), kind, what))
        await anyio.sleep(LATENCY_S)
        if kind in self.errors:
            raise self.errors[kind]

    def _existing(self) -> tuple[Machine, ...]:
        now = self.clock.now()
        return tuple(
            replace(machine, phase=MachinePhase.DELETING, raw_status="DELETING")
            if self._is_leaving(machine)
            else machine
            for machine in self._machines.values()
            if now < self._gone_at.get(machine.id, now + 1)
        )

    def _is_leaving(self, machine: Machine) -> bool:
        return machine.id in self._gone_at

    def _shown(self) -> tuple[Machine, ...]:
        return tuple(machine for machine in self._existing() if machine.name not in self.unlisted)
