"""Heartbeats and checkpoints while the worker runs: one thread, at most one commit an interval, the newest wins."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bootstrap.children import Child, Console
from bootstrap.hub_channel import HubChannel, HubFailure
from bootstrap.job import PACE, Job

MAX_HEARTBEAT_BYTES = 64_000
MAX_HISTORY = 120
MAX_ERROR = 2_000
TICK_S = 0.5
RETRY_S = 30.0
NUMBERS = ("epoch", "loss", "reward", "grad_norm", "learning_rate", "setup_seconds", "train_wall")
OPTIONAL = (*NUMBERS, "gpu", "error", "retriable", "liveness", "history")
SAVING = "saving"  # the stage of the box once the worker has ended well
NOT_PROGRESS = ("ts", "gpu", "train_wall")  # they change while a worker hangs

StartPush = Callable[[Path, str, str, "dict[str, str]", bool], Child]


class Uploader(threading.Thread):
    """Commits the worker's `heartbeat.json`, or in its place a sign of life of the box.

    Nothing before `first_commit_after_s`; then one slot each `commit_interval_s`, and one commit more, once, for the
    first training step. A new checkpoint takes a slot, but never two in a row, so that heartbeats go on.
    """

    def __init__(self, job: Job, channel: HubChannel, out: Path, console: Console, start_push: StartPush) -> None:
        super().__init__(daemon=True)
        self.stage = "start"
        self._job, self._channel, self._out, self._console, self._start_push = job, channel, out, console, start_push
        self._stopping = threading.Event()
        self._next_slot = self._not_before = -1.0
        self._told: dict[str, Any] = {}
        self._last_body = b""
        self._before: bytes | None = None  # what an earlier attempt left
        self._before_known = False
        self._training_told = False
        self._checkpoint_last = False
        self._uploaded_step = -1
        self._seen: tuple[Path, object] | None = None
        self._push: tuple[Child, Path] | None = None
        self._push_failures = 0

    def run(self) -> None:
        while not self._stopping.wait(TICK_S * PACE):
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """One look; commits what is due. `now`: seconds of a clock that only goes forward, the same at every call."""
        if self._not_before < 0:
            self._next_slot = self._not_before = now + self._job.first_commit_after_s
        try:
            self._look(now)
        except HubFailure as failure:
            self._console.say(f"heartbeat not committed: {failure}")
            quota = self._job.commit_interval_s if failure.status == 429 else 0.0
            pause = failure.retry_after_s or quota or RETRY_S * random.uniform(0.1, 1.0) * PACE
            self._next_slot = self._not_before = now + pause
        except (OSError, ValueError) as error:  # what the worker left is not as we need it
            self._console.say(f"heartbeat or checkpoint not usable: {type(error).__name__}: {error}")
            self._next_slot = now + RETRY_S * PACE

    def stop(self, patience_s: float) -> None:
        """No commit after this, unless one already under way hangs longer than `patience_s`."""
        self._stopping.set()
        if self.is_alive():
            self.join(patience_s)
        if self._push:
            self._push[0].stop()

    def save_newest(self, watch: Callable[[], str]) -> None:
        """After `stop`: the newest checkpoint, if it is not on the Hub yet, so that the next attempt starts from it."""
        newest = newest_checkpoint(self._out)
        for _ in range(2):  # with and without Xet
            if newest is None or int(newest.name) <= self._uploaded_step:
                return
            self._push = (self._begin_push(newest), newest)
            self._push[0].wait(watch)
            self._reap_push()

    def foreign_heartbeat(self) -> dict[str, Any]:
        """What a worker that uploads for itself last said on the Hub; empty when there is no such thing."""
        if not self._before_known or (self._out / "heartbeat.json").exists():
            return {}
        theirs = self._channel.read(self._job.path("heartbeat.json"))
        if theirs is None or theirs in (self._last_body, self._before):
            return {}
        try:
            said = json.loads(theirs)
        except (ValueError, RecursionError):
            return {}
        return said if isinstance(said, dict) else {}

    def _look(self, now: float) -> None:
        self._reap_push()
        if not self._before_known and self.stage != "running":
            self._before = self._channel.read(self._job.path("heartbeat.json"))
            self._before_known = True
        checkpoint = self._settled_checkpoint()
        if now < self._not_before:
            return
        heartbeat = self._heartbeat()
        first_step = not self._training_told and is_training(heartbeat)
        if now < self._next_slot and not first_step:
            return
        wanted = checkpoint is not None and self._push is None and self.stage != SAVING
        if checkpoint is not None and wanted and not self._checkpoint_last and not first_step:
            self._push = (self._begin_push(checkpoint), checkpoint)
            self._checkpoint_last = True
        else:
            self._commit(heartbeat)
            self._checkpoint_last = False
        self._training_told = self._training_told or is_training(heartbeat)
        if now >= self._next_slot:
            self._next_slot = now + self._job.commit_interval_s

    def _commit(self, heartbeat: dict[str, Any]) -> None:
        path = self._job.path("heartbeat.json")
        body = encode_heartbeat(self._job, heartbeat)
        if self.stage == "running" and self.foreign_heartbeat():
            return  # the worker uploads for itself; its own heartbeat says more than ours
        self._channel.commit(self._job.title("heartbeat", heartbeat), {path: body})
        self._last_body, self._told = body, heartbeat

    def _heartbeat(self) -> dict[str, Any]:
        """The worker's newest, or `liveness` when it has nothing new to say."""
        now = round(self._channel.now(), 3)
        worker = read_heartbeat(self._job, self._out)
        if worker is None:
            return {"stage": self.stage, "ts": now, "liveness": True}
        if self.stage == SAVING:  # the worker's own last words would look like a hang
            worker["stage"] = SAVING
        changed = {key: value for key, value in worker.items() if key not in NOT_PROGRESS}
        before = {key: value for key, value in self._told.items() if key not in (*NOT_PROGRESS, "liveness")}
        if changed == before:
            return worker | {"ts": now, "liveness": True}
        return worker

    def _settled_checkpoint(self) -> Path | None:
        """The newest checkpoint not yet uploaded, once two looks in a row found the same files in it."""
        newest = newest_checkpoint(self._out)
        if newest is None or int(newest.name) <= self._uploaded_step:
            return None
        looks = (newest, [(file.name, file.stat().st_size, file.stat().st_mtime) for file in sorted(newest.rglob("*"))])
        settled, self._seen = looks == self._seen, looks
        return newest if settled else None

    def _begin_push(self, checkpoint: Path) -> Child:
        heartbeat = self._heartbeat()
        title = self._job.title("checkpoint", heartbeat | {"step": int(checkpoint.name)})
        extra = {self._job.path("heartbeat.json"): encode_heartbeat(self._job, heartbeat).decode()}
        path = f"checkpoint/a{self._job.attempt}-{int(checkpoint.name)}"
        return self._start_push(checkpoint, path, title, extra, self._push_failures % 2 == 0)

    def _reap_push(self) -> None:
        """A push that failed is repeated once in the same slot, by the other way of transfer."""
        if self._push is None or (code := self._push[0].poll()) is None:
            return
        checkpoint, self._push = self._push[1], None
        self._console.say(f"checkpoint {checkpoint.name}: {'uploaded' if code == 0 else 'upload failed'}")
        if code == 0:
            self._uploaded_step = int(checkpoint.name)
            return
        self._push_failures += 1
        if self._push_failures % 2 and not self._stopping.is_set():
            self._push = (self._begin_push(checkpoint), checkpoint)


