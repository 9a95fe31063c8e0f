"""The one reader of a Hub repository: it asks for the head commit and tells runs which commits touched them.

It reads titles, never artifacts, and decides nothing about a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from flashd.adapters.clock import Clock, Random
from flashd.adapters.hub import Commit, Hub
from flashd.core.blindness import Sight


class HubProblem(StrEnum):
    """Why the last read of a repository gave no answer."""

    AUTH = "auth"
    FORBIDDEN = "hub_forbidden"
    REPO_MISSING = "repo_missing"
    THROTTLED = "throttled"
    UNREACHABLE = "hub_unreachable"


@dataclass(frozen=True, slots=True)
class RepoSnapshot:
    """The repository at the last good read. `problem` is set when a later read failed; head and times then stay.

    `head` None = the repository exists and has no commit. `asked_at`: when that read began, Unix seconds.
    """

    repo: str
    sequence: int
    asked_at: float
    read_at: float
    head: str | None
    problem: HubProblem | None


@dataclass(frozen=True, slots=True)
class RepoNews:
    """What a run is told. `commits`: those titled with its run id, oldest first, each once.

    `changed`: its watched paths whose blob changed in commits of unknown title. `resync`: what happened since the
    last news cannot be told (history squashed, too many commits, first look): read everything of interest at `head`.
    """

    head: str | None
    commits: tuple[Commit, ...]
    changed: tuple[str, ...]
    resync: bool


class RepoSubscription:
    """A run's interest in its repository. Mutable: `active` (its machine may commit, so polling is fast) and `paths`."""

    active: bool
    paths: tuple[str, ...]

    def close(self) -> None:
        """End it; closing twice is harmless."""


class RepoWatcher:
    """Watches one repository. `run` polls; every read, forced ones too, is serialized: one in flight."""

    def __init__(self, hub: Hub, repo: str, clock: Clock, random: Random, poll_interval_s: float = 15.0) -> None:
        raise NotImplementedError

    @property
    def snapshot(self) -> RepoSnapshot | None:
        """None before the first good read."""
        raise NotImplementedError

    @property
    def problem(self) -> HubProblem | None:
        raise NotImplementedError

    @property
    def sight(self) -> Sight:
        raise NotImplementedError

    def restore(self, sight: Sight) -> None:
        """Take over persisted blindness; before `run`."""

    def blind_at(self, now: float) -> float:
        """Blind seconds of this repository up to `now` (an exhausted commit budget counts as blind)."""
        raise NotImplementedError

    def subscribe(
        self, run_id: str, paths: tuple[str, ...], since: str | None, on_news: Callable[[RepoNews], None]
    ) -> RepoSubscription:
        """`paths`: the run's decision files, full repository paths. `since`: the head up to which the run knows
        (its intent's head, or the last one it has worked through); None = the repository had no commit then.
        The first news covers everything after `since`. `on_news` must not block."""
        raise NotImplementedError

    async def fresh_head(self, min_asked_at: float) -> RepoSnapshot:
        """A good read that began after `min_asked_at`; one read serves everybody who waits.

        Raises HubError when it cannot know; after a failure it fails fast until the pause that failure asks for is over.
        """
        raise NotImplementedError

    def retry_now(self) -> None:
        """End the present pause (SIGHUP, the repository was just created)."""

    def is_after(self, commit_id: str, base_head: str | None) -> bool | None:
        """Does the commit lie after `base_head` in the repository's order? None = not known here (see `log_since`)."""
        raise NotImplementedError

    async def log_since(self, base_head: str | None) -> tuple[Commit, ...] | None:
        """Commits after `base_head` up to the present head, newest first, paging back a bounded way.

        None = cannot tell (the base is not in the history within the bound). Raises HubError.
        """
        raise NotImplementedError

    async def changed_since(
        self, base_head: str | None, head: str, paths: Iterable[str]
    ) -> Mapping[str, bool]:
        """For each path that exists at `head`: did its content change after `base_head`? Absent paths are left out.

        At most two oid requests, no paging. Raises HubError, also when the base is gone (squashed history).
        """
        raise NotImplementedError

    async def last_change(self, base_head: str | None, head: str, path: str) -> Commit | None:
        """The commit after `base_head` that gave `path` its content at `head`; None = none did, or cannot tell."""
        raise NotImplementedError

    def commits_last_hour(self, now: float) -> int:
        """Commits of the last hour as far as they are known, by the Hub's own times."""
        raise NotImplementedError

    def has_commit_budget(self, now: float) -> bool:
        """False at 80 % of the hourly commit quota: silence is then no evidence, and launches wait (`hub_budget`)."""
        raise NotImplementedError

    def silence_is_evidence(self, now: float) -> bool:
        """Same rule as `has_commit_budget`, and the repository is being seen now."""
        raise NotImplementedError

    async def run(self) -> None:
        """Poll until cancelled."""
        raise NotImplementedError


class Watchers:
    """The watchers of all repositories, one each, counted by their users."""

    def __init__(
        self, hub: Hub, clock: Clock, random: Random, poll_interval_s: float = 15.0, commits_per_hour: int = 128
    ) -> None:
        raise NotImplementedError

    def acquire(self, repo: str) -> RepoWatcher:
        """The repository's watcher, started when needed. Each acquire needs one `release`."""
        raise NotImplementedError

    def release(self, repo: str) -> None:
        """The last release stops the polling."""

    def restore(self, sights: Mapping[str, Sight]) -> None:
        """Persisted blindness by repository; before the first acquire."""

    def sights(self) -> Mapping[str, Sight]:
        """To be persisted by the daemon."""
        raise NotImplementedError

    async def run(self) -> None:
        """Poll all acquired repositories until cancelled."""
        raise NotImplementedError
