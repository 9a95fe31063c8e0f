"""The daemon's log lines as values with virtual times, instead of text on a terminal."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog

from tests.simulation.loop import PROCESS, VirtualLoop


@dataclass(frozen=True, slots=True)
class LogLine:
    """`error` is the traceback of a line that was logged with an exception."""

    at: float
    process: str
    level: str
    event: str
    facts: Mapping[str, object]
    error: str = ""

    def __str__(self) -> str:
        facts = " ".join(f"{key}={value}" for key, value in self.facts.items())
        return (
            f"{self.at - 1_800_000_000.0:10.1f} {self.process} {self.level} {self.event} {facts}\n{self.error}".strip()
        )


@contextmanager
def logs_to(loop: VirtualLoop, take: Callable[[LogLine], None]) -> Iterator[None]:
    """Send every structlog line to `take` while the simulation runs."""

    def collect(_logger: Any, level: str, line: MutableMapping[str, Any]) -> Mapping[str, Any]:
        event = str(line.pop("event", ""))
        failed = bool(line.pop("exc_info", None)) and sys.exc_info()[0] is not None
        take(LogLine(loop.wall(), PROCESS.get(), level, event, dict(line), traceback.format_exc() if failed else ""))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[collect], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
