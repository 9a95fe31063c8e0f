"""The one end commit against a Hub that refuses, loses answers, or is away."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from flashd.sim.hub_faults import Effect, Fault
from flashd.wire.payload import PayloadCode, PayloadHub
from tests.bootstrap.box_world import OK_WORKER, PREFIX, REPO, BoxWorld


async def test_a_hub_that_is_away_at_the_end_is_waited_for(world: BoxWorld) -> None:
    world.worker("import flash_report\nflash_report.metrics({})\nprint('finished', flush=True)")
    world.boot(world.payload())
    process = await world.start()
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while b"stage running" not in await process.stdout.readline():
            pass
    world.hub.down(503)
    async with asyncio.timeout(30):
        while b"end not committed" not in await process.stdout.readline():
            pass
    assert world.titles("end") == []
    world.hub.up()
    await world.end_of(process)
    assert world.marker()["ok"] is True


async def test_a_restarted_container_publishes_its_end_again_and_does_not_train(world: BoxWorld) -> None:
    world.worker("import flash_report\nprint('training', flush=True)\nflash_report.metrics({'first': True})")
    rule = world.hub.faults.add(Fault(Effect.STATUS, kind="commit", status=503, times=None))
    world.boot(world.payload())
    process = await world.start()
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while b"end not committed" not in await process.stdout.readline():
            pass
    process.kill()
    await process.wait()
    world.hub.faults.remove(rule)
    again = await world.end_of(await world.start())
    assert again.code == 0, again.output
    assert "training" not in again.output
    assert world.json("metrics.json") == {"first": True}
    kept = json.loads((world.root / "opt/flash/state/end.json").read_text())
    assert json.loads(kept["files"][kept["marker"]]) == world.marker()
    third = await world.end_of(await world.start())
    assert third.code == 0
    assert len(world.titles("end")) == 1


async def test_an_end_kept_for_another_launch_is_not_published(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    payload = world.payload()
    world.boot(payload)
    state = world.root / "opt/flash/state"
    state.mkdir()
    stale = {"token": "another", "ok": True, "title": "stale", "marker": "x", "files": {"x": "stale"}}
    (state / "end.json").write_text(json.dumps(stale))
    await world.end_of(await world.start())
    assert world.marker()["token"] == payload.token
    assert "stale" not in world.hub.titles("acme/results")


async def test_a_box_whose_clock_is_ahead_still_gets_its_time(world: BoxWorld) -> None:
    """The deadline is compared with the Hub's clock, since a rented machine's own may be an hour off."""
    world.hub.now = lambda: time.time()
    world.worker(OK_WORKER)
    fake = world.root / "late"
    fake.mkdir()
    (fake / "sitecustomize.py").write_text("import time\nreal = time.time\ntime.time = lambda: real() + 3600\n")
    end = await world.run(world.payload(), env={"PYTHONPATH": str(fake)})
    assert end.code == 0, end.output
    assert abs(world.marker()["ts"] - time.time()) < 60


async def test_artifacts_that_meet_a_throttled_hub_are_there_before_the_marker(world: BoxWorld) -> None:
    world.worker("import flash_report\n(flash_report.artifacts() / 'a.txt').write_text('a')\nflash_report.metrics({})")
    world.hub.faults.add(Fault(Effect.STATUS, kind="commit", status=429, times=2, headers={"Retry-After": "1"}))
    end = await world.run(world.payload())
    assert end.code == 0, end.output
    assert [title.split("event=")[1].split()[0] for title in world.titles()] == ["artifacts", "end"]


async def test_heartbeats_go_on_while_artifacts_travel(world: BoxWorld) -> None:
    world.worker(
        "import flash_report\n"
        "flash_report.report('train', step=4)\n"
        "(flash_report.artifacts() / 'a.txt').write_text('a')\n"
        "flash_report.metrics({})"
    )
    slow = Fault(Effect.DELAY, kind="preupload", seconds=2.0)
    world.hub.faults.add(slow)
    await world.run(world.payload(hub=PayloadHub(world.endpoint, REPO, PREFIX, 0.1, 0.5)))
    events = [title.split("event=")[1] for title in world.titles()]
    assert "heartbeat stage=saving step=4" in events
    assert events.index("heartbeat stage=saving step=4") < events.index("artifacts stage=train step=4")
    assert events[-1].startswith("end")


async def test_a_heartbeat_that_hangs_does_not_hold_up_the_end(world: BoxWorld) -> None:
    world.worker("import time, flash_report\ntime.sleep(1)\nflash_report.metrics({})")
    hanging = Fault(Effect.HANG, kind="commit", body="event=heartbeat", times=None)
    world.hub.faults.add(hanging)
    end = await world.run(world.payload(hub=PayloadHub(world.endpoint, REPO, PREFIX, 0.2, 60)))
    assert end.code == 0, end.output
    assert hanging.fired >= 1
    assert world.titles() == ["flashd run=r1 seed=7 attempt=0 event=end"]


@pytest.mark.parametrize(
    ("kind", "body"), [("tree", ""), ("revision", ""), ("preupload", "adapter"), ("commit", "event=artifacts")]
)
async def test_a_transfer_that_gets_no_answer_is_given_up_and_repeated(world: BoxWorld, kind: str, body: str) -> None:
    world.worker(
        "import flash_report\n(flash_report.artifacts() / 'adapter').write_text('a')\nflash_report.metrics({})"
    )
    silent = Fault(Effect.HANG, kind=kind, body=body)
    world.hub.faults.add(silent)
    end = await world.run(world.payload(code=PayloadCode(REPO, "main", "code")), env={"FLASH_BOX_PACE": "0.02"})
    assert silent.fired == 1
    assert end.code == 0, end.output


async def test_several_boxes_share_one_repositorys_commit_quota(world: BoxWorld) -> None:
    """More ends than the quota lets through at once: they wait, and every one of them lands."""
    world.worker("import flash_report\nflash_report.metrics({})")
    world.hub.settings.commits_per_hour = world.hub.commit_quota.last_hour(REPO, time.time()) + 1
    processes = []
    for number in range(3):
        other = BoxWorld(world.root / str(number), world.hub, world.endpoint)
        other.root.mkdir()
        hub = PayloadHub(world.endpoint, REPO, f"sft/q{number}/seed7", 600, 600)
        other.boot(other.payload(run_id=f"q{number}", hub=hub))
        processes.append(await other.start())
        world.running.append(processes[-1])
    await world.until_true(lambda: world.hub.requests["commit", 429] >= 2)
    assert len(world.titles("end")) == 1
    world.hub.settings.commits_per_hour = 128
    ends = [await world.end_of(process) for process in processes]
    assert [end.code for end in ends] == [0, 0, 0], ends
    assert len(world.titles("end")) == 3
