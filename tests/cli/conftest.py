"""The program as a process, with a configuration of its own and nothing of the caller's environment."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flashd.adapters.store import Store, connect
from tests.store.makers import lead

NS = "t"
TIMEOUT_S = 60
SECRETS = {
    "FLASHD_HUB__TOKEN": "hf_ATokenOfNobodyForTheDaemon00001",
    "FLASHD_HUB__BOX_TOKEN": "hf_ATokenOfNobodyForTheBoxes000001",
    "FLASHD_PROVIDERS__HYPERSTACK__API_KEY": "key-of-main",
}


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as exactly one JSON document."""
        return json.loads(self.out)


@dataclass(slots=True)
class Cli:
    """`flashd` with a configuration file; `env` goes over the environment of every call."""

    directory: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def configure(self, redis_url: str, more: str = "") -> None:
        head = f'namespace = "{NS}"\nstate_directory = "{self.state}"\n[redis]\nurl = "{redis_url}"\n'
        self.config.write_text(f'{head}[http]\nlisten = ""\n{more}')

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        ours = ("FLASHD_", "CREDENTIALS_", "NOTIFY_", "JOURNAL_", "WATCHDOG_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "FLASHD_CONFIG": str(self.config), **self.env, **env}

    def __call__(self, *words: str, stdin: str = "", env: Mapping[str, str] | None = None) -> Done:
        """Run to its end. For commands that need nobody of this process meanwhile."""
        done = subprocess.run(
            [sys.executable, "-m", "flashd", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=self.environment(env or {}),
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    async def start(self, *words: str, env: Mapping[str, str] | None = None) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "flashd", *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=self.environment(env or {}),
        )  # fmt: skip

    async def beside(self, *words: str, env: Mapping[str, str] | None = None) -> Done:
        """Run to its end while this process goes on serving."""
        return await ended(await self.start(*words, env=env))


async def ended(process: asyncio.subprocess.Process) -> Done:
    async with asyncio.timeout(TIMEOUT_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def first_line(stream: asyncio.StreamReader | None) -> str:
    assert stream is not None
    async with asyncio.timeout(TIMEOUT_S):
        return (await stream.readline()).decode()


@pytest.fixture
def cli(tmp_path: Path, redis_url: str) -> Cli:
    """Configured for an empty real Redis, without credentials."""
    made = Cli(tmp_path)
    made.configure(redis_url)
    return made


@pytest.fixture
async def store(redis_url: str) -> AsyncIterator[Store]:
    """A leading store of the same namespace: what the daemon would have."""
    made = connect(redis_url, NS, "p1")
    await lead(made)
    yield made
    await made.link.close()
