"""What a run is told about its repository, and its subscription to that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flashd.adapters.hub import Commit
from flashd.daemon.repo_log import RepoLog
from flashd.wire.commit_title import parse_commit_title


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
    """A run's interest in its repository. Mutable: `paths`, `active`."""

    def __init__(
        self, run_id: str, paths: tuple[str, ...], told: str | None, on_news: Callable[[RepoNews], None]
    ) -> None:
        self.run_id = run_id
        self.paths = paths  # the run's decision files, full repository paths
        self.told = told  # the head up to which it has been told; None = up to the empty repository
        self.on_news = on_news
        self.on_active: Callable[[], None] = _nothing
        self.closed = False
        self._active = False

    @property
    def active(self) -> bool:
        """Its machine may commit, so that polling is fast."""
        return self._active

    @active.setter
    def active(self, active: bool) -> None:
        was, self._active = self._active, active
        if active and not was:
            self.on_active()

    def close(self) -> None:
        """End it; closing twice is harmless."""
        self.closed = True

    def tell(self, log: RepoLog, blobs: Mapping[str, str | None], changed: frozenset[str], old: str | None) -> None:
        """Call `on_news` if something concerns this run. `old`: the head from which `changed` counts."""
        if self.closed or self.told == log.head:
            return
        in_step = self.told is not None and self.told == old and all(path in blobs for path in self.paths)
        news = self._news(log, changed if in_step else None)
        self.told = log.head
        if news.resync or news.commits or news.changed:
            self.on_news(news)

    def _news(self, log: RepoLog, changed: frozenset[str] | None) -> RepoNews:
        """`changed` None: nobody compared this run's files."""
        commits = log.after(self.told)
        if commits is None:
            return RepoNews(log.head, (), (), resync=True)
        titles = [(commit, parse_commit_title(commit.title)) for commit in reversed(commits)]
        mine = tuple(commit for commit, title in titles if title is not None and title.run_id == self.run_id)
        if all(title is not None for _, title in titles):
            return RepoNews(log.head, mine, (), resync=False)
        if changed is None:
            return RepoNews(log.head, mine, (), resync=bool(self.paths))
        return RepoNews(log.head, mine, tuple(path for path in self.paths if path in changed), resync=False)


def _nothing() -> None:
    """Until a watcher wants to know."""
