"""SIGHUP: everything is checked, then applied or kept; what a running daemon cannot change is said to be pending."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.fleet import FleetRun
from tests.operations.process import Operated, operated, under_systemd

pytestmark = pytest.mark.slow


async def generation(on: Operated) -> dict[str, Any]:
    configuration: dict[str, Any] = (await on.get("/statusz"))[1]["configuration"]
    return configuration


async def reloaded(on: Operated, number: int) -> dict[str, Any]:
    on.signal(signal.SIGHUP)

    async def there() -> bool:
        return bool((await generation(on))["generation"] == number)

    await on.until(there, 10.0)
    return await generation(on)


async def test_limits_and_policy_change_at_once_and_what_needs_a_restart_is_named(short_path: Path) -> None:
    async with operated(short_path) as on, under_systemd(on) as manager:
        await on.until_ready()
        on.reconfigure(limits={"max_machines": 3}, policy={"cooldown_s": 7, "lease_ttl_s": 12})
        on.reconfigure(sweep={"max_deletes": 5})
        status = await reloaded(on, 2)
        assert status["needs_a_restart"] == ["policy.lease_ttl_s", "sweep.max_deletes"]
        assert (await on.get("/statusz"))[1]["limits"]["max_machines"] == 3
        assert "event=configuration_reloaded" in on.log and "policy.cooldown_s" in on.log
        assert [message[0] for message in manager.messages if message[0] in ("READY=1", "RELOADING=1")] == [
            "READY=1",
            "RELOADING=1",
            "READY=1",
        ]
        on.reconfigure(policy={"lease_ttl_s": 10}, sweep={"max_deletes": 20})
        assert (await reloaded(on, 3))["needs_a_restart"] == []


async def test_a_wrong_file_changes_nothing_and_is_an_alarm_until_it_is_right(short_path: Path) -> None:
    async with operated(short_path) as on:
        await on.house.daemon.start()
        await on.until_ready()
        on.reconfigure(limits={"max_machines": 3, "max_machine": 4})
        on.signal(signal.SIGHUP)
        detail = await on.until_alarm("configuration_refused")
        assert "max_machine" in detail
        assert (await generation(on))["generation"] == 1
        assert (await on.get("/statusz"))[1]["limits"]["max_machines"] == 100
        del on.config["limits"]["max_machine"]
        on.reconfigure()
        await reloaded(on, 2)
        assert "configuration_refused" not in await on.alarms()
        await on.run_to_the_end(FleetRun("r1"))


async def test_the_log_level_changes_at_once(short_path: Path) -> None:
    async with operated(short_path, {"log": {"level": "error"}}) as on:
        await on.house.daemon.start()
        await on.until_ready()
        assert "level=info" not in on.log
        on.reconfigure(log={"level": "info"})
        await reloaded(on, 2)
        await on.run_to_the_end(FleetRun("r1"))
        assert "level=info" in on.log


async def test_systemd_hears_of_start_pings_and_the_hand_over(short_path: Path) -> None:
    async with operated(short_path) as on, under_systemd(on) as manager:
        await on.until_ready()

        async def pinged() -> bool:
            return manager.said("WATCHDOG=1") >= 2

        await on.until(pinged)
        ready = next(index for index, message in enumerate(manager.messages) if "READY=1" in message)
        assert manager.said("EXTEND_TIMEOUT_USEC=") == sum(
            any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in message)
            for message in manager.messages[: ready + 3]
        )
        assert await on.house.daemon.stop() == 0

        async def stopping() -> bool:
            return manager.said("STOPPING=1") == 1

        await on.until(stopping, 5.0)


async def test_a_start_without_redis_says_so_and_is_not_killed_for_it(short_path: Path) -> None:
    async with operated(short_path) as on:
        on.house.server.process.send_signal(signal.SIGSTOP)
        try:
            async with under_systemd(on) as manager:

                async def told() -> bool:
                    return manager.said("STATUS=starting; ALARM redis_down") > 0

                await on.until(told)
                pings, extensions = manager.said("WATCHDOG=1"), manager.said("EXTEND_TIMEOUT_USEC=")

                async def goes_on() -> bool:
                    return manager.said("WATCHDOG=1") > pings and manager.said("EXTEND_TIMEOUT_USEC=") > extensions

                await on.until(goes_on)
                assert manager.said("READY=1") == 0
                on.house.server.process.send_signal(signal.SIGCONT)

                async def ready() -> bool:
                    return manager.said("READY=1") == 1

                await on.until(ready)
        finally:
            on.house.server.process.send_signal(signal.SIGCONT)
