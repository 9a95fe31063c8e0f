"""What scenarios share: plays by attempt, a whole run in one line, the invariants at the end of every scenario."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.checker import check
from tests.simulation.cloud_truth import TrueMachine
from tests.simulation.sim import Options, World, simulate
from tests.simulation.world_box import Play, PlayOf

SEED = 7
Scenario = Callable[[World], Coroutine[Any, Any, None]]


def live_through(scenario: Scenario, options: Options | None = None, *, max_attempts: int = 3) -> World:
    """Live the scenario, then wait until nothing is owed any more, then check every invariant."""

    async def whole(world: World) -> None:
        await scenario(world)
        await world.until(world.is_at_rest, 7200.0)
        faults = await check(world, max_attempts)
        assert not faults, "\n".join(faults) + "\n" + world.last_words()

    return simulate(SEED, whole, options)


def plays(*by_attempt: Play) -> PlayOf:
    """The attempts' plays in order; the last one also for all later attempts."""
    return lambda _run_id, attempt: by_attempt[min(attempt, len(by_attempt) - 1)]


def machines_of(world: World, attempt: int | None = None) -> list[TrueMachine]:
    """Every machine of this deployment that ever was, or those of one attempt number."""
    ours = [machine for machine in world.cloud.truth.machines.values() if machine.name not in world.foreign]
    return [machine for machine in ours if attempt is None or machine.name.endswith(f"-a{attempt}")]


async def event_named(world: World, run_id: str, name: str) -> dict[str, Any]:
    """The data of the run's newest event of that name."""
    found = [event["data"] for event in await world.events(run_id) if event["type"].split(".")[3] == name]
    assert found, f"{run_id} has no event {name}: {await world.names(run_id)}\n{world.last_words()}"
    newest: dict[str, Any] = found[-1]
    return newest
