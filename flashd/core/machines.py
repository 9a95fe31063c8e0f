"""A rented machine as its provider shows it, in flashd's own words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class MachinePhase(StrEnum):
    """A provider's many statuses, classified once, in the provider. Unknown statuses are UNKNOWN, never dead."""

    PENDING = "pending"  # accepted or building; not billed yet on most clouds
    RUNNING = "running"
    STOPPED = "stopped"  # the host is lost to us though it may still be billed
    FAILED = "failed"
    DELETING = "deleting"
    UNKNOWN = "unknown"


DEAD_PHASES = frozenset({MachinePhase.STOPPED, MachinePhase.FAILED, MachinePhase.DELETING})


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine of a listing or a GET."""

    id: str
    name: str
    phase: MachinePhase
    raw_status: str
    created_at: float | None  # Unix seconds; None when the provider does not say
    region: str = ""
    sku: str = ""
    labels: tuple[str, ...] = ()

    @property
    def launch(self) -> str | None:
        """The value of its `launch=` label, None without one (labels may get lost on the way)."""
        return next((label.removeprefix("launch=") for label in self.labels if label.startswith("launch=")), None)
