"""The real daemon as a child process: its configuration, its credentials as files, its start, its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flashd.sim.redis_private import with_parent

Value = bool | int | float | str | list[str]
Sections = Mapping[str, Mapping[str, Value]]
HAND_OVER_S = 15.0  # the contract gives 10 s; afterwards it is killed

# Everything that waits for a real cloud is short here; the daemon itself is the same.
QUICK: Sections = {
    "hub": {
        "poll_interval_s": 0.5,
        "commits_per_hour": 1_000_000,
        "runs_per_repo": 200,
        "first_commit_after_s": 1,
        "commit_interval_s": 1,
    },
    "worker": {"image": "demo/worker:1"},
    "providers.hyperstack": {"poll_interval_s": 0.5, "requests_per_minute": 20_000},
    "policy": {
        "load_timeout_s": 60,
        "first_sign_timeout_s": 60,
        "setup_grace_s": 120,
        "stall_after_s": 60,
        "provision_grace_s": 120,
        "launch_timeout_s": 5,
        "launch_settle_s": 5,
        "retry_backoff_s": 0.5,
        "release_check_s": 0.5,
        "release_wait_s": 30,
        "metrics_wait_s": 10,
        "done_grace_s": 5,
        "lease_ttl_s": 10,
        "cooldown_s": 2,
        "hub_settle_s": 1,
    },
    "sweep": {"interval_s": 5, "initial_interval_s": 2, "grace_s": 6},
}


class DaemonEndedError(RuntimeError):
    """The daemon ended though nobody told it to; the text has its last words."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the daemon finds the world."""

    redis: str
    hub: str
    cloud: str


@dataclass(slots=True)
class DaemonProcess:
    """One daemon on one state directory; may be killed and started any number of times."""

    config: Path
    log: Path
    process: asyncio.subprocess.Process | None = None
    killed_at: list[float] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)  # of its environment, on top of the caller's
    told_to_end: bool = False

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def start(self) -> None:
        """Returns when the process exists, not when it works."""
        self.told_to_end = False
        environment = {name: value for name, value in os.environ.items() if not _is_ours(name)} | self.variables
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *with_parent([sys.executable, "-m", "flashd", "run", "--config", str(self.config)]),
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does."""
        if self.process is not None and self.process.returncode is None:
            self.told_to_end = True
            self.killed_at.append(time.time())
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()

    async def stop(self) -> int:
        """SIGTERM, as systemd does; its exit status. One that does not hand over in time is killed."""
        assert self.process is not None
        self.told_to_end = True
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            async with asyncio.timeout(HAND_OVER_S):
                return await self.process.wait()
        except TimeoutError:
            await self.kill()
            return await self.process.wait()

    def check(self) -> None:
        """Raises DaemonEndedError when it ended by itself. One that `kill` or `stop` ended is no surprise."""
        if self.process is not None and self.process.returncode is not None and not self.told_to_end:
            said = (self.log_tail().strip().splitlines() or ["nothing"])[-1]
            raise DaemonEndedError(f"the daemon ended with status {self.process.returncode}; it said last: {said}")

    def log_tail(self, limit: int = 4_000) -> str:
        return self.log.read_text(errors="replace")[-limit:] if self.log.exists() else ""


def write_config(directory: Path, ns: str, at: Addresses, listen: str, over: Sections) -> Path:
    """The configuration file, QUICK with `over` laid on it."""
    credentials = directory / "credentials"
    known: dict[str, dict[str, Value]] = {name: dict(keys) for name, keys in QUICK.items()}
    known.setdefault("redis", {})["url"] = at.redis
    known["hub"] |= {
        "endpoint": at.hub,
        "token_file": str(credentials / "hf_token"),
        "box_token_file": str(credentials / "hf_box_token"),
    }
    known["providers.hyperstack"] |= {"base_url": at.cloud, "api_key_file": str(credentials / "hyperstack_api_key")}
    known["http"] = {"listen": listen}
    known["secrets"] = {"directory": str(credentials / "runs")}
    for name, keys in over.items():
        known.setdefault(name, {}).update(keys)
    lines = [f'namespace = "{ns}"', f"state_directory = {json.dumps(str(directory / 'state'))}"]
    for name, keys in known.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    path = directory / "config.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def write_credentials(directory: Path, secrets: Mapping[str, str]) -> None:
    folder = directory / "credentials"
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    (directory / "state").mkdir(exist_ok=True)
    for name, secret in secrets.items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(f"{secret}\n")


def free_port() -> int:
    """A port that is free now; the daemon tries again should somebody else take it before."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_ours(variable: str) -> bool:
    """Settings of the caller's own installation must not reach this daemon."""
    return variable.startswith("FLASHD_") or variable in (
        "CREDENTIALS_DIRECTORY",
        "NOTIFY_SOCKET",
        "JOURNAL_STREAM",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
    )
