"""Worlds drawn from a seed: which faults exist at all is drawn first, then how often, then everything else.

One world again: `python -m tests.simulation.random_world SEED [RUNS]` prints its trace hash, its logs and its faults.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from flashd.core.machines import MachinePhase
from tests.simulation.checker import check, process_faults
from tests.simulation.cloud_truth import Habits
from tests.simulation.sim import Compose, Options, World, simulate
from tests.simulation.wire import Fault, Faults
from tests.simulation.world_box import Ending, Play, PlayOf

RUNS = 20
SPREAD_S = 900.0  # arrivals
FAULTY_S = 5400.0  # faults and crashes stop then, or when every run is released
REST_WITHIN_S = 16_000.0  # once faults have stopped, every run must have ended
REPOS = ("team/a", "team/b", "team/c")
HOUR_S = 3600.0

ENDINGS = (Ending.OK, Ending.FAILS, Ending.RETRIABLE, Ending.SILENT, Ending.HANGS, Ending.NO_MARKER)
WEIGHTS = (70, 8, 10, 3, 3, 6)
DEATHS: tuple[MachinePhase | None, ...] = (MachinePhase.FAILED, MachinePhase.STOPPED, None)

CLOUD_RATES: Mapping[str, tuple[Fault, ...]] = {
    "launch": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST, Fault.NO_ID, Fault.NO_STOCK, Fault.NOT_SENT),
    "find": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST),
    "get": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST),
    "list": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST, Fault.DROPPED),
    "delete": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST, Fault.LIE, Fault.CONFLICT),
    "stock": (Fault.THROTTLED, Fault.BROKEN),
}
HUB_RATES: Mapping[str, tuple[Fault, ...]] = {"hub": (Fault.THROTTLED, Fault.BROKEN, Fault.LOST)}
REDIS_RATES: Mapping[str, tuple[Fault, ...]] = {"redis": (Fault.BROKEN, Fault.LOST)}


@dataclass(slots=True)
class Report:
    """What became of a world."""

    seed: int
    trace: str
    faults: list[str]
    reached: dict[str, int] = field(default_factory=dict)
    logs: str = ""


@dataclass(frozen=True, slots=True)
class Draw:
    """What a seed decides before the world begins."""

    play_of: PlayOf
    habits: Habits
    crash_chance: float
    cancels: tuple[str, ...]
    again: tuple[str, ...]  # pushed twice
    dark: tuple[tuple[float, float], ...]
    lag_s: float
    standby: bool
    pauses: tuple[tuple[float, float], ...]  # of the leader: when, how long


def live(seed: int, runs: int = RUNS, compose: Compose | None = None) -> Report:
    """One world from its seed to its verdict."""
    report = Report(seed, "", [])

    async def scenario(world: World) -> None:
        await _scenario(world, runs)
        report.faults = await check(world)
        report.reached = _reached(world)

    options = Options() if compose is None else Options(compose=compose)
    chance = random.Random(f"options {seed}")
    options = replace(
        options, owns_directory=chance.random() < 0.5, restart_after_s=(1.0, chance.choice((10.0, 200.0)))
    )
    worlds: list[World] = []

    async def main(world: World) -> None:
        worlds.append(world)
        await scenario(world)

    try:
        simulate(seed, main, options)
    except AssertionError as error:
        report.faults.append(f"I11 {error}")
        report.faults += process_faults(worlds[0])
    world = worlds[0]
    report.trace = world.wire.trace()
    report.logs = "\n".join(str(line) for line in world.logs)
    return report


def replay_line(report: Report) -> str:
    """The one command that lives a failing world again, and what was wrong with it."""
    return "\n".join([f"replay: .venv/bin/python -m tests.simulation.random_world {report.seed}", *report.faults])


async def _scenario(world: World, runs: int) -> None:
    draw = _draw(world.seed, runs)
    chance = random.Random(f"arrivals {world.seed}")
    world.stage.play_of, world.cloud.truth.habits = draw.play_of, draw.habits
    world.hub.lag_s = draw.lag_s
    world.hub.dark = [(world.now + start, world.now + end) for start, end in draw.dark]
    for where, rates in (
        (world.cloud.faults, CLOUD_RATES),
        (world.hub.faults, HUB_RATES),
        (world.redis.faults, REDIS_RATES),
    ):
        _arm(where, rates, chance)
    world.loop.crash_chance = draw.crash_chance
    world.plant("flash-x", "a-person's")
    world.plant("flash-other-run-aaaaaaaaaa-a0", "another deployment's")
    world.start()
    if draw.standby:
        world.start("host-2")
    for after_s, pause_s in draw.pauses:
        world.loop.in_world(after_s, partial(_freeze_leader, world, pause_s))
    world.loop.in_world(FAULTY_S, lambda: _calm(world))
    for number in range(runs):
        await asyncio.sleep(chance.uniform(0.0, 2 * SPREAD_S / runs))
        run_id = f"r{number}"
        await world.submit(run_id, hub={"repo": REPOS[number % len(REPOS)]})
        if run_id in draw.again:
            await world.submit(run_id, hub={"repo": REPOS[number % len(REPOS)]})
    for run_id in draw.cancels:
        await asyncio.sleep(chance.uniform(0.0, 600.0))
        await world.cancel(run_id)
    await world.until_released(*sorted(world.sent), within_s=REST_WITHIN_S, every_s=60.0)
    _calm(world)
    await world.until(world.is_at_rest, REST_WITHIN_S, every_s=60.0)


def _freeze_leader(world: World, pause_s: float) -> None:
    for life in world.living():
        if life.daemon.leadership.leading:
            world.wire.note("freeze", life.process)
            world.leading.append((world.now, False))
            world.loop.freeze(life.process, pause_s)


def _calm(world: World) -> None:
    """From here on nothing goes wrong any more: everything must come to its end."""
    world.loop.crash_chance = 0.0
    for faults in (world.cloud.faults, world.hub.faults, world.redis.faults):
        faults.rates = {}
    world.hub.lag_s = 0.0


def _arm(faults: Faults, rates: Mapping[str, tuple[Fault, ...]], chance: random.Random) -> None:
    """Each fault exists in about a third of the worlds, and then in one to five of a hundred calls."""
    faults.rates = {
        kind: {fault: _rate(kind, chance) for fault in possible if chance.random() < 0.35}
        for kind, possible in rates.items()
    }


def _rate(kind: str, chance: random.Random) -> float:
    most = {"launch": 0.25, "delete": 0.25, "redis": 0.003}.get(kind, 0.06)
    return chance.uniform(most / 5, most)


def _draw(seed: int, runs: int) -> Draw:
    chance = random.Random(f"draw {seed}")
    ids = [f"r{number}" for number in range(runs)]
    deadly, slow = chance.random() < 0.6, chance.random() < 0.3
    dark_at = chance.uniform(300.0, FAULTY_S)
    return Draw(
        play_of=_plays(seed, deadly=deadly),
        habits=Habits(
            boot_s=(60.0, 240.0),
            list_lag_s=(0.0, chance.choice((0.0, 5.0, 60.0))),
            deleting_s=(2.0, chance.choice((10.0, 90.0))),
            stuck_pending=0.05 if slow else 0.0,
        ),
        crash_chance=chance.choice((0.0, 0.00002, 0.0001, 0.0004)),
        cancels=tuple(chance.sample(ids, k=min(len(ids), chance.choice((0, 1, 3))))),
        again=tuple(chance.sample(ids, k=min(len(ids), 3))),
        dark=((dark_at, dark_at + chance.choice((120.0, 1200.0))),) if chance.random() < 0.3 else (),
        lag_s=chance.choice((0.0, 0.0, 10.0)),
        standby=(standby := chance.random() < 0.3),
        pauses=tuple((chance.uniform(0.0, 3000.0), chance.uniform(5.0, 200.0)) for _ in range(3 if standby else 0)),
    )


def _plays(seed: int, *, deadly: bool) -> Callable[[str, int], Play]:
    def play_of(run_id: str, attempt: int) -> Play:
        chance = random.Random(f"play {seed} {run_id} {attempt}")
        ending = chance.choices(ENDINGS, WEIGHTS)[0] if attempt < 2 else Ending.OK
        end_at_s = chance.uniform(300.0, 2400.0)
        dies = deadly and attempt < 2 and chance.random() < 0.15
        return Play(
            ending=ending,
            boot_s=chance.uniform(5.0, 60.0),
            setup_s=chance.uniform(60.0, 300.0),
            end_at_s=end_at_s,
            dies_at_s=chance.uniform(0.0, end_at_s) if dies else None,
            dies_as=chance.choice(DEATHS),
        )

    return play_of


def _reached(world: World) -> dict[str, int]:
    faults = world.cloud.faults.injected + world.hub.faults.injected + world.redis.faults.injected
    return dict(faults) | {"crashes": len(world.crashes), "machines": len(world.cloud.truth.machines)}


def main(arguments: list[str]) -> int:
    """Live one world again and tell everything about it."""
    report = live(int(arguments[0]), int(arguments[1]) if len(arguments) > 1 else RUNS)
    print(report.logs)
    print(f"seed {report.seed} trace {report.trace} {report.reached}")
    print("\n".join(report.faults) or "no violation")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
