"""The host part: boot commit first, then docker, the worker's container, and what is left to say when it has ended.

Standard library of the host's own python3 (3.9 or newer). `python3 box.zip host` detaches and returns at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from bootstrap.cache_disk import mount_cache
from bootstrap.hub_channel import HubChannel, HubFailure, publish_end
from bootstrap.job import PACE, ROOT, Job, load_job

HOME = ROOT / "opt/flash"
ARCHIVE = Path(__file__).resolve().parents[1]
LOG = HOME / "host_boot.log"
CONTAINER = "flashrun"
CONTAINER_HOME = "/root/flash"
METADATA_ADDRESS = "169.254.169.254"

BOOT_COMMIT_PATIENCE_S = 60.0  # then docker goes on beside it
READY_TRIES, READY_PAUSE_S = 100, 6.0
PULL_TRIES, PULL_PAUSE_S, PULL_LIMIT_S = 5, 20.0, 1_800.0
CACHE_PATIENCE_S = 420.0  # after the pull; more than the looks for it take, unless `mount` itself hangs
WAIT_TRIES, WAIT_PAUSE_S = 30, 10.0  # docker itself may be restarted under us
COMMAND_LIMIT_S = 120.0
SHUTDOWN_GRACE_S = 300.0  # after deadline_at; the daemon deletes the machine long before
MAX_PAUSE_S = 30.0
LOG_BYTES = 64_000


class HostFailure(Exception):
    """The container could not be run, or ended without a word."""


class Host:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._channel = HubChannel(job.endpoint, job.repo, job.env.get("HF_TOKEN", ""))
        self._cold = "no cache disk came in time"  # why the weights cannot be kept; "" = mounted
        self._log_path = job.path(f"{job.provider}_boot_attempt{job.attempt}.log")

    def run(self) -> None:
        boot = threading.Thread(target=self._commit_boot, daemon=True)
        boot.start()
        boot.join(BOOT_COMMIT_PATIENCE_S * PACE)
        cache = threading.Thread(target=self._mount_cache, daemon=True)
        try:
            self._close_metadata()
            cache.start()  # the disk is attached while the machine runs already
            self._await_ready()
            self._pull()
            cache.join(CACHE_PATIENCE_S * PACE)
            if self._cold and self._job.mode == "preload":  # a training run only starts cold
                raise HostFailure(self._cold)
            self._start()
            self._settle(f"container ended with exit code {self._follow()} and left no marker")
        except HostFailure as failure:
            self._settle(str(failure))
        except Exception as error:  # whatever it was, the daemon shall hear of it
            self._say(traceback.format_exc())
            self._settle(f"{type(error).__name__}: {error}")
        self._shut_down_at_deadline()

    def _commit_boot(self) -> None:
        """The first sign of life of this machine."""
        up = f"host up: python {platform.python_version()}, {platform.platform()}, {time.ctime()}\n"
        title, tries = self._job.title("boot"), 0
        while self._channel.now() < self._job.deadline_at:
            try:
                self._channel.commit(title, {self._log_path: up.encode()})
                return self._say("boot commit made")
            except HubFailure as failure:
                self._say(f"boot commit not made: {failure}")
                tries += 1
                time.sleep(max(min(MAX_PAUSE_S, 2.0**tries) * PACE, min(failure.retry_after_s, 300.0)))

    def _close_metadata(self) -> None:
        """`user_data` holds secrets; the container shares the host's network, so the whole host loses sight of it."""
        code, text = self._command(["iptables", "-w", "5", "-I", "OUTPUT", "-d", METADATA_ADDRESS, "-j", "REJECT"])
        if code:
            self._say(f"metadata service stays open: {text}")

    def _await_ready(self) -> None:
        missing = ""
        for _ in range(READY_TRIES):
            failed = [name for name in ("docker info", "nvidia-smi") if self._command(name.split())[0]]
            if not failed:
                return
            missing = " and ".join(failed)
            time.sleep(READY_PAUSE_S * PACE)
        raise HostFailure(f"never became ready: {missing}")

    def _pull(self) -> None:
        text = ""
        for tries in range(1, PULL_TRIES + 1):
            code, text = self._command(["docker", "pull", "--quiet", self._job.image], PULL_LIMIT_S)
            if not code:
                return
            self._say(f"docker pull, try {tries}: {text}")
            if tries < PULL_TRIES:
                time.sleep(PULL_PAUSE_S * PACE)
        raise HostFailure(f"image {self._job.image} could not be pulled in {PULL_TRIES} tries: {text}")

    def _start(self) -> None:
        """No secret is on this line: the container reads its payload from the mounted directory."""
        options = ["--init", "--gpus", "all", "--shm-size=16g", "--network", "host", "--user", "0:0"]
        options += ["--stop-timeout", "120", "--log-driver", "json-file", "--log-opt", "max-size=50m"]
        options += ["-v", f"{HOME}:{CONTAINER_HOME}", "-w", CONTAINER_HOME]
        if not self._cold:
            options += ["-v", f"{self._mount_point}:{self._job.cache_mount}"]
        inside = ["python3", f"{CONTAINER_HOME}/{ARCHIVE.name}", "box"]
        code, text = self._command(["docker", "run", "-d", "--name", CONTAINER, *options, self._job.image, *inside])
        if code:
            raise HostFailure(f"docker run failed with {code}: {text}")
        self._say(f"container started: {text}")

    @property
    def _mount_point(self) -> Path:
        return ROOT / self._job.cache_mount.lstrip("/")

    def _mount_cache(self) -> None:
        try:
            self._cold = mount_cache(self._job, self._mount_point, self._command)
        except OSError as error:
            self._cold = f"cache disk: {error}"
        if self._cold:
            self._say(self._cold)

    def _follow(self) -> str:
        """The container's exit code, once it has ended by itself or at the deadline."""
        for _ in range(WAIT_TRIES):
            left = self._job.deadline_at + SHUTDOWN_GRACE_S * PACE - self._channel.now()
            code, text = self._command(["docker", "wait", CONTAINER], max(1.0, left))
            if not code:
                return text.strip()
            if self._channel.now() >= self._job.deadline_at + SHUTDOWN_GRACE_S * PACE:
                self._command(["docker", "stop", CONTAINER], 2 * COMMAND_LIMIT_S)
                return "none (stopped at the deadline)"
            self._say(f"docker wait: {text}")
            time.sleep(WAIT_PAUSE_S * PACE)
        raise HostFailure("the container cannot be followed: docker does not answer")

    def _settle(self, reason: str) -> None:
        """Publish the end that the container kept, or, only if it left none at all, a failure marker."""
        until = max(self._job.deadline_at, self._channel.now() + SHUTDOWN_GRACE_S * PACE)
        if (HOME / "state/end.published").exists():
            return
        with contextlib.suppress(OSError, ValueError):
            end: dict[str, Any] = json.loads((HOME / "state/end.json").read_text())
            if end.get("token") == self._job.token:
                publish_end(self._channel, end, until)
                return
        self._say(reason)
        if self._marker_absent(until):
            publish_end(self._channel, self._failure(reason), until)

    def _marker_absent(self, until: float) -> bool:
        """False too when it cannot be known: the container's own marker is never overwritten."""
        tries = 0
        while self._channel.now() < until:
            try:
                return self._channel.read(self._job.marker_path) is None
            except HubFailure as failure:
                self._say(f"marker cannot be looked for: {failure}")
                tries += 1
                time.sleep(max(min(MAX_PAUSE_S, 2.0**tries) * PACE, min(failure.retry_after_s, 300.0)))
        return False

    def _failure(self, reason: str) -> dict[str, Any]:
        job, now = self._job, round(self._channel.now(), 3)
        code, text = self._command(["docker", "logs", "--tail", "400", CONTAINER])
        log = LOG.read_bytes().decode("utf-8", "replace") if LOG.exists() else ""
        log = job.mask(f"{log}\n--- container ---\n{text if not code else ''}").replace("\0", "")
        files = {job.marker_path: job.marker(False, True, f"host: {reason}", 1, now), self._log_path: log[-LOG_BYTES:]}
        return {"token": job.token, "ok": False, "title": job.title("end"), "marker": job.marker_path, "files": files}

    def _shut_down_at_deadline(self) -> None:
        """Second line: the daemon deletes the machine; should nobody do it, at least its GPU stops."""
        while (left := self._job.deadline_at + SHUTDOWN_GRACE_S * PACE - self._channel.now()) > 0:
            time.sleep(min(MAX_PAUSE_S, left))
        self._say("deadline passed, shutting down")
        self._command(["shutdown", "-h", "now"])

    def _command(self, command: list[str], limit_s: float = COMMAND_LIMIT_S) -> tuple[int, str]:
        """Exit code and output; 127 when there is no such program, 124 when it took too long."""
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end after {limit_s:.0f} s"
        except OSError as error:
            return 127, str(error)
        # Twice what is kept: a secret at the cut is no longer whole and would not be masked.
        return done.returncode, done.stdout.decode("utf-8", "replace").strip()[-2 * LOG_BYTES :]

    def _say(self, text: str) -> None:
        print(self._job.mask(f"flashd: {text}"), flush=True)


def detach() -> None:
    """Go on in a session of our own: what the cloud starts at boot is expected to return."""
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    command = [sys.executable, str(ARCHIVE), "host", "run"]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/")


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        Host(load_job(HOME / "payload.json")).run()
    else:
        detach()
