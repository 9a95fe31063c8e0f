"""How a simulated machine is started on this computer: which Pythons it gets, and the command that isolates it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

HOST_PYTHON = Path("/usr/bin/python3")
SAME_TOOL = {"poweroff": ("shutdown", "halt"), "iptables": ("ip6tables",)}
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
# What root inside a machine may not do to this computer; without effect where a user namespace takes all of it away.
DROPPED = (
    "sys_module",
    "sys_rawio",
    "sys_time",
    "sys_boot",
    "mknod",
    "syslog",
    "net_admin",
    "net_raw",
    "linux_immutable",
    "mac_admin",
    "mac_override",
    "audit_control",
    "sys_tty_config",
)


class BoxIsolationError(RuntimeError):
    """This computer cannot isolate a machine; the text says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Pythons:
    """`host`: plain, without huggingface_hub, for the machine; `at`: directories of the container's environment."""

    host: str
    host_arguments: tuple[str, ...]
    host_at: tuple[str, ...]
    at: tuple[str, ...]
    bin: str


@cache
def find_pythons() -> Pythons:
    """The container's Python is the one that runs this; everything below /usr is there anyway."""
    base = str(Path(sys.base_prefix).resolve())
    places = [place for place in dict.fromkeys((base, sys.prefix)) if not Path(place).is_relative_to("/usr")]
    outer = [place for place in places if not any(_inside(place, other) for other in places)]
    scripts = sysconfig.get_path("scripts")
    if not HOST_PYTHON.exists():
        executable = str(Path(sys.executable).resolve())
        extra = () if Path(base).is_relative_to("/usr") else (base,)
        return Pythons(executable, ("-S",), extra, tuple(outer), scripts)
    asked = [str(HOST_PYTHON), "-E", "-s", "-c", "import huggingface_hub"]
    has_hub = subprocess.run(asked, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0
    return Pythons(str(HOST_PYTHON), ("-S",) if has_hub else (), (), tuple(outer), scripts)


def install_tools(target: Path, pythons: Pythons) -> None:
    """Copy the stand-ins, which may have lost their executable bit in a wheel, to where machines find them."""
    source = resources.files("flashd.sim") / "standins"
    library, programs, container = target / "lib" / "standins", target / "bin", target / "container"
    for folder in (library, programs, container):
        folder.mkdir(parents=True, exist_ok=True)
    for module in source.iterdir():
        if module.name.endswith(".py"):
            (library / module.name).write_bytes(module.read_bytes())
    for program in (source / "bin").iterdir():
        for name in (program.name, *SAME_TOOL.get(program.name, ())):
            _script(programs / name, program.read_text())
    _script(container / "nvidia-smi", (source / "bin" / "nvidia-smi").read_text())
    (target / "python").write_text(f"{pythons.host}\n")
    if pythons.host_arguments:
        _script(programs / "python3", f'#!/bin/sh\nexec {pythons.host} {" ".join(pythons.host_arguments)} "$@"\n')
    if not (Path(pythons.bin) / "python").exists():
        _script(container / "python", f'#!/bin/sh\nexec {sys.executable} "$@"\n')


def isolated(command: list[str]) -> list[str]:
    """The command line that runs `command` as the first process of a machine, and ends it with this process."""
    program = ["setpriv", "--pdeathsig", "KILL"]
    namespaces = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child=KILL"]
    if os.geteuid() == 0:
        program.append("--bounding-set=" + ",".join(f"-{name}" for name in DROPPED))
    else:
        namespaces += ["--user", "--map-root-user"]
    return [*program, *namespaces, "--", *command]


def init_command(tools: Path, pythons: Pythons) -> list[str]:
    code = f"import sys; sys.path[0] = {str(tools / 'lib')!r}; from standins.boxinit import main; main()"
    return isolated([pythons.host, "-E", "-s", "-S", "-c", code])


async def check_isolation() -> None:
    """Raises BoxIsolationError, naming what is missing."""
    for program in ("unshare", "setpriv"):
        if shutil.which(program, path=ENVIRONMENT["PATH"]) is None:
            raise BoxIsolationError(f"`{program}` is missing; it is part of the package util-linux")
    trial = isolated(["sh", "-c", "mount --make-rprivate / && mount -t proc proc /proc"])
    process = await asyncio.create_subprocess_exec(
        *trial, env=ENVIRONMENT, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode != 0:
        raise BoxIsolationError(_explain(errors.decode(errors="replace").strip()))


def _explain(errors: str) -> str:
    if os.geteuid() == 0:
        return (
            f"this computer lets root make no mount and process namespaces ({errors}); "
            "in a container it needs the capability SYS_ADMIN and an unmasked /proc"
        )
    reasons = [
        f"{name} is {value}"
        for name, closed in (
            ("kernel/unprivileged_userns_clone", "0"),
            ("user/max_user_namespaces", "0"),
            ("kernel/apparmor_restrict_unprivileged_userns", "1"),
        )
        if (value := _sysctl(name)) == closed
    ]
    found = "; ".join(reasons) or "in a container, /proc may be masked"
    return (
        f"this computer lets no ordinary user make user namespaces ({errors}): {found}. "
        "Run as root, or let an administrator change that setting"
    )


def _sysctl(name: str) -> str | None:
    try:
        return (Path("/proc/sys") / name).read_text().strip()
    except OSError:
        return None


def _inside(place: str, other: str) -> bool:
    return place != other and Path(place).is_relative_to(other)


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
