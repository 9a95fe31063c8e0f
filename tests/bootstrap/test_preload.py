"""Mode `preload`: what becomes of each model, what is refused, and what is tried again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from flashd.core.model import Reason
from flashd.sim.hub_faults import Effect, Fault
from flashd.sim.hub_git import regular_blob
from flashd.sim.hub_repo import Change, RepoKind
from flashd.wire.artifacts import PreloadResult, parse_preload
from flashd.wire.payload import Payload, PayloadCache, PayloadHub, cache_label
from tests.bootstrap.box_world import HF_TOKEN, OK_WORKER, PREFIX, REPO, BoxEnd, BoxWorld
from tests.bootstrap.test_deaths import assert_concluded
from tests.bootstrap.test_host import calls, host_env, stand_ins

LABEL = cache_label("weights")
CACHE = PayloadCache("/weight-cache", ".flash-cache-mounted", LABEL, 100)
WEIGHTS = {"config.json": "{}", "model.safetensors": "w" * 3000}
HASTE = {"FLASH_BOX_PACE": "0.01"}


def a_model(world: BoxWorld, name: str, files: Mapping[str, str] = WEIGHTS) -> None:
    repo = world.hub.add_repo(name, private=False, kind=RepoKind.MODEL)
    blobs = {path: regular_blob(text.encode()) for path, text in files.items()}
    repo.commit(Change(blobs), "weights", "acme", world.hub.now())


def attach(world: BoxWorld) -> Path:
    """The cache disk as the host mounts it into the container."""
    mount = world.root / "weight-cache"
    mount.mkdir()
    (mount / CACHE.marker).touch()
    return mount


def preload(world: BoxWorld, *models: str, **changes: Any) -> Payload:
    return world.payload(**({"mode": "preload", "models": models, "cache": CACHE} | changes))


def result(world: BoxWorld) -> PreloadResult:
    parsed = parse_preload((world.text("preload_result.json") or "").encode())
    assert isinstance(parsed, PreloadResult), parsed
    return parsed


def hub_cache(world: BoxWorld, model: str) -> Path:
    return world.root / f"weight-cache/hf-cache/hub/models--{model.replace('/', '--')}"


async def test_models_are_warmed_and_a_second_run_finds_them(world: BoxWorld) -> None:
    a_model(world, "acme/base", WEIGHTS | {"original/all.pth": "x", "model.onnx": "x", "other.gguf": "x"})
    a_model(world, "acme/big")
    attach(world)
    end = await world.run(preload(world, "acme/base"))
    assert end.code == 0, end.output
    assert result(world) == PreloadResult(("acme/base",), (), {}, None)
    snapshot = hub_cache(world, "acme/base") / "snapshots" / (hub_cache(world, "acme/base") / "refs/main").read_text()
    assert sorted(path.name for path in snapshot.iterdir()) == [".gitattributes", "config.json", "model.safetensors"]
    assert_concluded(world, None)

    (world.root / "second").mkdir()
    (world.root / "second/weight-cache").symlink_to(world.root / "weight-cache")
    second = BoxWorld(world.root / "second", world.hub, world.endpoint)
    again = await second.run(preload(second, "acme/base", "acme/big"))
    assert again.code == 0, again.output
    assert result(second) == PreloadResult(("acme/big",), ("acme/base",), {}, None)
    assert json.loads(second.text("metrics.json") or "") == {
        "preloaded": ["acme/big"],
        "already_cached": ["acme/base"],
        "failed": {},
        "error": None,
    }


async def test_a_file_that_a_killed_machine_left_half_written_is_fetched_again(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    attach(world)
    await world.run(preload(world, "acme/base"))
    (weights,) = hub_cache(world, "acme/base").glob("snapshots/*/model.safetensors")
    weights.resolve().write_text("w" * 10)
    (world.root / "opt/flash/state/end.json").unlink()
    (world.root / "opt/flash/state/end.published").unlink()
    end = await world.run(preload(world, "acme/base"))
    assert end.code == 0, end.output
    assert result(world).preloaded == ("acme/base",)
    assert weights.stat().st_size == 3000


async def test_final_errors_are_told_apart_and_the_other_models_are_warmed(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    attach(world)
    end = await world.run(preload(world, "acme/nothing", "acme/base"), env=HASTE)
    assert end.code == 1
    assert (world.marker()["ok"], world.marker()["retriable"]) == (False, False)
    assert result(world).preloaded == ("acme/base",)
    assert "RepositoryNotFound" in result(world).failed["acme/nothing"]
    assert end.output.count("stage preload acme/nothing") == 1
    assert_concluded(world, Reason.JOB_FAILED)


async def test_errors_that_another_machine_may_not_meet_are_retriable(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    a_model(world, "acme/big")
    attach(world)
    world.hub.faults.add(Fault(Effect.STATUS, path="/api/models/acme/base", status=418, times=None))
    await world.run(preload(world, "acme/base", "acme/big"), env=HASTE)
    assert (world.marker()["ok"], world.marker()["retriable"]) == (False, True)
    assert list(result(world).failed) == ["acme/base"]
    assert result(world).preloaded == ("acme/big",)
    assert_concluded(world, Reason.JOB_PREEMPTED)


@pytest.mark.parametrize(
    ("changes", "disk", "retriable", "error"),
    [
        ({}, False, True, "the cache disk is not mounted"),
        ({"cache": None}, True, False, "no cache volume"),
        ({"models": ()}, True, False, "no models"),
        ({"env": {"HF_TOKEN": HF_TOKEN, "HF_HOME": "/root/.cache/huggingface"}}, True, False, "not on the cache disk"),
    ],
    ids=["disk missing", "no volume", "no models", "an ephemeral place"],
)
async def test_a_preload_that_would_warm_nothing_is_refused(
    world: BoxWorld, changes: dict[str, Any], disk: bool, retriable: bool, error: str
) -> None:
    a_model(world, "acme/base")
    world.worker(OK_WORKER)
    if disk:
        attach(world)
    await world.run(preload(world, "acme/base", **changes))
    assert (world.marker()["ok"], world.marker()["retriable"]) == (False, retriable)
    assert error in world.marker()["error"]
    assert error in (result(world).error or "")
    assert world.text("metrics.json") is None
    assert not (world.root / "runcode/code").exists()


FREEZE = "import os, sys, time\nif 'preload' in sys.orig_argv and {condition}:\n    time.sleep(600)\n"


async def frozen(world: BoxWorld, condition: str, pace: str) -> BoxEnd:
    a_model(world, "acme/base")
    attach(world)
    (world.root / "frozen").mkdir()
    (world.root / "frozen/sitecustomize.py").write_text(FREEZE.format(condition=condition))
    env = {"FLASH_BOX_PACE": pace, "HF_HUB_DISABLE_XET": "0", "PYTHONPATH": str(world.root / "frozen")}
    return await world.run(preload(world, "acme/base"), env=env)


async def test_a_frozen_transfer_is_given_up_and_repeated_without_xet(world: BoxWorld) -> None:
    end = await frozen(world, "os.environ['HF_HUB_DISABLE_XET'] == '0'", "0.008")
    assert end.code == 0, end.output
    assert end.output.count("stage preload acme/base") == 2
    assert result(world).preloaded == ("acme/base",)


async def test_transfers_that_always_freeze_are_a_stall_of_the_hub(world: BoxWorld) -> None:
    await frozen(world, "True", "0.002")
    assert world.marker()["retriable"] is True
    assert result(world).failed["acme/base"].startswith("hub_stall")


async def test_the_wall_limit_ends_a_preload_with_its_result(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    attach(world)
    world.hub.faults.add(Fault(Effect.HANG, path="/api/models/acme/base", times=None))
    await world.run(preload(world, "acme/base", max_wall_s=1.5), limit_s=20)
    assert world.marker()["exit_code"] == 124
    assert result(world).error == "stopped: deadline"
    assert_concluded(world, Reason.DEADLINE)


async def test_a_box_that_hangs_on_a_lost_disk_ends_all_the_same(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    attach(world)
    (world.root / "lost").mkdir()
    (world.root / "lost/sitecustomize.py").write_text(
        "import pathlib, sys, time\n"
        "if 'box' in sys.orig_argv:\n"
        "    pathlib.Path.rglob = lambda self, pattern: time.sleep(600)\n"
    )
    end = await world.run(
        preload(world, "acme/base", deadline_at=time.time() + 1.0),
        env=HASTE | {"PYTHONPATH": str(world.root / "lost")},
        limit_s=20,
    )
    assert end.code == 1
    assert (world.marker()["exit_code"], "box hangs" in world.marker()["error"]) == (124, True)


async def test_a_long_download_shows_progress(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    attach(world)
    world.hub.faults.add(Fault(Effect.DELAY, path="model.safetensors", seconds=1.5))
    await world.run(preload(world, "acme/base", hub=PayloadHub(world.endpoint, REPO, PREFIX, 0.1, 0.3)))
    assert any("event=heartbeat stage=preload step=1" in title for title in world.titles())


# The host's part ------------------------------------------------------------------------------------------------------


async def host_with_cache(world: BoxWorld, payload: Payload, labels: str, pace: str = "0.001") -> list[str]:
    world.boot(payload)
    stubs = stand_ins(world)
    (stubs / "labels").write_text(labels)
    (stubs / "lsblk.json").write_text('{"blockdevices": []}')
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": pace})
    await world.until("event=end")
    return [call for call in calls(stubs) if call.startswith("docker run")]


async def test_a_host_with_the_disk_warms_it(world: BoxWorld) -> None:
    a_model(world, "acme/base")
    (run,) = await host_with_cache(world, preload(world, "acme/base"), f"{LABEL}\n", "0.02")
    assert f"-v {world.root}/weight-cache:/weight-cache" in run
    assert world.marker()["ok"] is True, world.marker()
    assert result(world).preloaded == ("acme/base",)


async def test_a_host_without_the_disk_never_starts_a_preload(world: BoxWorld) -> None:
    assert await host_with_cache(world, preload(world, "acme/base"), "") == []
    assert (world.marker()["ok"], world.marker()["retriable"]) == (False, True)
    assert world.marker()["error"].startswith("host: ") and "cache disk" in world.marker()["error"]


async def test_a_mount_that_hangs_holds_nobody_up_for_ever(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.boot(world.payload(cache=CACHE))
    stubs = stand_ins(world)
    (stubs / "mount-hangs").touch()
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": "0.005"})
    await world.until("event=end")
    assert world.marker()["ok"] is True


async def test_a_training_run_without_the_disk_starts_cold(world: BoxWorld) -> None:
    world.worker("import os, flash_report\nflash_report.metrics({'home': os.environ['HF_HOME']})")
    (run,) = await host_with_cache(world, world.payload(cache=CACHE), "")
    assert "/weight-cache" not in run
    assert world.json("metrics.json") == {"home": str(world.root / "hf")}


@pytest.mark.parametrize("own", ["", "/my/own"])
async def test_a_training_run_with_the_disk_finds_its_models_there(world: BoxWorld, own: str) -> None:
    world.worker("import os, flash_report\nflash_report.metrics({'home': os.environ['HF_HOME']})")
    env = {"HF_TOKEN": HF_TOKEN} | ({"HF_HOME": own} if own else {})
    await host_with_cache(world, world.payload(cache=CACHE, env=env), f"{LABEL}\n")
    assert world.json("metrics.json") == {"home": own or str(world.root / "weight-cache/hf-cache")}
