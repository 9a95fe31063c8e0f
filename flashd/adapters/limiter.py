"""The request budget of one provider account: GCRA with lanes, and the gate that caps calls in flight.

A call waits here for its turn, a token and a free slot, all at once; whoever holds a slot may send at once.
Taking the slot before the token (or after it) would let granted calls pile up and leave together, above the budget.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum

import anyio

from flashd.adapters.clock import Clock

WINDOW_S = 60.0
SHARE_OF_LOW_LANES = 0.8  # the rest is kept for deletes and launches
MAX_BURST = 20
MIN_SLEEP_S = 0.001  # a timer may fire a hair early; sleeping 0 s again would spin
MAX_BLOCK_S = 600.0  # a nonsensical Retry-After may not stop deletions for a day


class Lane(IntEnum):
    """Who goes first when calls wait; smaller is sooner."""

    DELETE = 0
    LAUNCH = 1
    CONFIRM = 2
    LIST = 3
    REST = 4

    @property
    def label(self) -> str:
        """The lane's name in metrics."""
        return self.name.lower()

    @property
    def is_low(self) -> bool:
        """Whether the lane must leave the reserve alone."""
        return self > Lane.LAUNCH


class Gcra:
    """A bucket kept as one number, the theoretical arrival time. `burst` calls at once, then one each `interval_s`.

    In any window of W seconds it lets at most burst + W / interval_s calls through.
    """

    def __init__(self, interval_s: float, burst: int) -> None:
        self._interval_s = interval_s
        self._tolerance_s = (burst - 1) * interval_s
        self._arrival = float("-inf")

    def delay(self, now: float) -> float:
        """Seconds until a call conforms; 0 or less = now."""
        return self._arrival - self._tolerance_s - now

    def take(self, now: float) -> None:
        self._arrival = max(self._arrival, now) + self._interval_s

    def spend(self, now: float) -> None:
        """Empty the bucket: the next call conforms one interval after `now`."""
        self._arrival = max(self._arrival, now + self._tolerance_s + self._interval_s)


@dataclass(order=True, slots=True)
class _Waiter:
    lane: Lane
    number: int
    awake: anyio.Event = field(compare=False, default_factory=anyio.Event)
    gone: bool = field(compare=False, default=False)


class Limiter:
    """No sliding 60 s window holds more than `requests_per_minute` calls; a 429 waits the provider's window out."""

    def __init__(
        self, clock: Clock, requests_per_minute: int, *, burst: int | None = None, max_in_flight: int = 32
    ) -> None:
        if requests_per_minute < 1 or max_in_flight < 2:
            raise ValueError("requests_per_minute must be at least 1 and max_in_flight at least 2")
        size = min(MAX_BURST, requests_per_minute // 10) if burst is None else min(burst, requests_per_minute - 1)
        size = max(1, size)
        # A closed window of 60 s holds burst + 60 / interval calls; with one a minute the interval must exceed it.
        interval_s = WINDOW_S / (requests_per_minute - size) if requests_per_minute > size else WINDOW_S * 1.001
        self._clock = clock
        self._all = Gcra(interval_s, size)
        self._low = Gcra(interval_s / SHARE_OF_LOW_LANES, max(1, int(size * SHARE_OF_LOW_LANES)))
        self._waiters: list[_Waiter] = []
        self._count = 0
        self._max_in_flight = max_in_flight
        self._max_low_in_flight = max(1, int(max_in_flight * SHARE_OF_LOW_LANES))
        self._in_flight = 0
        self._low_in_flight = 0
        self._blocked_until = float("-inf")
        self.reset()

    @property
    def blocked_for_s(self) -> float:
        """Seconds for which every lane still waits after a 429; 0 when none does."""
        return max(0.0, self._blocked_until - self._clock.monotonic())

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return sum(not waiter.gone for waiter in self._waiters)

    def reset(self) -> None:
        """Count the burst as spent: at start and after a takeover an earlier daemon's calls are still in the window."""
        now = self._clock.monotonic()
        self._all.spend(now)
        self._low.spend(now)

    def block(self, seconds: float) -> None:
        """Hold every lane for `seconds` (a 429); the burst is spent when it ends."""
        now = self._clock.monotonic()
        until = now + min(max(seconds, 0.0), MAX_BLOCK_S)
        if until > self._blocked_until:
            self._blocked_until = until
            self._all.spend(until)
            self._low.spend(until)

    @asynccontextmanager
    async def slot(self, lane: Lane) -> AsyncIterator[None]:
        """Wait for turn, token and slot; the body is the call. Strict priority by lane, first come within one."""
        await self._acquire(lane)
        try:
            yield
        finally:
            self._in_flight -= 1
            self._low_in_flight -= lane.is_low
            self._wake_head()

    async def _acquire(self, lane: Lane) -> None:
        self._count += 1
        me = _Waiter(lane, self._count)
        heapq.heappush(self._waiters, me)
        try:
            while (delay := self._delay_of(me)) is None or delay > 0.0:
                await self._nap(me, delay)
            self._take(lane)
        finally:
            me.gone = True
            self._wake_head()

    def _delay_of(self, waiter: _Waiter) -> float | None:
        """Seconds until the waiter may go; None = only an event (a turn, a slot) can help it."""
        if self._head() is not waiter or self._in_flight >= self._max_in_flight:
            return None
        low = waiter.lane.is_low
        if low and self._low_in_flight >= self._max_low_in_flight:
            return None
        now = self._clock.monotonic()
        delay = max(self._all.delay(now), self._blocked_until - now)
        return max(delay, self._low.delay(now)) if low else delay

    async def _nap(self, waiter: _Waiter, delay: float | None) -> None:
        waiter.awake = anyio.Event()
        if delay is None:
            await waiter.awake.wait()
            return
        with anyio.move_on_after(max(delay, MIN_SLEEP_S)):
            await waiter.awake.wait()

    def _take(self, lane: Lane) -> None:
        now = self._clock.monotonic()
        self._all.take(now)
        if lane.is_low:
            self._low.take(now)
        self._in_flight += 1
        self._low_in_flight += lane.is_low

    def _head(self) -> _Waiter | None:
        while self._waiters and self._waiters[0].gone:
            heapq.heappop(self._waiters)
        return self._waiters[0] if self._waiters else None

    def _wake_head(self) -> None:
        head = self._head()
        if head is not None:
            head.awake.set()
