"""The first process of a simulated machine: builds its private root, enters it, does what cloud-init would, and stays.

Reads its plan as JSON from stdin. The first line on stdout is `box: up` or `box: <what is missing>`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

from . import docker_store, room

PATH = "/sim/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENVIRONMENT = {"PATH": PATH, "LANG": "C.UTF-8"}  # what systemd gives to cloud-final: no HOME
DIRECTORIES = ("etc", "home", "media", "mnt", "opt", "run", "runcode", "sim", "srv", "sys", "var/lib/cloud", "var/log")
DONE = Path("/var/lib/cloud/instance/boot-finished")
SCRIPT = Path("/var/lib/cloud/instance/scripts/runcmd")
TERM_GRACE_S = 5.0
POWERED_OFF = 0


def main() -> NoReturn:
    plan = json.loads(sys.stdin.buffer.read())
    try:
        build(Path(plan["root"]), plan)
    except OSError as error:
        print(f"box: {error}", flush=True)
        sys.exit(1)
    with Path("/dev/null").open() as nothing:
        os.dup2(nothing.fileno(), 0)
    signal.signal(signal.SIGTERM, _power_off)
    print("box: up", flush=True)
    docker_store.lost_power()
    if not DONE.exists():  # cloud-init runs these once in a machine's life, not at every boot
        _first_boot(plan)
    _reap_for_ever()


def build(root: Path, plan: dict[str, object]) -> None:
    """The machine's file system; everything that is not bound read-only is its own and stays in `root`."""
    room.make_private()
    socket.sethostname(str(plan["hostname"]))
    room.make_directories(root, DIRECTORIES)
    room.bind(root, root)
    room.bind_system(Path("/"), root)
    room.bind(Path("/usr"), root / "sim" / "usr", read_only=True)
    room.bind_etc(Path("/etc"), root)
    room.fill_dev(Path("/dev"), root)
    room.fill_proc(root)
    for number, place in enumerate(_strings(plan["python"])):
        room.bind(Path(place), root / "sim" / "python" / str(number), read_only=True)
    for place in _strings(plan["host_python"]):
        room.bind(Path(place), root / place.lstrip("/"), read_only=True)
    tools = Path(str(plan["tools"]))
    room.bind(tools, root / "sim" / "tools", read_only=True)
    room.bind(tools / "bin", root / "sim" / "bin", read_only=True)
    _hide_real_tools(root, tools / "bin")
    (root / "etc" / "hostname").write_text(f"{plan['hostname']}\n")
    (root / "sim" / "machine.json").write_text(json.dumps(plan["machine"]))
    (root / "sim" / "gpu").write_text(f"{plan['gpu']}\n")
    room.enter(root)


def _hide_real_tools(root: Path, tools: Path) -> None:
    """A payload must not reach this computer's own docker or poweroff, also not by their full paths."""
    for tool in tools.iterdir():
        for folder in ("usr/bin", "usr/sbin", "usr/local/bin", "usr/local/sbin"):
            real = root / folder / tool.name
            if real.is_file() and not real.is_symlink():
                room.bind(tool, real, read_only=True)


def _first_boot(plan: dict[str, object]) -> None:
    files = plan["files"]
    assert isinstance(files, list)
    for item in files:
        _write_file(Path(item["path"]), base64.b64decode(item["content"]), int(item["mode"]), bool(item["append"]))
    script = str(plan["script"])
    SCRIPT.parent.mkdir(parents=True, exist_ok=True)
    _write_file(SCRIPT, script.encode(), 0o700, False)
    started = time.monotonic()
    process = subprocess.Popen(
        [str(SCRIPT)], env=ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, start_new_session=True
    )
    status = _wait_for(process.pid)
    DONE.write_text(f"{status}\n")
    took = time.monotonic() - started
    print(f"box: cloud-init finished, status {status}, after {took:.1f} s", flush=True)


def _write_file(path: Path, content: bytes, mode: int, append: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC), 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    path.chmod(mode)


def _wait_for(pid: int) -> int:
    """Reap whatever ends, as a first process must, until this one does."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _reap_for_ever() -> NoReturn:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.05)


def _power_off(_signal: int, _frame: object) -> NoReturn:
    """What `poweroff` leads to: everybody is asked to stop, then everything ends with this process."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("box: powering off", flush=True)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGTERM)
    end = time.monotonic() + TERM_GRACE_S
    while time.monotonic() < end:
        try:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.05)
        except ChildProcessError:
            break
    os._exit(POWERED_OFF)


def _strings(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in value]
