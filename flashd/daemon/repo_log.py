"""The newest commits of a repository in their order, as a value. Order in the repository beats everybody's clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flashd.adapters.hub import Commit

KEPT = 512  # above the largest hourly commit quota seen (320), so that an hour can always be counted
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class RepoLog:
    """`commits`: newest first, without a gap. `whole`: they reach back to the repository's first commit."""

    commits: tuple[Commit, ...]
    whole: bool

    @property
    def head(self) -> str | None:
        return self.commits[0].id if self.commits else None

    def grown(self, newer: Sequence[Commit]) -> RepoLog:
        """With `newer` (newest first) on top; what is beyond the limit is forgotten at the other end."""
        commits = (*newer, *self.commits)
        return RepoLog(commits[:KEPT], self.whole and len(commits) <= KEPT)

    def after(self, base_head: str | None) -> tuple[Commit, ...] | None:
        """Commits after `base_head` (None: the empty repository), newest first; None = the base is not in here."""
        if base_head is None:
            return self.commits if self.whole else None
        place = self.place(base_head)
        return None if place is None else self.commits[:place]

    def place(self, commit_id: str) -> int | None:
        """0 = the head."""
        return next((place for place, commit in enumerate(self.commits) if commit.id == commit_id), None)

    def of_last_hour(self, now: float) -> int:
        return sum(1 for commit in self.commits if commit.at > now - HOUR_S)
