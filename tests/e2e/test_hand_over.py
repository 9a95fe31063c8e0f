"""SIGTERM hands the fleet over: the daemon ends in time, machines stay, the next start goes on with them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from flashd.sim.cloud_faults import Effect, Fault
from flashd.sim.harness import House, Stage, rehearsal, upload_worker
from tests.e2e.fleet import FleetRun, check_fleet, push, quick_knobs
from tests.e2e.scripted_boxes import ScriptedBoxes

HAND_OVER_S = 10.0
RUNS = [FleetRun(f"long-{number}", seconds=6.0) for number in range(3)]


async def until(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not fact():  # noqa: ASYNC110  # another process makes it true
            await asyncio.sleep(0.05)


async def all_train(house: House) -> None:
    async with asyncio.timeout(20):
        while [(await house.fields(run.run_id)).get("state") for run in RUNS] != ["training"] * len(RUNS):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_sigterm_ends_the_daemon_in_time_and_the_next_start_adopts_its_machines(short_path: Path) -> None:
    async with rehearsal(Stage(short_path, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        await house.daemon.start()
        await push(house, RUNS)
        await all_train(house)
        before = [machine.id for machine in house.living()]
        started = time.monotonic()
        assert await house.daemon.stop() == 0
        assert time.monotonic() - started < HAND_OVER_S
        await asyncio.sleep(1.0)
        assert [machine.id for machine in house.living()] == before
        await house.daemon.start()
        await house.until_released([run.run_id for run in RUNS], 60)
        await check_fleet(house, RUNS)
        for run in RUNS:
            assert (await house.fields(run.run_id))["attempts_used"] == "1"
        assert house.cloud.summary()["launched"] == len(RUNS)


@pytest.mark.slow
async def test_a_request_pushed_while_nobody_serves_is_taken_by_the_next_start(short_path: Path) -> None:
    run = FleetRun("early")
    async with rehearsal(Stage(short_path, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        await push(house, [run])
        await house.daemon.start()
        await house.until_released([run.run_id], 60)
        await check_fleet(house, [run])


@pytest.mark.slow
async def test_sigterm_during_a_create_call_leaves_no_second_machine(short_path: Path) -> None:
    """The call in flight is finished or found again by its name; the hand-over still keeps its time."""
    run = FleetRun("in-flight")
    async with rehearsal(Stage(short_path, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        house.cloud.faults.add(Fault(Effect.DELAY, method="POST", path="/core/virtual-machines$", seconds=2.0, times=1))
        await house.daemon.start()
        await push(house, [run])
        await until(lambda: house.cloud.faults.report()[0]["hits"] == 1)
        started = time.monotonic()
        assert await house.daemon.stop() == 0
        assert time.monotonic() - started < HAND_OVER_S
        await house.daemon.start()
        await house.until_released([run.run_id], 60)
        await check_fleet(house, [run])
        assert house.cloud.summary()["launched"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
async def test_sigterm_without_redis_ends_in_time_and_the_machines_stay(short_path: Path, blow: signal.Signals) -> None:
    async with rehearsal(Stage(short_path, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        await house.daemon.start()
        await push(house, RUNS)
        await all_train(house)
        before = [machine.id for machine in house.living()]
        house.server.process.send_signal(blow)
        await asyncio.sleep(1.0)
        started = time.monotonic()
        try:
            assert await house.daemon.stop() == 0
            assert time.monotonic() - started < HAND_OVER_S
            assert [machine.id for machine in house.living()] == before
        finally:
            if blow is signal.SIGSTOP:
                house.server.process.send_signal(signal.SIGCONT)
