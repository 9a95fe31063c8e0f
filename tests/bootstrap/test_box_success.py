"""Attempts that succeed, and what the Hub has afterwards."""

from __future__ import annotations

import json
import sys

import pytest

from flashd.core.model import Reason
from flashd.wire.payload import PayloadHub, PayloadWorker
from tests.bootstrap.box_world import OK_WORKER, PREFIX, REPO, BoxWorld
from tests.bootstrap.test_deaths import assert_concluded

PREDECESSOR = """
import json, os, sys, time
from huggingface_hub import HfApi
api, phase = HfApi(), os.environ['RUN_MODE']
def put(name, text):
    where = f"{phase}/{os.environ['RUN_ID']}/seed{os.environ['SEED']}/{name}"
    api.upload_file(path_or_fileobj=text.encode(), path_in_repo=where, repo_id=os.environ['HF_REPO'],
                    repo_type='dataset')
beat = {'stage': 'train', 'ts': time.time(), 'run_id': os.environ['RUN_ID'], 'seed': 7, 'attempt': '', 'step': 3}
put('heartbeat.json', json.dumps(beat))
put('adapter/adapter_config.json', '{}')
metrics = json.dumps({'arm': os.environ['FLASH_ARM'], 'wall_seconds': 2})
put('metrics.json', metrics)
if LOCAL:
    open(os.environ['FLASH_BOX_ROOT'] + '/tmp/metrics.json', 'w').write(metrics)
put('DONE', str(time.time()))
put('heartbeat.json', json.dumps({**beat, 'stage': 'done'}))
os.abort()
"""


