"""What is stored of runs: damaged state stops only the run it belongs to; an ended run says how far it came."""

from __future__ import annotations

import asyncio
import json

from tests.simulation.kit import SEED, live_through, plays
from tests.simulation.sim import World, simulate
from tests.simulation.world_box import Ending, Play


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


def test_a_failed_run_still_says_how_far_it_came() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.FAILS, end_at_s=1800.0))
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        fields = await world.fields("r1")
        assert fields["state"] == "failed"
        assert int(fields["step"]) >= 1
        assert fields["stage"] and fields["heartbeat_at"]

    live_through(scenario)


def test_a_row_that_moved_under_an_open_create_costs_the_attempt_and_not_the_lead() -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.submit("r1")
        key = world.keys.name("machines")
        rows: dict[bytes, bytes] = {}
        for _ in range(10_000):  # the create call is open for a fraction of a second
            if rows := await world.raw.hgetall(key):
                break
            await asyncio.sleep(0.01)
        ((name, row),) = rows.items()
        assert json.loads(row)["state"] == "requested"
        await world.raw.hset(key, name, json.dumps(json.loads(row) | {"state": "abandoned"}))
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert [line for line in world.logs if line.event == "not_leading_any_more"] == []
        assert world.cloud.truth.alive() == []

    simulate(SEED, scenario)
