"""A desk over fakeredis and an in-memory cloud in virtual time, and short ways to runs at any stage of their life."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import cast

import anyio
from anyio.abc import TaskGroup
from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis

from flashd.adapters.clock import Clock
from flashd.adapters.store import Store, over
from flashd.adapters.store_types import Accept, Led
from flashd.core.actions import Decision, EventKind
from flashd.core.ending import again_or_fail, cancelled, past
from flashd.core.launching import begin, made
from flashd.core.model import CancelRequest, Reason, Run
from flashd.core.names import machine_name, run_hash
from flashd.core.observations import Granted, Made, Tick
from flashd.core.places import Place
from flashd.core.policy import Policy
from flashd.core.terms import accepted
from flashd.core.verdicts import Failure
from flashd.daemon.alarms import Alarms
from flashd.daemon.announce import Moment, event_of, out
from flashd.daemon.desk import BootSettings, Cloud, Desk, FleetLimits, Lease, Ledger
from flashd.daemon.observer import FleetObserver
from flashd.daemon.records import encode_run, first_record
from flashd.daemon.steps import Journal
from flashd.daemon.watcher import Watchers
from flashd.providers import catalog
from flashd.wire import events as wire
from flashd.wire.request import parse_request
from flashd.wire.request_model import RunRequest
from tests.fakes.memory_cloud import MemoryCloud
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.virtual import LoopClock, run_virtual

NS = "t"
POLL_S = 15.0
PRICE = 1.2


def request_text(run_id: str = "r1", **changes: object) -> str:
    body: dict[str, object] = {"schema": 1, "run_id": run_id, "gpu": {"class": "L40"}, "hub": {"repo": "me/runs"}}
    return json.dumps(body | changes)


def a_desk(store: Store, cloud: MemoryCloud, clock: Clock, *, ns: str = NS) -> Desk:
    random, hub = Random(7), MemoryHub(clock)
    return Desk(
        ns=ns,
        owner="0123456789abcdef",
        policy=Policy(),
        limits=FleetLimits(1000, 10_000.0),
        clock=clock,
        random=random,
        store=store,
        hub=hub,
        clouds={cloud.name: Cloud(cloud, FleetObserver(cloud, ns, clock, random, POLL_S))},
        watchers=Watchers(hub, clock, random),
        lease=Lease(clock, 5.0),
        ledger=Ledger(),
        boot=BootSettings(ns, "http://hub", lambda: "token", 240.0, 600.0, lambda _name: None),
        gpu_names=catalog.class_names(),
        default_image="image:1",
        alarms=Alarms(),
    )


class KnownRun:
    """A run with its durable side."""

    def __init__(self, run: Run, request: RunRequest, journal: Journal) -> None:
        self.run = run
        self.request = request
        self.journal = journal

    @property
    def id(self) -> str:
        return self.run.terms.run_id


class Bench:
    """The leader's desk; nothing runs until a test starts it in `group`."""

    def __init__(self, group: TaskGroup, ns: str = NS, server: FakeServer | None = None) -> None:
        self.group = group
        self.clock = LoopClock()
        self.cloud = MemoryCloud(self.clock)
        client = FakeRedis(server=server or FakeServer(), protocol=2)
        self.store = over(client, client, ns, "0123456789abcdef")
        self.desk = a_desk(self.store, self.cloud, self.clock, ns=ns)

    @property
    def observer(self) -> FleetObserver:
        return self.desk.clouds[self.cloud.name].observer

    def now(self) -> float:
        return self.clock.now()

    async def lead(self) -> None:
        led = await self.store.lead("host", self.desk.owner, 10_000_000, may_take_own=False)
        assert isinstance(led, Led)
        self.desk.lease.extend(self.clock.monotonic(), 1e9)
        self.desk.ledger.load(await self.store.ledger())

    def observe(self) -> None:
        self.group.start_soon(self.observer.run)

    async def accepted(self, run_id: str = "r1") -> KnownRun:
        """A run as intake leaves it."""
        request = parse_request(
            request_text(run_id), catalogue=self.desk.gpu_names, secrets=(), default_image=self.desk.default_image
        )
        assert isinstance(request, RunRequest)
        run = accepted(request, self.now())
        stamp = wire.Stamp(id=f"{run_id}:1", ns=self.desk.ns, time=self.now(), sequence=1)
        await self.store.accept(
            Accept(
                op_id=f"accept {run_id}",
                entry_id="",
                run_id=run_id,
                hash10=run_hash(self.desk.ns, run_id),
                sha=request.sha256,
                accepted_at=self.now(),
                core=encode_run(run),
                fields=first_record(run, request, self.now()),
                event=out(event_of(EventKind.ACCEPTED, run, request, Moment(self.now(), {})), stamp),
            )
        )
        return KnownRun(run, request, Journal(self.desk, request, 1))

    async def requested(self, run_id: str = "r1") -> KnownRun:
        """... whose create call may have been sent."""
        known = await self.accepted(run_id)
        await self.request_again(known)
        return known

    async def request_again(self, known: KnownRun) -> str:
        """The next intent; its machine name."""
        number = known.run.next_number
        name = machine_name(self.desk.ns, known.id, number)
        place = Place("hyperstack", self.cloud.account_id, "NORWAY-1", "L40", "n3-L40x1", PRICE)
        grant = Granted(place, name, f"{number:032x}", "", "c" * 40)
        await self.keep(known, begin(known.run, grant, self.tick()))
        return name

    async def live(self, run_id: str = "r1") -> KnownRun:
        """... whose machine is there."""
        known = await self.requested(run_id)
        await self.made(known)
        return known

    async def made(self, known: KnownRun) -> None:
        assert known.run.attempt is not None
        machine = self.cloud.put(known.run.attempt.name)
        await self.keep(known, made(known.run, known.run.attempt, Made(machine.id), self.tick()))

    async def cancelled(self, known: KnownRun) -> None:
        """... that has ended."""
        known.run = _with_cancel(known.run, self.now())
        await self.keep(known, cancelled(known.run, self.tick()))

    async def lost_attempt(self, known: KnownRun) -> None:
        """... whose attempt failed for the infrastructure's sake: back-off, its machine handed to the releaser."""
        attempt = known.run.attempt
        assert attempt is not None
        failure = Failure(Reason.JOB_PREEMPTED, "host lost")
        run = _ended_attempt(known.run, failure, self.now())
        await self.keep(known, again_or_fail(run, failure, self.tick(), avoid=attempt))

    async def keep(self, known: KnownRun, decision: Decision) -> None:
        assert decision.save is not None
        await known.journal.keep(decision.run, decision.save, Moment(self.now(), {}))
        known.run = decision.run

    def tick(self) -> Tick:
        return Tick(self.now(), self.desk.policy)

    async def events(self, run_id: str) -> list[tuple[str, dict[str, object]]]:
        """Short names and data of the run's events, oldest first."""
        entries = await self.store.events_range(run_id=run_id)
        bodies = [json.loads(entry.fields["event"]) for entry in entries]
        return [(body["type"].split(".")[-2], cast("dict[str, object]", body["data"])) for body in bodies]


def _with_cancel(run: Run, at: float) -> Run:
    return replace(run, cancel=CancelRequest("me", "enough", at))


def _ended_attempt(run: Run, failure: Failure, at: float) -> Run:
    assert run.attempt is not None
    return replace(run, attempt=None, history=(*run.history, past(run.attempt, failure, at)))


def with_bench(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a scenario in virtual time; what it started is cancelled at its end."""

    async def main() -> None:
        async with anyio.create_task_group() as group:
            bench = Bench(group)
            await bench.lead()
            await scenario(bench)
            group.cancel_scope.cancel()

    run_virtual(main())
