"""What the container's modules share: where things lie, how an attempt ends, and the transfers as child processes."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bootstrap.children import OWN, Child, Console
from bootstrap.job import ROOT, Job

HOME = ROOT / "root/flash"
ARCHIVE = Path(__file__).resolve().parents[1]  # the zip file these programs come in
PAYLOAD = HOME / "payload.json"
STATE = HOME / "state"
CODE = ROOT / "runcode/code"
OUT = ROOT / "tmp/flash-out"
RESUME = ROOT / "tmp/flash-resume"
SPEC = ROOT / "tmp/job_spec.json"
OLD_METRICS = ROOT / "tmp/metrics.json"  # where the predecessor's workers leave it

DEADLINE_EXIT = 124


@dataclass(frozen=True)
class Outcome:
    """How the attempt ended; becomes the marker."""

    ok: bool
    error: str = ""
    retriable: bool = False
    exit_code: int = 0


class AttemptEnd(Exception):
    """The attempt is over before its worker ran to an end."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.error)
        self.outcome = outcome


def infrastructure(error: str) -> AttemptEnd:
    """Not the job's fault: another machine may do better."""
    return AttemptEnd(Outcome(False, error, retriable=True, exit_code=1))


def limited(seconds: float, watch: Callable[[], str] = str) -> Callable[[], str]:
    """`watch`, and a reason of its own when the time is over."""
    until = time.monotonic() + seconds
    return lambda: watch() or ("limit" if time.monotonic() > until else "")


def cache_home(job: Job) -> str | None:
    """The weight cache's HF_HOME; None unless its disk is there, which its marker shows."""
    mount = ROOT / job.cache_mount.lstrip("/")
    return str(mount / "hf-cache") if job.cache_mount and (mount / job.cache_marker).is_file() else None


def base_env(job: Job) -> dict[str, str]:
    home = cache_home(job)
    return {**os.environ, **({"HF_HOME": home} if home else {}), **job.env, "HF_ENDPOINT": job.endpoint}


def last_line(console: Console) -> str:
    """The last line of the present stage that was not the box's own; usually names the error."""
    _, found, said = console.tail(4_000).rpartition(f"{OWN}stage ")
    lines = said.splitlines()[bool(found) :]  # the first would be the stage's name
    lines = [line for line in lines if line.strip() and not line.startswith(OWN)]
    return lines[-1].strip()[:1_000] if lines else "it printed nothing"


class Transfers:
    """Folders from and to the Hub, each a child process that can be killed."""

    def __init__(self, job: Job, console: Console) -> None:
        self._job = job
        self._console = console

    def fetch(self, task: dict[str, Any], xet: bool = True) -> Child:
        return self.start("fetch", task, xet)

    def push(self, folder: Path, path: str, title: str, extra: dict[str, str] | None = None, xet: bool = True) -> Child:
        """`folder` to `path` below the prefix; a checkpoint takes the older ones' place in the same commit."""
        task = {
            "repo": self._job.repo,
            "folder": str(folder),
            "path": self._job.path(path),
            "title": title,
            "extra": extra or {},
            "prune": path.startswith("checkpoint/"),
        }
        return self.start("push", task, xet)

    def start(self, verb: str, task: dict[str, Any], xet: bool) -> Child:
        env = base_env(self._job) | {"FLASH_HUB_FILES": json.dumps(task), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        if not xet:  # a frozen Xet transfer shows no error; plain HTTP from the same machine works
            env["HF_HUB_DISABLE_XET"] = "1"
        return Child([sys.executable, str(ARCHIVE), "hub_files", verb], env, self._console)
