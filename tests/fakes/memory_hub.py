"""A Hub in memory, at the level of `flashd.adapters.hub.Hub`: counts requests, can be told to fail or to lag."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import anyio

from flashd.adapters.clock import Clock
from flashd.adapters.hub import Absent, Commit, CommitPage, Present, Quota, ReadAnswer, TooLarge
from flashd.errors import HubError, HubForbiddenError, HubRepoMissingError, HubUnavailableError

PAGE = 50


@dataclass(slots=True)
class MemoryRepo:
    """Commits oldest first, and the files at each of them."""

    commits: list[Commit] = field(default_factory=list)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    writable: bool = True


class MemoryHub:
    def __init__(self, clock: Clock, latency_s: float = 0.0) -> None:
        self.clock = clock
        self.latency_s = latency_s
        self.repos: dict[str, MemoryRepo] = {}
        self.requests: Counter[str] = Counter()
        self.asked_at: list[float] = []
        self.error: HubError | None = None  # raised by every call, after the latency
        self.hidden = 0  # newest commits that readers do not see yet: a replica that lags
        self.may_create = True
        self.window: Quota | None = None
        self._made = 0

    # What a test does -------------------------------------------------------------------------------------------------

    def push(self, repo: str, title: str, files: Mapping[str, bytes] | None = None) -> Commit:
        """Somebody commits to `main`."""
        home = self.repos.setdefault(repo, MemoryRepo())
        self._made += 1
        commit = Commit(hashlib.sha1(f"{repo} {self._made}".encode()).hexdigest(), title, self.clock.now())
        before = home.files[home.commits[-1].id] if home.commits else {}
        home.files[commit.id] = before | dict(files or {})
        home.commits.append(commit)
        return commit

    def squash(self, repo: str) -> Commit:
        """Rewrite the history to one commit with the present files; the old shas are gone."""
        home = self.repos[repo]
        files = home.files[home.commits[-1].id]
        self.repos[repo] = MemoryRepo()
        return self.push(repo, "Super-squash branch 'main'", files)

    # The Hub ----------------------------------------------------------------------------------------------------------

    async def commits(self, repo: str, cursor: str | None = None) -> CommitPage:
        history = (await self._ask("commits", repo)).commits[::-1][self.hidden :]
        start = int(cursor or 0)
        more = start + PAGE < len(history)
        return CommitPage(tuple(history[start : start + PAGE]), str(start + PAGE) if more else None)

    async def oids(self, repo: str, sha: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        files = _at(await self._ask("paths-info", repo), sha)
        return {path: _blob(files[path]) for path in paths if path in files}

    async def read(self, repo: str, sha: str, path: str, max_bytes: int) -> ReadAnswer:
        body = _at(await self._ask("resolve", repo), sha).get(path)
        if body is None:
            return Absent()
        return Present(body) if len(body) <= max_bytes else TooLarge(len(body))

    async def resolve(self, repo: str, revision: str) -> str | None:
        home = await self._ask("revision", repo)
        if revision == "main":
            return home.commits[-1].id if home.commits else None
        return revision if revision in home.files else None

    async def ensure_repo(self, repo: str) -> None:
        self._count("create")
        await self._answer()
        if repo not in self.repos and not self.may_create:
            raise HubForbiddenError("may not create", 403)
        if not self.repos.setdefault(repo, MemoryRepo()).writable:
            raise HubForbiddenError("may not write", 403)

    async def commit(self, repo: str, title: str, files: Mapping[str, bytes]) -> str:
        home = await self._ask("commit", repo)
        if not home.writable:
            raise HubForbiddenError("may not write", 403)
        present = home.files[home.commits[-1].id] if home.commits else {}
        if home.commits and all(present.get(path) == body for path, body in files.items()):
            return home.commits[-1].id
        return self.push(repo, title, files).id

    def quota(self) -> Quota | None:
        return self.window

    async def _ask(self, kind: str, repo: str) -> MemoryRepo:
        self._count(kind)
        await self._answer()
        if repo not in self.repos:
            raise HubRepoMissingError("Repository not found", 404)
        return self.repos[repo]

    def _count(self, kind: str) -> None:
        self.requests[kind] += 1
        self.asked_at.append(self.clock.now())

    async def _answer(self) -> None:
        await anyio.sleep(self.latency_s)
        if self.error is not None:
            raise self.error


def _at(repo: MemoryRepo, sha: str) -> dict[str, bytes]:
    if sha not in repo.files:
        raise HubUnavailableError("RevisionNotFound", 404)
    return repo.files[sha]


def _blob(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
