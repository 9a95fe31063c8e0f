"""The `docker` command of a simulated machine: the verbs that boot programs use, refusing what it does not know.

Output of containers is not told apart into stdout and stderr. Restart policies, networks and limits are accepted and
have no effect, except that a restart policy other than `no` is refused, since nothing would restart.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from . import docker_run, docker_store
from .docker_options import Options, environment, parse, render, volume
from .docker_store import Container, DockerError

RUN_FLAGS = "-d --detach --rm --init --privileged -i --interactive -t --tty -it"
RUN_VALUED = (
    "--name -v --volume -e --env --env-file -w --workdir --gpus --shm-size --network --net --ipc --pid --ulimit"
    " --log-driver --log-opt --entrypoint -u --user -l --label -h --hostname -m --memory --cpus --pull --restart"
    " --stop-timeout --stop-signal --cap-add --cap-drop --security-opt --device --runtime --platform"
)


def main(arguments: list[str]) -> int:
    verbs: dict[str, Callable[[list[str]], int]] = {
        "run": run,
        "pull": pull,
        "info": info,
        "version": version,
        "ps": ps,
        "inspect": inspect,
        "logs": logs,
        "wait": wait,
        "stop": stop,
        "kill": kill,
        "rm": remove,
        "images": list_images,
        "image": image,
        "container": lambda rest: main(rest),
    }
    try:
        if not arguments or arguments[0] not in verbs:
            raise DockerError(f"docker: '{' '.join(arguments[:1])}' is not a command of this simulation", 125)
        return verbs[arguments[0]](arguments[1:])
    except DockerError as error:
        print(error, file=sys.stderr)
        return error.status


def run(arguments: list[str]) -> int:
    options, rest = parse(arguments, RUN_FLAGS, RUN_VALUED, command_follows=True)
    if not rest:
        raise DockerError('"docker run" requires at least 1 argument.', 125)
    if options.one("--restart", default="no") != "no":
        raise DockerError("docker: --restart is not part of this simulation", 125)
    wanted = rest[0]
    if wanted not in docker_store.images():
        _pull(wanted, sys.stderr)
    container = _container(options, wanted, rest[1:])
    container.save()
    container = docker_run.start(container)
    if options.any("-d", "--detach"):
        print(container.id)
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda caught, _: _signal(container, caught))
    status = _follow(container)
    if options.any("--rm"):
        docker_store.discard(container)
    return status


def pull(arguments: list[str]) -> int:
    options, rest = parse(arguments, "-q --quiet", "--platform")
    if len(rest) != 1:
        raise DockerError('"docker pull" requires exactly 1 argument.')
    _pull(rest[0], sys.stderr if options.any("-q", "--quiet") else sys.stdout)
    return 0


def info(_: list[str]) -> int:
    _ready()
    running = [container for container in docker_store.load_all() if container.status == "running"]
    print(f"Server:\n Containers: {len(docker_store.load_all())}\n  Running: {len(running)}")
    print(" Server Version: 27.0.0\n Runtimes: nvidia runc\n Default Runtime: runc")
    return 0


def version(_: list[str]) -> int:
    _ready()
    print("Docker version 27.0.0, build simulated")
    return 0


def ps(arguments: list[str]) -> int:
    options, _ = parse(arguments, "-a --all -q --quiet --no-trunc -aq -qa", "-f --filter --format")
    everyone = options.any("-a", "--all", "-aq", "-qa")
    found = [container for container in docker_store.load_all() if everyone or container.status == "running"]
    for rule in options.all("-f", "--filter"):
        key, _, value = rule.partition("=")
        if key not in ("name", "status", "id"):
            raise DockerError(f"invalid filter '{key}'")
        found = [container for container in found if re.search(value, str(getattr(container, key)))]
    if options.any("-q", "--quiet", "-aq", "-qa"):
        lines = [container.id if options.any("--no-trunc") else container.id[:12] for container in found]
    elif options.any("--format"):
        lines = [render(options.one("--format", default=""), _row(container)) for container in found]
    else:
        lines = ["CONTAINER ID   IMAGE   COMMAND   STATUS   NAMES"]
        lines += [f"{c.id[:12]}   {c.image}   {' '.join(c.command)[:20]!r}   {c.status}   {c.name}" for c in found]
    for line in lines:
        print(line)
    return 0


def inspect(arguments: list[str]) -> int:
    options, rest = parse(arguments, "", "-f --format --type")
    found = [_details(docker_store.load(name)) for name in rest]
    if not options.any("-f", "--format"):
        print(json.dumps(found, indent=4))
        return 0
    for details in found:
        print(render(options.one("-f", "--format", default=""), details))
    return 0


def logs(arguments: list[str]) -> int:
    options, rest = parse(arguments, "-f --follow", "--tail -n")
    container = docker_store.load(rest[0] if rest else "")
    text = container.log.read_bytes() if container.log.exists() else b""
    tail = options.one("--tail", "-n", default="all")
    lines = text.splitlines(keepends=True)
    _write(text if tail == "all" else b"".join(lines[max(0, len(lines) - int(tail)) :]))
    if options.any("-f", "--follow"):
        _follow(container, len(text))
    return 0


def wait(arguments: list[str]) -> int:
    for name in arguments:
        print(docker_store.wait_for_end(docker_store.load(name)).exit_code, flush=True)
    return 0


def stop(arguments: list[str]) -> int:
    options, rest = parse(arguments, "", "-t --time -s --signal")
    for name in rest:
        container = docker_store.load(name)
        patience = float(options.one("-t", "--time", default=str(container.stop_s)))
        _signal(container, signal.SIGTERM)
        if docker_store.wait_for_end(container, patience).exit_code is None:
            _signal(container, signal.SIGKILL)
            docker_store.wait_for_end(container)
        print(name)
    return 0


def kill(arguments: list[str]) -> int:
    options, rest = parse(arguments, "", "-s --signal")
    name = options.one("-s", "--signal", default="KILL")
    number = int(name) if name.isdigit() else signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"].value
    for wanted in rest:
        container = docker_store.load(wanted)
        if container.status != "running":
            raise DockerError(f"Error response from daemon: container {wanted} is not running")
        _signal(container, number)
        print(wanted)
    return 0


def remove(arguments: list[str]) -> int:
    options, rest = parse(arguments, "-f --force -v -fv")
    force = options.any("-f", "--force", "-fv")
    for name in rest:
        container = docker_store.load(name)
        if container.status == "running":
            if not force:
                raise DockerError(f"Error response from daemon: cannot remove container {name!r}: it is running")
            _signal(container, signal.SIGKILL)
            container = docker_store.wait_for_end(container)
        docker_store.discard(container)
        print(name)
    return 0


def list_images(_: list[str]) -> int:
    print("\n".join(["REPOSITORY:TAG", *docker_store.images()]))
    return 0


def image(arguments: list[str]) -> int:
    if arguments[:1] == ["ls"]:
        return list_images([])
    if len(arguments) != 2 or arguments[0] != "inspect":
        raise DockerError("docker image: only `ls` and `inspect IMAGE` are part of this simulation", 125)
    if arguments[1] not in docker_store.images():
        raise DockerError(f"Error response from daemon: No such image: {arguments[1]}")
    print(json.dumps([{"RepoTags": [arguments[1]]}]))
    return 0


def _container(options: Options, wanted: str, command: list[str]) -> Container:
    identity = docker_store.new_id()
    name = options.one("--name", default=f"box_{identity[:8]}")
    if any(other.name == name for other in docker_store.load_all()):
        message = f'Conflict. The container name "/{name}" is already in use'
        raise DockerError(f"docker: Error response from daemon: {message}", 125)
    command = options.all("--entrypoint") + command
    if not command:
        raise DockerError("docker: Error response from daemon: no command specified", 125)
    hostname = options.one("-h", "--hostname", default=os.uname().nodename)
    return Container(
        id=identity,
        name=name,
        image=wanted,
        command=command,
        env=docker_run.base_environment(hostname) | environment(options),
        volumes=[volume(text) for text in options.all("-v", "--volume")],
        init=options.any("--init"),
        stop_s=float(options.one("--stop-timeout", default="10")),
        workdir=options.one("-w", "--workdir", default="/"),
        hostname=hostname,
        created=time.time(),
    )


def _pull(wanted: str, out: TextIO) -> None:
    _ready()
    settings = docker_run.machine()
    if wanted in docker_run.strings(settings, "refused_images"):
        raise DockerError(f"Error response from daemon: manifest for {wanted} not found: manifest unknown")
    time.sleep(_number(settings, "pull_s"))
    docker_store.add_image(wanted)
    print(f"Status: Downloaded newer image for {wanted}", file=out)


def _ready() -> None:
    """Docker comes up some time after the machine, as on a real one."""
    up = time.time() - Path("/sim/machine.json").stat().st_mtime
    if up < _number(docker_run.machine(), "docker_ready_s"):
        raise DockerError("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?")


def _number(settings: dict[str, object], key: str) -> float:
    value = settings.get(key, 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _follow(container: Container, position: int = 0) -> int:
    """Pass on what the container prints until it ends; its exit status."""
    while True:
        ended = docker_store.refresh(container).exit_code
        with container.log.open("rb") as log:
            log.seek(position)
            fresh = log.read()
        position += len(fresh)
        _write(fresh)
        if ended is not None:
            return ended
        time.sleep(0.1)


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _signal(container: Container, number: int) -> None:
    pid = docker_store.refresh(container).pid
    if pid:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return


def _row(container: Container) -> dict[str, object]:
    return {
        "ID": container.id[:12],
        "Names": container.name,
        "Image": container.image,
        "State": container.status,
        "Status": container.status,
    }


def _details(container: Container) -> dict[str, object]:
    return {
        "Id": container.id,
        "Name": f"/{container.name}",
        "State": {
            "Status": container.status,
            "Running": container.status == "running",
            "Paused": False,
            "Restarting": False,
            "OOMKilled": False,
            "Dead": False,
            "Pid": container.pid,
            "ExitCode": container.exit_code or 0,
            "Error": "",
            "StartedAt": _stamp(container.started),
            "FinishedAt": _stamp(container.finished),
        },
        "Config": {"Image": container.image, "Cmd": container.command, "WorkingDir": container.workdir},
        "LogPath": str(container.log),
    }


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)) if at else "0001-01-01T00:00:00Z"
