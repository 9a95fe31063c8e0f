"""A provider that can only list: machines set by the test, told to fail or to be slow."""

from __future__ import annotations

import anyio

from flashd.adapters.clock import Clock
from flashd.errors import ProviderError, UnavailableError
from flashd.providers.base import (
    Capabilities,
    Credit,
    DeleteAnswer,
    Launched,
    LaunchOrder,
    Machine,
    Stock,
)


class Listing:
    """Whatever else is asked of it is unavailable."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.machines: tuple[Machine, ...] = ()
        self.error: ProviderError | None = None
        self.latency_s = 0.0
        self.listed_at: list[float] = []
        self.most_in_flight = 0
        self._in_flight = 0

    @property
    def name(self) -> str:
        return "listing"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(50, True, 45_000, "none", False, False)

    async def list(self) -> tuple[Machine, ...]:
        self.listed_at.append(self.clock.now())
        self._in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self._in_flight)
        try:
            await anyio.sleep(self.latency_s)
        finally:
            self._in_flight -= 1
        if self.error is not None:
            raise self.error
        return self.machines

    async def account(self) -> str:
        return "account"

    async def stock(self, *, fresh: bool = False) -> Stock:
        raise UnavailableError("lists only")

    async def launch(self, order: LaunchOrder) -> Launched:
        raise UnavailableError("lists only")

    async def find(self, name: str) -> tuple[Machine, ...]:
        raise UnavailableError("lists only")

    async def get(self, machine_id: str) -> Machine | None:
        raise UnavailableError("lists only")

    async def delete(self, machine_id: str) -> DeleteAnswer:
        raise UnavailableError("lists only")

    async def console_log(self, machine_id: str) -> str:
        raise UnavailableError("lists only")

    async def credit(self) -> Credit:
        raise UnavailableError("lists only")
