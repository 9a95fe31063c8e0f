"""The demo is what a newcomer sees first: it must end as it promises, with either Redis, and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from flashd.sim.demo import FAULTY, FIRST, LOST, play
from flashd.sim.harness import Event, Stage, name_of, rehearsal

LIMIT_S = 150.0
CALM = "machines launched 4, deleted 4, leaked 0"


async def _started(directory: Path, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "flashd", "demo", *arguments),
        env={**os.environ, "TMPDIR": str(directory)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


@pytest.mark.slow
async def test_the_demo_succeeds_also_when_the_daemon_is_killed(short_path: Path, isolation: None) -> None:
    process = await _started(short_path, "--crash", "--json")
    async with asyncio.timeout(LIMIT_S):
        out, talk = await process.communicate()
    assert process.returncode == 0, talk.decode()
    report = json.loads(out)
    assert (report["launched"], report["deleted"], report["leaked"]) == (4, 4, 0)
    assert report["ok"] and report["faults"] == []
    states = {run["run_id"]: (run["state"], len(run["machines"])) for run in report["runs"]}
    assert states == {FIRST: ("succeeded", 1), LOST: ("succeeded", 2), FAULTY: ("failed", 1)}
    assert 0 < report["billed_usd"] <= report["cost_usd"]
    assert "SIGKILL" in talk.decode()
    assert "no money is spent" in talk.decode()
    assert left_in(short_path) == []


@pytest.mark.slow
async def test_the_demo_works_on_the_embedded_redis_too(short_path: Path, isolation: None) -> None:
    said: list[str] = []
    events: list[Event] = []
    async with rehearsal(Stage(short_path, prefer_real_redis=False)) as house:
        assert not house.server.real
        outcome = await play(house, crash=False, say=said.append, show=events.append)
    assert outcome.faults == ()
    assert outcome.ledger_line == CALM
    lost = [name_of(event) for event in events if event["subject"] == LOST]
    assert lost.count("launching") == 2
    assert lost[-2:] == ["succeeded", "released"]


@pytest.mark.slow
async def test_ctrl_c_ends_the_demo_and_everything_it_started(short_path: Path, isolation: None) -> None:
    process = await _started(short_path, "--keep")
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        while b"setup" not in await process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert left_in(short_path) == []
    assert not [pid for pid in _commands() if str(short_path) in pid]


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def _commands() -> list[str]:
    """The command lines of all processes of this computer."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it ended meanwhile
    return found
