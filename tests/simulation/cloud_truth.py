"""A cloud as it really is: every machine ever made, its life on virtual time, and what is billed for it."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from flashd.core.machines import MachinePhase
from flashd.core.places import Place
from tests.simulation.loop import VirtualLoop


@dataclass(slots=True)
class TrueMachine:
    """One machine. Times are Unix seconds of the simulated world; None = has not happened."""

    id: str
    name: str
    place: Place
    account: str
    labels: tuple[str, ...]
    user_data: str
    created_at: float
    visible_at: float
    running_at: float | None = None
    died_at: float | None = None
    died_as: MachinePhase | None = None
    deleting_at: float | None = None
    gone_at: float | None = None
    delete_calls: list[float] = field(default_factory=list)

    @property
    def phase(self) -> MachinePhase:
        if self.deleting_at is not None:
            return MachinePhase.DELETING
        if self.died_as is not None:
            return self.died_as
        return MachinePhase.RUNNING if self.running_at is not None else MachinePhase.PENDING

    @property
    def is_alive(self) -> bool:
        """It exists, whatever state it is in."""
        return self.gone_at is None

    @property
    def works(self) -> bool:
        """Its box can still write."""
        return self.is_alive and self.running_at is not None and self.died_as is None

    def billed_usd(self, now: float) -> float:
        """Whole minutes from running to the start of the deletion, as this cloud counts them."""
        if self.running_at is None:
            return 0.0
        ends = [at for at in (self.deleting_at, self.gone_at) if at is not None]
        end = max(min(ends, default=now), self.running_at)
        return self.place.usd_per_hour * math.ceil((end - self.running_at) / 60.0) / 60.0


@dataclass(slots=True)
class Habits:
    """How the cloud behaves: seconds, drawn uniformly."""

    boot_s: tuple[float, float] = (120.0, 120.0)
    list_lag_s: tuple[float, float] = (0.0, 0.0)
    deleting_s: tuple[float, float] = (5.0, 30.0)
    stuck_pending: float = 0.0  # share of machines that never run


class CloudTruth:
    """Makes, runs and removes machines. `on_running` starts the box of a machine."""

    def __init__(self, loop: VirtualLoop, chance: random.Random) -> None:
        self.machines: dict[str, TrueMachine] = {}
        self.habits = Habits()
        self.stock: dict[str, int] = {}  # place key -> machines left; absent = plenty
        self.account = "org-1"
        self.on_running: Callable[[TrueMachine], None] = lambda _machine: None
        self._loop = loop
        self._chance = chance
        self._ids = itertools.count(1001)

    def alive(self) -> list[TrueMachine]:
        return [machine for machine in self.machines.values() if machine.is_alive]

    def of_run(self, middle: str) -> list[TrueMachine]:
        """All machines whose name contains `middle`, oldest first."""
        return [machine for machine in self.machines.values() if middle in machine.name]

    def make(self, name: str, place: Place, labels: tuple[str, ...] = (), user_data: str = "") -> TrueMachine:
        now, habits = self._loop.wall(), self.habits
        machine = TrueMachine(
            id=str(next(self._ids)),
            name=name,
            place=place,
            account=self.account,
            labels=labels,
            user_data=user_data,
            created_at=now,
            visible_at=now + self._chance.uniform(*habits.list_lag_s),
        )
        self.machines[machine.id] = machine
        if place.key in self.stock:
            self.stock[place.key] -= 1
        if self._chance.random() >= habits.stuck_pending:
            self._loop.in_world(self._chance.uniform(*habits.boot_s), lambda: self._boot(machine))
        return machine

    def begin_deletion(self, machine: TrueMachine) -> None:
        """The cloud takes its time; the box may write until the machine is gone."""
        if machine.deleting_at is None and machine.is_alive:
            machine.deleting_at = self._loop.wall()
            self._loop.in_world(self._chance.uniform(*self.habits.deleting_s), lambda: self.remove(machine))

    def remove(self, machine: TrueMachine) -> None:
        """It does not exist any more: deleted, or vanished without our doing."""
        if machine.is_alive:
            machine.gone_at = self._loop.wall()
            if machine.place.key in self.stock:
                self.stock[machine.place.key] += 1

    def die(self, machine: TrueMachine, how: MachinePhase) -> None:
        """The host fails or is shut off; it is still listed, and billed."""
        if machine.is_alive and machine.died_as is None:
            machine.died_at, machine.died_as = self._loop.wall(), how

    def _boot(self, machine: TrueMachine) -> None:
        if machine.phase is MachinePhase.PENDING and machine.is_alive:
            machine.running_at = self._loop.wall()
            self.on_running(machine)
