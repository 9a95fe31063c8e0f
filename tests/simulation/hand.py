"""A box that the test writes by hand: exact files and titles at exact times, for plays of `Ending.BY_HAND`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.simulation.cloud_truth import TrueMachine
from tests.simulation.kit import machines_of
from tests.simulation.sim import World
from tests.simulation.world_box import METRICS_VALUE, Ending, Play, read_payload

BY_HAND = Play(Ending.BY_HAND)
METRICS = {"eval_loss": METRICS_VALUE}


class Hand:
    """Writes below the artifact prefix of one machine's payload. A dead or deleted machine writes nothing."""

    def __init__(self, world: World, machine: TrueMachine) -> None:
        self.machine = machine
        self.payload = read_payload(machine.user_data)
        self._world = world

    def beat(self, step: int = 0, *, liveness: bool = False, **fields: Any) -> None:
        """A heartbeat under a title that tells it."""
        words = f" stage={'training' if step else 'setup'} step={step}" + (" liveness=1" if liveness else "")
        beat = {"stage": "training" if step else "setup", "step": step, "ts": self._world.now, "liveness": liveness}
        self.commit("heartbeat", {"heartbeat.json": encoded(self._named() | beat | fields)}, words)

    def boot(self) -> None:
        self.commit("boot", {f"hyperstack_boot_attempt{self.attempt}.log": b"docker is there\n"})

    def end(self, *, metrics: object = METRICS, **marker: Any) -> None:
        """A successful end in one commit, but for what `marker` changes. `metrics` None: no such file."""
        self.commit("end", self.marker(**marker) | self.done() | written(metrics))

    def marker(self, **changes: Any) -> dict[str, bytes]:
        """The marker file of this attempt. An `error` makes it a failure."""
        ok = "error" not in changes
        fields = {"ok": ok, "ts": self._world.now, "retriable": False, "error": "", "exit_code": 0 if ok else 1}
        return {f"hyperstack_attempt{self.attempt}.json": encoded(self._named() | fields | changes)}

    def done(self, at: float | None = None) -> dict[str, bytes]:
        return {"DONE": f"{self._world.now if at is None else at:.3f}".encode()}

    def commit(self, event: str, files: Mapping[str, bytes], words: str = "") -> None:
        """A commit of the box, titled as the contract has it."""
        run = self.payload
        self.push(f"flashd run={run['run_id']} seed={run['seed']} attempt={self.attempt} event={event}{words}", files)

    def push(self, title: str, files: Mapping[str, bytes]) -> None:
        """A commit of any title: a worker's own upload."""
        hub = self.payload["hub"]
        if self.machine.works:
            self._world.hub.push(str(hub["repo"]), title, {f"{hub['prefix']}/{name}": files[name] for name in files})

    @property
    def attempt(self) -> int:
        return int(self.payload["attempt"])

    def _named(self) -> dict[str, Any]:
        return {"attempt": self.attempt, "token": self.payload["token"]}


async def hand_of(world: World, attempt: int = 0, run_id: str = "r1") -> Hand:
    """The hand of a run's machine, as soon as that machine runs."""
    found: list[TrueMachine] = []

    async def runs() -> bool:
        alive = [machine for machine in machines_of(world, attempt) if machine.works]
        found[:] = [machine for machine in alive if read_payload(machine.user_data)["run_id"] == run_id]
        return bool(found)

    await world.until(runs, 9000.0, 5.0)
    return Hand(world, found[0])


def encoded(document: object) -> bytes:
    """As a careless worker writes it: not finite numbers are let through."""
    return json.dumps(document).encode()


def written(metrics: object) -> dict[str, bytes]:
    """metrics.json: a document, bytes as they are, or None = no such file."""
    if metrics is None:
        return {}
    return {"metrics.json": metrics if isinstance(metrics, bytes) else encoded(metrics)}
