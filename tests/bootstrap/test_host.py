"""The host part as a process, with stand-ins for docker and nvidia-smi that run the real container part."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import yaml

from flashd.adapters.userdata import render_user_data
from flashd.sim.hub_faults import Effect, Fault
from tests.bootstrap.box_world import HF_TOKEN, OK_WORKER, PACE, PREFIX, REPO, BoxEnd, BoxWorld

DOCKER = f"""#!/bin/sh
echo "docker $*" >> "$STUBS/calls"
case "$1" in
  info) [ ! -e "$STUBS/docker-missing" ] ;;
  pull) if [ -e "$STUBS/pull-fails" ]; then
      [ -e "$STUBS/pull-always-fails" ] || rm "$STUBS/pull-fails"; echo "registry: 503"; exit 1; fi ;;
  run)
    if [ -e "$STUBS/run-fails" ]; then echo "no such runtime: nvidia"; exit 125; fi
    command="{sys.executable} $FLASH_BOX_ROOT/root/flash/box.zip box"
    [ ! -e "$STUBS/instead" ] || command="sh $STUBS/instead"
    (setsid $command; echo $? > "$STUBS/code") > "$STUBS/container.log" 2>&1 < /dev/null &
    echo 0123456789abcdef ;;
  wait) if [ -e "$STUBS/wait-fails" ]; then echo "cannot connect"; exit 1; fi
    while [ ! -s "$STUBS/code" ]; do sleep 0.05; done; cat "$STUBS/code" ;;
  logs) cat "$STUBS/container.log" ;;
