"""Everything that leaves a simulated process passes here: latency, injected faults, crash points, the trace."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tests.simulation.loop import PROCESS, WORLD, VirtualLoop

CALL_LATENCY_S = (0.02, 0.4)
REDIS_LATENCY_S = (0.0005, 0.003)


class Fault(StrEnum):
    """What can happen to one call. BROKEN: no effect, no usable answer. LOST: effect, no answer."""

    THROTTLED = "throttled"
    BROKEN = "broken"
    LOST = "lost"
    UNAUTHORISED = "unauthorised"
    NOT_SENT = "not_sent"
    NO_STOCK = "no_stock"
    REJECTED = "rejected"
    NO_ID = "no_id"
    LIE = "lie"  # a delete that is answered well and does nothing
    CONFLICT = "conflict"  # a delete that is answered 409 and does nothing
    DROPPED = "dropped"  # a list that silently lacks one machine, a look-up by id that answers 404


@dataclass(slots=True)
class Faults:
    """Faults by kind of call: the scripted ones first, in order (None = all well), then by chance."""

    chance: random.Random
    scripted: dict[str, deque[Fault | None]] = field(default_factory=lambda: defaultdict(deque))
    rates: Mapping[str, Mapping[Fault, float]] = field(default_factory=dict)
    standing: dict[str, Fault] = field(default_factory=dict)  # every call of the kind, until it is taken out
    injected: Counter[str] = field(default_factory=Counter)

    def draw(self, kind: str) -> Fault | None:
        fault = self._draw(kind)
        if fault is not None:
            self.injected[f"{kind} {fault}"] += 1
        return fault

    def _draw(self, kind: str) -> Fault | None:
        if self.scripted[kind]:
            return self.scripted[kind].popleft()
        if kind in self.standing:
            return self.standing[kind]
        for fault, rate in self.rates.get(kind, {}).items():
            if self.chance.random() < rate:
                return fault
        return None


class Wire:
    """Crash points are numbered in the order in which processes reach them; `crash_at` is one of them."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.latency = random.Random(f"latency {seed}")
        self.points = 0
        self.crash_at: int | None = None
        self.on_crash: Callable[[str], None] = lambda _process: None
        self.lines: list[str] | None = None  # kept when somebody wants to read the trace
        self.reached: list[str] = []  # what each crash point was about
        self._trace = hashlib.blake2b(digest_size=12)

    def note(self, *facts: object) -> None:
        """One line of the trace: two runs of one seed must give the same."""
        line = f"{self.loop.time():.6f} {PROCESS.get()} " + " ".join(str(fact) for fact in facts)
        self._trace.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    def trace(self) -> str:
        return self._trace.hexdigest()

    async def leave(self, what: str, latency_s: tuple[float, float] = CALL_LATENCY_S) -> None:
        """The call is on its way; nothing has happened yet."""
        await self._point(f"before {what}")
        await asyncio.sleep(self.latency.uniform(*latency_s))
        self.note(what)

    async def come_back(self, latency_s: tuple[float, float] = CALL_LATENCY_S, what: str = "an answer") -> None:
        """The effect has happened; the answer is on its way."""
        await self._point(f"after {what}")
        await asyncio.sleep(self.latency.uniform(*latency_s))

    async def _point(self, what: str) -> None:
        process = PROCESS.get()
        if process == WORLD:
            return
        self.points += 1
        self.reached.append(what)
        if self.points == self.crash_at:
            self.on_crash(process)
            await asyncio.sleep(0)  # a dead process does not come back from here
