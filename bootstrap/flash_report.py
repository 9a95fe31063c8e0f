"""For workers: `import flash_report` inside a box. Standard library only; every file appears whole or not at all.

flash_report.report("train", step=10, loss=0.5)      # heartbeat, as often as you like
with flash_report.checkpoint(10) as folder: ...       # uploaded in the background, the newest is kept
flash_report.metrics({"loss": 0.1}); flash_report.done()
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_HISTORY = 120


class _History:
    """Points spread evenly over the whole run so far, and the newest."""

    def __init__(self) -> None:
        self._kept: list[list[float | None]] = []
        self._every = 1
        self._count = 0

    def with_point(self, point: list[float | None]) -> list[list[float | None]]:
        if self._count % self._every == 0:
            self._kept.append(point)
        self._count += 1
        if len(self._kept) == MAX_HISTORY:
            del self._kept[1::2]
            self._every *= 2
        return self._kept if self._kept[-1] is point else [*self._kept, point]


_history = _History()
_shown: list[list[float | None]] = []


def out() -> Path:
    """`$FLASH_OUT`; whatever lies below `artifacts` in it is committed before the run's end."""
    return Path(os.environ["FLASH_OUT"])


def artifacts() -> Path:
    """The directory whose content becomes the run's artifacts."""
    folder = out() / "artifacts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def spec() -> Any:
    """The run request's `spec`, the same JSON value."""
    return json.loads(Path(os.environ["FLASH_JOB_SPEC_PATH"]).read_text(encoding="utf-8"))


def resume() -> Path | None:
    """The directory with an earlier attempt's newest checkpoint, None when there is none."""
    folder = Path(os.environ.get("FLASH_RESUME") or "/nonexistent")
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def report(
    stage: str,
    step: int | None = None,
    loss: float | None = None,
    learning_rate: float | None = None,
    **more: Any,
) -> None:
    """A heartbeat. Training is whatever has `step` >= 1. `more`: epoch, reward, grad_norm, gpu, ..."""
    now = round(time.time(), 3)
    if step is not None and (loss is not None or learning_rate is not None):
        _shown[:] = _history.with_point([now, step, loss, learning_rate])
    said = {"step": step, "loss": loss, "learning_rate": learning_rate, **more}
    beat = {"stage": stage, "ts": now, **{key: value for key, value in said.items() if value is not None}}
    _write("heartbeat.json", {**beat, "history": _shown} if _shown else beat)


def metrics(result: dict[str, Any]) -> None:
    """The run's result: a JSON object of at most 1 MiB. Without it a run does not succeed."""
    _write("metrics.json", result)


def done() -> None:
    """Everything is written: from now on the process may be ended for us if it hangs at exit."""
    report("done")


def failed(error: str, retriable: bool = False) -> None:
    """Why the process is about to exit with another status than 0; `retriable`: another machine may do better."""
    report("error", error=error, retriable=retriable)


@contextlib.contextmanager
def checkpoint(step: int) -> Iterator[Path]:
    """A directory to write into; it counts once the block has ended, and older ones are removed."""
    folder = out() / "checkpoint"
    scratch = folder / f".{step}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    shutil.rmtree(folder / str(step), ignore_errors=True)
    scratch.replace(folder / str(step))
    kept = sorted((entry for entry in folder.iterdir() if entry.name.isdecimal()), key=lambda entry: int(entry.name))
    for older in kept[:-2]:  # the second newest may be on its way to the Hub just now
        shutil.rmtree(older, ignore_errors=True)


def _write(name: str, value: dict[str, Any]) -> None:
    folder = out()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / f".{name}.{os.getpid()}"
    scratch.write_text(json.dumps(value), encoding="utf-8")
    scratch.replace(folder / name)
