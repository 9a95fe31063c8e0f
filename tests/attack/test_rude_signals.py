"""Processes that stop, die and come back at bad moments: two daemons, and a Redis that is killed under them."""

from __future__ import annotations

import asyncio
import re
import signal
from pathlib import Path

from flashd.sim.demo_daemon import DaemonProcess, Sections
from flashd.sim.harness import House
from flashd.sim.redis_private import start_redis
from tests.attack.siege import audit, request, siege, until, until_ready

SHORT_LEASE: Sections = {"policy": {"lease_ttl_s": 3, "launch_timeout_s": 1.5, "launch_settle_s": 2}}


def standby_of(house: House) -> DaemonProcess:
    """Another daemon of the same namespace with a state directory of its own."""
    directory = house.stage.directory
    (directory / "state2").mkdir()
    text = house.daemon.config.read_text().replace(f'"{directory}/state"', f'"{directory}/state2"')
    config = directory / "standby.toml"
    config.write_text(re.sub('listen = ".*"', 'listen = ""', text))
    return DaemonProcess(config, directory / "standby.log")


async def test_a_leader_that_wakes_up_after_its_lease_does_no_harm(short_path: Path) -> None:
    async with siege(short_path, SHORT_LEASE) as house:
        twin, standby = DaemonProcess(house.daemon.config, short_path / "twin.log"), standby_of(house)
        await until_ready(house)
        await twin.start()
        await standby.start()
        assert twin.process is not None and house.daemon.process is not None
        assert await asyncio.wait_for(twin.process.wait(), 10) == 75  # the state directory is in use
        run_ids = [f"r{number}" for number in range(8)]
        for run_id in run_ids:
            await house.submit(request(run_id, seconds=1.0))
        await until(lambda: len(house.cloud.machines.all) >= 4, what="half of the fleet")
        house.daemon.process.send_signal(signal.SIGSTOP)
        await house.until_released(run_ids, 20)
        house.daemon.process.send_signal(signal.SIGCONT)
        await house.submit(request("after"))
        await house.until_released(["after"], 20)
        await audit(house, [*run_ids, "after"])
        assert await standby.stop() == 0


async def test_a_redis_that_is_killed_and_started_again_costs_no_run(short_path: Path) -> None:
    async with siege(short_path) as house:
        await until_ready(house)
        run_ids = [f"r{number}" for number in range(6)]
        for run_id in run_ids:
            await house.submit(request(run_id, seconds=1.0))
        await until(lambda: len(house.cloud.machines.all) >= 3, what="half of the fleet")
        house.server.process.kill()
        await house.server.process.wait()
        house.server.process = (await start_redis(short_path / "redis")).process
        await house.until_released(run_ids, 25)
        await audit(house, run_ids)
