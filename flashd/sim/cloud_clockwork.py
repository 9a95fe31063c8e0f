"""Due events of the simulated cloud, in order of time. Nothing runs by itself: `advance` is called by whoever looks."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Owner(Protocol):
    """An event counts only while its owner's epoch is the one it was planned under."""

    epoch: int


@dataclass(order=True, slots=True)
class _Due:
    at: float
    order: int
    owner: Owner = field(compare=False)
    epoch: int = field(compare=False)
    step: Callable[[float], None] = field(compare=False)


class Clockwork:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._due: list[_Due] = []
        self._order = 0

    def plan(self, at: float, owner: Owner, step: Callable[[float], None]) -> None:
        """Call `step(at)` once time has reached `at`, unless the owner was replanned before."""
        self._order += 1
        heapq.heappush(self._due, _Due(at, self._order, owner, owner.epoch, step))

    def replan(self, owner: Owner) -> None:
        """Forget everything planned for this owner."""
        owner.epoch += 1

    def advance(self) -> None:
        """Let everything due happen, each at its own time, however late this is called."""
        now = self.now()
        while self._due and self._due[0].at <= now:
            due = heapq.heappop(self._due)
            if due.owner.epoch == due.epoch:
                due.step(due.at)