esac
"""

MOUNT = """#!/bin/sh
[ ! -e "$STUBS/mount-hangs" ] || sleep 600
echo "mount $*" >> "$STUBS/calls"
grep -qx "$2" "$STUBS/labels" || { echo "mount: $3: can't find LABEL=$2"; exit 1; }
"""


def stand_ins(world: BoxWorld) -> Path:
    """Programs first on PATH; without `iptables`, `mount` and the like among them the real ones would be run."""
    stubs = world.root / "stubs"
    stubs.mkdir()
    scripts = {"docker": DOCKER, "nvidia-smi": "#!/bin/sh\n[ ! -e $STUBS/gpu-missing ]\n"}
    scripts["lsblk"] = '#!/bin/sh\ncat "$STUBS/lsblk.json"\n'
    scripts["mount"] = MOUNT
    for name in ("iptables", "shutdown", "mkfs.ext4"):
        scripts[name] = f'#!/bin/sh\necho "{name} $*" >> "$STUBS/calls"\n'
    for name, text in scripts.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    return stubs


def host_env(stubs: Path) -> dict[str, str]:
    return {"PATH": f"{stubs}:{os.environ['PATH']}", "STUBS": str(stubs)}


def calls(stubs: Path) -> list[str]:
    return (stubs / "calls").read_text().splitlines() if (stubs / "calls").exists() else []


async def run_host(world: BoxWorld, stubs: Path, until: str = "event=end") -> asyncio.subprocess.Process:
    process = await world.start("host", "run", env=host_env(stubs))
    await world.until(until)
    return process


async def test_the_boot_commit_comes_before_docker_and_the_container_runs_to_its_end(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "docker-missing").touch()
    await run_host(world, stubs, "event=boot")
    assert world.titles() == ["flashd run=r1 seed=7 attempt=0 event=boot"]
    assert "host up" in (world.text("hyperstack_boot_attempt0.log") or "")
    (stubs / "docker-missing").unlink()
    await world.until("event=end")
    assert world.marker()["ok"] is True
    assert "iptables -w 5 -I OUTPUT -d 169.254.169.254 -j REJECT" in calls(stubs)
    run = next(call for call in calls(stubs) if call.startswith("docker run"))
    assert f"-v {world.root}/opt/flash:/root/flash" in run
    assert run.endswith("image python3 /root/flash/box.zip box")
    assert HF_TOKEN not in "\n".join(calls(stubs))


async def test_the_command_of_user_data_returns_at_once_and_the_host_shuts_down_at_its_deadline(
    world: BoxWorld,
) -> None:
    world.worker(OK_WORKER)
    payload = world.payload(deadline_at=time.time() + 4)
    world.boot(payload)
    stubs = stand_ins(world)
    command = yaml.safe_load(render_user_data(payload))["runcmd"][0]
    assert command == ["python3", "/opt/flash/box.zip", "host"]
    env = host_env(stubs) | {"FLASH_BOX_PACE": "0.005"}
    assert await world.end_of(await world.start(*command[2:], env=env), 5) == BoxEnd(0, "")
    await world.until("event=end")
    assert world.marker()["ok"] is True
    assert (world.root / "opt/flash/host_boot.log").stat().st_mode & 0o777 == 0o600
    await world.until_true(lambda: "shutdown -h now" in calls(stubs))
    assert time.time() >= payload.deadline_at


async def test_a_pull_that_fails_once_is_repeated(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "pull-fails").touch()
    await run_host(world, stubs)
    assert world.marker()["ok"] is True
    assert calls(stubs).count("docker pull --quiet image") == 2


async def test_a_gpu_that_never_appears_gives_a_retriable_marker(world: BoxWorld) -> None:
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "gpu-missing").touch()
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": "0.001"})
    await world.until("event=end")
    marker = world.marker()
    assert (marker["ok"], marker["retriable"], marker["token"]) == (False, True, "launch-token-0")
    assert marker["error"] == "host: never became ready: nvidia-smi"


async def test_a_container_that_cannot_be_run_gives_a_retriable_marker(world: BoxWorld) -> None:
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "run-fails").touch()
    await run_host(world, stubs)
    assert "no such runtime" in world.marker()["error"]


async def test_a_container_that_exits_at_once_is_understood_and_its_output_kept_without_secrets(
    world: BoxWorld,
) -> None:
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "instead").write_text(f"echo exec format error {HF_TOKEN}; exit 126\n")
    await run_host(world, stubs)
    assert "exit code 126" in world.marker()["error"]
    log = world.text("hyperstack_boot_attempt0.log") or ""
    assert "exec format error ***" in log
    assert HF_TOKEN not in log


async def test_the_host_never_overwrites_the_containers_marker(world: BoxWorld) -> None:
    world.boot(world.payload())
    stubs = stand_ins(world)
    name = f"{PREFIX}/hyperstack_attempt0.json"
    world.hub.commit(REPO, {name: '{"ok": true}'}, "the container's own, its disk was full")
    world.hub.faults.add(Fault(Effect.STATUS, kind="resolve", status=503, times=2))
    (stubs / "instead").write_text("exit 1\n")
    process = await world.start("host", "run", env=host_env(stubs))
    await world.until_true((stubs / "code").exists)
    await asyncio.sleep(40 * PACE)
    assert world.hub.read(REPO, name) == b'{"ok": true}'
    assert world.titles("end") == []
    process.kill()


async def test_the_host_publishes_the_end_that_a_killed_container_kept(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "instead").write_text(
        f"{sys.executable} $FLASH_BOX_ROOT/root/flash/box.zip box & box=$!\n"
        "while [ ! -s $FLASH_BOX_ROOT/opt/flash/state/end.json ]; do sleep 0.02; done\n"
        "sleep 0.2; kill -9 $box; rm $STUBS/hub-down; exit 137\n"
    )
    (stubs / "hub-down").touch()
    rule = world.hub.faults.add(Fault(Effect.STATUS, kind="commit", status=503, body="event=end", times=None))
    await world.start("host", "run", env=host_env(stubs))
    await world.until_true(lambda: not (stubs / "hub-down").exists())
    world.hub.faults.remove(rule)
    await world.until("event=end")
    assert world.marker()["ok"] is True
    assert world.json("metrics.json") == {"loss": 0.25}


async def test_a_hub_that_is_away_at_boot_does_not_keep_the_worker_from_starting(world: BoxWorld) -> None:
    world.worker(OK_WORKER)
    world.boot(world.payload())
    stubs = stand_ins(world)
    world.hub.faults.add(Fault(Effect.STATUS, kind="commit", status=503, body="event=boot", times=6))
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": "0.02"})
    await world.until("event=end")
    await world.until("event=boot")
    assert world.marker()["ok"] is True
