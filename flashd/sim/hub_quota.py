"""Rate limits of the simulated Hub: requests in fixed windows per user, commits per hour and repository.

Source: Hub documentation, "Rate limits" (fixed windows of five minutes, RateLimit headers on every answer); the commit
quota is unpublished, 128 an hour is what users report, in a 429 whose RateLimit header still has requests left.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from flashd.sim.hub_repo import HubRefusal

HOUR_S = 3600.0


class Bucket(StrEnum):
    API = "api"
    RESOLVERS = "resolvers"


@dataclass(slots=True)
class HubSettings:
    """What an operator of the simulation may change at any time; the request quotas are those of a PRO account."""

    api_per_window: int = 2_500
    resolvers_per_window: int = 12_000
    window_s: float = 300.0
    commits_per_hour: int = 128
    commit_latency_s: float = 0.0
    read_lag_s: float = 0.0
    tree_page: int = 1_000
    tree_page_expanded: int = 50
    commits_page: int = 50
    lfs_from_bytes: int = 10_000_000


@dataclass(slots=True)
class _Window:
    started: float
    used: int


class RequestQuota:
    """Counts the requests of each user and bucket in fixed windows."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._windows: dict[tuple[str, Bucket], _Window] = {}

    def take(self, user: str, bucket: Bucket, now: float) -> bool:
        """Count one request; False when the window was already used up."""
        window = self._window(user, bucket, now)
        if window.used >= self._limit(bucket):
            return False
        window.used += 1
        return True

    def headers(self, user: str, bucket: Bucket, now: float) -> dict[str, str]:
        window = self._window(user, bucket, now)
        left = max(0, self._limit(bucket) - window.used)
        wait = max(0, math.ceil(window.started + self._settings.window_s - now))
        return {
            "RateLimit": f'"{bucket}";r={left};t={wait}',
            "RateLimit-Policy": f'"fixed window";"{bucket}";q={self._limit(bucket)};w={int(self._settings.window_s)}',
        }

    def _limit(self, bucket: Bucket) -> int:
        return self._settings.api_per_window if bucket is Bucket.API else self._settings.resolvers_per_window

    def _window(self, user: str, bucket: Bucket, now: float) -> _Window:
        start = now - now % self._settings.window_s
        window = self._windows.get((user, bucket))
        if window is None or window.started != start:
            window = self._windows[user, bucket] = _Window(start, 0)
        return window


class CommitQuota:
    """The commits of the last hour of each repository; refused ones do not count."""

    def __init__(self, settings: HubSettings) -> None:
        self._settings = settings
        self._times: dict[str, deque[float]] = {}

    def check(self, repo: str, now: float) -> None:
        limit = self._settings.commits_per_hour
        if self.last_hour(repo, now) >= limit:
            raise HubRefusal(
                429,
                f"You have exceeded the rate limit for repository commits ({limit} per hour). "
                "You can retry this action in about 1 hour.",
            )

    def note(self, repo: str, now: float) -> None:
        self._times.setdefault(repo, deque()).append(now)

    def last_hour(self, repo: str, now: float) -> int:
        times = self._times.get(repo, deque())
        while times and times[0] <= now - HOUR_S:
            times.popleft()
        return len(times)
