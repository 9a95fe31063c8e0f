"""Child processes of the box: own process group, output masked and kept as a bounded tail, always ended in time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bootstrap.job import PACE, Job

OWN = "flashd: "  # begins the box's own lines
TAIL_BYTES = 64_000
RAW_TAIL_BYTES = 128_000  # more than the tail, so that a secret at the cut is still whole when it is masked
LINE_BYTES = 8_192
POLL_S = 0.1
TERM_GRACE_S = 20.0
KILL_GRACE_S = 10.0


class Console:
    """What the children print: to stdout at once, masked, and to a tail of bounded size in memory."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._held = ""
        self._longest_secret = max(map(len, job.secrets), default=0)

    def say(self, text: str) -> None:
        self.feed(f"{OWN}{text}\n".encode())

    def feed(self, chunk: bytes) -> None:
        with self._lock:
            self._tail += chunk
            del self._tail[:-RAW_TAIL_BYTES]
            self._held = self._job.mask(self._held + chunk.decode("utf-8", "replace"))
            cut = self._held.rfind("\n") + 1
            if not cut and len(self._held) > LINE_BYTES + self._longest_secret:
                cut = len(self._held) - self._longest_secret  # a secret may be only half there
            ready, self._held = self._held[:cut], self._held[cut:]
        with contextlib.suppress(OSError):  # docker's log may be full or gone; the tail is what counts
            sys.stdout.write(ready)
            sys.stdout.flush()

    def tail(self, limit: int = TAIL_BYTES) -> str:
        """The last `limit` bytes, masked, without NUL bytes (they would turn the file into a large-file upload)."""
        with self._lock:
            raw = bytes(self._tail)
        text = self._job.mask(raw.replace(b"\0", b"").decode("utf-8", "replace"))
        if len(raw) == RAW_TAIL_BYTES:
            text = text[self._longest_secret :]
        return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


@dataclass(frozen=True)
class Ended:
    """`returncode` as subprocess gives it (None: could not even be killed); `stopped` says why we ended it, or ""."""

    returncode: int | None
    stopped: str


class Child:
    """One running command. Its whole process group is killed when it ends or is stopped."""

    def __init__(self, command: list[str], env: dict[str, str], console: Console, cwd: str | None = None) -> None:
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._console = console
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def poll(self) -> int | None:
        return self.process.poll()

    def wait(self, watch: Callable[[], str]) -> Ended:
        """Until it ends or `watch` gives a reason to stop it."""
        stopped = ""
        while self.process.poll() is None and not stopped:
            stopped = watch()
            time.sleep(POLL_S)
        return Ended(self.stop() if stopped else self._collect(), stopped)

    def stop(self) -> int | None:
        """SIGTERM, a grace, SIGKILL."""
        self._signal(signal.SIGTERM)
        self._await(TERM_GRACE_S * PACE)
        return self._collect()

    def _collect(self) -> int | None:
        self._signal(signal.SIGKILL)  # whatever is left of the group, children that outlived the command included
        self._await(KILL_GRACE_S)
        self._reader.join(2.0)  # a child that left the group may hold the pipe open for ever
        return self.process.poll()

    def _await(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self.process.stdout.fileno(), LINE_BYTES):
                self._console.feed(chunk)
