"""Ways to fail: what the marker says."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from flashd.sim.hub_faults import Effect, Fault
from tests.bootstrap.box_world import OK_WORKER, PREFIX, REPO, BoxWorld

SLEEPS = "import time\nprint('started', flush=True)\ntime.sleep(600)"


async def test_a_workers_own_error_is_not_retriable_and_its_text_is_kept(world: BoxWorld) -> None:
    world.worker("raise ValueError('bad learning rate')")
    end = await world.run(world.payload())
    assert end.code == 1
    marker = world.marker()
    assert (marker["ok"], marker["retriable"], marker["exit_code"]) == (False, False, 1)
    assert marker["error"] == "worker exited with code 1: ValueError: bad learning rate"
    assert "Traceback" in (world.text("error_sft_attempt0.txt") or "")
    assert "Traceback" in (world.text("console_sft_attempt0.txt") or "")
    assert world.text("metrics.json") is None
    assert world.text("DONE") is None


async def test_the_absolute_deadline_ends_the_attempt_in_time_for_its_end(world: BoxWorld) -> None:
    world.worker(SLEEPS)
    deadline_at = time.time() + 4
    await world.run(world.payload(max_wall_s=10.0, deadline_at=deadline_at), limit_s=20)
    assert world.marker()["exit_code"] == 124
    assert world.marker()["ts"] < deadline_at + 1


async def test_what_is_trained_at_the_deadline_is_saved(world: BoxWorld) -> None:
    world.worker("import flash_report\n(flash_report.artifacts() / 'adapter.txt').write_text('half')\n" + SLEEPS)
    await world.run(world.payload(max_wall_s=2.5), limit_s=30)
    assert world.text("artifacts/adapter.txt") == "half"
    assert world.marker()["exit_code"] == 124


async def test_code_is_read_at_its_commit_and_only_its_own_folder(world: BoxWorld) -> None:
    world.worker("import os, flash_report\nflash_report.metrics({'files': sorted(os.listdir('.'))})")
    world.hub.commit(REPO, {"other/large.txt": "not wanted"}, "something else")
    pinned = world.payload()
    world.worker("raise SystemExit('a later version')")
    await world.run(pinned)
    assert world.json("metrics.json") == {"files": ["worker.py"]}
    assert not list((world.root / "runcode").glob("*/other"))


async def test_a_fetch_that_fails_once_is_repeated(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.hub.faults.add(Fault(Effect.STATUS, kind="tree", status=500))
    world.hub.faults.add(Fault(Effect.RESET, kind="paths-info"))
    end = await world.run(world.payload())
    assert end.code == 0, end.output


async def test_the_console_holds_no_nul_byte(world: BoxWorld) -> None:
    world.worker("print('a\\0b')\nraise SystemExit(1)")
    await world.run(world.payload())
    assert "ab" in (world.text("console_sft_attempt0.txt") or "")
    assert b"\0" not in (world.hub.read(REPO, f"{PREFIX}/error_sft_attempt0.txt") or b"\0")


@pytest.mark.parametrize(
    "body", ["[1, 2]", "{oops", "null", '{"step": NaN, "stage": 5}', '{"step": true}', "[" * 99999]
)
async def test_a_hostile_heartbeat_harms_nobody(world: BoxWorld, body: str) -> None:
    world.worker(
        f"import flash_report\n(flash_report.out() / 'heartbeat.json').write_text({body!r})\nflash_report.metrics({{}})"
    )
    end = await world.run(world.payload())
    assert end.code == 0, end.output
    beat = world.text("heartbeat.json")
    assert beat is None or json.loads(beat)["token"] == "launch-token-0"


async def test_an_unknown_mode_never_trains(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    await world.run(world.payload(mode="dance"))
    assert world.marker()["ok"] is False
    assert world.text("metrics.json") is None


async def _line(process: asyncio.subprocess.Process, text: str) -> None:
    """Read the box's output until a line holds `text`."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while text.encode() not in (line := await process.stdout.readline()):
            assert line, f"the box ended before it said {text!r}"
