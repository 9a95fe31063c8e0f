"""The predecessor's faults by their F-numbers, as far as a daemon can have them, through the whole daemon.

Beside their scenario, as `test_scenario_NN_fault_fNN`: F1, F3, F7, F17-F22, F24-F27, F29-F31, F37, F41, F44; in the
scenarios' files also F8, F13-F15, F23, F28, F35, F39, F55, F57. Scenarios that are a fault by themselves: F2 37,
F9 53, F36 50, F40 66, F47 39, F48 44, F49 45. Elsewhere: F4 tests/cli and tests/e2e, F10, F46, F58, F60 tests/contract,
F11, F12, F54 tests/daemon/test_sweeper, F20 also tests/attack, F33, F34, F38, F52, F53 tests/bootstrap, F50 tests/wire,
F45 also tests/operations/test_no_secret.
"""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from flashd.core.machines import MachinePhase
from flashd.core.names import machine_name
from tests.simulation.hand import BY_HAND, hand_of
from tests.simulation.kit import SEED, event_named, live_through, machines_of, plays
from tests.simulation.sim import NS, REPO, World, simulate
from tests.simulation.wire import Fault
from tests.simulation.world_box import Play

SHORT = Play(end_at_s=300.0)


def test_fault_f06_no_run_id_is_exempt_from_the_sweep() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        for run_id in ("preload-x", "flash-x"):
            await world.submit(run_id)
        await world.until_released("preload-x", "flash-x")
        orphans = [world.plant_orphan(machine_name(NS, run_id, 5)) for run_id in ("preload-x", "flash-x")]
        await world.until(world.is_at_rest, 1200.0)
        assert all(orphan.delete_calls for orphan in orphans)

    live_through(scenario)


def test_fault_f32_silence_in_a_repository_without_commit_quota_is_no_stall() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        hand.beat(1)
        await world.until_state("r1", "training")
        for number in range(110):  # of 128 an hour
            world.hub.push(REPO, f"flashd run=other seed=0 attempt=0 event=heartbeat step={number + 1}", {})
        await asyncio.sleep(60.0)
        await world.submit("r2")
        await asyncio.sleep(2400.0)  # the box can commit nothing, for longer than the stall limit
        assert (await world.fields("r1"))["state"] == "training"
        assert (await event_named(world, "r2", "waiting"))["reason"] == "hub_budget"
        hand.end()
        await world.until_state("r1", "succeeded", within_s=60.0)
        await world.until_state("r2", "booting", within_s=1800.0)
        await world.cancel("r2")
        await world.until_released("r1", "r2")

    live_through(scenario)


async def cancelled_run(world: World) -> None:
    world.stage.play_of = plays(SHORT)
    world.start()
    await asyncio.sleep(2.0)
    await world.submit("r1")
    await world.until_state("r1", "booting", "cancelled", every_s=0.05)


def cancel_now(world: World) -> None:
    world.loop.spawn("world", world.cancel("r1"))


@cache
def points_of_a_launch() -> tuple[int, ...]:
    """The crash points from the acceptance of a run to its machine's id."""
    reached = simulate(SEED, cancelled_run).wire.reached
    first = next(number for number, what in enumerate(reached, 1) if what.startswith("before redis accept"))
    return tuple(range(first, len(reached) + 1))


@pytest.mark.parametrize("part", range(4))
def test_fault_f56_a_cancel_at_every_await_of_a_launch_leaves_no_machine(part: int) -> None:
    points = points_of_a_launch()
    assert len(points) > 12
    for number in points[part::4]:

        async def scenario(world: World, number: int = number) -> None:
            world.wire.crash_at = number
            world.wire.on_crash = lambda _process: cancel_now(world)
            await cancelled_run(world)
            cancelled_at = world.now
            await world.until_state("r1", "cancelled", within_s=90.0)
            await world.until_released("r1", within_s=300.0)
            assert world.now - cancelled_at <= 300.0
            assert not any(machine.is_alive for machine in machines_of(world))
            assert len(machines_of(world)) <= 1

        live_through(scenario)


def test_fault_f59_a_hub_that_swallows_requests_delays_neither_lists_nor_cancels() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        for number in range(3):
            await world.submit(f"r{number}")
        for number in range(3):
            (await hand_of(world, run_id=f"r{number}")).beat(1)
            await world.until_state(f"r{number}", "training")
        world.hub.dark.append((world.now, world.now + 1200.0))
        lines = world.wire.lines = []
        await asyncio.sleep(300.0)
        lists = [float(line.split()[0]) for line in lines if line.split()[2] == "list"]
        world.wire.lines = None
        assert len(lists) >= 300 / 15 * 0.9
        await world.cancel("r0")
        await world.until_state("r0", "cancelled", within_s=90.0)
        dead = await hand_of(world, run_id="r1")
        world.cloud.truth.die(dead.machine, MachinePhase.FAILED)
        await asyncio.sleep(240.0)
        assert dead.machine.deleting_at is not None  # not paid for any longer, though its outcome waits for the Hub
        assert (await world.fields("r1"))["state"] == "training"
        await asyncio.sleep(900.0)
        for number, attempt in ((1, 1), (2, 0)):
            (await hand_of(world, attempt, run_id=f"r{number}")).end()
        await world.until_released("r0", "r1", "r2")
        assert (await world.fields("r1"))["state"] == "succeeded"

    live_through(scenario)


async def everything_in_redis(world: World) -> str:
    texts: list[object] = []
    for key in sorted(await world.raw.keys("*")):
        match await world.raw.type(key):
            case b"hash":
                texts.append(await world.raw.hgetall(key))
            case b"stream":
                texts.append(await world.raw.xrange(key))
            case b"zset":
                texts.append(await world.raw.zrange(key, 0, -1))
            case b"set":
                texts.append(await world.raw.smembers(key))
            case b"string":
                texts.append(await world.raw.get(key))
            case other:
                raise AssertionError(f"{key} is a {other}")
    return repr(texts)


def test_fault_f45_no_credential_is_told_to_anybody_but_the_box() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        token = "hf_" + "k" * 34
        hand.beat(1, error=f"401 for {token}")
        await asyncio.sleep(60.0)
        hand.push("upload", {"error_sft.txt": f"HTTPError: Bearer {token} was refused".encode()})
        hand.commit("end", hand.marker(error=f"login with {token} failed"))
        await world.until_released("r1")
        shown = [str(line) for line in world.logs] + [await everything_in_redis(world)]
        assert not any(token in text for text in shown)
        assert "***" in (await event_named(world, "r1", "failed"))["detail"]

    live_through(scenario)


def test_fault_f46_a_refused_key_is_not_walked_through_all_regions() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.faults.scripted["launch"].extend([Fault.UNAUTHORISED] * 3)
        world.start()
        await world.submit("r1")
        await asyncio.sleep(45.0)
        assert len(world.cloud.launch_calls) == 1
        assert (await event_named(world, "r1", "waiting"))["reason"] == "auth"
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)
