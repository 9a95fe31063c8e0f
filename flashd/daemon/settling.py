"""A launch whose outcome nobody knows and whose run has ended: its name is looked up until it is found or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio
import structlog

from flashd.core.ledger import LedgerRow, RowState
from flashd.core.machines import Machine
from flashd.core.releasing import settles_at
from flashd.daemon.desk import Desk
from flashd.daemon.release_machine import HOLD_S, may_act
from flashd.errors import ProviderError, RateLimitedError

log = structlog.get_logger(__name__)

LOOK_UP_INTERVAL_S = 10.0
RETRY_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Lost:
    """Complete answers never showed the name for as long as an unknown launch may take to appear."""

    at: float

    def abandoned(self, row: LedgerRow) -> LedgerRow:
        """The row as a given-up name; `deleting_at` tells since when."""
        return replace(row, state=RowState.ABANDONED, deleting_at=self.at)


class Settling:
    """Looks one name up, under the account of its intent. Only complete answers count."""

    def __init__(self, desk: Desk, name: str, present: Callable[[], LedgerRow | None], taken_over_at: float) -> None:
        self._desk = desk
        self._name = name
        self._row = present
        self._taken_over_at = taken_over_at
        self._blind_from: float | None = None

    async def outcome(self) -> Machine | Lost | None:
        """The machine, or that there is none; None when the row was settled by somebody else."""
        while True:
            row = self._row()
            if row is None or row.machine_id is not None or row.state in (RowState.LIVE, RowState.ABANDONED):
                return None
            try:
                if not await may_act(self._desk, row):
                    await anyio.sleep(HOLD_S)
                    continue
                found = await self._desk.clouds[row.provider].provider.find(self._name)
            except ProviderError as error:
                log.warning("settling_interrupted", machine=self._name, error=str(error))
                await anyio.sleep(_pause_s(error))
                continue
            if found:
                return found[0]
            now = self._desk.clock.now()
            over_at = settles_at(
                row, self._taken_over_at, self._desk.policy.launch_settle_s, self._blind_s(row.provider, now)
            )
            # A look-up that began before the end proves nothing about it, so one more follows at the end.
            if now >= over_at:
                return Lost(now)
            await anyio.sleep(min(LOOK_UP_INTERVAL_S, over_at - now))

    def _blind_s(self, provider: str, now: float) -> float:
        blind = self._desk.clouds[provider].observer.blind_at(now)
        if self._blind_from is None:
            self._blind_from = blind
        return blind - self._blind_from


def _pause_s(error: ProviderError) -> float:
    if isinstance(error, RateLimitedError):
        return min(max(error.retry_after_s, LOOK_UP_INTERVAL_S), RETRY_MAX_S)
    return LOOK_UP_INTERVAL_S