async def test_a_worker_that_exits_0_with_metrics_ends_in_one_commit(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    end = await world.run(world.payload())
    assert end.code == 0, end.output
    marker = world.marker()
    assert {key: marker[key] for key in ("ok", "attempt", "token", "retriable", "error", "exit_code")} == {
        "ok": True,
        "attempt": 0,
        "token": "launch-token-0",
        "retriable": False,
        "error": "",
        "exit_code": 0,
    }
    assert world.json("metrics.json") == {"loss": 0.25}
    assert float(world.text("DONE") or "nan") == marker["ts"]
    assert "hello from the worker" in (world.text("console_sft_attempt0.txt") or "")
    assert world.titles() == ["flashd run=r1 seed=7 attempt=0 event=end stage=train step=3 loss=0.25"]
    assert world.names() == [
        "DONE",
        "console_sft_attempt0.txt",
        "heartbeat.json",
        "hyperstack_attempt0.json",
        "metrics.json",
    ]


async def test_the_worker_finds_the_environment_of_the_contract(world: BoxWorld) -> None:
    world.worker("import os, flash_report\nflash_report.metrics({**os.environ, 'cwd': os.getcwd()})")
    spec = {"text": "a'b\"c\n$(d) \u00e9\U0001f600", "n": [1, 2.5, None, True]}
    await world.run(world.payload(attempt=3, spec=spec, env=dict(world.payload().env) | {"MINE": "1"}))
    found = world.json("metrics.json")
    assert isinstance(found, dict)
    root = world.root
    expected = {
        "cwd": f"{root}/runcode/code",
        "FLASH_RUN_ID": "r1",
        "FLASH_PHASE": "sft",
        "FLASH_SEED": "7",
        "FLASH_ATTEMPT": "3",
        "FLASH_PROVIDER": "hyperstack",
        "FLASH_OUT": f"{root}/tmp/flash-out",
        "FLASH_RESUME": f"{root}/tmp/flash-resume",
        "FLASH_JOB_SPEC_PATH": f"{root}/tmp/job_spec.json",
        "HF_TOKEN": "***",
        "RUN_MODE": "sft",
        "PHASE": "sft",
        "SEED": "7",
        "ATTEMPT": "3",
        "FLASH_ARM": "hyperstack",
        "RUN_ID": "r1",
        "HF_REPO": REPO,
        "HF_ENDPOINT": world.endpoint,
        "MINE": "1",
    }
    assert {key: found.get(key) for key in expected} == expected
    assert str(found["PYTHONPATH"]).split(":")[0] == f"{root}/runcode/code"
    assert json.loads(str(found["FLASH_JOB_SPEC_JSON"])) == spec
    assert json.loads((root / "tmp/job_spec.json").read_text()) == spec


async def test_a_spec_from_the_hub_reaches_the_worker_by_file_alone_when_it_is_large(world: BoxWorld) -> None:
    spec = {"blob": "x" * 100_000}
    world.worker(
        "import os, flash_report\n"
        "same = flash_report.spec() == {'blob': 'x' * 100000}\n"
        "flash_report.metrics({'same': same, 'env': 'FLASH_JOB_SPEC_JSON' in os.environ})"
    )
    world.hub.commit(REPO, {f"{PREFIX}/job_spec.json": json.dumps(spec)}, "spec")
    await world.run(world.payload(spec=None, spec_in_hub=True))
    assert world.json("metrics.json") == {"same": True, "env": False}


async def test_a_shell_script_is_a_worker(world: BoxWorld) -> None:
    world.worker("echo training; echo '{\"accuracy\": 1}' > $FLASH_OUT/metrics.json\n", "train.sh")
    end = await world.run(world.payload(worker=PayloadWorker("image", ("sh", "train.sh"))))
    assert end.code == 0
    assert world.marker()["ok"] is True
    assert world.json("metrics.json") == {"accuracy": 1}


@pytest.mark.parametrize("local", [True, False], ids=["with /tmp/metrics.json", "without"])
async def test_the_predecessors_worker_runs_unchanged_and_succeeds_though_it_crashes_at_exit(
    world: BoxWorld, local: bool
) -> None:
    """It uploads for itself, file by file, knows no token, and an earlier attempt left results of its own."""
    world.hub.commit(REPO, {f"{PREFIX}/DONE": "1.0", f"{PREFIX}/metrics.json": "{}"}, "an earlier attempt's")
    world.worker("", "flash/__init__.py")
    world.worker("", "flash/engine/__init__.py")
    world.worker(PREDECESSOR.replace("LOCAL", str(local)), "flash/engine/worker.py")
    command = (sys.executable, "-m", "flash.engine.worker")
    end = await world.run(world.payload(worker=PayloadWorker("image", command)))
    assert end.code == 0, end.output
    assert world.json("metrics.json") == {"arm": "hyperstack", "wall_seconds": 2}
    assert {"adapter/adapter_config.json", "heartbeat.json", "DONE"} <= set(world.names())
    assert_concluded(world, None)


async def test_the_predecessors_worker_that_says_retriable_is_tried_again(world: BoxWorld) -> None:
    world.worker(
        PREDECESSOR.partition("put('adapter")[0] + "put('heartbeat.json', json.dumps({**beat, 'error': 'hub',"
        " 'retriable': True}))\nsys.exit(1)\n"
    )
    await world.run(world.payload())
    assert (world.marker()["ok"], world.marker()["retriable"]) == (False, True)
    assert_concluded(world, Reason.JOB_PREEMPTED)


async def test_an_earlier_attempts_done_does_not_make_a_failing_worker_succeed(world: BoxWorld) -> None:
    world.hub.commit(REPO, {f"{PREFIX}/DONE": "1.0", f"{PREFIX}/metrics.json": "{}"}, "an earlier attempt's")
    world.worker("raise SystemExit(7)")
    await world.run(world.payload(attempt=1))
    assert world.marker(1)["ok"] is False


async def test_artifacts_are_on_the_hub_before_the_end(world: BoxWorld) -> None:
    world.worker(
        "import os, flash_report\n"
        "(flash_report.artifacts() / 'adapter').mkdir()\n"
        "(flash_report.artifacts() / 'adapter/adapter.safetensors').write_bytes(os.urandom(50_000))\n"
        "(flash_report.artifacts() / 'adapter/config.json').write_text('{}')\n"
        "flash_report.metrics({})\n"
    )
    end = await world.run(world.payload())
    assert end.code == 0, end.output
    assert [title.split("event=")[1].split()[0] for title in world.titles()] == ["artifacts", "end"]
    assert "artifacts/adapter/adapter.safetensors" in world.names()
    assert "artifacts/adapter/config.json" in world.names()


async def test_children_that_a_worker_leaves_behind_do_not_hold_up_the_end(world: BoxWorld) -> None:
    world.worker(
        "import subprocess, flash_report\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "subprocess.Popen(['sleep', '30'], start_new_session=True)\n"
        "flash_report.metrics({})\n"
    )
    end = await world.run(world.payload(), limit_s=20)
    assert world.marker()["ok"] is True, end.output


async def test_a_heartbeat_carries_this_attempts_identity_and_strict_json(world: BoxWorld) -> None:
    world.worker(
        "import time, flash_report\n"
        "flash_report.report('train', step=2, loss=float('nan'), learning_rate=1e-4)\n"
        "time.sleep(1.5)\n"
        "flash_report.metrics({})\n"
    )
    world.boot(world.payload(hub=PayloadHub(world.endpoint, REPO, PREFIX, 0.2, 60)))
    process = await world.start()
    await world.until("event=heartbeat stage=train step=2")
    beat = json.loads(world.text("heartbeat.json") or "", parse_constant=lambda name: name)
    await world.end_of(process)
    assert (beat["run_id"], beat["seed"], beat["attempt"], beat["token"]) == ("r1", 7, 0, "launch-token-0")
    assert (beat["stage"], beat["step"], beat["loss"]) == ("train", 2, None)
    assert beat["history"][0][1:] == [2, None, 1e-4]


async def test_a_worker_without_heartbeats_shows_life_only(world: BoxWorld) -> None:
    world.worker("import time, flash_report\ntime.sleep(1.5)\nflash_report.metrics({})")
    await world.run(world.payload(hub=PayloadHub(world.endpoint, REPO, PREFIX, 0.2, 0.5)))
    assert world.titles("heartbeat")
    assert all("liveness=1" in title for title in world.titles("heartbeat"))


async def test_a_checkpoint_is_uploaded_pruned_and_fetched_by_the_next_attempt(world: BoxWorld) -> None:
    world.worker(
        "import time, flash_report\n"
        "for step in (10, 20):\n"
        "    with flash_report.checkpoint(step) as folder:\n"
        "        (folder / 'state.txt').write_text(f'state at {step}')\n"
        "    flash_report.report('train', step=step)\n"
        "    time.sleep(2.5 if step == 20 else 1.2)\n"
        "raise SystemExit(137)\n"
    )
    budget = PayloadHub(world.endpoint, REPO, PREFIX, 0.1, 0.3)
    await world.run(world.payload(hub=budget))
    assert world.marker()["retriable"] is True
    assert [name for name in world.names() if name.startswith("checkpoint/")] == ["checkpoint/a0-20/state.txt"]
    assert any("event=checkpoint stage=train step=10" in title for title in world.titles())
    world.worker(
        "import flash_report\nflash_report.metrics({'found': (flash_report.resume() / 'state.txt').read_text()})"
    )
    (world.root / "second").mkdir()
    second = BoxWorld(world.root / "second", world.hub, world.endpoint)
    await second.run(second.payload(attempt=1, token="launch-token-1"))
    assert second.json("metrics.json") == {"found": "state at 20"}


async def test_a_stopped_attempt_saves_its_newest_checkpoint_before_the_marker(world: BoxWorld) -> None:
    world.worker(
        "import time, flash_report\n"
        "with flash_report.checkpoint(5) as folder:\n"
        "    (folder / 'state.txt').write_text('five')\n"
        "flash_report.report('train', step=5)\n"
        "time.sleep(600)\n"
    )
    world.boot(world.payload())
    process = await world.start()
    await world.until_true((world.root / "tmp/flash-out/heartbeat.json").exists)
    process.terminate()
    await world.end_of(process)
    assert [title.split("event=")[1].split()[0] for title in world.titles()] == ["checkpoint", "end"]
    assert world.text("checkpoint/a0-5/state.txt") == "five"
