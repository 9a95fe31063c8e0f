"""Alarms of the real process over HTTP: an error line, a metric, an entry in /statusz, and an end by themselves."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest
from redis.asyncio import Redis

from flashd.core.names import machine_name
from flashd.sim.cloud_types import Planting
from flashd.sim.demo_daemon import Sections
from flashd.sim.harness import API_KEY, HF_TOKEN, REPO
from tests.e2e.fleet import FleetRun
from tests.operations.process import operated

pytestmark = pytest.mark.slow


async def test_a_refused_provider_key_is_an_alarm_and_a_renewed_one_works_at_once_after_a_reload(
    short_path: Path,
) -> None:
    async with operated(short_path) as on:
        await on.house.daemon.start()
        await on.until_ready()
        on.house.cloud.accounts.revoke(API_KEY)
        detail = await on.until_alarm("provider_key_refused_hyperstack")
        assert API_KEY not in detail
        on.house.cloud.accounts.add_key("a-renewed-key-of-the-same-account", "demo")
        on.credential("hyperstack_api_key", "a-renewed-key-of-the-same-account")
        on.signal(signal.SIGHUP)
        await on.until_no_alarm("provider_key_refused_hyperstack", 10.0)  # by itself it would take a minute
        await on.run_to_the_end(FleetRun("after-the-renewal"))


async def test_a_redis_that_is_away_is_an_alarm_for_as_long_as_it_is(short_path: Path) -> None:
    async with operated(short_path) as on:
        await on.house.daemon.start()
        await on.until_ready()
        on.house.server.process.send_signal(signal.SIGSTOP)
        try:
            await on.until_alarm("redis_down")
            assert (await on.get("/readyz"))[1]["reason"] == "redis_down"
            assert (await on.get("/livez"))[0] == 200
        finally:
            on.house.server.process.send_signal(signal.SIGCONT)
        await on.until_no_alarm("redis_down")
        await on.until_ready()
        await on.run_to_the_end(FleetRun("after-the-outage"))


async def test_a_renewed_redis_password_works_after_a_reload(short_path: Path) -> None:
    async with operated(short_path) as on:
        await on.house.daemon.start()
        await on.until_ready()
        password = "a-password-that-nobody-may-read"
        url = on.house.server.url.replace("unix://", f"unix://:{password}@")
        await on.house.redis.config_set("requirepass", password)
        await on.house.redis.client_kill_filter(_type="normal", skipme=False)
        await on.until_alarm("redis_down")
        on.credential("redis_url", url)
        on.reconfigure(redis={"url_file": str(short_path / "credentials" / "redis_url")})
        on.signal(signal.SIGHUP)
        await on.until_no_alarm("redis_down", 20.0)
        await on.until_ready()
        assert (await on.get("/statusz"))[1]["configuration"]["needs_a_restart"] == []
        assert password not in on.log
        async with Redis.from_url(url) as client:
            await client.config_set("requirepass", "")


async def test_the_acl_user_of_the_page_can_do_everything(short_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations" / "redis.md").read_text()
    (line,) = re.findall(r"^redis-cli (ACL SETUSER .*)$", page, re.MULTILINE)
    command = [word.replace("{prod}", "{demo}") for word in shlex.split(line)]
    async with operated(short_path) as on:
        await on.house.redis.execute_command(*command)  # type: ignore[no-untyped-call]
        on.credential("redis_url", on.house.server.url.replace("unix://", "unix://flashd:PASSWORD@"))
        on.reconfigure(redis={"url_file": str(short_path / "credentials" / "redis_url")})
        await on.house.daemon.start()
        await on.run_to_the_end(FleetRun("r1", ("preempted", "ok")))
        assert await on.alarms() == {}
        assert "NOPERM" not in on.log and await on.house.redis.acl_log() == []


async def test_more_orphans_than_may_be_deleted_are_an_alarm_and_stay(short_path: Path) -> None:
    config: Sections = {"sweep": {"max_deletes": 1, "grace_s": 6, "interval_s": 2, "initial_interval_s": 1}}
    async with operated(short_path, config) as on:
        await on.house.daemon.start()
        await on.run_to_the_end(FleetRun("r1"))
        names = [machine_name("demo", "r1", number) for number in (7, 8)]
        for name in names:
            on.house.cloud.plant(Planting(name, age_s=300.0))
        assert "max_deletes = 1" in await on.until_alarm("too_many_orphans_hyperstack")
        assert {machine.name for machine in on.house.living()} == set(names)
        _, metrics = await on.get("/metrics")
        assert 'flashd_machines{owned="orphan",provider="hyperstack"} 2.0' in metrics


async def test_a_redis_that_has_forgotten_is_an_alarm_and_stops_launches(short_path: Path) -> None:
    async with operated(short_path) as on:
        await on.house.daemon.start()
        await on.run_to_the_end(FleetRun("r1"))
        assert await on.house.daemon.stop() == 0
        await on.house.redis.flushall()
        await on.house.daemon.start()
        await on.until_alarm("safe_mode")
        assert (await on.get("/readyz"))[1]["reason"] == "safe_mode"
        await on.house.submit(FleetRun("r2").request())

        async def waits() -> bool:
            return (await on.house.fields("r2")).get("reason") == "ledger"

        await on.until(waits)
        assert on.house.living() == []


async def test_a_hub_that_does_not_know_our_token_is_an_alarm_and_a_renewed_one_works(short_path: Path) -> None:
    async with operated(short_path) as on:
        token = on.house.hub.tokens.pop(HF_TOKEN)
        await on.house.daemon.start()
        await on.house.submit(FleetRun("r1").request())
        assert REPO in await on.until_alarm("hub_token_refused")
        renewed = "hf_DemoRenewedTokenOfNoAccount001"
        on.house.hub.add_token(renewed, token)
        on.credential("hf_token", renewed)
        on.signal(signal.SIGHUP)
        await on.until_no_alarm("hub_token_refused", 20.0)
        await on.house.until_released(["r1"], 60.0)
        assert renewed not in on.log
