"""What an operator sees of a daemon of the simulation: /statusz, /readyz and /metrics without the HTTP around them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashd.config import Settings
from flashd.daemon.admin import Admin, Told
from flashd.daemon.health import Health
from flashd.daemon.metrics import Metrics
from flashd.daemon.process import log_alarms
from flashd.daemon.reload import Means, Reloader
from flashd.daemon.supervisor import Daemon
from flashd.logs import Recent
from flashd.redaction import Redactor
from tests.simulation.sim import World, real_settings

_SAMPLE = re.compile(r"^(flashd_\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Labels = frozenset[tuple[str, str]]


def samples(text: str) -> dict[tuple[str, Labels], float]:
    """Every sample of an exposition: name and labels -> value."""
    return {
        (name, frozenset(_LABEL.findall(labels or ""))): float(value) for name, labels, value in _SAMPLE.findall(text)
    }


@dataclass(frozen=True, slots=True)
class Seen:
    """One daemon's outside."""

    daemon: Daemon
    health: Health
    metrics: Metrics
    admin: Admin
    reloader: Reloader

    @property
    def status(self) -> dict[str, Any]:
        return self.admin.status()

    @property
    def alarms(self) -> dict[str, str]:
        listed: Any = self.status["alarms"]
        return {one["alarm"]: one["detail"] for one in listed}

    @property
    def text(self) -> str:
        return self.metrics.text().decode()

    def value(self, name: str, **labels: str) -> float | None:
        """One sample, None when it is not there."""
        return samples(self.text).get((name, frozenset(labels.items())))


def seen(world: World, read: Callable[[], Settings] = real_settings) -> Seen:
    """The outside of the daemon that runs now, its alarms logged as the process logs them."""
    (life,) = world.living()
    daemon, metrics = life.daemon, Metrics()
    health = Health(daemon)
    metrics.watch(daemon, health)
    log_alarms(daemon.desk.alarms)
    reloader = Reloader(daemon.desk, real_settings(), Means(read, _nothing, _no_redis, _nothing))
    told = Told(health, metrics, reloader, Redactor(), Recent())
    return Seen(daemon, health, metrics, Admin(daemon, told, ""), reloader)


def _nothing(_value: object) -> None:
    return None


async def _no_redis(url: str) -> None:
    raise AssertionError(f"{url}: the simulated Redis has no address")
