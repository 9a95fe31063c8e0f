"""Counts of requests, their sliding-minute maxima, and the provider's rate limit by source address."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from flashd.sim.cloud_types import Json

WINDOW_S = 60.0


class Meter:
    """What clients asked: by endpoint, method and status, and the busiest 60 seconds of each."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.clear()

    def clear(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()
        self.busiest: dict[str, int] = {}
        self._recent: dict[str, deque[float]] = {}

    def arrived(self, method: str, endpoint: str) -> None:
        now = self._now()
        for lane in ("all", f"{method} {endpoint}"):
            recent = self._recent.setdefault(lane, deque())
            recent.append(now)
            while recent[0] <= now - WINDOW_S:
                recent.popleft()
            self.busiest[lane] = max(self.busiest.get(lane, 0), len(recent))

    def answered(self, method: str, endpoint: str, status: int) -> None:
        """`status` 0 = the connection was cut without an answer."""
        self.counts[method, endpoint, status] += 1

    def report(self) -> Json:
        rows = [
            {"method": method, "endpoint": endpoint, "status": status, "count": count}
            for (method, endpoint, status), count in sorted(self.counts.items())
        ]
        return {
            "total": sum(self.counts.values()),
            "max_per_minute": self.busiest.get("all", 0),
            "max_per_minute_by_endpoint": {lane: top for lane, top in sorted(self.busiest.items()) if lane != "all"},
            "counts": rows,
        }


class RateLimit:
    """So many requests in a clock minute from one address; then 429 for the rest of that minute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._used: dict[str, tuple[int, int]] = {}
        self._blocked_until: dict[str, float] = {}

    def allows(self, source: str, per_minute: int) -> bool:
        """Count one request; `per_minute` 0 = no limit, only explicit blocks."""
        now = self._now()
        if self._blocked_until.get(source, 0.0) > now:
            return False
        minute = int(now // WINDOW_S)
        since, used = self._used.get(source, (minute, 0))
        used = used + 1 if since == minute else 1
        self._used[source] = (minute, used)
        return per_minute <= 0 or used <= per_minute

    def block(self, source: str, seconds: float | None) -> None:
        """Refuse everything from `source`: for `seconds`, or to the end of the clock minute."""
        now = self._now()
        self._blocked_until[source] = (now // WINDOW_S + 1) * WINDOW_S if seconds is None else now + seconds

    def clear(self) -> None:
        self._used.clear()
        self._blocked_until.clear()
