"""One rented machine without a machine: the real box programs as processes against the simulated Hub."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from flashd.adapters.userdata import render_user_data
from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_http import serve_hub
from flashd.wire.payload import JsonValue, Payload, PayloadCode, PayloadHub, PayloadWorker

REPO = "acme/results"
PREFIX = "sft/r1/seed7"
HF_TOKEN = "hf_BoxTokenThatMustNeverBeSeen01"
PACE = 0.05  # the box's built-in waits, shortened; the payload's own numbers are given by each test
LIMIT_S = 60.0
OTHER_LIBRARY = "FLASHD_TEST_HUB_LIBRARY"  # a directory with another version of huggingface_hub for the box
OK_WORKER = """
import flash_report
print("hello from the worker")
flash_report.report("train", step=3, loss=0.25)
flash_report.metrics({"loss": 0.25})
"""


@dataclass(frozen=True)
class BoxEnd:
    code: int
    output: str


@dataclass
class BoxWorld:
    """`root` stands for `/`; `opt/flash` in it is the host's directory and, as by docker's mount, the container's."""

    root: Path
    hub: SimHub
    endpoint: str
    running: list[asyncio.subprocess.Process] = field(default_factory=list)

    def payload(self, **changes: Any) -> Payload:
        known: dict[str, Any] = {
            "run_id": "r1",
            "ns": "demo",
            "phase": "sft",
            "seed": 7,
            "attempt": 0,
            "token": "launch-token-0",
            "provider": "hyperstack",
            "hub": PayloadHub(self.endpoint, REPO, PREFIX, 600, 600),
            "code": PayloadCode(REPO, self.hub.repo(REPO).head.id, "code"),
            "worker": PayloadWorker("image", (sys.executable, "worker.py")),
            "max_wall_s": 300.0,
            "deadline_at": time.time() + 600,
            "env": {"HF_TOKEN": HF_TOKEN},
            "spec": {"model": "tiny"},
        }
        return Payload(**(known | changes))

    def worker(self, source: str, name: str = "worker.py") -> None:
        """Commit the worker's code; take the payload after it, so that it is pinned to this commit."""
        self.hub.commit(REPO, {f"code/{name}": source}, "code")

    def boot(self, payload: Payload) -> None:
        """Write what a cloud would write, and mount it where docker would."""
        for entry in yaml.safe_load(render_user_data(payload))["write_files"]:
            content = base64.b64decode(entry["content"])
            path = self.root / entry["path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_bytes(gzip.decompress(content) if entry["encoding"] == "gz+b64" else content)
            path.chmod(int(entry["permissions"], 8))
        mounted = self.root / "root/flash"
        mounted.parent.mkdir(exist_ok=True)
        if not mounted.exists():
            mounted.symlink_to(self.root / "opt/flash")

    async def start(
        self, *arguments: str, env: Mapping[str, str] | None = None, within: Sequence[str] = ()
    ) -> asyncio.subprocess.Process:
        """`within`: a command that runs the box, e.g. in a file system of its own."""
        environment = {
            "PATH": os.environ["PATH"],
            "FLASH_BOX_ROOT": str(self.root),
            "FLASH_BOX_PACE": str(PACE),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HOME": str(self.root / "hf"),
            "PYTHONPATH": os.environ.get(OTHER_LIBRARY, ""),
            **(env or {}),
        }
        process = await asyncio.create_subprocess_exec(
            *within,
            sys.executable,
            str(self.root / "root/flash/box.zip"),
            *(arguments or ("box",)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    async def end_of(self, process: asyncio.subprocess.Process, limit_s: float = LIMIT_S) -> BoxEnd:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
        assert process.returncode is not None
        return BoxEnd(process.returncode, output.decode())

    async def run(self, payload: Payload, env: Mapping[str, str] | None = None, limit_s: float = LIMIT_S) -> BoxEnd:
        self.boot(payload)
        return await self.end_of(await self.start(env=env), limit_s)

    # What the Hub has.

    def text(self, name: str) -> str | None:
        body = self.hub.read(REPO, f"{PREFIX}/{name}")
        return None if body is None else body.decode()

    def json(self, name: str) -> JsonValue:
        text = self.text(name)
        assert text is not None, f"no {name} on the Hub; there are {self.names()}"
        value: JsonValue = json.loads(text)
        return value

    def marker(self, attempt: int = 0) -> dict[str, Any]:
        marker = self.json(f"hyperstack_attempt{attempt}.json")
        assert isinstance(marker, dict)
        return dict(marker)

    def names(self) -> list[str]:
        return sorted(path.removeprefix(f"{PREFIX}/") for path in self.hub.repo(REPO).head.files if PREFIX in path)

    def titles(self, event: str = "") -> list[str]:
        return [title for title in self.hub.titles(REPO) if title.startswith("flashd ") and f"event={event}" in title]

    async def until(self, what: str) -> None:
        """Wait for a commit whose title contains `what`."""
        await self.until_true(lambda: any(what in title for title in self.hub.titles(REPO)))

    async def until_true(self, fact: Callable[[], bool]) -> None:
        """Another process makes it true, so there is nothing to be woken by."""
        async with asyncio.timeout(LIMIT_S):
            while not fact():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def box_world(root: Path) -> AsyncIterator[BoxWorld]:
    hub = SimHub()
    hub.add_token(HF_TOKEN, Token("acme", repos=(REPO,)))
    hub.add_repo(REPO)
    async with serve_hub(hub) as server:
        world = BoxWorld(root, hub, server.url)
        try:
            yield world
        finally:
            for process in world.running:
                if process.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    await process.wait()
            end_what_stands_in_for_containers(root)


def end_what_stands_in_for_containers(root: Path) -> None:
    """The stand-in for docker detaches its container, as docker does; none may outlive the machine it stands on."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(word.startswith(f"{root}/".encode()) for word in words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry.name), signal.SIGKILL)
