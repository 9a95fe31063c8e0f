"""Everything before the worker starts: spec, code, pip, checkpoint. Retried in place, then a retriable end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bootstrap import hub_files
from bootstrap.attempt import (
    ARCHIVE,
    CODE,
    OLD_METRICS,
    OUT,
    RESUME,
    SPEC,
    STATE,
    AttemptEnd,
    Outcome,
    Transfers,
    base_env,
    infrastructure,
    last_line,
    limited,
)
from bootstrap.children import Child, Console, Ended
from bootstrap.hub_channel import HubChannel, HubFailure
from bootstrap.job import PACE, ROOT, Job, write_atomically
from bootstrap.uploader import newest_checkpoint

MAX_SPEC_IN_ENV = 96_000
HUB_PATIENCE_S = 1_800.0  # a Hub outage at the start is waited out this long
MAX_PAUSE_S = 60.0
PIP_TRIES = 4
PIP_LIMIT_S = 1_800.0
PIP_ENV = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
}


class Preparation:
    """`check` raises AttemptEnd for a reason to stop; `watch` gives the same reason as text to a waiting child."""

    def __init__(self, job: Job, channel: HubChannel, console: Console, watch: Callable[[], str]) -> None:
        self._job, self._channel, self._console, self._watch = job, channel, console, watch
        self.transfers = Transfers(job, console)

    def clean(self) -> None:
        """Nothing of an earlier try may be taken for this one's result."""
        stale = ("metrics.json", "heartbeat.json", "DONE")
        for path in (OLD_METRICS, ROOT / "tmp/train_meta.json", *(OUT / name for name in stale)):
            path.unlink(missing_ok=True)
        for folder in (OUT, RESUME, CODE.parent):
            folder.mkdir(parents=True, exist_ok=True)

    def results_there(self) -> dict[str, str]:
        """Blob ids of results that lie in the repository before this attempt's worker runs."""
        found: dict[str, str] = self._patiently(
            "look at the repository", lambda: remote_results(self._job, self._channel)
        )
        return found

    def spec(self) -> str:
        """The spec as JSON text, ASCII."""
        if not self._job.spec_in_hub:
            return json.dumps(self._job.spec)
        raw = self._patiently("read job_spec.json", self._read_spec)
        try:
            return json.dumps(json.loads(raw))
        except (ValueError, RecursionError) as error:
            raise infrastructure(f"job_spec.json is no JSON: {error}") from error

    def code(self) -> None:
        job = self._job
        if not self._fetch("code", job.code_repo, job.code_revision, job.code_path, CODE):
            text = f"no files under {job.code_path!r} in {job.code_repo} at {job.code_revision}"
            raise AttemptEnd(Outcome(False, text, exit_code=1))

    def install(self, packages: list[str]) -> None:
        """By a file, not by arguments: an index address may hold a password."""
        if not packages:
            return
        wanted = STATE / "requirements.txt"
        write_atomically(wanted, "\n".join(packages) + "\n")
        command = [sys.executable, "-m", "pip", "install", "-r", str(wanted)]
        for tries in range(1, PIP_TRIES + 1):
            child = Child(command, base_env(self._job) | PIP_ENV, self._console)
            if self._ended_well(child.wait(limited(PIP_LIMIT_S, self._watch))):
                return
            if tries < PIP_TRIES:
                self.sleep(5.0 * 3.0 ** (tries - 1) * PACE)
        raise infrastructure(f"pip install failed {PIP_TRIES} times: {last_line(self._console)}")

    def checkpoint(self) -> None:
        """An earlier attempt's checkpoint from the Hub, or, after a container restart, our own from the disk."""
        own = newest_checkpoint(OUT)
        if own is not None:
            shutil.rmtree(RESUME, ignore_errors=True)
            shutil.copytree(own, RESUME)
        elif self._job.attempt > 0:
            found = self._fetch("checkpoint", self._job.repo, "main", self._job.path("checkpoint"), RESUME)
            self._console.say("resuming from a checkpoint" if found else "no checkpoint to resume from")

    def worker_env(self, spec: str) -> dict[str, str]:
        """Source: the contract, boot payload."""
        job, env = self._job, base_env(self._job)
        write_atomically(SPEC, spec)
        env.pop("FLASH_JOB_SPEC_JSON", None)
        if len(spec) <= MAX_SPEC_IN_ENV:
            env["FLASH_JOB_SPEC_JSON"] = spec
        inherited = env.get("PYTHONPATH")
        return (
            {"PYTHONUNBUFFERED": "1"}
            | env
            | {
                "PYTHONPATH": os.pathsep.join([str(CODE), f"{ARCHIVE}/lib", *([inherited] if inherited else [])]),
                "FLASH_RUN_ID": job.run_id,
                "FLASH_PHASE": job.phase,
                "FLASH_SEED": str(job.seed),
                "FLASH_ATTEMPT": str(job.attempt),
                "FLASH_PROVIDER": job.provider,
                "FLASH_OUT": str(OUT),
                "FLASH_RESUME": str(RESUME),
                "FLASH_JOB_SPEC_PATH": str(SPEC),
                # What the predecessor's workers read.
                "RUN_MODE": job.phase,
                "PHASE": job.phase,
                "SEED": str(job.seed),
                "ATTEMPT": str(job.attempt),
                "FLASH_ARM": job.provider,
                "RUN_ID": job.run_id,
                "HF_REPO": job.repo,
            }
        )

    def sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._stop_if(self._watch())
            time.sleep(min(0.2, left))

    def _fetch(self, what: str, repo: str, revision: str, path: str, into: Path) -> bool:
        """False when the Hub proved that there is nothing."""
        task = {"repo": repo, "revision": revision, "path": path, "into": str(into), "newest": what == "checkpoint"}
        give_up_at, tries = time.monotonic() + HUB_PATIENCE_S * PACE, 0
        while True:
            ended = self.transfers.fetch(task, xet=tries % 2 == 0).wait(limited(HUB_PATIENCE_S, self._watch))
            if self._ended_well(ended):
                return True
            if ended.returncode == hub_files.ABSENT:
                return False
            if ended.returncode == hub_files.NO_LIBRARY:
                self.install(["huggingface_hub"])
            tries += 1
            if time.monotonic() > give_up_at:
                raise infrastructure(f"{what} could not be fetched in {tries} tries: {last_line(self._console)}")
            self.sleep(min(MAX_PAUSE_S, 2.0**tries) * PACE)

    def _patiently(self, what: str, call: Callable[[], Any]) -> Any:
        give_up_at, pause = time.monotonic() + HUB_PATIENCE_S * PACE, 2.0
        while True:
            try:
                return call()
            except HubFailure as failure:
                self._console.say(f"cannot {what}: {failure}")
                if time.monotonic() > give_up_at:
                    raise infrastructure(f"cannot {what}: {failure}") from failure
                self.sleep(max(pause * PACE, min(failure.retry_after_s, 5 * MAX_PAUSE_S)))
                pause = min(2 * pause, MAX_PAUSE_S)

    def _read_spec(self) -> bytes:
        raw = self._channel.read(self._job.path("job_spec.json"))
        if raw is None:
            raise HubFailure("it is not there (yet)")
        return raw

    def _ended_well(self, ended: Ended) -> bool:
        self._stop_if(ended.stopped)
        return ended.returncode == 0

    def _stop_if(self, reason: str) -> None:
        if reason not in ("", "limit"):
            raise Stopped(reason)


class Stopped(Exception):
    """The watch gave this reason while the preparation was under way."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def remote_results(job: Job, channel: HubChannel) -> dict[str, str]:
    return channel.oids([job.path("DONE"), job.path("metrics.json")])
