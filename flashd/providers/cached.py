"""A value read from a slow, budgeted source: one read at a time, shared by everybody who asked before it began."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import anyio

from flashd.adapters.clock import Clock
from flashd.errors import ProviderError

T = TypeVar("T")


class Cached(Generic[T]):
    """Keeps the last good value for `ttl_s`. A failed read is the answer of all who waited for it."""

    def __init__(self, clock: Clock, ttl_s: float) -> None:
        self._clock = clock
        self._ttl_s = ttl_s
        self._lock = anyio.Lock()
        self._value: T | None = None
        self._read_at = float("-inf")
        self._reading = False
        self._begun = 0  # the number of the last read that began
        self._good = 0  # the number of the last good one
        self._failed: tuple[int, ProviderError] | None = None

    @property
    def last(self) -> T | None:
        """The last good value, however old; None before the first, and after `forget`."""
        return self._value

    def forget(self) -> None:
        """Make the next `get` read again."""
        self._value = None
        self._read_at = float("-inf")

    async def get(self, read: Callable[[], Awaitable[T]], *, fresh: bool = False) -> T:
        """The value, at most `ttl_s` old; with `fresh`, from a read that began after this call.

        Raises what `read` raises.
        """
        # A read under way is good enough for everybody but those who insist on a fresh one.
        asked = self._begun - (self._reading and not fresh)
        if not fresh and self._value is not None and self._clock.monotonic() - self._read_at <= self._ttl_s:
            return self._value
        async with self._lock:
            if self._good > asked and self._value is not None:
                return self._value
            if self._failed is not None and self._failed[0] > asked:
                raise self._failed[1].with_traceback(None)
            return await self._read(read)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        self._begun += 1
        number, began_at = self._begun, self._clock.monotonic()
        self._reading = True
        try:
            value = await read()
        except ProviderError as error:
            self._failed = (number, error)
            raise
        finally:
            self._reading = False
        self._value, self._read_at, self._good, self._failed = value, began_at, number, None
        return value
