"""The real daemon process in a simulated world, asked over HTTP as an operator's tools ask it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from flashd.sim.demo_daemon import Sections, write_config
from flashd.sim.harness import House, Stage, rehearsal
from tests.e2e.fleet import FleetRun, plenty, quick_knobs
from tests.e2e.scripted_boxes import ScriptedBoxes

LOOK_S = 0.1


@dataclass(slots=True)
class Operated:
    """A house and the means of an operator: HTTP, signals, the configuration file, the log."""

    house: House
    http: aiohttp.ClientSession
    config: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON document (text for /metrics)."""
        async with self.http.get(f"{self.house.health}{path}") as answer:
            body = await answer.text() if path == "/metrics" else await answer.json()
            return answer.status, body

    async def alarms(self) -> dict[str, str]:
        _, status = await self.get("/statusz")
        return {one["alarm"]: one["detail"] for one in status["alarms"]}

    async def until(self, fact: Callable[[], Any], within_s: float = 30.0) -> Any:
        """The first true answer of an async question. Fails with the daemon's last words."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        if found := await fact():
                            return found
                    except aiohttp.ClientConnectionError:
                        pass  # it does not listen yet
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"not within {within_s} s\n{self.house.daemon.log_tail()}") from None

    async def until_ready(self) -> None:
        await self.until(self.is_ready)

    async def is_ready(self) -> bool:
        return (await self.get("/readyz"))[0] == 200

    async def until_alarm(self, name: str, within_s: float = 30.0) -> str:
        """Its detail; it must be an error line and a metric too."""

        async def up() -> str | None:
            return (await self.alarms()).get(name)

        detail: str = await self.until(up, within_s)
        _, metrics = await self.get("/metrics")
        assert f'flashd_alarm{{alarm="{name}"}} 1.0' in metrics
        lines = [line for line in self.log.splitlines() if "event=alarm_raised" in line and f"alarm={name} " in line]
        assert lines and all("level=error" in line for line in lines), self.log[-2000:]
        return detail

    async def until_no_alarm(self, name: str, within_s: float = 30.0) -> None:
        async def down() -> bool:
            return name not in await self.alarms()

        await self.until(down, within_s)
        _, metrics = await self.get("/metrics")
        assert f'alarm="{name}"' not in metrics

    async def run_to_the_end(self, run: FleetRun) -> None:
        await self.house.submit(run.request())
        await self.house.until_released([run.run_id], 60.0)

    @property
    def log(self) -> str:
        return self.house.daemon.log.read_text(errors="replace")

    def reconfigure(self, **sections: Mapping[str, Any]) -> None:
        """Lay these over the configuration file; the daemon is not told."""
        for name, keys in sections.items():
            self.config.setdefault(name.replace("__", "."), {}).update(keys)
        listen = self.house.health.removeprefix("http://")
        write_config(self.house.stage.directory, self.house.stage.ns, self.house.at, listen, self.config)

    def credential(self, name: str, text: str) -> None:
        (self.house.stage.directory / "credentials" / name).write_text(f"{text}\n")

    def signal(self, number: signal.Signals) -> None:
        assert self.house.daemon.process is not None
        self.house.daemon.process.send_signal(number)


@asynccontextmanager
async def operated(directory: Path, config: Sections | None = None) -> AsyncIterator[Operated]:
    """A world with plenty of stock; the daemon is not started."""
    stage = Stage(directory, config=config or {}, knobs=quick_knobs(), boxes=ScriptedBoxes)
    async with rehearsal(stage) as house, aiohttp.ClientSession() as http:
        plenty(house.cloud)
        yield Operated(house, http, {name: dict(keys) for name, keys in (config or {}).items()})


class ServiceManager:
    """The other end of NOTIFY_SOCKET. Every message is kept as its lines."""

    def __init__(self, directory: Path) -> None:
        self.address = directory / "notify.sock"
        self.messages: list[list[str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.address))
        self._socket.setblocking(False)

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.messages.append((await loop.sock_recv(self._socket, 8192)).decode().splitlines())

    def said(self, line: str) -> int:
        return sum(any(one.startswith(line) for one in message) for message in self.messages)

    def close(self) -> None:
        self._socket.close()


@asynccontextmanager
async def under_systemd(on: Operated) -> AsyncIterator[ServiceManager]:
    """Start the daemon as a Type=notify service with a watchdog."""
    manager = ServiceManager(on.house.stage.directory)
    on.house.daemon.variables |= {"NOTIFY_SOCKET": str(manager.address), "WATCHDOG_USEC": "60000000"}
    listening = asyncio.create_task(manager.listen())
    try:
        await on.house.daemon.start()
        yield manager
    finally:
        listening.cancel()
        manager.close()
