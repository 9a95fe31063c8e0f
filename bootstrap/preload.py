"""Mode `preload`: models into the weight cache's disk, nothing else. The result tells what became of each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bootstrap import hub_files
from bootstrap.attempt import OUT, AttemptEnd, Outcome, cache_home, last_line
from bootstrap.children import Console
from bootstrap.job import PACE, Job, write_atomically
from bootstrap.preparation import Preparation, Stopped

RESULT = OUT / "preload_result.json"
TRIES = 6  # every second one without Xet, whose frozen transfers show no error
FROZEN_S = 300.0 * PACE  # without a byte more on the disk
MEASURE_S = 10.0 * PACE
MAX_PAUSE_S = 60.0
STEP_BYTES = 2**28  # of progress, told as a training step, so that a long download is not taken for a stall


class Preload:
    def __init__(self, job: Job, preparation: Preparation, console: Console, watch: Callable[[], str]) -> None:
        self._job, self._preparation, self._console, self._watch = job, preparation, console, watch
        self._result: dict[str, Any] = {"preloaded": [], "already_cached": [], "failed": {}, "error": None}
        self._hopeless = False
        self._measured = self._grown_at = self._measure_at = 0.0

    def run(self) -> Outcome:
        """Raises Stopped and AttemptEnd like the preparation; what was done by then is told all the same."""
        try:
            self._home = self._cache()
            for model in self._job.models:
                self._fetch(model)
        except AttemptEnd as ended:
            self._result["error"] = ended.outcome.error
            raise
        except Stopped as stopped:
            self._result["error"] = f"stopped: {stopped.reason}"
            raise
        finally:
            write_atomically(RESULT, json.dumps(self._job.clean(self._result)))
        failed = self._result["failed"]
        if failed:
            text = "; ".join(f"{model}: {error}" for model, error in failed.items())
            return Outcome(False, f"preload: {text}", retriable=not self._hopeless, exit_code=1)
        write_atomically(OUT / "metrics.json", json.dumps(self._result))
        return Outcome(True)

    def _cache(self) -> Path:
        """Where the models go. Anything but the cache's own disk is refused: it would be gone with the machine."""
        job = self._job
        if not job.cache_mount or not job.models:
            raise AttemptEnd(Outcome(False, "preload: no cache volume or no models were named", exit_code=1))
        home = cache_home(job)
        if home is None:
            raise AttemptEnd(Outcome(False, "preload: the cache disk is not mounted", retriable=True, exit_code=1))
        asked = job.env.get("HF_HOME", home)
        if asked != home:
            raise AttemptEnd(Outcome(False, f"preload: HF_HOME={asked} is not on the cache disk", exit_code=1))
        return Path(home, "hub")

    def _fetch(self, model: str) -> None:
        error = ""
        for tries in range(TRIES):
            self._console.say(f"stage preload {model}")
            now = time.monotonic()
            self._measured, self._grown_at, self._measure_at = -1.0, now, now
            task = {"model": model, "into": str(self._home)}
            ended = self._preparation.transfers.start("preload", task, tries % 2 == 0).wait(self._watch_growth)
            if ended.stopped not in ("", "frozen"):
                raise Stopped(ended.stopped)
            if ended.returncode in (0, hub_files.ALREADY):
                self._result["preloaded" if ended.returncode == 0 else "already_cached"].append(model)
                return
            error = f"hub_stall: no byte in {FROZEN_S:.0f} s" if ended.stopped else last_line(self._console)
            if ended.returncode == hub_files.REFUSED:
                self._hopeless = True
                break
            if ended.returncode == hub_files.NO_LIBRARY:
                self._preparation.install(["huggingface_hub"])
            if tries + 1 < TRIES:
                self._preparation.sleep(min(MAX_PAUSE_S, 2.0 ** (tries + 1)) * PACE)
        self._result["failed"][model] = error

    def _watch_growth(self) -> str:
        now = time.monotonic()
        if now >= self._measure_at:
            self._measure_at = now + MEASURE_S
            size = _bytes_below(self._home)
            if size != self._measured:
                self._measured, self._grown_at = size, now
                beat = {"stage": "preload", "step": 1 + size // STEP_BYTES}
                write_atomically(OUT / "heartbeat.json", json.dumps(beat))
        return self._watch() or ("frozen" if now - self._grown_at > FROZEN_S else "")


def _bytes_below(folder: Path) -> int:
    """Files come and go while this looks."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total
