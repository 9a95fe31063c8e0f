"""Did something in a repository come after a recorded head? By the repository's order and blobs, never by clocks.

Rare questions (a `DONE` without a marker, a heartbeat without a token), so they ask the Hub when they are put.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flashd.adapters.hub import Commit, Hub
from flashd.daemon.repo_log import RepoLog

LOG_PAGES_MAX = 20  # about 1,000 commits: eight hours at the full commit quota


async def log_since(hub: Hub, repo: str, known: RepoLog, base_head: str | None) -> tuple[Commit, ...] | None:
    """Commits after `base_head` (None: the repository had none), newest first, paging back a bounded way if needed.

    None = cannot tell: the base is not in the history, or too far back. Raises HubError.
    """
    in_memory = known.after(base_head)
    if in_memory is not None:
        return in_memory
    commits: dict[str, Commit] = {}
    cursor: str | None = None
    for _ in range(LOG_PAGES_MAX):
        page = await hub.commits(repo, cursor)
        for commit in page.commits:
            if commit.id == base_head:
                return tuple(commits.values())
            commits.setdefault(commit.id, commit)
        cursor = page.next
        if cursor is None:
            return tuple(commits.values()) if base_head is None else None
    return None


async def changed_since(
    hub: Hub, repo: str, base_head: str | None, head: str, paths: Iterable[str]
) -> Mapping[str, bool]:
    """For each of `paths` that exists at `head`: is it another blob than at `base_head`? The absent are left out.

    Two requests for each 500 paths, no paging. Raises HubError, also when the base is gone (squashed history).
    """
    now = await hub.oids(repo, head, tuple(sorted(set(paths))))
    if base_head is None or not now:
        return dict.fromkeys(now, True)
    before = await hub.oids(repo, base_head, tuple(now))
    return {path: before.get(path) != blob for path, blob in now.items()}


async def last_change(hub: Hub, repo: str, log: tuple[Commit, ...], head: str, path: str) -> Commit | None:
    """The commit of `log` (newest first, all after one base) that gave `path` the content it has at `head`.

    A bisection, about log2(n) requests: the content at `head` must not have been there before in the same stretch.
    None = `head` or the file is not there, or no commit of `log` can be told apart. Raises HubError.
    """
    place = next((place for place, commit in enumerate(log) if commit.id == head), None)
    wanted = (await hub.oids(repo, head, (path,))).get(path)
    if place is None or wanted is None:
        return None
    upward = log[place:][::-1]  # oldest first, the last one is `head`
    low, high = 0, len(upward) - 1
    while low < high:
        middle = (low + high) // 2
        if (await hub.oids(repo, upward[middle].id, (path,))).get(path) == wanted:
            high = middle
        else:
            low = middle + 1
    return upward[high]
