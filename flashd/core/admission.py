"""Who may launch next: priority, then age; within the namespace's limits and the repositories' budgets."""

from __future__ import annotations

from dataclasses import dataclass

from flashd.core.model import Reason, Run


@dataclass(frozen=True, slots=True)
class Room:
    """What is taken: by ledger rows that are not abandoned, and by places granted a moment ago."""

    machines: int
    usd_per_hour: float
    max_machines: int
    max_usd_per_hour: float


@dataclass(frozen=True, slots=True)
class RepoRoom:
    """One repository's budgets."""

    live_runs: int
    runs_max: int
    has_commit_budget: bool


def order(run: Run) -> tuple[int, float, str]:
    """Sort key of waiting runs: higher priority first, then older, then by id."""
    return -run.terms.priority, run.accepted_at, run.terms.run_id


def held_back(room: Room, usd_per_hour: float) -> Reason | None:
    """The namespace's limit that one more machine at this price would break."""
    if room.machines + 1 > room.max_machines:
        return Reason.MAX_MACHINES
    if room.usd_per_hour + usd_per_hour > room.max_usd_per_hour + 1e-9:
        return Reason.MAX_USD_PER_HOUR
    return None


def repo_held_back(room: RepoRoom) -> Reason | None:
    """Why one more run may not commit into this repository now."""
    if room.live_runs >= room.runs_max or not room.has_commit_budget:
        return Reason.HUB_BUDGET
    return None
