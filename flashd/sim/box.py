"""Simulated machines that really execute their `user_data`, each in a private root on this computer.

Implements `flashd.sim.cloud_types.BoxHost`. A machine has its own file system, processes and /proc; it shares this
computer's network, so that it reaches the simulated Hub on a loopback address. It gets no environment variable.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from flashd.sim.box_config import BootPlan, parse_user_data
from flashd.sim.box_launch import ENVIRONMENT, Pythons, check_isolation, find_pythons, init_command, install_tools

CONSOLE_BYTES = 8 << 20
START_S = 60.0
READ_BYTES = 64 << 10
UP = b"box: up\n"
# Name of the GPU to search for, memory in MiB, compute capability.
GPUS = (
    ("H200", 143_771, "9.0"),
    ("H100", 81_559, "9.0"),
    ("A100", 81_920, "8.0"),
    ("RTX Pro 6000", 97_887, "12.0"),
    ("RTX-PRO6000", 97_887, "12.0"),
    ("A6000", 49_140, "8.6"),
    ("L40", 46_068, "8.9"),
)


class BoxError(RuntimeError):
    """A machine could not be started; the text says why."""


class BoxMachine(Protocol):
    """What is used of `cloud_types.SimMachine`."""

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def user_data(self) -> str: ...
    @property
    def gpu(self) -> str: ...
    @property
    def gpu_count(self) -> int: ...
    @property
    def console(self) -> Callable[[str], None]: ...
    @property
    def power_off(self) -> Callable[[], None]: ...


@dataclass(frozen=True, slots=True)
class BoxKnobs:
    """How every machine behaves; seconds. `refused_images` cannot be pulled."""

    docker_ready_s: float = 0.0
    pull_s: float = 0.0
    refused_images: tuple[str, ...] = ()


@dataclass(slots=True)
class _Box:
    process: asyncio.subprocess.Process
    directory: Path
    machine: BoxMachine
    up: asyncio.Event = field(default_factory=asyncio.Event)
    first: bytes = b""
    stopping: bool = False
    reader: asyncio.Task[None] | None = None


class LocalBoxHost:
    """Runs at most `max_boxes` machines at once, each with a directory `<id>-<name>` below `directory`.

    The directories stay after the end, with `console.log` and the machine's `root`; removing them is the caller's part.
    """

    def __init__(self, directory: Path, max_boxes: int = 64, knobs: BoxKnobs | None = None) -> None:
        self._directory = directory.resolve()
        self._max_boxes = max_boxes
        self._knobs = knobs or BoxKnobs()
        self._boxes: dict[int, _Box] = {}
        self._pythons: Pythons | None = None
        self._preparing = asyncio.Lock()

    @property
    def running(self) -> list[int]:
        return sorted(self._boxes)

    def directory_of(self, machine_id: int) -> Path:
        """Raises KeyError for a machine that never started."""
        for path in sorted(self._directory.glob(f"{machine_id}-*")):
            return path
        raise KeyError(machine_id)

    def console_of(self, machine_id: int) -> str:
        return (self.directory_of(machine_id) / "console.log").read_text(errors="replace")

    async def start(self, machine: BoxMachine) -> None:
        """Boot it; returns when its root stands and the boot commands begin.

        Raises BoxError at `max_boxes` or when the machine did not come up, CloudConfigError for a payload that
        cannot be executed, BoxIsolationError when this computer cannot isolate anything.
        """
        plan = parse_user_data(machine.user_data)
        pythons = await self._prepare()
        if machine.id in self._boxes:
            raise BoxError(f"machine {machine.id} is running already")
        if len(self._boxes) >= self._max_boxes:
            raise BoxError(f"{self._max_boxes} machines are running, more are not allowed on this computer")
        directory = self._directory / f"{machine.id}-{re.sub('[^A-Za-z0-9._-]', '_', machine.name)}"
        (directory / "root").mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *init_command(self._tools, pythons),
            env=ENVIRONMENT,
            cwd="/",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        box = self._boxes[machine.id] = _Box(process, directory, machine)
        box.reader = asyncio.create_task(self._read(box), name=f"box {machine.id}")
        await self._hand_over(box, self._plan(directory, machine, plan, pythons))

    async def stop(self, machine_id: int) -> None:
        """Pull the plug: every process of the machine is gone when this returns. Nothing happens for an unknown id."""
        box = self._boxes.get(machine_id)
        if box is None:
            return
        box.stopping = True
        _kill(box.process)
        if box.reader is not None:
            await box.reader

    async def close(self) -> None:
        """Stop all machines."""
        await asyncio.gather(*(self.stop(machine_id) for machine_id in self.running))

    @property
    def _tools(self) -> Path:
        return self._directory / "tools"

    async def _prepare(self) -> Pythons:
        async with self._preparing:
            if self._pythons is None:
                await check_isolation()
                self._directory.mkdir(parents=True, exist_ok=True)
                self._directory.chmod(0o700)  # payloads hold tokens
                found = find_pythons()
                install_tools(self._tools, found)
                self._pythons = found
            return self._pythons

    def _plan(self, directory: Path, machine: BoxMachine, plan: BootPlan, pythons: Pythons) -> bytes:
        memory, capability = next(((mib, cc) for name, mib, cc in GPUS if name in machine.gpu), (24_576, "8.6"))
        files = [
            {
                "path": one.path,
                "content": base64.b64encode(one.content).decode(),
                "mode": one.mode,
                "append": one.append,
            }
            for one in plan.files
        ]
        settings = {
            "python_at": pythons.at,
            "python_bin": [pythons.bin],
            "pull_s": self._knobs.pull_s,
            "docker_ready_s": self._knobs.docker_ready_s,
            "refused_images": self._knobs.refused_images,
        }
        whole = {
            "root": str(directory / "root"),
            "tools": str(self._tools),
            "hostname": machine.name,
            "files": files,
            "script": plan.script,
            "machine": settings,
            "gpu": f"NVIDIA {machine.gpu}|{machine.gpu_count}|{memory}|{capability}",
            "python": pythons.at,
            "host_python": pythons.host_at,
        }
        return json.dumps(whole).encode()

    async def _hand_over(self, box: _Box, plan: bytes) -> None:
        assert box.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died; the console says why
            box.process.stdin.write(plan)
            await box.process.stdin.drain()
        box.process.stdin.close()
        try:
            async with asyncio.timeout(START_S):
                await box.up.wait()
        except TimeoutError as error:
            await self.stop(box.machine.id)
            raise BoxError(f"machine {box.machine.name} did not come up within {START_S:.0f} s") from error
        if not box.first.startswith(UP):
            raise BoxError(f"machine {box.machine.name} did not come up: {box.first.decode(errors='replace').strip()}")

    async def _read(self, box: _Box) -> None:
        """Keep what the machine prints, until it and everything in it has ended; then tell the cloud why it ended."""
        assert box.process.stdout is not None
        left = CONSOLE_BYTES
        decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode  # a chunk may end within a character
        with (box.directory / "console.log").open("ab", buffering=0) as log:
            while chunk := await box.process.stdout.read(READ_BYTES):
                if not box.up.is_set():
                    box.first += chunk
                    if b"\n" in box.first:
                        box.up.set()
                log.write(chunk[: max(0, left)])
                left -= len(chunk)
                box.machine.console(decode(chunk))
        status = await box.process.wait()
        self._boxes.pop(box.machine.id, None)
        box.up.set()
        if not box.stopping and status == 0:
            box.machine.power_off()


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the machine's first process; the kernel ends all others of its namespace before it reports that one gone."""
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    except OSError:
        children = []
    with contextlib.suppress(ProcessLookupError):
        # Without a known child: killing the parent ends it as well (--kill-child), though perhaps a moment later.
        os.kill(int(children[0]) if children else process.pid, signal.SIGKILL)
