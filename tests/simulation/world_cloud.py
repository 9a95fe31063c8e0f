"""The simulated cloud as the daemon meets it: a `Provider` over the truth, whose calls can go wrong in every way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from flashd.core.places import Offer, Place
from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    CapacityError,
    NameTakenError,
    NotSentError,
    RateLimitedError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import Capabilities, Credit, DeleteAnswer, Launched, LaunchOrder, Machine, Stock
from tests.simulation.cloud_truth import CloudTruth, TrueMachine
from tests.simulation.loop import VirtualLoop
from tests.simulation.wire import Fault, Faults, Wire

RETRY_AFTER_S = 20.0
READ_TIMEOUT_S = 15.0


class WorldCloud:
    """One account of one provider. The kinds of call for `faults` are the names of the methods."""

    def __init__(self, loop: VirtualLoop, wire: Wire, seed: int, offers: tuple[Offer, ...]) -> None:
        self.truth = CloudTruth(loop, random.Random(f"cloud {seed}"))
        self.faults = Faults(random.Random(f"cloud faults {seed}"))
        self.offers = offers
        self.launch_calls: list[tuple[float, str, str]] = []  # time, name, region: every POST that left
        self.failed_at: list[float] = []
        self.answered_at: list[float] = []
        self.may_create = True
        self.on_launch: Callable[[LaunchOrder], None] = lambda _order: None
        self._loop = loop
        self._wire = wire

    @property
    def name(self) -> str:
        return "hyperstack"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(50, True, 45_000, "after_running", True, True)

    async def account(self) -> str:
        await self._call("account")
        await self._answer()
        return self.truth.account

    async def stock(self, *, fresh: bool = False) -> Stock:
        await self._call("stock")
        left = self.truth.stock
        offers = tuple(replace(offer, available=left.get(offer.place.key, 1) > 0) for offer in self.offers)
        read_at = self._loop.wall()
        await self._answer()
        return Stock(offers, (), read_at)

    async def launch(self, order: LaunchOrder) -> Launched:
        if order.guard is not None:
            order.guard()
        await self._wire.leave(f"launch {order.name} {order.place.region}")
        fault = self.faults.draw("launch")
        if fault is Fault.NOT_SENT:
            raise NotSentError("connection refused")
        self.launch_calls.append((self._loop.wall(), order.name, order.place.region))
        self.on_launch(order)
        match fault:
            case None | Fault.LOST | Fault.NO_ID:
                machine = await self._make(order)
            case _:
                await self._refuse_launch(fault, order)
        if fault is Fault.LOST:
            await self._hang(order.timeout_s)
            raise AmbiguousLaunchError("no answer to the create call")
        await self._answer("launch")
        if fault is Fault.NO_ID:
            raise AmbiguousLaunchError("200 without an id", 200)
        return Launched(machine.id)

    async def find(self, name: str) -> tuple[Machine, ...]:
        fault = await self._call(f"find {name}")
        found = [shown(machine) for machine in self._listed(fault) if machine.name == name]
        await self._answer()
        return tuple(found)

    async def get(self, machine_id: str) -> Machine | None:
        fault = await self._call(f"get {machine_id}")
        machine = self.truth.machines.get(machine_id)
        there = machine is not None and machine.is_alive and machine.account == self.truth.account
        there = there and fault is not Fault.DROPPED
        answer = shown(machine) if machine is not None and there else None
        await self._answer()
        return answer

    async def list(self) -> tuple[Machine, ...]:
        fault = await self._call("list")
        machines = tuple(shown(machine) for machine in self._listed(fault))
        await self._answer()
        return machines

    async def delete(self, machine_id: str) -> DeleteAnswer:
        fault = await self._call(f"delete {machine_id}", keeps=(Fault.LIE, Fault.CONFLICT, Fault.LOST))
        machine = self.truth.machines.get(machine_id)
        if machine is None or not machine.is_alive or machine.account != self.truth.account:
            await self._answer()
            return DeleteAnswer.NOT_FOUND
        machine.delete_calls.append(self._loop.wall())
        if fault not in (Fault.LIE, Fault.CONFLICT):
            self.truth.begin_deletion(machine)
        if fault is Fault.LOST:
            await self._hang(READ_TIMEOUT_S)
            raise UnavailableError("no answer to the delete call")
        await self._answer("delete")
        return DeleteAnswer.IN_PROGRESS if fault is Fault.CONFLICT else DeleteAnswer.ACCEPTED

    async def console_log(self, machine_id: str) -> str:
        await self._call(f"console_log {machine_id}")
        await self._answer()
        return ""

    async def credit(self) -> Credit:
        await self._call("credit")
        await self._answer()
        return Credit(100.0 if self.may_create else 0.0, self.may_create)

    # ----------------------------------------------------------------------------------------------------------------

    async def _make(self, order: LaunchOrder) -> TrueMachine:
        if any(machine.name == order.name for machine in self.truth.alive()):
            await self._answer()
            raise NameTakenError("a machine of this name exists", 409)
        if self.truth.stock.get(order.place.key, 1) <= 0:
            await self._answer()
            raise CapacityError("no stock", 400)
        machine = self.truth.make(order.name, order.place, order.labels, order.user_data)
        self._wire.note("made", machine.id, machine.name)
        return machine

    async def _refuse_launch(self, fault: Fault, order: LaunchOrder) -> NoReturn:
        if fault is Fault.BROKEN:
            await self._hang(order.timeout_s)
            raise AmbiguousLaunchError("gateway timeout", 504)
        await self._answer()
        match fault:
            case Fault.NO_STOCK:
                raise CapacityError("not enough capacity", 400)
            case Fault.REJECTED:
                raise RejectedError("this order cannot be served here", 400)
            case _:
                self._fail(fault)

    async def _call(self, what: str, keeps: tuple[Fault, ...] = ()) -> Fault | None:
        """The call on its way; a fault that stops it is raised, one in `keeps` or DROPPED is the caller's."""
        await self._wire.leave(what)
        fault = self.faults.draw(what.partition(" ")[0])
        if fault is None or fault in keeps or fault is Fault.DROPPED:
            return fault
        self.failed_at.append(self._loop.wall())
        if fault in (Fault.BROKEN, Fault.LOST):
            await self._hang(READ_TIMEOUT_S if fault is Fault.LOST else 1.0)
            raise UnavailableError("no usable answer", 503)
        await self._wire.come_back()
        self._fail(fault)

    def _fail(self, fault: Fault) -> NoReturn:
        match fault:
            case Fault.THROTTLED:
                raise RateLimitedError("too many requests", RETRY_AFTER_S)
            case Fault.UNAUTHORISED:
                raise AuthError("the key is not valid", 401)
            case _:
                raise AssertionError(f"{fault} does not happen to this call")

    async def _answer(self, what: str = "an answer") -> None:
        self.answered_at.append(self._loop.wall())
        await self._wire.come_back(what=what)

    async def _hang(self, seconds: float) -> None:
        self.failed_at.append(self._loop.wall())
        await self._wire.come_back((seconds, seconds))

    def _listed(self, fault: Fault | None) -> tuple[TrueMachine, ...]:
        now, account = self._loop.wall(), self.truth.account
        there = [m for m in self.truth.alive() if m.visible_at <= now and m.account == account]
        if fault is Fault.DROPPED and there:
            there.remove(self.faults.chance.choice(there))
        return tuple(there)


def shown(machine: TrueMachine) -> Machine:
    """The machine as a listing shows it."""
    return Machine(
        id=machine.id,
        name=machine.name,
        phase=machine.phase,
        raw_status=machine.phase.value.upper(),
        created_at=machine.created_at,
        region=machine.place.region,
        sku=machine.place.sku,
        labels=machine.labels,
    )


def offer(region: str, usd_per_hour: float = 1.0, gpu: str = "L40", account: str = "org-1") -> Offer:
    """A place with stock."""
    place = Place("hyperstack", account, region, gpu, f"n3-{gpu}x1", usd_per_hour)
    return Offer(place, available=True, vram_gb=48, disk_gb=200, ram_gb=64)


OFFERS = (offer("NORWAY-1", 1.0), offer("US-1", 1.1), offer("CANADA-2", 1.2))
