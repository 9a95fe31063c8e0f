"""The credential is exchanged for one of another account under a running fleet: nothing is proved until it is back."""

from __future__ import annotations

import asyncio

from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.sim import World
from tests.simulation.world_box import Play


def test_machines_that_another_accounts_key_cannot_see_are_not_lost() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(end_at_s=7000.0))
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "training")
        mine, world.cloud.truth.account = world.cloud.truth.account, "org-of-somebody-else"
        await asyncio.sleep(300.0)
        await world.submit("r2")
        await asyncio.sleep(1500.0)
        assert (await world.fields("r1"))["state"] == "training"
        assert (await event_named(world, "r2", "waiting"))["reason"] == "auth"
        world.cloud.truth.account = mine
        await world.until_released("r1", "r2", within_s=20_000.0)
        assert "attempt_failed" not in await world.names("r1")
        assert len(machines_of(world)) == 2

    live_through(scenario)


def test_a_launch_of_unknown_outcome_is_not_given_up_under_another_accounts_key() -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "launching", every_s=0.05)
        mine, world.cloud.truth.account = world.cloud.truth.account, "org-of-somebody-else"
        world.crash("daemon0")
        await asyncio.sleep(1200.0)
        world.cloud.truth.account = mine
        await world.until_released("r1", within_s=20_000.0)
        assert len(machines_of(world)) == 1

    live_through(scenario)
