"""Which disk becomes the weight cache, and which is never touched."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bootstrap.cache_disk import EDGE_BYTES, TRIES, mount_cache
from bootstrap.job import Job, load_job
from flashd.wire.payload import Payload, PayloadCache, PayloadCode, PayloadHub, PayloadWorker, cache_label

SIZE_GB = 100
GIB = SIZE_GB * 2**30
LABEL = cache_label("weights")


@dataclass
class Machine:
    """What mount, lsblk and mkfs.ext4 do, on files. `arrives_after`: looks until the disks are attached,
    all but the first `early`."""

    folder: Path
    disks: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    formatted: list[str] = field(default_factory=list)
    mounted: list[str] = field(default_factory=list)
    arrives_after: int = 0
    early: int = 0
    looks: int = 0

    def disk(self, name: str = "vdb", size: int = GIB, content: bytes = b"", at: int = 0, **facts: Any) -> str:
        path = self.folder / name
        with path.open("wb") as file:
            file.truncate(4 * EDGE_BYTES)
            file.seek(at, 2 if at < 0 else 0)
            file.write(content)
        known = {"path": str(path), "size": size, "type": "disk", "fstype": None, "mountpoint": None}
        self.disks.append(known | facts)
        return str(path)

    def command(self, words: list[str]) -> tuple[int, str]:
        self.looks += words[0] == "lsblk"
        there = self.looks >= self.arrives_after
        match words:
            case ["mount", "-L", label, _] if there and label in self.labels.values():
                self.mounted.append(label)
                return 0, ""
            case ["mount", "-L", label, where]:
                return 1, f"mount: {where}: can't find LABEL={label}."
            case ["lsblk", *_]:
                return 0, json.dumps({"blockdevices": self.disks if there else self.disks[: self.early]})
            case ["mkfs.ext4", *_, "-L", label, path]:
                self.formatted.append(path)
                self.labels[path] = label
                with Path(path).open("r+b") as file:
                    file.write(b"an ext4 file system")
                return 0, ""
        raise AssertionError(words)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def job(machine: Machine, hint: str = "") -> Job:
    payload = Payload(
        run_id="r1",
        ns="demo",
        phase="sft",
        seed=0,
        attempt=0,
        token="t",
        provider="hyperstack",
        hub=PayloadHub("http://hub.test", "a/b", "sft/r1/seed0"),
        code=PayloadCode("a/b", "main"),
        worker=PayloadWorker("image", ("worker",)),
        max_wall_s=60,
        deadline_at=2e9,
        cache=PayloadCache("/weight-cache", ".flash-cache-mounted", LABEL, SIZE_GB, hint),
    )
    (machine.folder / "payload.json").write_bytes(payload.encode())
    return load_job(machine.folder / "payload.json")


def mounted(machine: Machine, hint: str = "") -> str:
    return mount_cache(job(machine, hint), machine.folder / "weight-cache", machine.command, 0.0)


def test_a_disk_with_the_label_is_mounted_and_marked_and_never_formatted(machine: Machine) -> None:
    path = machine.disk(content=b"weights", fstype="ext4")
    machine.labels[path] = LABEL
    machine.disk("vdc")
    assert mounted(machine) == ""
    assert machine.formatted == []
    assert (machine.folder / "weight-cache/.flash-cache-mounted").is_file()


@pytest.mark.parametrize("size", [SIZE_GB * 10**9, GIB], ids=["GB", "GiB"])
def test_a_new_volume_is_formatted_once_and_mounted(machine: Machine, size: int) -> None:
    path = machine.disk(size=size)
    assert mounted(machine) == ""
    assert machine.formatted == [path]
    assert machine.mounted == [LABEL]


def test_a_volume_that_is_attached_late_is_waited_for(machine: Machine) -> None:
    path = machine.disk()
    machine.arrives_after = 20
    assert mounted(machine) == ""
    assert machine.formatted == [path]


def test_a_blank_disk_that_is_there_first_is_not_taken_for_the_volume(machine: Machine) -> None:
    machine.disk("vdb")
    machine.labels[machine.disk("vdc", content=b"weights", fstype="ext4")] = LABEL
    machine.early, machine.arrives_after = 1, 10
    assert mounted(machine) == ""
    assert (machine.formatted, machine.looks) == ([], 10)


def test_without_a_disk_the_waiting_ends_and_says_why(machine: Machine) -> None:
    why = mounted(machine)
    assert LABEL in why and "can't find" in why
    assert machine.looks == TRIES


NEVER: dict[str, Callable[[Machine], str]] = {
    "a byte larger": lambda machine: machine.disk(size=GIB + 1),
    "a byte smaller": lambda machine: machine.disk(size=GIB - 1),
    "twice the size": lambda machine: machine.disk(size=2 * GIB),
    "a partition": lambda machine: machine.disk(type="part"),
    "a loop device": lambda machine: machine.disk(type="loop"),
    "with partitions": lambda machine: machine.disk(children=[{"path": "/dev/vdb1"}]),
    "with a file system": lambda machine: machine.disk(fstype="xfs"),
    "in use": lambda machine: machine.disk(mountpoint="/ephemeral"),
    "a bit at its beginning": lambda machine: machine.disk(content=b"\1", at=EDGE_BYTES - 1),
    "a bit at its end": lambda machine: machine.disk(content=b"\1", at=-1),
    "unreadable": lambda machine: machine.disk(path="/nonexistent/vdb"),
    "without a size": lambda machine: machine.disk(size=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make", NEVER.values(), ids=NEVER)
def test_no_other_disk_is_ever_formatted(machine: Machine, make: Callable[[Machine], str]) -> None:
    make(machine)
    assert mounted(machine) != ""
    assert machine.formatted == []


def test_of_two_blank_disks_of_the_size_neither_is_formatted(machine: Machine) -> None:
    """One of them may be the machine's own ephemeral disk."""
    machine.disk("vdb")
    machine.disk("vdc")
    assert "are blank and of its size" in mounted(machine)
    assert machine.formatted == []


def test_a_hint_names_the_one_device_that_may_be_formatted(machine: Machine) -> None:
    machine.disk("vdb")
    wanted = machine.disk("vdc")
    assert mounted(machine, wanted) == ""
    assert machine.formatted == [wanted]
