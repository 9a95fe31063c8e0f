"""What the daemon needs of the Hugging Face Hub, as a Protocol and its values. The client is `hub_http`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of a dataset repository. `at` is the Hub's own time, Unix seconds."""

    id: str
    title: str
    at: float


@dataclass(frozen=True, slots=True)
class CommitPage:
    """Commits newest first. `next` is an opaque cursor for the older ones, None at the first commit."""

    commits: tuple[Commit, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Present:
    """The file's bytes at the pinned commit, at most `max_bytes` of them."""

    body: bytes


@dataclass(frozen=True, slots=True)
class Absent:
    """The Hub proved that the file is not there at the pinned commit."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The file is there and larger than the caller would read."""

    size: int


ReadAnswer = Present | Absent | TooLarge


@dataclass(frozen=True, slots=True)
class Quota:
    """The request window as the last answer's headers told it: `left` of `limit` requests, new window in `reset_s`."""

    limit: int
    left: int
    reset_s: float


class Hub(Protocol):
    """The Hub under the daemon's token. Every call raises a `flashd.errors.HubError` when it cannot know."""

    async def commits(self, repo: str, cursor: str | None = None) -> CommitPage:
        """One page of `main`'s commits. An existing repository without a commit gives an empty page.

        Raises HubRepoMissingError, HubAuthError, HubForbiddenError, HubThrottledError, HubUnavailableError.
        """

    async def oids(self, repo: str, sha: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        """Blob ids of those of `paths` that exist at `sha` (any number of paths; split into requests of 500)."""

    async def read(self, repo: str, sha: str, path: str, max_bytes: int) -> ReadAnswer:
        """One file pinned to a commit. A 404 for the commit itself is HubUnavailableError, never Absent."""

    async def resolve(self, repo: str, revision: str) -> str | None:
        """The commit that a branch, tag or commit id names; None when the Hub proves that there is none."""

    async def ensure_repo(self, repo: str) -> None:
        """Create the private dataset repository unless it exists. HubForbiddenError when it is not writable."""

    async def commit(self, repo: str, title: str, files: Mapping[str, bytes]) -> str:
        """One commit of small files to `main`; the new head. Content must be fixed: repeating it is harmless."""

    def quota(self) -> Quota | None:
        """The API request window of the last answer, None before the first."""
