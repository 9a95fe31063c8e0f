"""`kill -9` of the daemon at random moments of a fleet, many of them between an intent and its confirm."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from flashd.sim.cloud_faults import Effect, Fault
from flashd.sim.demo_daemon import Sections
from flashd.sim.harness import House, Stage, rehearsal, upload_worker
from tests.e2e.fleet import FleetRun, check_fleet, overlaps, plenty, policy_divided_by, push, quick_knobs
from tests.e2e.scripted_boxes import ScriptedBoxes

KILLS, AT_INTENT = 20, 12  # of the latter at least 8 must find their create call still open
LIMIT_S = 150.0
CREATE_S = 0.8  # how long the cloud takes to answer a create
CONFIG: Sections = {
    "policy": policy_divided_by(20),
    "limits": {"max_machines": 8},
    "sweep": {"interval_s": 3, "initial_interval_s": 2, "grace_s": 3},
}


@dataclass(slots=True)
class Killer:
    """Kills and starts the daemon; counts the kills that left an intent without its confirm."""

    house: House
    chance: random.Random
    kills: int = 0
    between: int = 0

    async def work(self) -> None:
        at_intent = [True] * AT_INTENT + [False] * (KILLS - AT_INTENT)
        self.chance.shuffle(at_intent)
        for wait_for_intent in at_intent:
            await asyncio.sleep(self.chance.uniform(0.2, 1.5))
            if wait_for_intent:
                await self._until_an_intent_is_open()
                await asyncio.sleep(self.chance.uniform(0.0, CREATE_S / 2))
            await self.house.daemon.kill()
            self.kills += 1
            self.between += bool(await self._open_intents())
            await self.house.daemon.start()

    async def _until_an_intent_is_open(self) -> None:
        while not await self._open_intents():  # another process makes it true
            self.house.daemon.check()
            await asyncio.sleep(0.02)

    async def _open_intents(self) -> list[str]:
        return [name for name, row in (await self.house.ledger()).items() if row["state"] == "requested"]


def the_fleet() -> list[FleetRun]:
    runs = [FleetRun(f"plain-{number:02}", seconds=2.0, max_attempts=20) for number in range(40)]
    runs += [FleetRun(f"lost-{number}", ("preempted", "ok"), seconds=1.0, max_attempts=20) for number in range(5)]
    runs += [FleetRun(f"own-error-{number}", ("failed",), max_attempts=20) for number in range(5)]
    return runs


@pytest.mark.slow
async def test_twenty_kills_at_any_moment_lose_no_run_and_no_machine(short_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    runs = the_fleet()
    async with rehearsal(Stage(short_path, config=CONFIG, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        plenty(house.cloud)
        house.cloud.faults.add(Fault(Effect.DELAY, method="POST", path="/core/virtual-machines$", seconds=CREATE_S))
        await house.daemon.start()
        await push(house, runs)
        killer = Killer(house, random.Random(seed))
        async with asyncio.timeout(LIMIT_S):
            await killer.work()
        await house.until_released([run.run_id for run in runs], LIMIT_S)
        assert killer.kills == KILLS
        assert killer.between >= 8, f"only {killer.between} kills came between an intent and its confirm"
        await check_fleet(house, runs)
        for run in runs:
            machines = house.machines_of(run.run_id)
            assert overlaps(machines) == [], f"{run.run_id} was on two machines at once"
            assert len({machine.name for machine in machines}) == len(machines), "a name was launched twice"
            assert len(machines) == len(run.ends), f"{run.run_id} had {len(machines)} machines"
