"""The simulated Hugging Face Hub: its repositories, tokens, quotas and faults, and what a test may ask it.

`flashd.sim.hub_http.serve_hub` puts it behind HTTP; this class is the truth behind that, usable from the same loop.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from random import Random

from flashd.sim.hub_faults import Effect, Fault, Faults
from flashd.sim.hub_git import Blob, lfs_blob, regular_blob
from flashd.sim.hub_quota import CommitQuota, HubSettings, RequestQuota
from flashd.sim.hub_repo import Change, Commit, HubRefusal, Repo, RepoKind


class Role(StrEnum):
    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Token:
    """Whose token it is and what it opens; `repos` are shell patterns of repository ids."""

    user: str
    role: Role = Role.WRITE
    repos: tuple[str, ...] = ("*",)
    may_create: bool = True

    def opens(self, repo_id: str) -> bool:
        return any(fnmatchcase(repo_id, pattern) for pattern in self.repos)


ANONYMOUS = Token("anonymous", Role.READ, (), False)


class SimHub:
    """All state of one simulated Hub; `now` gives Unix seconds, `seed` decides faults with a probability."""

    def __init__(
        self, now: Callable[[], float] = time.time, seed: int = 0, settings: HubSettings | None = None
    ) -> None:
        self.now = now
        self.settings = settings or HubSettings()
        self.random = Random(seed)
        self.faults = Faults(self.random)
        self.requests: Counter[tuple[str, int]] = Counter()
        self.request_quota = RequestQuota(self.settings)
        self.commit_quota = CommitQuota(self.settings)
        self.tokens: dict[str, Token] = {}
        self.repos: dict[tuple[RepoKind, str], Repo] = {}
        self._secret = self.random.getrandbits(128).to_bytes(16, "big")
        self._outage: int | None = None

    # What a test or a demo does directly.

    def add_token(self, secret: str, token: Token) -> None:
        self.tokens[secret] = token

    def add_repo(self, repo_id: str, *, private: bool = True, kind: RepoKind = RepoKind.DATASET) -> Repo:
        repo = self.repos[kind, repo_id] = Repo(repo_id, kind, private, self.now())
        return repo

    def repo(self, repo_id: str, kind: RepoKind = RepoKind.DATASET) -> Repo:
        """Raises KeyError when there is none, whoever asks."""
        return self.repos[kind, repo_id]

    def commit(
        self, repo_id: str, files: Mapping[str, bytes | str], title: str, delete: Sequence[str] = (), user: str = "sim"
    ) -> Commit:
        """Commit past tokens and quotas; large or binary files are not made LFS files."""
        blobs = {path: regular_blob(data.encode() if isinstance(data, str) else data) for path, data in files.items()}
        return self.repo(repo_id).commit(Change(blobs, delete_files=delete), title, user, self.now())

    def read(self, repo_id: str, path: str) -> bytes | None:
        """The file at the true head, or None."""
        entry = self.repo(repo_id).head.files.get(path)
        return entry.blob.data if entry else None

    def titles(self, repo_id: str) -> list[str]:
        """Oldest first."""
        return [commit.title for commit in self.repo(repo_id).commits]

    def down(self, status: int | None = None) -> None:
        """Reset every connection, or answer everything with `status`, until `up`."""
        self.up()
        effect = Effect.RESET if status is None else Effect.STATUS
        self._outage = self.faults.add(Fault(effect, status=status or 503, times=None))

    def up(self) -> None:
        if self._outage is not None:
            self.faults.remove(self._outage)
            self._outage = None

    # What the HTTP side asks.

    def caller(self, authorization: str | None) -> Token:
        if authorization is None:
            return ANONYMOUS
        scheme, _, secret = authorization.partition(" ")
        token = self.tokens.get(secret.strip())
        if scheme.lower() != "bearer" or token is None:
            raise HubRefusal(401, "Invalid credentials in Authorization header")
        return token

    def visible(self, kind: RepoKind, repo_id: str, caller: Token) -> Repo:
        repo = self.repos.get((kind, repo_id))
        if repo is None or (repo.private and not caller.opens(repo_id)):
            # A repository that may not be seen looks like one that does not exist.
            raise HubRefusal(401 if caller is ANONYMOUS else 404, "Repository not found", "RepoNotFound")
        return repo

    def writable(self, kind: RepoKind, repo_id: str, caller: Token) -> Repo:
        repo = self.visible(kind, repo_id, caller)
        if caller is ANONYMOUS:
            raise HubRefusal(401, "Invalid username or password.")
        if caller.role is not Role.WRITE or not caller.opens(repo_id):
            raise HubRefusal(403, f"You don't have the rights to write to {repo_id} with this token")
        return repo

    def create(self, kind: RepoKind, repo_id: str, private: bool, caller: Token) -> Repo:
        if caller.role is not Role.WRITE or not caller.may_create or not caller.opens(repo_id):
            raise HubRefusal(403, f"You don't have the rights to create {repo_id} with this token")
        if (kind, repo_id) in self.repos:
            raise HubRefusal(409, f"You already created this {kind} repo")
        return self.add_repo(repo_id, private=private, kind=kind)

    def read_head(self, repo: Repo) -> Commit:
        return repo.visible_head(self.now(), self.settings.read_lag_s)

    def lfs_signature(self, oid: str) -> str:
        """Stands for the signature of a storage URL: whoever was given the URL may use it."""
        return hashlib.sha256(self._secret + oid.encode()).hexdigest()[:32]

    def lfs_object(self, oid: str) -> bytes | None:
        for repo in self.repos.values():
            if oid in repo.lfs:
                return repo.lfs[oid]
        return None

    def stored_lfs_blob(self, repo: Repo, oid: str, size: int | None) -> Blob:
        data = repo.lfs.get(oid)
        if data is None or (size is not None and len(data) != size):
            raise HubRefusal(400, f"An LFS pointer pointed to a file that does not exist: {oid}")
        return lfs_blob(data)