def read_heartbeat(job: Job, out: Path) -> dict[str, Any] | None:
    """What the worker last said, only the members that mean something; None when it has said nothing readable."""
    try:
        raw = job.clean(json.loads((out / "heartbeat.json").read_bytes()[: 4 * MAX_HEARTBEAT_BYTES]))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    heartbeat: dict[str, Any] = {"stage": str(raw.get("stage") or "running")[:64]}
    step = raw.get("step")
    if isinstance(step, int) and not isinstance(step, bool) and step >= 0:
        heartbeat["step"] = step
    ts = raw.get("ts")
    heartbeat["ts"] = ts if isinstance(ts, (int, float)) else round((out / "heartbeat.json").stat().st_mtime, 3)
    heartbeat.update({key: raw[key] for key in OPTIONAL if key in raw})
    if isinstance(heartbeat.get("history"), list):
        heartbeat["history"] = heartbeat["history"][-MAX_HISTORY:]
    if isinstance(heartbeat.get("error"), str):
        heartbeat["error"] = heartbeat["error"][:MAX_ERROR]
    return heartbeat


def encode_heartbeat(job: Job, heartbeat: dict[str, Any]) -> bytes:
    """`heartbeat.json`, tied to this attempt, within its size."""
    whole = heartbeat | {"run_id": job.run_id, "seed": job.seed, "attempt": job.attempt, "token": job.token}
    for dropped in ("", "history", "gpu", "error"):
        whole.pop(dropped, None)
        body = json.dumps(whole).encode()
        if len(body) <= MAX_HEARTBEAT_BYTES:
            break
    return body


def is_training(heartbeat: dict[str, Any]) -> bool:
    return bool(heartbeat.get("step", 0) >= 1)


def newest_checkpoint(out: Path) -> Path | None:
    """The folder `checkpoint/<step>` with the highest step that has anything in it."""
    try:
        steps = [entry for entry in (out / "checkpoint").iterdir() if entry.name.isdecimal() and any(entry.iterdir())]
    except OSError:
        return None
    return max(steps, key=lambda entry: int(entry.name), default=None)
