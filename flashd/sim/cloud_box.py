"""Passes machine starts and stops to the box host: in order for one machine, side by side for different ones."""

from __future__ import annotations

import asyncio
import functools
import logging

from flashd.sim.cloud_machines import BoxJob, Machines
from flashd.sim.cloud_types import BoxHost

_log = logging.getLogger(__name__)


class BoxPump:
    def __init__(self, machines: Machines, host: BoxHost) -> None:
        self._machines = machines
        self._host = host
        self._last: dict[int, asyncio.Task[None]] = {}
        self._powered: set[int] = set()

    def pump(self) -> None:
        """Hand over everything queued. Call it on the event loop."""
        while self._machines.box_jobs:
            job = self._machines.box_jobs.popleft()
            if job.start is not None:
                self._powered.add(job.machine_id)
            else:
                self._powered.discard(job.machine_id)
            before = self._last.get(job.machine_id)
            task = asyncio.create_task(self._do(job, before))
            self._last[job.machine_id] = task
            task.add_done_callback(functools.partial(self._forget, job.machine_id))

    async def close(self) -> None:
        """Power everything off and wait until it is off."""
        self.pump()
        for machine_id in sorted(self._powered):
            self._machines.box_jobs.append(BoxJob(machine_id, None))
        self.pump()
        while self._last:
            await asyncio.gather(*self._last.values())

    async def _do(self, job: BoxJob, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await before
        try:
            if job.start is not None:
                await self._host.start(job.start)
            else:
                await self._host.stop(job.machine_id)
        # The world goes on without this box, as a real cloud does; the machine shows no sign of life.
        except Exception as error:
            _log.exception("box of machine %s failed", job.machine_id)
            self._machines.note_box_failure(job.machine_id, error)

    def _forget(self, machine_id: int, done: asyncio.Task[None]) -> None:
        if self._last.get(machine_id) is done:
            del self._last[machine_id]
