"""Two hosts of one namespace: one leads, the other takes over, and a leader that stood still does no harm."""

from __future__ import annotations

import asyncio

from tests.simulation.kit import live_through, machines_of, plays
from tests.simulation.sim import Options, World
from tests.simulation.wire import Fault
from tests.simulation.world_box import Play

APART = Options(restart_after_s=None)


def leader(world: World) -> str:
    """The process that believes it leads; fails unless it is exactly one."""
    (life,) = (life for life in world.living() if life.daemon.leadership.leading)
    return life.process


def test_a_standby_works_within_ninety_seconds_of_its_leaders_death() -> None:
    async def scenario(world: World) -> None:
        world.start("host-1")
        await asyncio.sleep(5.0)
        world.start("host-2")
        await world.submit("r1")
        await world.until_state("r1", "training")
        before = await world.fields("r1")
        assert leader(world) == "daemon0"
        world.crash("daemon0")
        died_at = world.now
        await world.submit("r2")
        await world.until_state("r2", "launching", "booting", within_s=90.0, every_s=1.0)
        assert world.now - died_at <= 90.0
        await world.until_released("r1", "r2")
        after = await world.fields("r1")
        assert (after["machine_id"], after["state"]) == (before["machine_id"], "succeeded")

    live_through(scenario, APART)


def test_a_leader_frozen_around_its_create_call_makes_no_second_machine() -> None:
    """Frozen at ten moments of the launch, for longer than the lease: the standby has taken over meanwhile."""
    for tenth in range(10):

        async def scenario(world: World, tenth: int = tenth) -> None:
            world.stage.play_of = plays(Play(end_at_s=600.0))
            world.start("host-1")
            await asyncio.sleep(2.0)
            world.start("host-2")
            await world.submit("r1")
            await world.until_state("r1", "launching", every_s=0.01)
            await asyncio.sleep(tenth * 0.1)
            world.loop.freeze("daemon0", 300.0)
            await asyncio.sleep(120.0)
            assert any(life.daemon.leadership.leading for life in world.living() if life.host == "host-2")
            await asyncio.sleep(200.0)
            assert leader(world) != "daemon0"
            await world.until_released("r1")
            assert (await world.fields("r1"))["state"] == "succeeded"
            assert len([machine for machine in machines_of(world) if machine.running_at is not None]) <= 2

        live_through(scenario, APART)


def test_a_frozen_leader_that_comes_back_stands_by() -> None:
    async def scenario(world: World) -> None:
        world.start("host-1")
        await asyncio.sleep(2.0)
        world.start("host-2")
        await world.submit("r1")
        await world.until_state("r1", "training")
        world.loop.freeze("daemon0", 200.0)
        await asyncio.sleep(230.0)
        assert leader(world) == "daemon1"
        await world.until_released("r1")
        assert len(machines_of(world)) == 1
        assert len(world.living()) == 2

    live_through(scenario, APART)


def test_what_a_frozen_leader_had_not_yet_noted_does_not_trouble_its_next_term() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.NO_STOCK)
        world.start("host-1")
        await asyncio.sleep(2.0)
        world.start("host-2")
        await world.submit("r1")

        async def refused() -> bool:
            return len(world.cloud.launch_calls) == 2

        await world.until(refused, 60.0, 0.1)
        world.loop.freeze("daemon0", 100.0)  # the cool-down of the first place waits for the next note
        await asyncio.sleep(120.0)
        assert leader(world) == "daemon1"
        world.crash("daemon1")
        await world.until_released("r1")
        assert leader(world) == "daemon0"

    live_through(scenario, APART)
