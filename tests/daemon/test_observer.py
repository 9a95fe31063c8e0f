"""The fleet observer: one list for all runs, woken only by what concerns them, and honest about outages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

import anyio

from flashd.core.blindness import Sight
from flashd.daemon.observer import FleetObserver, FleetProblem, FleetSnapshot
from flashd.errors import AuthError, ForbiddenError, ProviderError, RateLimitedError, UnavailableError
from flashd.providers.base import Machine, MachinePhase
from tests.fakes.listing import Listing
from tests.fakes.virtual import LoopClock, run_virtual

T_S = 15.0
NAME = "flash-t-r1-abcdefghij-a0"


def machine(name: str = NAME, machine_id: str = "1", phase: MachinePhase = MachinePhase.RUNNING) -> Machine:
    return Machine(machine_id, name, phase, phase.value.upper(), None)


class Bench:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.cloud = Listing(self.clock)
        self.observer = FleetObserver(self.cloud, "t", self.clock, Random(1), T_S)
        self.snapshots: list[FleetSnapshot] = []
        self.wakes: list[float] = []
        self.observer.after_pass.append(self.snapshots.append)

    def subscribe(self, name: str = NAME) -> None:
        self.observer.subscribe(name, lambda: self.wakes.append(self.clock.now()))

    async def passes(self, count: int) -> None:
        for _ in range(count):
            await self.observer.pass_after(self.clock.now())


def with_observer(scenario: Callable[[Bench], Awaitable[None]]) -> None:
    """Run a scenario beside a running observer, in virtual time."""

    async def main() -> None:
        bench = Bench()
        async with anyio.create_task_group() as group:
            group.start_soon(bench.observer.run)
            await scenario(bench)
            group.cancel_scope.cancel()

    run_virtual(main())


def test_an_hour_costs_one_list_each_interval() -> None:
    async def scenario(bench: Bench) -> None:
        await anyio.sleep(3_600)
        assert 236 <= len(bench.cloud.listed_at) <= 244
        assert [snapshot.sequence for snapshot in bench.snapshots] == list(range(1, len(bench.snapshots) + 1))
        assert bench.cloud.most_in_flight == 1

    with_observer(scenario)


def test_a_list_that_takes_longer_than_the_interval_never_overlaps_the_next() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.latency_s = 40.0
        await bench.passes(4)
        assert bench.cloud.most_in_flight == 1

    with_observer(scenario)


def test_a_run_is_woken_when_its_machine_changes_and_not_otherwise() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.machines = (machine(phase=MachinePhase.PENDING), machine("flash-t-r2-abcdefghij-a0", "2"))
        bench.subscribe()
        await bench.passes(5)
        assert len(bench.wakes) == 1, "told once what it looks like at first"
        bench.cloud.machines = (machine(), machine("flash-t-r2-abcdefghij-a0", "2"))
        await bench.passes(5)
        assert len(bench.wakes) == 2
        bench.cloud.machines = (machine(), machine("flash-t-r2-abcdefghij-a0", "9"))
        await bench.passes(5)
        assert len(bench.wakes) == 2, "somebody else's machine"

    with_observer(scenario)


def test_a_run_is_woken_by_every_complete_list_without_its_machine() -> None:
    async def scenario(bench: Bench) -> None:
        bench.subscribe()
        await bench.passes(4)
        assert len(bench.wakes) == 4
        bench.cloud.error = UnavailableError("down")
        await anyio.sleep(300)
        assert len(bench.wakes) == 4, "an outage is not absence"

    with_observer(scenario)


def test_a_closed_subscription_is_never_called_again() -> None:
    async def scenario(bench: Bench) -> None:
        woken: list[int] = []
        subscription = bench.observer.subscribe(NAME, lambda: woken.append(1))
        other = bench.observer.subscribe(NAME, subscription.close)
        await bench.passes(3)
        assert woken == [1], "closed by the one after it in the first pass"
        other.close()
        other.close()

    with_observer(scenario)


def test_foreign_machines_are_not_even_counted_and_twins_of_a_name_are_all_kept() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.machines = (
            machine(machine_id="1"),
            machine(machine_id="2"),
            machine("flash-other-r1-abcdefghij-a0", "3"),
            machine("somebody", "4"),
        )
        await bench.passes(1)
        snapshot = bench.observer.snapshot
        assert snapshot is not None
        assert set(snapshot.by_id) == {"1", "2"}
        assert [one.id for one in snapshot.by_name[NAME]] == ["1", "2"]

    with_observer(scenario)


def test_a_refused_key_is_tried_again_every_minute_and_at_once_when_told() -> None:
    async def scenario(bench: Bench) -> None:
        for error, problem in ((AuthError("no", 401), FleetProblem.AUTH), (ForbiddenError("no", 403), "forbidden")):
            bench.cloud.error = error
            bench.observer.retry_now()
            await anyio.sleep(0.1)
            bench.cloud.listed_at.clear()
            await anyio.sleep(600)
            assert bench.observer.problem == problem
            assert len(bench.cloud.listed_at) == 10
        bench.cloud.error = None
        await anyio.sleep(5)
        bench.observer.retry_now()
        await anyio.sleep(0.1)
        assert bench.observer.problem is None
        assert bench.observer.problem_text == ""
        assert bench.observer.last_pass_at is not None

    with_observer(scenario)


def test_a_rate_limit_is_waited_out_and_an_absurd_one_is_not_believed() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.passes(1)
        bench.cloud.error = RateLimitedError("slow down", 120.0)
        await anyio.sleep(20)
        first = bench.cloud.listed_at[-1]
        await anyio.sleep(125)
        assert bench.cloud.listed_at[-1] - first >= 120.0
        assert bench.observer.problem is FleetProblem.THROTTLED
        bench.cloud.error = RateLimitedError("slow down", 1e12)
        await anyio.sleep(130)
        bench.cloud.error = None
        await anyio.sleep(310)
        assert bench.observer.problem is None

    with_observer(scenario)


def test_an_outage_of_hours_is_blind_time_and_the_old_snapshot_stays() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.machines = (machine(),)
        await bench.passes(1)
        before = bench.observer.blind_at(bench.clock.now())
        bench.cloud.error = UnavailableError("down")
        await anyio.sleep(7_200)
        blind = bench.observer.blind_at(bench.clock.now()) - before
        assert 7_200 - 90 <= blind <= 7_200
        assert bench.observer.problem is FleetProblem.UNREACHABLE
        assert bench.observer.snapshot is bench.snapshots[-1]
        bench.cloud.error = None
        await bench.passes(2)
        assert bench.observer.blind_at(bench.clock.now()) >= blind

    with_observer(scenario)


def test_a_restart_after_an_outage_counts_the_gap_as_blind() -> None:
    async def scenario(bench: Bench) -> None:
        bench.observer.restore(Sight(bench.clock.now() - 5_000, 10.0))
        await bench.passes(1)
        assert bench.observer.sight.blind_total > 4_900

    with_observer(scenario)


def test_a_list_that_hangs_counts_as_an_outage() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.latency_s = 1e6
        await anyio.sleep(310)
        assert bench.observer.problem is FleetProblem.UNREACHABLE
        bench.cloud.latency_s = 0.0
        await bench.passes(1)
        assert bench.observer.problem is None

    with_observer(scenario)


def test_whoever_waits_for_a_pass_gets_one_that_started_later() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.latency_s = 10.0
        await anyio.sleep(3)  # the first list is under way and must not satisfy anybody who asks now
        asked = bench.clock.now()
        snapshot = await bench.observer.pass_after(asked)
        assert snapshot.started_at > asked
        assert await bench.observer.pass_after(asked) is snapshot, "no second wait for the same knowledge"

    with_observer(scenario)


def test_errors_of_every_other_kind_are_an_outage_and_end_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        bench.cloud.error = ProviderError("teapot", 418)
        await anyio.sleep(60)
        assert bench.observer.problem is FleetProblem.UNREACHABLE
        assert "teapot" in bench.observer.problem_text

    with_observer(scenario)
