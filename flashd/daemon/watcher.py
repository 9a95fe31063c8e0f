"""The one reader of a Hub repository: it asks for the head commit and tells runs which commits touched them.

It reads titles, never artifacts, and decides nothing about a run. Questions about order are in `repo_order`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import anyio
import structlog
from anyio.abc import TaskGroup

from flashd.adapters.clock import Clock, Random
from flashd.adapters.hub import Commit, Hub
from flashd.core.blindness import Sight
from flashd.daemon import repo_order
from flashd.daemon.repo_log import RepoLog
from flashd.daemon.repo_look import RepoView, look
from flashd.daemon.repo_news import RepoNews, RepoSubscription
from flashd.errors import (
    HubAuthError,
    HubError,
    HubForbiddenError,
    HubRepoMissingError,
    HubThrottledError,
    HubUnavailableError,
)

SLOW_INTERVAL_S = 60.0  # nobody can commit yet, or the request window is nearly used up
LOW_QUOTA = 0.2  # share of the request window below which polling is stretched
JITTER = 0.2
FIRST_PHASE_S = 5.0
REFUSED_RETRY_S = 60.0  # after 401, 403 and a missing repository
FAILED_RETRY_S = 5.0  # forced reads right after a failure would only repeat it
THROTTLE_MAX_S = 300.0  # the Hub's window; a longer wait is not believed
READ_TIMEOUT_S = 60.0  # all requests of one look
COMMIT_SHARE = 0.8  # of the hourly commit quota (CONTRACT 6)
SLACK_S = 90.0  # the slow interval with its jitter, and one request's deadline

log = structlog.get_logger(__name__)


class HubProblem(StrEnum):
    """Why the last read of a repository gave no answer."""

    AUTH = "auth"
    FORBIDDEN = "hub_forbidden"
    REPO_MISSING = "repo_missing"
    THROTTLED = "throttled"
    UNREACHABLE = "hub_unreachable"


@dataclass(frozen=True, slots=True)
class RepoSnapshot:
    """The repository at the last good read. `head` None = it exists and has no commit.

    `asked_at`, `read_at`: when that read began and ended, Unix seconds. A later failure is in `RepoWatcher.problem`.
    """

    repo: str
    sequence: int
    asked_at: float
    read_at: float
    head: str | None


class RepoWatcher:
    """Watches one repository. `run` polls; looks, forced ones too, are serialized: never two at a time."""

    def __init__(
        self, hub: Hub, repo: str, clock: Clock, random: Random, poll_interval_s: float, commits_per_hour: int
    ) -> None:
        self.repo = repo
        self._hub = hub
        self._clock = clock
        self._random = random
        self._interval_s = poll_interval_s
        self._commits_max = COMMIT_SHARE * commits_per_hour
        self._sight = Sight(clock.now())
        self._view: RepoView | None = None
        self._snapshot: RepoSnapshot | None = None
        self._problem: HubProblem | None = None
        self._error: HubError | None = None
        self._tick_at = clock.now() + random.uniform(0.0, min(FIRST_PHASE_S, poll_interval_s))
        self._forced_from = clock.now()
        self._subscriptions: list[RepoSubscription] = []
        self._lock = anyio.Lock()
        self._kick = anyio.Event()

    # What the daemon reads ------------------------------------------------------------------------------------------

    @property
    def snapshot(self) -> RepoSnapshot | None:
        """The last good read; None before the first."""
        return self._snapshot

    @property
    def problem(self) -> HubProblem | None:
        """What stopped the last read; None after a good one and before the first."""
        return self._problem

    @property
    def sight(self) -> Sight:
        """To be persisted by the daemon."""
        return self._sight

    def restore(self, sight: Sight) -> None:
        """Take over persisted blindness; before `run`."""
        self._sight = sight

    def blind_at(self, now: float) -> float:
        """Blind seconds of this repository up to `now`. Time with an exhausted commit budget counts as blind."""
        return self._sight.blind_at(now, SLACK_S)

    @property
    def history(self) -> RepoLog:
        """The newest commits as far as they are known; empty before the first look."""
        return self._view.log if self._view is not None else RepoLog((), whole=False)

    def commits_last_hour(self, now: float) -> int:
        """Commits of the last hour as far as they are known, by the Hub's own times."""
        return self.history.of_last_hour(now)

    def has_commit_budget(self, now: float) -> bool:
        """False from 80 % of the hourly commit quota on: launches into the repository wait (`hub_budget`)."""
        return self.commits_last_hour(now) < self._commits_max

    def silence_is_evidence(self, now: float) -> bool:
        """A silent run could have been heard: the last read was good and boxes can commit."""
        return self._snapshot is not None and self._problem is None and self.has_commit_budget(now)

    # What runs ask --------------------------------------------------------------------------------------------------

    def subscribe(
        self, run_id: str, paths: tuple[str, ...], since: str | None, on_news: Callable[[RepoNews], None]
    ) -> RepoSubscription:
        """`since`: the head up to which the run knows (its intent's head, or the last one it has worked through);
        None = the repository had no commit then. The first news covers what came after it. `on_news` must not block."""
        subscription = RepoSubscription(run_id, paths, since, on_news)
        subscription.on_active = self._hurry
        self._subscriptions.append(subscription)
        return subscription

    async def log_since(self, base_head: str | None) -> tuple[Commit, ...] | None:
        """Commits after `base_head`, newest first; None = cannot tell. Raises HubError. See `repo_order`."""
        return await repo_order.log_since(self._hub, self.repo, self.history, base_head)

    async def changed_since(self, base_head: str | None, head: str, paths: Iterable[str]) -> Mapping[str, bool]:
        """For each of `paths` that exists at `head`: did it change after `base_head`? Raises HubError."""
        return await repo_order.changed_since(self._hub, self.repo, base_head, head, paths)

    async def last_change(self, base_head: str | None, head: str, path: str) -> Commit | None:
        """The commit after `base_head` that gave `path` its content at `head`; None = none, or cannot tell.

        Raises HubError. About log2(commits since the base) requests.
        """
        log_since_base = await self.log_since(base_head)
        if log_since_base is None or not (await self.changed_since(base_head, head, (path,))).get(path, False):
            return None
        return await repo_order.last_change(self._hub, self.repo, log_since_base, head, path)

    async def fresh_head(self, min_asked_at: float) -> RepoSnapshot:
        """A good read that began after `min_asked_at`; one read serves everybody who waits.

        Raises HubError when it cannot know; after a failure it fails fast until that failure's pause is over.
        """
        async with self._lock:
            snapshot = self._snapshot
            if snapshot is not None and self._problem is None and snapshot.asked_at > min_asked_at:
                return snapshot
            if self._error is not None and self._clock.now() < self._forced_from:
                raise self._error.with_traceback(None)
            return await self._read()

    def retry_now(self) -> None:
        """End the present pause (SIGHUP, the repository was just created)."""
        self._tick_at = self._forced_from = self._clock.now()
        self._kick.set()

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self._pause(self._tick_at - self._clock.now())
            async with self._lock:
                if self._clock.now() < self._tick_at:
                    continue  # a forced read has just done this tick's work, or the pause was cut short
                try:
                    await self._read()
                except HubError:
                    continue  # recorded and logged by `_read`; the next tick has been set

    # One look -------------------------------------------------------------------------------------------------------

    async def _read(self) -> RepoSnapshot:
        asked_at = self._clock.now()
        try:
            view = await self._timed_look()
        except HubError as error:
            self._fail(asked_at, error)
            raise
        return self._accept(asked_at, view)

    async def _timed_look(self) -> RepoView:
        with anyio.move_on_after(READ_TIMEOUT_S):
            living = tuple(one for one in self._subscriptions if not one.closed)
            return await look(self._hub, self.repo, self._view, living, self._clock.now())
        raise HubUnavailableError(f"no answer about {self.repo} within {READ_TIMEOUT_S:.0f} s")

    # What a look leads to; no await below, so that it happens as a whole ---------------------------------------------

    def _accept(self, asked_at: float, view: RepoView) -> RepoSnapshot:
        now = self._clock.now()
        old_head = self.history.head
        self._view = view
        sequence = 1 if self._snapshot is None else self._snapshot.sequence + 1
        self._snapshot = RepoSnapshot(self.repo, sequence, asked_at, now, view.log.head)
        if self._problem is not None:
            log.info("repo_readable_again", repo=self.repo, problem=self._problem)
        self._problem = self._error = None
        self._sight = self._sight.seen(now, SLACK_S) if self.has_commit_budget(now) else self._sight.unseen(now)
        self._tick_at = asked_at + self._jittered_interval()
        self._tell(view, old_head)
        return self._snapshot

    def _tell(self, view: RepoView, old_head: str | None) -> None:
        for subscription in tuple(self._subscriptions):  # a run that is told may close its own
            subscription.tell(view.log, view.blobs, view.changed, old_head)
        self._subscriptions = [one for one in self._subscriptions if not one.closed]

    def _fail(self, asked_at: float, error: HubError) -> None:
        problem, pause_s = _problem_of(error)
        if problem != self._problem:
            log.warning("repo_unreadable", repo=self.repo, problem=problem, error=str(error))
        self._problem, self._error = problem, error
        now = self._clock.now()
        self._forced_from = now + pause_s
        self._tick_at = max(now + pause_s, asked_at + self._jittered_interval())

    def _jittered_interval(self) -> float:
        quota = self._hub.quota()
        low = quota is not None and quota.left < LOW_QUOTA * quota.limit
        idle = not any(one.active and not one.closed for one in self._subscriptions)
        interval_s = max(self._interval_s, SLOW_INTERVAL_S) if low or idle else self._interval_s
        return interval_s * self._random.uniform(1 - JITTER, 1 + JITTER)

    def _hurry(self) -> None:
        """A run became active: the slow pause is cut to a fast one, a pause after a failure is not."""
        if self._problem is None and self._snapshot is not None:
            self._tick_at = min(self._tick_at, self._snapshot.asked_at + self._jittered_interval())
            self._kick.set()

    async def _pause(self, seconds: float) -> None:
        if seconds > 0:
            with anyio.move_on_after(seconds):
                await self._kick.wait()
        self._kick = anyio.Event()


