"""Fifty runs through `flashd run` and a real redis-server, to their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashd.sim.demo_daemon import Sections
from flashd.sim.harness import Stage, rehearsal, upload_worker
from tests.e2e.fleet import FleetRun, check_fleet, overlaps, plenty, push, quick_knobs
from tests.e2e.scripted_boxes import ScriptedBoxes

LIMIT_S = 150.0
AT_ONCE = 10
CONFIG: Sections = {"limits": {"max_machines": AT_ONCE}}


def fifty() -> list[FleetRun]:
    """Mostly successes; some lose a machine in one way or another, some have an error of their own, some are real."""
    runs = [FleetRun(f"plain-{number:02}") for number in range(34)]
    runs += [FleetRun(f"Lost.{number}", ("preempted", "ok")) for number in range(4)]
    runs += [FleetRun(f"off_{number}", ("off", "ok")) for number in range(3)]
    runs += [FleetRun(f"own-error-{number}", ("failed",)) for number in range(5)]
    runs += [FleetRun(f"real-{number}", real=True) for number in range(4)]
    return runs


@pytest.mark.slow
async def test_fifty_runs_pushed_by_redis_cli_reach_their_ends_and_no_machine_is_left(
    short_path: Path, isolation: None
) -> None:
    runs = fifty()
    async with rehearsal(Stage(short_path, config=CONFIG, knobs=quick_knobs(), boxes=ScriptedBoxes)) as house:
        upload_worker(house.hub)
        plenty(house.cloud)
        await house.daemon.start()
        await push(house, runs)
        await house.until_released([run.run_id for run in runs], LIMIT_S)
        await check_fleet(house, runs)
        for run in runs:
            machines = house.machines_of(run.run_id)
            assert len(machines) == len(run.ends), f"{run.run_id} had {len(machines)} machines"
            assert overlaps(machines) == []
        assert house.cloud.summary()["launched"] == sum(len(run.ends) for run in runs)
