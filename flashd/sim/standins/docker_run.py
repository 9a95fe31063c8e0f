"""Runs one container: a command as the first process of its own process and mount namespace, in a root of its own.

The image is not looked at. Every container has the system's programs, and as `python` the environment that the
simulation was given, in its own place.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import NoReturn

from . import room
from .docker_store import Container, DockerError, refresh, wait_for_end

DIRECTORIES = ("etc", "home", "mnt", "opt", "run", "sim", "srv", "sys", "var/lib", "var/log")
NOT_FOUND, NOT_EXECUTABLE, BROKEN = 127, 126, 125
RECORD_S = 5.0  # at most, for the supervisor to write down that the container has ended


def start(container: Container) -> Container:
    """Start it under a supervisor that outlives this command; returns when its command runs or could not be run.

    Raises DockerError with docker's own exit statuses.
    """
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _supervise(container, tell)
    os.close(tell)
    os.waitpid(child, 0)
    with os.fdopen(told, "rb") as pipe:
        trouble = pipe.read().decode()
    if trouble:
        wait_for_end(container, RECORD_S)
        status, _, message = trouble.partition(" ")
        raise DockerError(f"docker: Error response from daemon: {message}", int(status))
    return refresh(container)


def _supervise(container: Container, tell: int) -> NoReturn:
    """Twice forked and in a session of its own, so that it belongs to the machine and not to the command."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    log = os.open(container.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open("/dev/null", os.O_RDONLY)
    for target, source in enumerate((nothing, log, log)):
        os.dup2(source, target)
    try:
        room.own_pids_for_children()
        first = os.fork()
    except OSError as error:
        container.exit_code = BROKEN
        container.save()
        os.write(tell, f"{BROKEN} {error}".encode())
        os._exit(1)
    if first == 0:
        _become(container, tell)
    container.pid, container.started = first, time.time()
    container.save()
    os.close(tell)
    _, status = os.waitpid(first, 0)
    code = os.waitstatus_to_exitcode(status)
    container.exit_code = 128 - code if code < 0 else code
    container.pid, container.finished = 0, time.time()
    container.save()
    os._exit(0)


def _become(container: Container, tell: int) -> NoReturn:
    """Close-on-exec ends the pipe when the command runs; anything written to it before is why it could not."""
    try:
        room.die_with_parent()
        room.own_mounts()
        _build(container)
        os.chdir(container.workdir)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and what is ignored stays so over exec
        if container.init and (child := os.fork()) != 0:
            os.close(tell)
            _serve_as_init(child)
        os.execvpe(container.command[0], container.command, container.env)
    except FileNotFoundError:
        trouble = f'{NOT_FOUND} exec: "{container.command[0]}": executable file not found in $PATH'
    except PermissionError as error:
        trouble = f"{NOT_EXECUTABLE} {error}"
    except OSError as error:
        trouble = f"{BROKEN} {error}"
    os.write(tell, trouble.encode())
    os._exit(int(trouble.split()[0]))


def _serve_as_init(child: int) -> NoReturn:
    """`--init`: pass signals on, so that they have their usual effect, and reap what nobody waits for."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda caught, _: os.kill(child, caught))
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


def _build(container: Container) -> None:
    root = container.directory / "root"
    room.make_directories(root, DIRECTORIES)
    room.bind(root, root)
    # The machine's own /usr has stand-ins over it; the copy below /sim does not.
    system = Path("/sim/usr")
    for name in room.SYSTEM:
        there = Path("/") / name
        if there.is_symlink():
            (root / name).symlink_to(there.readlink())
        elif name == "usr":
            room.bind(system, root / "usr")
        elif there.is_dir():
            room.bind(there, root / name)
    room.bind(Path("/etc"), root / "etc")
    room.fill_dev(Path("/dev"), root)
    room.fill_proc(root)
    room.bind(Path("/sim/tools/container"), root / "sim" / "bin")
    room.bind(Path("/sim/gpu"), root / "sim" / "gpu", read_only=True)
    for number, place in enumerate(strings(machine(), "python_at")):
        room.bind(Path("/sim/python") / str(number), root / place.lstrip("/"))
    for source, target, mode in container.volumes:
        if not Path(source).exists():
            Path(source).mkdir(parents=True)
        room.bind(Path(source), root / target.lstrip("/"), read_only=mode == "ro")
    (root / container.workdir.lstrip("/")).mkdir(parents=True, exist_ok=True)
    room.enter(root)


def machine() -> dict[str, object]:
    found = json.loads(Path("/sim/machine.json").read_text())
    assert isinstance(found, dict)
    return found


def strings(settings: dict[str, object], key: str) -> list[str]:
    value = settings.get(key, [])
    return [str(item) for item in value] if isinstance(value, list) else []


def base_environment(hostname: str) -> dict[str, str]:
    """What an image sets: nothing of the machine's environment gets in by itself."""
    folders = [*strings(machine(), "python_bin"), "/sim/bin", "/usr/local/sbin", "/usr/local/bin"]
    path = ":".join([*folders, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
    return {"PATH": path, "HOME": "/root", "HOSTNAME": hostname, "LANG": "C.UTF-8"}
