"""What the stand-in for docker remembers about its containers: one directory each, below /var/lib/sim-docker."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

HOME = Path("/var/lib/sim-docker")


class DockerError(Exception):
    """Printed as docker prints its errors; `status` is the exit status."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Container:
    """`pid` is 0 before the start and after the end; `exit_code` None while it has not ended."""

    id: str
    name: str
    image: str
    command: list[str]
    env: dict[str, str]
    volumes: list[list[str]] = field(default_factory=list)
    workdir: str = "/"
    init: bool = False
    stop_s: float = 10.0
    hostname: str = "box"
    labels: dict[str, str] = field(default_factory=dict)
    created: float = 0.0
    started: float = 0.0
    finished: float = 0.0
    pid: int = 0
    exit_code: int | None = None

    @property
    def directory(self) -> Path:
        return HOME / "containers" / self.id

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def status(self) -> str:
        if self.exit_code is not None:
            return "exited"
        return "running" if self.pid else "created"

    def save(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        target = self.directory / "container.json"
        draft = target.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(target)


def new_id() -> str:
    return secrets.token_hex(32)


def load_all() -> list[Container]:
    """Newest first, as `docker ps` lists them."""
    found = [_load(path) for path in (HOME / "containers").glob("*/container.json")]
    return sorted(found, key=lambda container: container.created, reverse=True)


def load(name: str) -> Container:
    """By name, id or the beginning of an id."""
    for container in load_all():
        if container.name == name or (name and container.id.startswith(name)):
            return container
    raise DockerError(f"Error response from daemon: No such container: {name}")


def refresh(container: Container) -> Container:
    return _load(container.directory / "container.json")


def discard(container: Container) -> None:
    """Forget a container that does not run. What was bound into its root was bound in its own namespace only."""
    shutil.rmtree(container.directory)


def wait_for_end(container: Container, limit_s: float | None = None) -> Container:
    end = None if limit_s is None else time.monotonic() + limit_s
    while container.exit_code is None and (end is None or time.monotonic() < end):
        time.sleep(0.05)
        container = refresh(container)
    return container


def lost_power() -> None:
    """At a boot: whatever the record says still runs was killed with the machine."""
    for container in load_all():
        if container.pid and container.exit_code is None:
            container.pid, container.exit_code = 0, 137
            container.save()


def images() -> dict[str, float]:
    """Pulled image -> when."""
    try:
        found = json.loads((HOME / "images.json").read_text())
    except FileNotFoundError:
        return {}
    return {str(name): float(when) for name, when in found.items()}


def add_image(image: str) -> None:
    HOME.mkdir(parents=True, exist_ok=True)
    draft = HOME / f"images.{os.getpid()}"
    draft.write_text(json.dumps({**images(), image: time.time()}))
    draft.replace(HOME / "images.json")


def _load(path: Path) -> Container:
    return Container(**json.loads(path.read_text()))
