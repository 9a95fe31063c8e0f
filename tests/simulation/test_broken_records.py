"""Stored state that somebody damaged: the run it belongs to stands still with an alarm, all others go on."""

from __future__ import annotations

from tests.simulation.kit import SEED
from tests.simulation.sim import World, simulate


def test_a_run_without_its_private_state_does_not_keep_the_fleet_from_recovering() -> None:
    async def scenario(world: World) -> None:
        world.start()
        for run_id in ("broken", "whole"):
            await world.submit(run_id)
        for run_id in ("broken", "whole"):
            await world.until_state(run_id, "training")
        await world.raw.delete(world.keys.name("core", "broken"))
        world.crash("daemon0")
        await world.until_released("whole")
        assert (await world.fields("whole"))["state"] == "succeeded"
        assert (await world.fields("broken"))["state"] == "training"
        machine = (await world.fields("broken"))["machine"]
        assert machine in [one.name for one in world.cloud.truth.alive()]
        (life,) = world.living()
        assert any("unreadable" in name for name in life.daemon.desk.alarms.up)

    simulate(SEED, scenario)
