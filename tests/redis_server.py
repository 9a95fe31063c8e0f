"""A private real redis-server on a unix socket, that a test may also stop, kill and start again on its data."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import redis

START_TIMEOUT_S = 20.0


class RedisMissingError(RuntimeError):
    """There is no redis-server on PATH."""


class RedisServer:
    """One server with its own directory; `port 0`, so that nothing but the socket leads to it."""

    def __init__(self, *options: str) -> None:
        """`options` are appended to the command line, such as `--maxmemory`, `4mb`."""
        program = shutil.which("redis-server")
        if program is None:
            raise RedisMissingError("these tests need a redis-server on PATH: apt-get install redis-server")
        # Not tmp_path: a unix socket's path must stay under 104 bytes.
        self.directory = Path(tempfile.mkdtemp(prefix="flashd-redis-"))
        self.socket = self.directory / "redis.sock"
        self.url = f"unix://{self.socket}?db=0"
        self._command = [program, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.directory)]
        self._command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", "redis.log"]
        self._command += ["--maxmemory-policy", "noeviction", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start, on the data of an earlier start if there was one, and return when it answers PING."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self.directory / "redis.log").read_text(errors="replace")
                raise RuntimeError(f"redis-server did not start: {log[-2000:]}")
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        """SIGTERM: as a sysadmin stops it."""
        self._end(kill=False)

    def kill(self) -> None:
        """SIGKILL: as the out-of-memory killer does."""
        self._end(kill=True)

    def close(self) -> None:
        """Stop and forget the data."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def flush(self) -> None:
        """Forget keys and cached scripts, as a new server would have none."""
        with redis.Redis.from_url(self.url) as client:
            client.flushall()
            client.script_flush()

    def _answers(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.exceptions.ConnectionError:  # BusyLoadingError is one too
            return False

    def _end(self, *, kill: bool) -> None:
        if self._process is None:
            return
        if kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(timeout=START_TIMEOUT_S)
        self._process = None
