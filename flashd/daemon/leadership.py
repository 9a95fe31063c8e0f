"""Who leads: the fenced lease, taken and renewed; past its own deadline a process is passive."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import structlog

from flashd.adapters.store_types import Held
from flashd.daemon.desk import Desk
from flashd.errors import StoreAuthError, StoreError, StoreUnavailableError

log = structlog.get_logger(__name__)

RETRY_S = 1.0
STANDBY_MAX_S = 20.0
REFUSED_RETRY_S = 5.0
RENEW_SHARE = 3.0


class Leadership:
    """Leads whenever it can: `term` is run as the leader and cancelled when the lease is lost."""

    def __init__(self, desk: Desk, holder: str, *, owns_directory: bool, term: Callable[[], Awaitable[None]]) -> None:
        self._desk = desk
        self._holder = holder
        self._owns_directory = owns_directory
        self._term = term
        self.leading = False
        self.other = ""  # who leads, while it is not this process
        self.last_try_at: float | None = None

    async def serve(self) -> None:
        """Take the lease, lead, lose it, try again; until cancelled."""
        while True:
            wait_s = await self._take()
            if wait_s is None:
                await self._lead()
                wait_s = RETRY_S
            await anyio.sleep(wait_s)

    async def resign(self) -> None:
        """Give the lease back, so that a standby need not wait for it."""
        self._desk.lease.drop()
        try:
            await self._desk.store.resign()
        except StoreError as error:
            log.warning("lease_not_resigned", error=str(error))

    async def _take(self) -> float | None:
        """Seconds to wait before the next try; None = the lease is ours."""
        desk = self._desk
        ttl_s = desk.policy.lease_ttl_s
        asked_at = desk.clock.monotonic()
        self.last_try_at = desk.clock.now()
        try:
            answer = await desk.store.lead(
                self._holder, desk.owner, int(ttl_s * 1000), may_take_own=self._owns_directory
            )
        except StoreUnavailableError as error:
            self._trouble(f"Redis does not answer: {error}")
            return RETRY_S * desk.random.uniform(0.7, 1.3)
        except StoreAuthError as error:
            self._trouble(f"Redis refuses us: {error}; renew redis_url and reload")
            return REFUSED_RETRY_S
        except StoreError as error:
            self._trouble(str(error))
            return REFUSED_RETRY_S
        desk.alarms.set("redis_down", None)
        if isinstance(answer, Held):
            if self.other != answer.holder:
                log.info("standing_by", leader=answer.holder)
            self.other = answer.holder
            return min(max(answer.remaining_ms / 1000.0, RETRY_S), min(STANDBY_MAX_S, ttl_s / RENEW_SHARE))
        desk.lease.extend(asked_at, ttl_s)
        return None

    def _trouble(self, text: str) -> None:
        if "redis_down" not in self._desk.alarms.up:
            log.error("redis_unusable", error=text)
        self._desk.alarms.set("redis_down", text)

    async def _lead(self) -> None:
        self.leading, self.other = True, ""
        log.info("leading", owner=self._desk.owner)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._renew, group.cancel_scope)
                await self._term()
                group.cancel_scope.cancel()
        finally:
            self.leading = False
            self._desk.lease.drop()
            log.warning("not_leading_any_more")

    async def _renew(self, scope: anyio.CancelScope) -> None:
        desk = self._desk
        while desk.lease.held:
            await anyio.sleep(desk.policy.lease_ttl_s / RENEW_SHARE)
            while True:
                wait_s = await self._take()
                if wait_s is None:
                    break
                if self.other or not desk.lease.covers(wait_s):
                    scope.cancel()
                    return
                await anyio.sleep(wait_s)
        scope.cancel()
