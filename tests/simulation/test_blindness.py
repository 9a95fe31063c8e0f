"""Time without sight neither ends an attempt nor forgives one: what counts is who could really not see, and when."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from tests.simulation.checker import tell
from tests.simulation.cloud_truth import Habits
from tests.simulation.kit import event_named, live_through, plays
from tests.simulation.sim import Options, World
from tests.simulation.wire import Fault
from tests.simulation.world_box import Play

LOAD_TIMEOUT_S = 900.0
MARGIN_S = 90.0


async def stuck_machine(world: World) -> None:
    """A run whose first machine never comes up; later ones do."""
    world.cloud.truth.habits = replace(Habits(), stuck_pending=1.0)
    await world.submit("r1")
    await world.until_state("r1", "booting", every_s=1.0)
    world.cloud.truth.habits = Habits()


async def waited_s(world: World) -> float:
    """Seconds from the first intent to the end of the first attempt, which must be `never_active`."""
    await world.until_state("r1", "backoff", within_s=4000.0)
    assert (await event_named(world, "r1", "attempt_failed"))["reason"] == "never_active"
    story = await tell(world, "r1")
    started, failed = story.first("launching", 0), story.first("attempt_failed", 0)
    assert started is not None and failed is not None
    return failed - started


def test_an_outage_before_a_launch_forgives_the_later_machine_nothing() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(end_at_s=600.0))
        world.cloud.faults.standing["list"] = Fault.BROKEN
        world.start()
        await asyncio.sleep(2000.0)
        del world.cloud.faults.standing["list"]
        await asyncio.sleep(60.0)
        await stuck_machine(world)
        assert LOAD_TIMEOUT_S <= await waited_s(world) <= LOAD_TIMEOUT_S + MARGIN_S
        await world.until_released("r1")

    live_through(scenario)


def test_an_outage_during_the_boot_is_added_to_the_wait() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(end_at_s=600.0))
        world.start()
        await stuck_machine(world)
        world.cloud.faults.standing["list"] = Fault.BROKEN
        await asyncio.sleep(500.0)
        del world.cloud.faults.standing["list"]
        assert LOAD_TIMEOUT_S + 500.0 - MARGIN_S <= await waited_s(world) <= LOAD_TIMEOUT_S + 500.0 + MARGIN_S
        await world.until_released("r1")

    live_through(scenario)


def test_the_time_in_which_another_host_led_is_no_blindness_of_the_standby() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(end_at_s=600.0))
        world.start("host-1")
        await asyncio.sleep(5.0)
        world.start("host-2")
        await asyncio.sleep(3000.0)
        await stuck_machine(world)
        world.crash("daemon0")
        assert LOAD_TIMEOUT_S <= await waited_s(world) <= LOAD_TIMEOUT_S + MARGIN_S
        await world.until_released("r1")

    live_through(scenario, Options(restart_after_s=None))
