"""Time and chance as the composition root injects them. The only module of the daemon that reads a real clock."""

from __future__ import annotations

import random
import time
from typing import Protocol


class Clock(Protocol):
    """Two readings: `now` for stamps that are persisted or compared with others', `monotonic` for leases."""

    def now(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""


class Random(Protocol):
    """What flashd needs of chance."""

    def random(self) -> float: ...
    def uniform(self, a: float, b: float) -> float: ...
    def randbytes(self, n: int) -> bytes: ...


class SystemClock:
    """The real clock. `now` starts at the wall clock and advances with the monotonic one, so that a stepped wall
    clock (NTP, an operator) changes no verdict of a running daemon."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        return self._offset + time.monotonic()

    def monotonic(self) -> float:
        return time.monotonic()


def system_random() -> Random:
    """Chance from the operating system."""
    return random.SystemRandom()
