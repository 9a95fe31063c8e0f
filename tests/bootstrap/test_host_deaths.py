"""Ways to die outside the container, on the host: what the marker says and what the daemon concludes of it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flashd.core.model import Reason
from tests.bootstrap.box_world import BoxWorld
from tests.bootstrap.deaths import DEATHS
from tests.bootstrap.test_deaths import assert_concluded
from tests.bootstrap.test_deaths_in_silence import SILENT
from tests.bootstrap.test_host import calls, host_env, stand_ins

HASTE = "0.0005"


@dataclass(frozen=True)
class HostDeath:
    """`stubs`: files that make the stand-ins fail, with their content."""

    stubs: dict[str, str]
    error: str


HOST_DEATHS = {
    "docker is never ready": HostDeath({"docker-missing": ""}, "host: never became ready: docker info"),
    "the GPU is never ready": HostDeath({"gpu-missing": ""}, "host: never became ready: nvidia-smi"),
    "nothing is ever ready": HostDeath(
        {"docker-missing": "", "gpu-missing": ""}, "host: never became ready: docker info and nvidia-smi"
    ),
    "the image cannot be pulled": HostDeath(
        {"pull-fails": "", "pull-always-fails": ""}, "could not be pulled in 5 tries: registry: 503"
    ),
    "the container cannot be run": HostDeath({"run-fails": ""}, "docker run failed with 125: no such runtime: nvidia"),
    "the image has no python": HostDeath({"instead": "exit 127"}, "exit code 127 and left no marker"),
    "the image is for another processor": HostDeath({"instead": "exit 126"}, "exit code 126 and left no marker"),
    "the container is killed for memory": HostDeath({"instead": "exit 137"}, "exit code 137 and left no marker"),
    "the box programs crash": HostDeath(
        {"instead": "echo oops > $FLASH_BOX_ROOT/opt/flash/payload.json; exit 1"}, "exit code 1 and left no marker"
    ),
    "the container ends well and says nothing": HostDeath({"instead": "exit 0"}, "exit code 0 and left no marker"),
    "docker dies under the container": HostDeath({"wait-fails": ""}, "the container cannot be followed"),
}


@pytest.mark.parametrize("death", HOST_DEATHS.values(), ids=HOST_DEATHS)
async def test_the_host_says_what_the_container_could_not(world: BoxWorld, death: HostDeath) -> None:
    world.boot(world.payload())
    stubs = stand_ins(world)
    for name, content in death.stubs.items():
        (stubs / name).write_text(content)
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": HASTE})
    await world.until("event=end")
    marker = world.marker()
    assert (marker["ok"], marker["retriable"], marker["exit_code"]) == (False, True, 1)
    assert death.error in marker["error"]
    assert marker["error"].startswith("host: ")
    assert "hyperstack_boot_attempt0.log" in world.names()
    assert_concluded(world, Reason.JOB_PREEMPTED)


async def test_a_host_without_pip_and_libraries_loses_nothing(world: BoxWorld) -> None:
    """Everything before the container works with the host's bare python."""
    world.boot(world.payload())
    stubs = stand_ins(world)
    (stubs / "gpu-missing").touch()
    barren = world.root / "barren"
    barren.mkdir()
    for name in ("pip", "ensurepip", "huggingface_hub", "requests", "yaml"):
        (barren / f"{name}.py").write_text("raise ImportError('not on this host')")
    await world.start("host", "run", env=host_env(stubs) | {"FLASH_BOX_PACE": HASTE, "PYTHONPATH": str(barren)})
    await world.until("event=end")
    assert [title.split("event=")[1] for title in world.titles()] == ["boot", "end"]
    assert not any("pip" in call for call in calls(stubs))


def test_the_tables_hold_far_more_than_forty_ways_to_die() -> None:
    assert len({*DEATHS, *SILENT, *HOST_DEATHS}) >= 80
