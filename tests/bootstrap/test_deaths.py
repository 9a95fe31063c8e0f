"""Ways to die in the container: what the marker says, what the daemon concludes of it, and what it costs."""

from __future__ import annotations

import asyncio
import signal

import pytest

from flashd.core import artifacts as rules
from flashd.core.model import Claim, MetricsState, Reason, State
from flashd.sim.box_launch import BoxIsolationError, check_isolation, isolated
from flashd.wire.artifacts import Invalid, Marker, parse_marker, parse_metrics
from flashd.wire.commit_title import parse_commit_title
from tests.bootstrap.box_world import BoxWorld
from tests.bootstrap.daemon_view import Story, beat, conclusion
from tests.bootstrap.deaths import DEATHS, Death, Then
from tests.core.kit import T0, attempt_of, booting, with_attempt

ENDED_AT_S = 800.0  # when the story of the marker has it appear
AGAIN = {Reason.JOB_PREEMPTED}


@pytest.mark.parametrize("death", DEATHS.values(), ids=DEATHS)
async def test_what_the_marker_says_and_the_daemon_concludes(world: BoxWorld, death: Death) -> None:
    world.worker(death.worker)
    payload = world.payload(**death.told(world))
    faults = death.faults()
    for fault in faults:
        world.hub.faults.add(fault)
    world.boot(payload)
    process = await world.start(env={"FLASH_BOX_PACE": str(death.pace)}, within=await _room(world, death.tmp_bytes))
    if death.then is not Then.NOTHING:
        await line(process, "started")
        process.send_signal(signal.Signals[death.then.value])
    end = await world.end_of(process)

    marker = world.marker()
    assert (marker["ok"], marker["retriable"], marker["exit_code"]) == (death.ok, death.retriable, death.exit_code)
    assert death.error in marker["error"]
    assert all(fault.fired for fault in faults)
    assert len(world.titles("end")) == 1
    assert end.code == (0 if death.ok else 1), end.output
    assert_concluded(world, death.reason)


def assert_concluded(world: BoxWorld, reason: Reason | None) -> None:
    """The daemon reads what is on the Hub; the machine goes as soon as it does."""
    run = with_attempt(booting(max_wall_s=86_400.0), token="launch-token-0")
    claim = _claim(world, parse_marker((world.text("hyperstack_attempt0.json") or "").encode()))
    assert rules.marker_is_of(_marker(world), attempt_of(run))
    titles = [title for text in world.titles() if (title := parse_commit_title(text)) is not None]
    seen = [found for title in titles if (found := rules.beat_of_title(title, T0 + 300)) is not None]
    story = Story(beats=(beat(150, "boot", liveness=True), *seen), claimed_s=ENDED_AT_S, claim=claim)
    verdict = conclusion(story, run)
    assert (verdict.reason, verdict.again) == (reason, reason in AGAIN), verdict
    assert (verdict.state is State.SUCCEEDED) == (reason is None)
    assert verdict.billed_s == ENDED_AT_S


def _marker(world: BoxWorld) -> Marker:
    parsed = parse_marker((world.text("hyperstack_attempt0.json") or "").encode())
    assert isinstance(parsed, Marker), parsed
    return parsed


def _claim(world: BoxWorld, marker: Marker | Invalid) -> Claim:
    assert isinstance(marker, Marker), marker
    raw = world.text("metrics.json")
    there = raw is not None and not isinstance(parse_metrics(raw.encode()), Invalid)
    claim = rules.marker_claim(marker, "e" * 40, 0.0)
    return Claim(
        claim.evidence,
        claim.ok,
        claim.commit,
        claim.seen_at,
        retriable=claim.retriable,
        error=claim.error,
        exit_code=claim.exit_code,
        metrics=MetricsState.PRESENT if there else MetricsState.ABSENT,
    )


async def _room(world: BoxWorld, tmp_bytes: int) -> list[str]:
    """A command that gives the box a /tmp of so many bytes."""
    if not tmp_bytes:
        return []
    try:
        await check_isolation()
    except BoxIsolationError as missing:
        pytest.skip(str(missing))
    tmp = world.root / "tmp"
    tmp.mkdir()
    mount = f'mount -t tmpfs -o size={tmp_bytes} none {tmp} && exec "$@"'
    return isolated(["sh", "-c", mount, "sh"])


async def line(process: asyncio.subprocess.Process, text: str) -> None:
    """Read the box's output until a line holds `text`."""
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while text.encode() not in (read := await process.stdout.readline()):
            assert read, f"the box ended before it said {text!r}"
