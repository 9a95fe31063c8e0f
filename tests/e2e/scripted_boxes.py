"""Machines without processes: they read the real payload and commit what a real box commits, at far less cost.

Titles, markers and heartbeats come from the box programs themselves. A run whose spec says `real` gets a real box.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from bootstrap.job import Job, load_job
from bootstrap.uploader import encode_heartbeat
from flashd.adapters.userdata import PAYLOAD_PATH
from flashd.sim.box import LocalBoxHost
from flashd.sim.box_config import parse_user_data
from flashd.sim.cloud_types import SimMachine
from flashd.sim.hub import SimHub

SETUP_S = 0.1


class ScriptedBoxes:
    """A box host; a run's spec is ` `{"seconds": s, "ends": ["preempted", "ok"]}`: how its machines end in turn.

    `ok`, `failed` (the worker's own error), `preempted` (says so itself), `off` (the machine switches itself off).
    """

    def __init__(self, hub: SimHub, directory: Path) -> None:
        self._hub = hub
        self._directory = directory
        self._real = LocalBoxHost(directory)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._machines: Counter[str] = Counter()

    async def start(self, machine: SimMachine) -> None:
        job = self._job(machine)
        if isinstance(job.spec, dict) and job.spec.get("real"):
            await self._real.start(machine)
        else:
            self._tasks[machine.id] = asyncio.create_task(self._run(job, machine))

    async def stop(self, machine_id: int) -> None:
        task = self._tasks.pop(machine_id, None)
        if task is None:
            return await self._real.stop(machine_id)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _job(self, machine: SimMachine) -> Job:
        files = {file.path: file.content for file in parse_user_data(machine.user_data).files}
        path = self._directory / f"{machine.id}.json"
        path.write_bytes(files[PAYLOAD_PATH])
        return load_job(path)

    async def _run(self, job: Job, machine: SimMachine) -> None:
        spec: dict[str, Any] = job.spec if isinstance(job.spec, dict) else {}
        ends = spec.get("ends", ["ok"])
        end = ends[min(self._machines[job.run_id], len(ends) - 1)]
        self._machines[job.run_id] += 1
        self._commit(job, job.title("boot"), {f"{job.provider}_boot_attempt{job.attempt}.log": b"host up\n"})
        await asyncio.sleep(SETUP_S)
        self._beat(job, 1)
        await asyncio.sleep(float(spec.get("seconds", 1.0)))
        if end == "off":
            machine.power_off()
        else:
            self._end(job, end)

    def _beat(self, job: Job, step: int) -> None:
        heartbeat = {"stage": "train", "step": step, "ts": self._hub.now(), "loss": 0.5}
        body = encode_heartbeat(job, heartbeat)
        self._commit(job, job.title("heartbeat", heartbeat), {"heartbeat.json": body})

    def _end(self, job: Job, end: str) -> None:
        now = round(self._hub.now(), 3)
        ok = end == "ok"
        error = {"ok": "", "failed": "worker exited with code 1: ValueError: bad row"}.get(
            end, "told to stop (SIGTERM)"
        )
        marker = job.marker(ok, end == "preempted", error, 0 if ok else 1, now)
        files = {
            f"{job.provider}_attempt{job.attempt}.json": marker.encode(),
            f"console_{job.phase}_attempt{job.attempt}.txt": b"the worker's words\n",
        }
        if ok:
            files["metrics.json"] = json.dumps({"run": job.run_id, "attempt": job.attempt}).encode()
            files["DONE"] = str(now).encode()
        else:
            files[f"error_{job.phase}_attempt{job.attempt}.txt"] = error.encode()
        self._commit(job, job.title("end", {"stage": "train", "step": 1}), files)

    def _commit(self, job: Job, title: str, files: dict[str, bytes]) -> None:
        self._hub.commit(job.repo, {job.path(name): body for name, body in files.items()}, title)
