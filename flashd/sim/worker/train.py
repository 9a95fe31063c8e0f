"""A worker as a user would write one: tunes a low-rank adapter on a frozen base, with checkpoints and a heartbeat.

The spec may set `steps`, `seconds_per_step`, `checkpoint_every`, `rank`, `learning_rate` and `fail_at_step`.
Python's standard library and the box's `flash_report`; a real worker would use a GPU.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
import zlib
from pathlib import Path

import flash_report  # type: ignore[import-not-found]  # the box puts it onto the worker's path
from data import HELD_OUT, TICKETS  # type: ignore[import-not-found]  # lies beside this file in the box

FEATURES, HIDDEN = 64, 12
DEFAULTS = {"steps": 40, "seconds_per_step": 0.1, "checkpoint_every": 5, "rank": 2, "learning_rate": 1.0}

Vector = list[float]
Matrix = list[Vector]


class Model:
    """A frozen random projection; on top of it the adapter `down x up` and a linear head, which are trained."""

    def __init__(self, rank: int, seed: int) -> None:
        self.base = _matrix(HIDDEN, FEATURES, random.Random(7))  # the same base for everybody
        chance = random.Random(seed)
        self.down = _matrix(rank, FEATURES, chance)
        self.up = [[0.0] * rank for _ in range(HIDDEN)]  # zero, so that training begins at the base
        self.head = [chance.uniform(-0.1, 0.1) for _ in range(HIDDEN)]

    def step(self, batch: list[tuple[Vector, int]], rate: float) -> float:
        """One step of gradient descent; returns the mean loss before it."""
        total = 0.0
        for features, label in batch:
            squeezed, hidden, chance = self._forward(features)
            total -= math.log(max(chance if label else 1 - chance, 1e-12))
            slope = (chance - label) * rate / len(batch)
            back = [slope * weight * (1 - unit * unit) for weight, unit in zip(self.head, hidden, strict=True)]
            inner = [_dot(back, [row[k] for row in self.up]) for k in range(len(self.down))]
            for j, unit in enumerate(hidden):
                self.head[j] -= slope * unit
                for k, value in enumerate(squeezed):
                    self.up[j][k] -= back[j] * value
            for k, change in enumerate(inner):
                self.down[k] = [
                    weight - change * feature for weight, feature in zip(self.down[k], features, strict=True)
                ]
        return total / len(batch)

    def accuracy(self, texts: tuple[tuple[str, int], ...]) -> float:
        right = sum((self._forward(features_of(text))[2] >= 0.5) == bool(label) for text, label in texts)
        return right / len(texts)

    def weights(self) -> dict[str, object]:
        return {"down": self.down, "up": self.up, "head": self.head}

    def load(self, weights: dict[str, object]) -> None:
        self.down, self.up, self.head = weights["down"], weights["up"], weights["head"]  # type: ignore[assignment]

    def _forward(self, features: Vector) -> tuple[Vector, Vector, float]:
        squeezed = [_dot(row, features) for row in self.down]
        hidden = [
            math.tanh(_dot(base, features) + _dot(up, squeezed)) for base, up in zip(self.base, self.up, strict=True)
        ]
        return squeezed, hidden, 1 / (1 + math.exp(-_dot(self.head, hidden)))


def main() -> None:
    wanted = {**DEFAULTS, **(flash_report.spec() or {})}
    model = Model(int(wanted["rank"]), int(os.environ.get("FLASH_SEED", "0")))
    first, resumed_from = 1, 0
    if (folder := flash_report.resume()) is not None:
        resumed_from = load_checkpoint(model, folder)
        first = resumed_from + 1
    print(f"training steps {first} to {wanted['steps']} of run {os.environ['FLASH_RUN_ID']}", flush=True)
    batch = [(features_of(text), label) for text, label in TICKETS]
    loss = math.nan
    for step in range(first, int(wanted["steps"]) + 1):
        if step == wanted.get("fail_at_step"):
            raise ValueError(f"the data of step {step} has a label that no class stands for")
        loss = model.step(batch, wanted["learning_rate"])
        time.sleep(wanted["seconds_per_step"])
        flash_report.report("train", step=step, loss=round(loss, 5), learning_rate=wanted["learning_rate"])
        if step % int(wanted["checkpoint_every"]) == 0:
            save_checkpoint(model, step)
    finish(model, wanted, resumed_from, loss)


def finish(model: Model, wanted: dict[str, float], resumed_from: int, loss: float) -> None:
    adapter = {"rank": wanted["rank"], "base": "random projection, seed 7", **model.weights()}
    (flash_report.artifacts() / "adapter.json").write_text(json.dumps(adapter))
    flash_report.metrics(
        {
            "loss": round(loss, 5) if math.isfinite(loss) else None,
            "accuracy": round(model.accuracy(HELD_OUT), 4),
            "steps": wanted["steps"],
            "resumed_from": resumed_from,
            "attempt": int(os.environ["FLASH_ATTEMPT"]),
        }
    )
    flash_report.done()


def features_of(text: str) -> Vector:
    """Counts of hashed words and of hashed groups of three letters, scaled to length one."""
    padded = f" {text.lower()} "
    pieces = [padded[i : i + 3] for i in range(len(padded) - 2)] + text.lower().split()
    counts = [0.0] * FEATURES
    for piece in pieces:
        counts[zlib.crc32(piece.encode()) % FEATURES] += 1.0
    size = math.sqrt(_dot(counts, counts))
    return [count / size for count in counts]


def save_checkpoint(model: Model, step: int) -> None:
    with flash_report.checkpoint(step) as folder:
        (folder / "adapter.json").write_text(json.dumps({"step": step, **model.weights()}))


def load_checkpoint(model: Model, folder: Path) -> int:
    """The step that the checkpoint was written after."""
    saved = json.loads((folder / "adapter.json").read_text())
    model.load(saved)
    print(f"resumed from step {saved['step']}", flush=True)
    return int(saved["step"])


def _matrix(rows: int, columns: int, chance: random.Random) -> Matrix:
    return [[chance.gauss(0.0, 1.0) / math.sqrt(columns / 4) for _ in range(columns)] for _ in range(rows)]


def _dot(left: Vector, right: Vector) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        flash_report.failed(f"{type(error).__name__}: {error}")
        print(f"the worker failed: {error}", file=sys.stderr)
        raise
