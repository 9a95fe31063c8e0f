"""How the attempt ended, and the one commit that says so."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from bootstrap import hub_files
from bootstrap.attempt import DEADLINE_EXIT, OLD_METRICS, OUT, Outcome, Transfers, last_line, limited
from bootstrap.children import Console
from bootstrap.hub_channel import HubChannel, HubFailure
from bootstrap.job import PACE, Job
from bootstrap.preparation import Preparation, remote_results
from bootstrap.uploader import SAVING, Uploader, encode_heartbeat, read_heartbeat

MAX_METRICS_BYTES = 1_048_576
ERROR_FILE_BYTES = 16_000
FULL_DISK_BYTES = 2**24
TRANSFER_LIMIT_S = 3_600.0  # of one try; every second try goes without Xet
MAX_PAUSE_S = 60.0
HASTE_S = 30.0  # for what a stopped or failed attempt leaves behind
MAX_REFUSALS = 3  # then it is not the Hub that is at fault
SIGKILL = 9


def says_done(job: Job) -> bool:
    """The worker has stated that its results are written; only then may its process be ended for it."""
    if not (OUT / "metrics.json").exists():
        return False
    return (OUT / "DONE").exists() or (read_heartbeat(job, OUT) or {}).get("stage") == "done"


def metrics_path() -> Path | None:
    return next((path for path in (OUT / "metrics.json", OLD_METRICS) if path.is_file()), None)


def metrics_fault() -> str:
    """Why the metrics cannot be a result, or ""."""
    path = metrics_path()
    if path is None:
        return "left no metrics.json"
    if path.stat().st_size > MAX_METRICS_BYTES:
        return f"metrics.json has {path.stat().st_size} bytes, {MAX_METRICS_BYTES} are possible"
    try:
        is_object = isinstance(json.loads(path.read_bytes().decode()), dict)
    except (ValueError, RecursionError):
        is_object = False
    return "" if is_object else "its metrics.json is no JSON object"


class Ending:
    """After the worker, on the way to the marker."""

    def __init__(self, job: Job, channel: HubChannel, console: Console) -> None:
        self._job, self._channel, self._console = job, channel, console
        self._transfers = Transfers(job, console)

    def proved_remotely(self, before: dict[str, str]) -> bool:
        """A worker that uploads for itself committed DONE since this attempt began, and metrics.json is there."""
        try:
            now = remote_results(self._job, self._channel)
        except HubFailure as failure:
            self._console.say(f"cannot look for DONE: {failure}")
            return False
        done, metrics = self._job.path("DONE"), self._job.path("metrics.json")
        return metrics in now and now.get(done) not in (None, before.get(done))

    def worker_failed(self, code: int | None, uploader: Uploader) -> Outcome:
        """Exit codes are the job's own fault unless it says otherwise; a signal came from outside it."""
        said = read_heartbeat(self._job, OUT) or uploader.foreign_heartbeat()
        text = str(said.get("error") or last_line(self._console))
        if code is None:
            return Outcome(False, f"worker cannot be killed: {text}", retriable=True, exit_code=1)
        number = -code if code < 0 else code - 128
        if number > 0:
            why = f"worker killed by signal {number}" + (
                " (out of memory, or from outside)" if number == SIGKILL else ""
            )
            return Outcome(False, f"{why}: {text}", retriable=True, exit_code=128 + number)
        if shutil.disk_usage(OUT).free < FULL_DISK_BYTES:
            text += " (the disk is full)"
        return Outcome(False, f"worker exited with code {code}: {text}", said.get("retriable") is True, code)

    def save_results(self, outcome: Outcome, uploader: Uploader, preparation: Preparation) -> Outcome:
        """Artifacts of a success must be on the Hub before its marker; what a lost attempt leaves is saved in haste."""
        if outcome.ok:
            uploader.stage = SAVING
            return self._push_artifacts(preparation, outcome)
        if outcome.retriable:
            uploader.save_newest(limited(HASTE_S))
        elif outcome.exit_code == DEADLINE_EXIT and self._has_artifacts():
            self._push_once(0).wait(limited(HASTE_S))
        return outcome

    def bare(self, outcome: Outcome) -> dict[str, Any]:
        """The end with nothing but the marker and what the box printed."""
        job = self._job
        now = round(self._channel.now(), 3)
        files = {job.marker_path: job.marker(outcome.ok, outcome.retriable, outcome.error, outcome.exit_code, now)}
        console = self._console.tail()
        if console:
            files[job.path(f"console_{job.phase}_attempt{job.attempt}.txt")] = console
        return {
            "token": job.token,
            "ok": outcome.ok,
            "title": job.title("end"),
            "marker": job.marker_path,
            "files": files,
        }

    def prepare(self, outcome: Outcome) -> dict[str, Any]:
        """Everything of the end commit, once; repeated as it is until the Hub has it."""
        job, end = self._job, self.bare(outcome)
        files: dict[str, str] = end["files"]
        metrics = metrics_path()
        if outcome.ok and metrics is not None and not metrics_fault():
            text = metrics.read_bytes().decode()
            if job.mask(text) != text:  # only then; else it stays as it is, byte for byte
                text = json.dumps(job.clean(json.loads(text)))
            files[job.path("metrics.json")] = text
            files[job.path("DONE")] = str(json.loads(files[job.marker_path])["ts"])
        if not outcome.ok:
            details = f"{job.mask(outcome.error)}\n\n{self._console.tail(ERROR_FILE_BYTES // 2)}"
            name = f"error_{job.phase}_attempt{job.attempt}.txt"
            files[job.path(name)] = details.replace("\0", "")[:ERROR_FILE_BYTES]
        preloaded = OUT / "preload_result.json"
        if job.mode == "preload" and preloaded.is_file():
            files[job.path(preloaded.name)] = preloaded.read_text()
        heartbeat = read_heartbeat(job, OUT)
        if heartbeat is not None:
            files[job.path("heartbeat.json")] = encode_heartbeat(job, heartbeat).decode()
        return {**end, "title": job.title("end", heartbeat)}

    def _push_artifacts(self, preparation: Preparation, outcome: Outcome) -> Outcome:
        if not self._has_artifacts():
            return outcome
        tries = refusals = 0
        while True:
            code = self._push_once(tries).wait(limited(TRANSFER_LIMIT_S)).returncode
            if code == 0:
                return outcome
            if code == hub_files.NO_LIBRARY:
                preparation.install(["huggingface_hub"])
            tries += 1
            refusals += code == hub_files.REFUSED
            if refusals >= MAX_REFUSALS or self._channel.now() > self._job.deadline_at:
                text = f"artifacts could not be committed in {tries} tries: {last_line(self._console)}"
                return Outcome(False, text, retriable=refusals < MAX_REFUSALS, exit_code=1)
            time.sleep(min(MAX_PAUSE_S, 2.0**tries) * PACE)

    def _push_once(self, tries: int) -> Any:
        title = self._job.title("artifacts", read_heartbeat(self._job, OUT))
        return self._transfers.push(OUT / "artifacts", "artifacts", title, xet=tries % 2 == 0)

    def _has_artifacts(self) -> bool:
        return any(file.is_file() for file in (OUT / "artifacts").rglob("*"))
