"""A hundred runs at once, for what must hold for all of them."""

from __future__ import annotations

from tests.simulation.checker import process_faults
from tests.simulation.kit import SEED, Scenario, plays
from tests.simulation.sim import Options, World, simulate
from tests.simulation.world_box import Play


def live_short(scenario: Scenario, options: Options | None = None) -> None:
    """Without the way to the end of all runs: a large fleet's is long."""

    async def whole(world: World) -> None:
        await scenario(world)
        faults = process_faults(world)
        assert not faults, "\n".join(faults[:10])

    simulate(SEED, whole, options)


async def hundred(world: World) -> None:
    """A hundred training runs, in eight repositories."""
    world.stage.play_of = plays(Play(end_at_s=4000.0))
    world.start()
    for number in range(100):
        await world.submit(f"r{number}", hub={"repo": f"team/repo-{number % 8}"}, limits={"max_wall_s": 40_000})

    async def all_train() -> bool:
        names = [event["data"]["state"] for event in await world.events()]
        return names.count("training") == 100

    await world.until(all_train, 1200.0, 30.0)
