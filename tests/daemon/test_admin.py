"""Health over HTTP: what is served, that looking needs nobody else, and that a taken port does not stop the work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flashd.config import Settings
from flashd.daemon.admin import Admin, Told
from flashd.daemon.health import Health
from flashd.daemon.memory import StateDirectory
from flashd.daemon.process import assembled, clients
from flashd.daemon.reload import Means, Reloader
from flashd.daemon.supervisor import Daemon
from flashd.logs import Recent
from flashd.redaction import Redactor
from flashd.sim.demo_daemon import free_port
from tests.simulation.sim import real_settings

SECRET = "canary-in-an-alarm-0123456789"


def unreachable() -> Settings:
    raise AssertionError("nobody reloads here")


async def _redis(url: str) -> None:
    raise AssertionError(f"nobody reloads here: {url}")


class Served:
    """A daemon over real clients that has not started, behind its real HTTP server."""

    def __init__(self, daemon: Daemon, admin: Admin) -> None:
        self.daemon = daemon
        self.admin = admin

    async def get(self, path: str) -> tuple[int, str, Any]:
        async with asyncio.timeout(20):
            while not self.admin.address:  # noqa: ASYNC110  # nobody is told of it
                await asyncio.sleep(0.01)
        url = f"http://{self.admin.address}{path}"
        async with aiohttp.ClientSession() as http, http.get(url) as answer:
            body = await answer.text() if path == "/metrics" else await answer.json()
            return answer.status, answer.headers["Content-Type"], body


async def serving(listen: str, directory: Path) -> AsyncIterator[Served]:
    settings, redactor = real_settings(), Redactor()
    redactor.add(SECRET)
    with StateDirectory(directory) as state:
        async with clients(settings, redactor) as outside:
            daemon = assembled(settings, outside, state)
            health = Health(daemon)
            outside.metrics.watch(daemon, health)
            means = Means(unreachable, outside.at_hand.renew, _redis, lambda _level: None)
            told = Told(health, outside.metrics, Reloader(daemon.desk, settings, means), redactor, Recent())
            served = Served(daemon, Admin(daemon, told, listen))
            task = asyncio.create_task(served.admin.serve())
            yield served
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def until_alarmed(served: Served) -> None:
    async with asyncio.timeout(20):
        while "http_listen" not in served.daemon.desk.alarms.up:  # noqa: ASYNC110  # nobody is told of it
            await asyncio.sleep(0.01)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async for one in serving("127.0.0.1:0", tmp_path):
        yield one


async def test_before_the_start_it_is_neither_ready_nor_moving(served: Served) -> None:
    status, _, body = await served.get("/readyz")
    assert (status, body["ready"], body["reason"]) == (503, False, "starting")
    assert body["last_pass_age_s"] == {"intake": None, "releaser": None, "observer_hyperstack": None}
    assert (await served.get("/livez"))[0] == 503


async def test_metrics_are_prometheus_text(served: Served) -> None:
    status, kind, body = await served.get("/metrics")
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert "flashd_ready 0.0" in body


async def test_statusz_lists_alarms_with_their_text_but_without_secrets(served: Served) -> None:
    served.daemon.desk.alarms.set("hub_forbidden", f'said "{SECRET}"')
    _, _, body = await served.get("/statusz")
    assert body["alarms"] == [{"alarm": "hub_forbidden", "detail": 'said "***"'}]
    assert (body["configuration"]["generation"], body["configuration"]["needs_a_restart"]) == (1, [])
    assert (body["namespace"], body["leading"], body["ready"]) == ("sim", False, False)


async def test_nothing_can_be_changed_over_http(served: Served) -> None:
    await served.get("/livez")
    async with aiohttp.ClientSession() as http:
        for path in ("/livez", "/readyz", "/statusz", "/metrics"):
            async with http.post(f"http://{served.admin.address}{path}") as answer:
                assert answer.status == 405


async def test_a_taken_port_is_an_alarm_until_it_is_free(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        async for served in serving(f"127.0.0.1:{holder.getsockname()[1]}", tmp_path):
            await until_alarmed(served)
            holder.close()
            assert (await served.get("/livez"))[0] == 503
            assert "http_listen" not in served.daemon.desk.alarms.up


async def test_an_address_that_cannot_be_is_an_alarm_and_not_an_end(tmp_path: Path) -> None:
    async for served in serving("127.0.0.1:99999", tmp_path):
        await until_alarmed(served)


async def test_an_empty_address_serves_nothing(tmp_path: Path) -> None:
    port = free_port()
    async for served in serving("", tmp_path):
        await asyncio.sleep(0.1)
        assert served.admin.address == ""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
