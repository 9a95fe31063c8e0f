"""One look at a repository: which commits are new, and which watched files did those of unknown title change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flashd.adapters.hub import Commit, CommitPage, Hub
from flashd.daemon.repo_log import HOUR_S, RepoLog
from flashd.daemon.repo_news import RepoSubscription
from flashd.wire.commit_title import parse_commit_title

NEW_PAGES_MAX = 5  # more news than that is a resync
FIRST_PAGES_MAX = 5  # without a known head: to count the commits of the last hour


@dataclass(frozen=True, slots=True)
class RepoView:
    """What is known of a repository.

    `blobs`: watched path -> its blob id at the log's head, None = absent there; without those that nobody asked for.
    `changed`: watched paths that the last look found changed in commits of unknown title.
    """

    log: RepoLog
    blobs: Mapping[str, str | None]
    changed: frozenset[str]


async def look(
    hub: Hub, repo: str, known: RepoView | None, subscriptions: Sequence[RepoSubscription], now: float
) -> RepoView:
    """One request when nothing happened. Changes nothing, so that a cancelled look leaves no trace.

    Raises HubError.
    """
    page = await hub.commits(repo)
    newest = page.commits[0].id if page.commits else None
    if known is None or known.log.head is None:
        return RepoView(await _first_log(hub, repo, page, now), {}, frozenset())
    if newest is not None and known.log.place(newest) is not None:
        return RepoView(known.log, known.blobs, frozenset())  # unchanged, or a replica that lags behind an earlier read
    news = await _news(hub, repo, page, known.log.head)
    if news is None:
        return RepoView(await _first_log(hub, repo, page, now), {}, frozenset())
    blobs, changed = await _blobs(hub, repo, known, news, subscriptions)
    return RepoView(known.log.grown(news), blobs, changed)


async def _first_log(hub: Hub, repo: str, page: CommitPage, now: float) -> RepoLog:
    """Page back until the commits of the last hour can be counted."""
    commits = {commit.id: commit for commit in page.commits}
    for _ in range(FIRST_PAGES_MAX - 1):
        if page.next is None or (page.commits and page.commits[-1].at <= now - HOUR_S):
            break
        page = await hub.commits(repo, page.next)
        for commit in page.commits:  # pages shift when somebody commits in between: the same id may come twice
            commits.setdefault(commit.id, commit)
    return RepoLog(tuple(commits.values()), whole=page.next is None)


async def _news(hub: Hub, repo: str, page: CommitPage, head: str) -> tuple[Commit, ...] | None:
    """Commits above `head`, newest first; None when it is not found: squashed away, or too far below."""
    news: dict[str, Commit] = {}
    for _ in range(NEW_PAGES_MAX):
        for commit in page.commits:
            if commit.id == head:
                return tuple(news.values())
            news.setdefault(commit.id, commit)
        if page.next is None:
            return None
        page = await hub.commits(repo, page.next)
    return None


async def _blobs(
    hub: Hub, repo: str, known: RepoView, news: tuple[Commit, ...], subscriptions: Sequence[RepoSubscription]
) -> tuple[Mapping[str, str | None], frozenset[str]]:
    """Blobs at the new head and what changed. No request when all titles are known, else one or two."""
    titles = [parse_commit_title(commit.title) for commit in news]
    if None not in titles:
        touched = {title.run_id for title in titles if title is not None}
        stale = {path for one in subscriptions if one.run_id in touched for path in one.paths}
        return {path: blob for path, blob in known.blobs.items() if path not in stale}, frozenset()
    old_head = known.log.commits[0].id
    paths = tuple(sorted({path for one in subscriptions if one.told == old_head for path in one.paths}))
    if not paths:
        return {}, frozenset()
    before = {path: known.blobs.get(path) for path in paths}
    not_asked = tuple(path for path in paths if path not in known.blobs)
    if not_asked:
        before |= await hub.oids(repo, old_head, not_asked)
    present = await hub.oids(repo, news[0].id, paths)
    blobs = {path: present.get(path) for path in paths}
    return blobs, frozenset(path for path in paths if blobs[path] != before[path])
