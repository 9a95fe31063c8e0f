"""The weight cache's disk on the host: found by its label, formatted only when there can be no doubt."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from bootstrap.job import PACE, Job

TRIES, PAUSE_S = 60, 5.0  # the disk is attached while the machine runs already
LABEL_LOOKS = 12  # so long a disk that carries the label may still arrive; only then a blank one is taken
EDGE_BYTES = 2**20
Command = Callable[["list[str]"], "tuple[int, str]"]


def mount_cache(job: Job, mount_point: Path, command: Command, pause_s: float = PAUSE_S * PACE) -> str:
    """Why the cache is not mounted at `mount_point`, or "". Raises OSError."""
    if not job.cache_mount:
        return "no cache disk is asked for"
    mount_point.mkdir(parents=True, exist_ok=True)
    text = ""
    for look in range(TRIES):
        code, text = command(["mount", "-L", job.cache_label, str(mount_point)])
        if not code:
            (mount_point / job.cache_marker).touch()  # on the disk itself
            return ""
        blank = blank_disks(job, command)
        if len(blank) == 1 and look >= LABEL_LOOKS:
            text = f"formatted {blank[0]}: {command(['mkfs.ext4', '-q', '-F', '-L', job.cache_label, blank[0]])}"
        elif len(blank) > 1:
            text = f"{' and '.join(blank)} are blank and of its size"
        time.sleep(pause_s)
    return f"cache disk {job.cache_label} cannot be mounted: {text}"


def blank_disks(job: Job, command: Command) -> list[str]:
    """Whole disks of exactly the size asked for, in GB or GiB, that nobody uses and nothing is written on."""
    _, text = command(["lsblk", "-Jbo", "PATH,SIZE,TYPE,FSTYPE,MOUNTPOINT"])
    sizes = (job.cache_size_gb * 10**9, job.cache_size_gb * 2**30)
    try:
        return [
            disk["path"]
            for disk in json.loads(text)["blockdevices"]
            if disk["type"] == "disk"
            and int(disk["size"]) in sizes
            and not (disk.get("children") or disk["fstype"] or disk["mountpoint"])
            and job.cache_hint in ("", disk["path"])
            and _is_blank(Path(disk["path"]))
        ]
    except (ValueError, KeyError, TypeError, OSError):  # unreadable: none of them is known to be blank
        return []


def _is_blank(path: Path) -> bool:
    """Partition tables and the signatures of file systems, RAID and LVM all lie at one end or the other."""
    with path.open("rb") as disk:
        head = disk.read(EDGE_BYTES)
        disk.seek(-EDGE_BYTES, os.SEEK_END)
        return not (head + disk.read()).strip(b"\0")
