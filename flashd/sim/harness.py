"""A whole world on this computer: private Redis, simulated cloud and Hub over HTTP, boxes, and the real daemon.

    async with rehearsal(Stage(directory)) as house:
        await house.daemon.start()
        await house.submit({...})
        await house.until_released(["r1"], timeout_s=60)

Used by `flashd demo`, by the end-to-end tests, and by whoever rehearses a configuration.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import RedisError

from flashd.core.names import fleet_prefix, machine_name
from flashd.sim.box import LocalBoxHost
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_http import serve_cloud
from flashd.sim.cloud_types import BoxHost, Json, Knobs, Machine, Status
from flashd.sim.demo_daemon import (
    Addresses,
    DaemonProcess,
    Sections,
    free_port,
    write_config,
    write_credentials,
)
from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_http import serve_hub
from flashd.sim.hub_quota import HubSettings
from flashd.sim.redis_private import PrivateRedis, start_redis

REPO = "demo/runs"
API_KEY = "demo-api-key-of-no-account"
HF_TOKEN = "hf_DemoDaemonTokenOfNoAccount0001"
HF_BOX_TOKEN = "hf_DemoBoxTokenOfNoAccount0000001"
UNLIMITED = 1_000_000
BLOCK_MS = 500
WATCH_S = 0.2
ENDS = ("succeeded", "failed", "cancelled")

Event = dict[str, Any]
MakeBoxes = Callable[[SimHub, Path], BoxHost]


def real_boxes(hub: SimHub, directory: Path) -> BoxHost:
    """Machines that execute their payload."""
    return LocalBoxHost(directory)


@dataclass(frozen=True, slots=True)
class Stage:
    """What to build in `directory`; `config` is laid over the quick settings of `demo_daemon`."""

    directory: Path
    ns: str = "demo"
    config: Sections = field(default_factory=dict)
    knobs: Knobs = field(default_factory=Knobs)
    boxes: MakeBoxes = real_boxes
    prefer_real_redis: bool = True


@dataclass(slots=True)
class House:
    """The running world and what a test or a demo does in it. The daemon is not started yet."""

    stage: Stage
    cloud: Cloud
    hub: SimHub
    boxes: BoxHost
    at: Addresses
    cloud_url: str
    health: str
    server: PrivateRedis
    redis: Redis
    daemon: DaemonProcess

    def key(self, short: str) -> str:
        return f"flashd:{{{self.stage.ns}}}:{short}"

    def xadd_line(self, request: Mapping[str, object]) -> str:
        """The command line that submits this request, to be pasted into a shell."""
        text = json.dumps(request, separators=(",", ":"))
        return f"{self.server.cli} XADD '{self.key('requests')}' '*' request '{text}'"

    async def submit(self, request: Mapping[str, object]) -> None:
        await self.redis.xadd(self.key("requests"), {"request": json.dumps(request)})

    async def fields(self, run_id: str) -> dict[str, str]:
        """The run hash; empty when there is none."""
        found = await self.redis.hgetall(self.key(f"run:{run_id}"))
        return cast("dict[str, str]", found)

    async def ledger(self) -> dict[str, Json]:
        rows = cast("dict[str, str]", await self.redis.hgetall(self.key("machines")))
        return {name: json.loads(row) for name, row in rows.items()}

    async def events(self, after: str = "0-0") -> AsyncIterator[Event]:
        """Every event of every run, from the beginning, then as they come; never ends by itself."""
        while True:
            try:
                answer = cast(
                    "list[tuple[str, list[tuple[str, dict[str, str]]]]] | None",
                    await self.redis.xread({self.key("events"): after}, count=100, block=BLOCK_MS),
                )
            except (RedisError, OSError):
                await asyncio.sleep(0.2)
                continue
            for _, entries in answer or ():
                for entry_id, values in entries:
                    after = entry_id
                    yield json.loads(values["event"])

    async def all_events(self) -> list[Event]:
        """What the stream holds now."""
        entries = cast("list[tuple[str, dict[str, str]]]", await self.redis.xrange(self.key("events")))
        return [json.loads(values["event"]) for _, values in entries]

    async def until_released(self, run_ids: Collection[str], timeout_s: float) -> None:
        """Raises TimeoutError naming the runs that are not done, and DaemonEndedError as soon as the daemon is gone."""
        missing = set(run_ids)
        reading = asyncio.create_task(self._released(missing))
        try:
            async with asyncio.timeout(timeout_s):
                while not reading.done():
                    self.daemon.check()
                    await asyncio.wait([reading], timeout=WATCH_S)
        except TimeoutError as error:
            left = [f"{run_id}: {(await self.fields(run_id)).get('state')}" for run_id in sorted(missing)]
            raise TimeoutError(f"not released within {timeout_s:.0f} s: {', '.join(left)}") from error
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        reading.result()

    async def _released(self, missing: set[str]) -> None:
        async for event in self.events():
            if name_of(event) == "released":
                missing.discard(event["subject"])
            if not missing:
                return

    def machines_of(self, run_id: str) -> list[Machine]:
        """Every machine that was ever made for this run, by the token of its name, oldest first."""
        stem = machine_name(self.stage.ns, run_id, 0)[:-1]
        return [machine for machine in self.cloud.machines.all.values() if machine.name.startswith(stem)]

    def living(self) -> list[Machine]:
        prefix = fleet_prefix(self.stage.ns)
        return [machine for machine in self.cloud.living() if machine.name.startswith(prefix)]

    def strike(self, machine: Machine, how: str = "die") -> None:
        """Let an accident happen, unless the machine is gone by now."""
        self.cloud.advance()
        if machine.status is not Status.GONE:
            self.cloud.machines.strike(machine, how)


@asynccontextmanager
async def rehearsal(stage: Stage) -> AsyncIterator[House]:
    """Build it; on the way out the daemon is killed, boxes lose their power, servers and Redis end."""
    directory = stage.directory
    _make_directories(directory)
    async with AsyncExitStack() as stack:
        server = await start_redis(directory / "redis", prefer_real=stage.prefer_real_redis)
        stack.push_async_callback(server.close)
        redis = Redis.from_url(server.url, protocol=2, decode_responses=True)
        stack.push_async_callback(redis.aclose)
        hub = _new_hub()
        hub_server = await stack.enter_async_context(serve_hub(hub))
        boxes = stage.boxes(hub, directory / "boxes")
        cloud = Cloud(knobs=stage.knobs, box=boxes)
        cloud.add_account("demo", API_KEY)
        cloud_server = await serve_cloud(cloud)
        stack.push_async_callback(cloud_server.close)
        at = Addresses(server.url, hub_server.url, cloud_server.base_url)
        listen = f"127.0.0.1:{free_port()}"
        write_credentials(
            directory, {"hf_token": HF_TOKEN, "hf_box_token": HF_BOX_TOKEN, "hyperstack_api_key": API_KEY}
        )
        config = write_config(directory, stage.ns, at, listen, stage.config)
        daemon = DaemonProcess(config, directory / "daemon.log")
        stack.push_async_callback(daemon.kill)
        yield House(stage, cloud, hub, boxes, at, cloud_server.url, f"http://{listen}", server, redis, daemon)


def _make_directories(directory: Path) -> None:
    for folder in (directory / "redis", directory / "boxes"):
        folder.mkdir(parents=True)


def upload_worker(hub: SimHub, repo: str = REPO) -> None:
    """Commit the demo worker's code to `code/` of the repository."""
    folder = resources.files("flashd.sim") / "worker"
    names = ("train.py", "data.py")
    files: dict[str, bytes | str] = {f"code/{name}": (folder / name).read_text() for name in names}
    hub.commit(repo, files, "upload the worker")


def name_of(event: Event) -> str:
    """`dev.flashd.run.<name>.v1` -> name."""
    return str(event["type"]).split(".")[-2]


def _new_hub() -> SimHub:
    settings = HubSettings(api_per_window=UNLIMITED, resolvers_per_window=UNLIMITED, commits_per_hour=UNLIMITED)
    hub = SimHub(settings=settings)
    owner = REPO.partition("/")[0]
    hub.add_token(HF_TOKEN, Token(owner))
    hub.add_token(HF_BOX_TOKEN, Token(owner, may_create=False))
    hub.add_repo(REPO)
    return hub
