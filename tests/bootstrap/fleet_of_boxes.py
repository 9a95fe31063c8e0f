"""Many boxes for days in a second: the real uploader and end commit, a clock that jumps, a Hub without HTTP."""

from __future__ import annotations

import bisect
import heapq
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from bootstrap.children import Child, Console, Ended
from bootstrap.hub_channel import EndCommit, HubChannel, HubFailure
from bootstrap.job import Job, load_job
from bootstrap.uploader import Uploader
from flashd.sim.hub import SimHub
from flashd.sim.hub_repo import HubRefusal
from flashd.wire.payload import Payload, PayloadCode, PayloadHub, PayloadWorker

REPO = "acme/results"
LOOK_S = 60.0  # how often a worker writes its heartbeat, and the uploader looks at it here
CHECKPOINT_S = 1_800.0
START = 1_800_000_000.0


class Fleet:
    """Boxes of one repository and what happens to them, in the order of the clock."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        self.hub = SimHub(now=lambda: self.now)
        self.hub.add_repo(REPO)
        self.refused = 0
        self._directory = directory
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], float | None]]] = []

    def at(self, moment: float, act: Callable[[], float | None]) -> None:
        """`act` at `moment`; it answers after how many seconds it wants to act again, None = never."""
        heapq.heappush(self._due, (moment, next(self._order), act))

    def run(self) -> None:
        while self._due:
            self.now, _, act = heapq.heappop(self._due)
            again_s = act()
            if again_s is not None:
                self.at(self.now + again_s, act)

    def box(self, number: int, starts_at: float, lasts_s: float) -> Box:
        run_id = f"run-{number}"
        home = self._directory / run_id
        home.mkdir()
        payload = Payload(
            run_id=run_id,
            ns="demo",
            phase="sft",
            seed=0,
            attempt=0,
            token=f"token-{number}",
            provider="hyperstack",
            hub=PayloadHub("http://hub.test", REPO, f"sft/{run_id}/seed0"),
            code=PayloadCode(REPO, "main"),
            worker=PayloadWorker("image", ("worker",)),
            max_wall_s=lasts_s,
            deadline_at=starts_at + lasts_s + 3000,
            env={"HF_TOKEN": "hf_token"},
        )
        (home / "payload.json").write_bytes(payload.encode())
        box = Box(self, load_job(home / "payload.json"), home / "out", starts_at, starts_at + lasts_s)
        self.at(starts_at, box.boot)
        return box

    def commit(self, title: str, files: Mapping[str, bytes], delete: list[str] | None = None) -> None:
        """As the Hub's commit endpoint: within the quota or refused."""
        try:
            self.hub.commit_quota.check(REPO, self.now)
        except HubRefusal as refusal:
            self.refused += 1
            raise HubFailure(refusal.message, refusal.status) from refusal
        self.hub.commit(REPO, files, title, delete or ())
        self.hub.commit_quota.note(REPO, self.now)

    def most_commits_in_an_hour(self) -> int:
        times = [one.time for one in self.hub.repo(REPO).commits]
        return max(at + 1 - bisect.bisect_right(times, moment - 3600) for at, moment in enumerate(times))


class Channel(HubChannel):
    """The box's way to the Hub, past HTTP."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def now(self) -> float:
        return self._fleet.now

    def commit(self, title: str, files: Mapping[str, bytes]) -> None:
        self._fleet.commit(title, files)

    def read(self, path: str) -> bytes | None:
        return self._fleet.hub.read(REPO, path)


class Push(Child):
    """A checkpoint's transfer that has ended already."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int | None:
        return self._code

    def wait(self, watch: Callable[[], str]) -> Ended:
        return Ended(self._code, watch())

    def stop(self) -> int | None:
        return self._code


class Quiet(Console):
    """A console that prints nothing here."""

    def feed(self, chunk: bytes) -> None:
        return None


@dataclass
class Box:
    """One run: a worker that reports each minute and checkpoints each half hour, and its uploader."""

    fleet: Fleet
    job: Job
    out: Path
    starts_at: float
    ends_at: float
    ended_at: float | None = None
    _end: EndCommit | None = None
    _uploader: Uploader = field(init=False)

    def __post_init__(self) -> None:
        self._channel = Channel(self.fleet)
        self._uploader = Uploader(self.job, self._channel, self.out, Quiet(self.job), self._push)
        self._random = Random(self.job.run_id)

    def boot(self) -> float | None:
        try:
            self._channel.commit(self.job.title("boot"), {self.job.path("hyperstack_boot_attempt0.log"): b"up"})
        except HubFailure:
            return 30.0
        self.out.mkdir()
        self._uploader.stage = "running"
        self.fleet.at(self.fleet.now + 90, self._work)
        return None

    def _work(self) -> float | None:
        passed_s = self.fleet.now - self.starts_at
        step = int(passed_s / LOOK_S)
        beat = {"stage": "train", "step": step, "loss": 1 / step, "ts": self.fleet.now}
        (self.out / "heartbeat.json").write_text(json.dumps(beat))
        if step % int(CHECKPOINT_S / LOOK_S) == 0:
            folder = self.out / f"checkpoint/{step}"
            folder.mkdir(parents=True)
            (folder / "state").write_text(str(step))
            shutil.rmtree(self.out / f"checkpoint/{step - 2 * int(CHECKPOINT_S / LOOK_S)}", ignore_errors=True)
        self._uploader.tick(self.fleet.now)
        if self.fleet.now < self.ends_at:
            return LOOK_S
        self._finish()
        return None

    def _finish(self) -> None:
        job, beat = self.job, {"stage": "done", "step": int((self.ends_at - self.starts_at) / LOOK_S)}
        files = {
            job.marker_path: job.marker(True, False, "", 0, self.fleet.now),
            job.path("metrics.json"): "{}",
            job.path("DONE"): str(self.fleet.now),
            job.path("console_sft_attempt0.txt"): "x" * 1000,
        }
        end: dict[str, Any] = {"title": job.title("end", beat), "marker": job.marker_path, "files": files}
        self._end = EndCommit(self._channel, end)
        self.fleet.at(self.fleet.now, self._publish)

    def _publish(self) -> float | None:
        assert self._end is not None
        pause = self._end.once()
        if pause is None:
            self.ended_at = self.fleet.now
        return pause

    def _push(self, folder: Path, path: str, title: str, extra: dict[str, str], xet: bool) -> Child:
        files = {self.job.path(f"{path}/{file.name}"): file.read_bytes() for file in folder.iterdir()}
        older = [name for name in self.fleet.hub.repo(REPO).head.files if name.startswith(self.job.path("checkpoint/"))]
        files |= {name: text.encode() for name, text in extra.items()}
        try:
            self.fleet.commit(title, files, older)
        except HubFailure:
            return Push(1)
        return Push(0)
