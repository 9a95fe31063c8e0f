"""The market as admission sees it: every provider's stock, read while somebody waits, and what holds launches."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog

from flashd.core.model import Reason
from flashd.core.placement import Market, Pause
from flashd.daemon.desk import Cloud, Desk
from flashd.daemon.observer import FleetProblem
from flashd.errors import AuthError, ProviderError
from flashd.providers.base import Stock

log = structlog.get_logger(__name__)

STOCK_AGE_S = 30.0
FAILED_RETRY_S = 15.0
CREDIT_RETRY_S = 60.0

_PROBLEMS = {
    FleetProblem.AUTH: Reason.AUTH,
    FleetProblem.FORBIDDEN: Reason.AUTH,
    FleetProblem.UNREACHABLE: Reason.PROVIDER_UNREACHABLE,
}


@dataclass(slots=True)
class _Shelf:
    stock: Stock | None = None
    read_at: float = float("-inf")
    failed: Pause | None = None


class MarketDesk:
    """Keeps stock readings fresh enough, and knows every pause."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shelves = {name: _Shelf() for name in desk.clouds}

    async def look(self) -> Market:
        """Read what is out of date, then say what is known. Never raises: a provider without an answer is paused."""
        now = self._desk.clock.now()
        for name, cloud in sorted(self._desk.clouds.items()):
            await self._lift_pause(cloud, now)
            if now >= self._shelves[name].read_at + STOCK_AGE_S:
                await self._read(cloud, self._shelves[name])
        return self.known()

    def known(self) -> Market:
        """The market from what was read last."""
        now = self._desk.clock.now()
        shelves = [self._shelves[name] for name in sorted(self._shelves)]
        stocks = [shelf.stock for shelf in shelves if shelf.stock is not None]
        return Market(
            offers=tuple(offer for stock in stocks for offer in stock.offers),
            unusable=tuple(refusal for stock in stocks for refusal in stock.refusals),
            pauses=dict(self._pauses()),
            cooling=self._desk.places.cooling(now),
            next_look_at=min((shelf.read_at + STOCK_AGE_S for shelf in shelves), default=None),
        )

    def _pauses(self) -> Iterable[tuple[str, Pause]]:
        for name, cloud in sorted(self._desk.clouds.items()):
            pause = cloud.pause or self._shelves[name].failed or _of_observer(cloud)
            if pause is not None:
                yield name, pause

    async def _lift_pause(self, cloud: Cloud, now: float) -> None:
        """A pause ends when its time is over; one for want of credit only when the account has some again."""
        pause = cloud.pause
        if pause is None or (pause.next_try_at is not None and now < pause.next_try_at):
            return
        if pause.reason is Reason.NO_CREDIT:
            try:
                credit = await cloud.provider.credit()
            except ProviderError as error:
                log.warning("credit_unreadable", provider=cloud.provider.name, error=str(error))
                return
            if credit.can_create is False:
                cloud.pause = replace(pause, next_try_at=now + CREDIT_RETRY_S)
                return
        cloud.pause = None

    async def _read(self, cloud: Cloud, shelf: _Shelf) -> None:
        began_at = self._desk.clock.now()
        try:
            shelf.stock = await cloud.provider.stock(fresh=True)
            self._desk.places.restocked(cloud.provider.name, shelf.stock.offers, began_at)
            shelf.failed = None
            shelf.read_at = self._desk.clock.now()
        except ProviderError as error:
            reason = Reason.AUTH if isinstance(error, AuthError) else Reason.PROVIDER_UNREACHABLE
            retry_at = self._desk.clock.now() + FAILED_RETRY_S
            shelf.failed = Pause(reason, str(error), retry_at)
            shelf.read_at = self._desk.clock.now() - STOCK_AGE_S + FAILED_RETRY_S
            log.warning("stock_unreadable", provider=cloud.provider.name, error=str(error))


def _of_observer(cloud: Cloud) -> Pause | None:
    problem = cloud.observer.problem
    reason = _PROBLEMS.get(problem) if problem is not None else None
    return Pause(reason, cloud.observer.problem_text) if reason is not None else None