def _problem_of(error: HubError) -> tuple[HubProblem, float]:
    """What a failed read means, and for how long to leave the Hub alone."""
    match error:
        case HubThrottledError(retry_after_s=retry_after_s):
            return HubProblem.THROTTLED, min(max(retry_after_s, 1.0), THROTTLE_MAX_S)
        case HubAuthError():
            return HubProblem.AUTH, REFUSED_RETRY_S
        case HubForbiddenError():
            return HubProblem.FORBIDDEN, REFUSED_RETRY_S
        case HubRepoMissingError():
            return HubProblem.REPO_MISSING, REFUSED_RETRY_S
        case _:
            return HubProblem.UNREACHABLE, FAILED_RETRY_S


@dataclass(eq=False, slots=True)
class _Entry:
    watcher: RepoWatcher
    users: int
    scope: anyio.CancelScope


class Watchers:
    """The watchers of all repositories, one each, counted by their users."""

    def __init__(
        self, hub: Hub, clock: Clock, random: Random, poll_interval_s: float = 15.0, commits_per_hour: int = 128
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._random = random
        self._interval_s = poll_interval_s
        self._commits_per_hour = commits_per_hour
        self._entries: dict[str, _Entry] = {}
        self._restored: dict[str, Sight] = {}
        self._group: TaskGroup | None = None

    def acquire(self, repo: str) -> RepoWatcher:
        """The repository's watcher; it polls as soon as `run` runs. Each acquire needs one `release`."""
        entry = self._entries.get(repo)
        if entry is None:
            entry = self._entries[repo] = _Entry(self._new(repo), 0, anyio.CancelScope())
            if self._group is not None:
                self._group.start_soon(_serve, entry)
        entry.users += 1
        return entry.watcher

    def release(self, repo: str) -> None:
        """The last release stops the polling and forgets the repository."""
        entry = self._entries[repo]
        entry.users -= 1
        if entry.users == 0:
            del self._entries[repo]
            entry.scope.cancel()

    def restore(self, sights: Mapping[str, Sight]) -> None:
        """Persisted blindness by repository; before the first acquire."""
        self._restored = dict(sights)

    def sights(self) -> Mapping[str, Sight]:
        """Of all acquired repositories, to be persisted by the daemon."""
        return {repo: entry.watcher.sight for repo, entry in self._entries.items()}

    def watchers(self) -> Mapping[str, RepoWatcher]:
        """Those of all acquired repositories, for health and for `retry_now` after a SIGHUP."""
        return {repo: entry.watcher for repo, entry in self._entries.items()}

    async def run(self) -> None:
        """Poll all acquired repositories until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                for entry in self._entries.values():
                    group.start_soon(_serve, entry)
                await anyio.sleep_forever()
            finally:
                self._group = None

    def _new(self, repo: str) -> RepoWatcher:
        watcher = RepoWatcher(
            self._hub, repo, self._clock, self._random, self._interval_s, commits_per_hour=self._commits_per_hour
        )
        sight = self._restored.pop(repo, None)
        if sight is not None:
            watcher.restore(sight)
        return watcher


async def _serve(entry: _Entry) -> None:
    with entry.scope:
        await entry.watcher.run()
