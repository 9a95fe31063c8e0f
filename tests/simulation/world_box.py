"""Simulated boxes: each reads its payload out of the user_data as it was sent, then lives by a script of its run."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import yaml

from flashd.core.machines import MachinePhase
from tests.simulation.cloud_truth import CloudTruth, TrueMachine
from tests.simulation.loop import VirtualLoop
from tests.simulation.wire import Wire
from tests.simulation.world_hub import WorldHub

PAYLOAD_PATH = "/opt/flash/payload.json"
COMMIT_RETRY_S = 20.0
STEP_S = 10.0
METRICS_VALUE = 0.125


class Ending(StrEnum):
    """How a box ends by itself."""

    OK = "ok"
    FAILS = "fails"  # the worker's own error
    RETRIABLE = "retriable"  # the box says that another machine may do better
    SILENT = "silent"  # it never commits anything
    HANGS = "hangs"  # it stops reporting after its first step
    NO_MARKER = "no_marker"  # a worker that uploads for itself: DONE and metrics, no marker
    BY_HAND = "by_hand"  # the test itself writes what the box would; see `hand`


@dataclass(frozen=True, slots=True)
class Play:
    """One attempt's life. Seconds from the moment the machine runs."""

    ending: Ending = Ending.OK
    boot_s: float = 20.0
    setup_s: float = 200.0
    end_at_s: float = 3480.0
    dies_at_s: float | None = None
    dies_as: MachinePhase | None = MachinePhase.FAILED  # None = it vanishes
    error: str = "ValueError: the loss is not a number"


PlayOf = Callable[[str, int], Play]


@dataclass(slots=True)
class Stage:
    """All boxes of a world. `play_of(run_id, attempt)` is what each of them does."""

    loop: VirtualLoop
    wire: Wire
    hub: WorldHub
    truth: CloudTruth
    play_of: PlayOf = lambda _run, _attempt: Play()

    def start(self, machine: TrueMachine) -> None:
        if not machine.user_data:
            return  # not one of ours
        payload = read_payload(machine.user_data)
        play = self.play_of(str(payload["run_id"]), int(payload["attempt"]))
        if play.dies_at_s is not None:
            self.loop.in_world(play.dies_at_s, lambda: self._die(machine, play))
        self.loop.spawn("world", Box(self, machine, payload, play).live())

    def _die(self, machine: TrueMachine, play: Play) -> None:
        self.wire.note("dies", machine.id)
        if play.dies_as is None:
            self.truth.remove(machine)
        else:
            self.truth.die(machine, play.dies_as)


class Box:
    """The box programs of one machine, as far as the Hub can see them."""

    def __init__(self, stage: Stage, machine: TrueMachine, payload: Mapping[str, Any], play: Play) -> None:
        self._stage = stage
        self._machine = machine
        self._payload = payload
        self._play = play
        self._started_at = stage.loop.wall()
        self._prefix = str(payload["hub"]["prefix"])
        self._attempt = int(payload["attempt"])

    async def live(self) -> None:
        play, hub = self._play, self._payload["hub"]
        if play.ending in (Ending.SILENT, Ending.BY_HAND):
            return
        await asyncio.sleep(play.boot_s)
        await self._commit("boot", {self._boot_log: b"docker is there\n"})
        beat_s = float(hub["first_commit_after_s"])
        while self._age() < play.end_at_s:
            await asyncio.sleep(min(beat_s, max(play.end_at_s - self._age(), 0.01)))
            if self._age() >= play.end_at_s or not self._machine.works:
                break
            if play.ending is Ending.HANGS and self._step() > 0 and beat_s > 240:
                return
            await self._beat()
            beat_s = float(hub["commit_interval_s"])
        if self._machine.works and play.ending is not Ending.HANGS:
            await self._end()

    # What it commits -------------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        step = self._step()
        stage = "training" if step else "setup"
        beat = self._named() | {"stage": stage, "step": step, "ts": self._now(), "seed": self._payload["seed"]}
        words = f" stage={stage} step={step}" + (f" loss={1 / (1 + step):.4f}" if step else "")
        await self._commit("heartbeat", {"heartbeat.json": encoded(beat | {"run_id": self._payload["run_id"]})}, words)

    async def _end(self) -> None:
        """One commit: marker, metrics, DONE, console tail, error; as the contract's section 6 has it."""
        play, number = self._play, self._attempt
        ok = play.ending in (Ending.OK, Ending.NO_MARKER)
        marker = self._named() | {
            "ok": ok,
            "ts": self._now(),
            "retriable": play.ending is Ending.RETRIABLE,
            "error": "" if ok else play.error,
            "exit_code": 0 if ok else 1,
        }
        files = {f"console_{self._phase}_attempt{number}.txt": b"the end\n"}
        if play.ending is not Ending.NO_MARKER:
            files[f"{self._payload['provider']}_attempt{number}.json"] = encoded(marker)
        if ok:
            files["metrics.json"] = encoded({"eval_loss": METRICS_VALUE, "attempt": number})
            files["DONE"] = f"{self._now():.3f}".encode()
        else:
            files[f"error_{self._phase}_attempt{number}.txt"] = play.error.encode()
        await self._commit("end", files)

    async def _commit(self, event: str, files: Mapping[str, bytes], words: str = "") -> None:
        """Tried again while the Hub is away and the machine works; a dead or deleted box writes nothing more."""
        stage, run = self._stage, self._payload
        while self._machine.works:
            if not stage.hub.is_dark:
                title = f"flashd run={run['run_id']} seed={run['seed']} attempt={self._attempt} event={event}{words}"
                placed = {f"{self._prefix}/{name}": body for name, body in files.items()}
                stage.hub.push(str(run["hub"]["repo"]), title, placed)
                stage.wire.note("commit", run["run_id"], self._attempt, event)
                return
            await asyncio.sleep(COMMIT_RETRY_S)

    @property
    def _phase(self) -> str:
        return str(self._payload["phase"])

    @property
    def _boot_log(self) -> str:
        return f"{self._payload['provider']}_boot_attempt{self._attempt}.log"

    def _named(self) -> dict[str, object]:
        return {"attempt": self._attempt, "token": self._payload["token"]}

    def _step(self) -> int:
        return max(0, int((self._age() - self._play.setup_s) / STEP_S))

    def _now(self) -> float:
        return self._stage.loop.wall()

    def _age(self) -> float:
        return self._now() - self._started_at


def read_payload(user_data: str) -> Mapping[str, Any]:
    """What cloud-init would write to the payload's path. Source: cloud-init documentation, "Write Files"."""
    head, _, body = user_data.partition("\n")
    assert head == "#cloud-config", f"cloud-init would not read this: {head!r}"
    document: Any = yaml.load(body, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    entry = next(entry for entry in document["write_files"] if entry["path"] == PAYLOAD_PATH)
    raw = base64.b64decode(entry["content"])
    content: Any = json.loads(gzip.decompress(raw) if entry["encoding"] == "gz+b64" else raw)
    assert isinstance(content, dict) and document["runcmd"], "nothing would start in this box"
    return content


def encoded(document: Mapping[str, object]) -> bytes:
    return json.dumps(document).encode()
