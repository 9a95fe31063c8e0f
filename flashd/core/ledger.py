"""The ledger of machines: one row from the intent to the proof of absence, as stored under `machines`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class RowState(StrEnum):
    """REQUESTED: intent stored, a machine may exist. ABANDONED: given up; what appears under the name is deleted."""

    REQUESTED = "requested"
    LIVE = "live"
    DELETING = "deleting"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One machine name. Times are Unix seconds. `launch` is the label value that ties a machine to its intent."""

    name: str
    run_id: str
    attempt: int
    provider: str
    account: str
    region: str
    gpu: str
    machine_id: str | None
    state: RowState
    usd_per_hour: float
    requested_at: float
    posted_at: float | None = None
    live_at: float | None = None
    deleting_at: float | None = None
    created_at: float | None = None
    until: float | None = None
    launch: str = ""

    @property
    def called_at(self) -> float:
        """The (last) create call."""
        return self.posted_at if self.posted_at is not None else self.requested_at

    def deleting(self, now: float, machine_id: str | None = None) -> LedgerRow:
        """The same row on its way out."""
        return replace(
            self,
            state=RowState.DELETING,
            machine_id=machine_id or self.machine_id,
            deleting_at=self.deleting_at if self.deleting_at is not None else now,
        )


@dataclass(frozen=True, slots=True)
class Gone:
    """Proof that a machine of a run does not exist any more. `machine_id` None: it never existed (costs nothing)."""

    name: str
    machine_id: str | None
    requested_at: float
    gone_at: float
