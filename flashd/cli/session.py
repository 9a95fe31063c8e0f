"""What verbs share: settings, a store for the time of one verb, and the stream of new events."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import TypeVar

import anyio

from flashd.adapters.store import Store, connect
from flashd.adapters.store_types import StreamEntry
from flashd.cli.output import say
from flashd.config import Settings, load_settings
from flashd.config_credentials import REDIS_URL
from flashd.errors import ConfigError, StoreUnavailableError

T = TypeVar("T")
Work = Callable[[Settings, Store], Awaitable[int]]
BLOCK_MS = 2000
CLOSE_S = 2.0
OUTAGE_PAUSE_S = 2.0


def settings_for(options: argparse.Namespace, need: Collection[str] = (REDIS_URL.name,)) -> Settings:
    """The configuration, with only the named credentials required. Raises ConfigError."""
    settings = load_settings(options.config, os.environ, frozenset(need))
    _check_redis_url(settings)
    return settings


def with_store(options: argparse.Namespace, work: Work, need: Collection[str] = (REDIS_URL.name,)) -> int:
    """Load the configuration, open Redis, do `work`, close. Raises flashd's errors; `main` turns them into statuses."""
    settings = settings_for(options, need)

    async def session() -> int:
        store = _store(settings)
        try:
            return await work(settings, store)
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await store.link.close()

    return run_async(session)


def run_async(call: Callable[[], Awaitable[T]]) -> T:
    """Run to the end, or to SIGINT: then KeyboardInterrupt.

    asyncio itself cancels once at SIGINT, and a timeout inside the Redis client may take that for its own; a scope of
    anyio cancels until it is heard.
    """
    return anyio.run(_interruptible, call)


async def _interruptible(call: Callable[[], Awaitable[T]]) -> T:
    answers: list[T] = []
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at_signal, signals, group.cancel_scope)
            answers.append(await call())
            group.cancel_scope.cancel()
    if not answers:
        raise KeyboardInterrupt
    return answers[0]


async def _cancel_at_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    async for _ in signals:
        scope.cancel()


def _check_redis_url(settings: Settings) -> None:
    """Raises ConfigError when the client cannot make an address of it. Its own words may quote the password."""
    try:
        _store(settings)
    except ValueError:
        raise ConfigError(
            ("redis.url: no address of a Redis; allowed: redis://host:port/db, rediss://… or unix:///path",)
        ) from None


def _store(settings: Settings) -> Store:
    return connect(settings.credentials.redis_url.reveal(), settings.namespace, f"cli{os.getpid()}")


async def tail(store: Store, after: str, run_id: str = "") -> AsyncIterator[StreamEntry]:
    """Events after a stream id, of one run if named, for ever. An outage of Redis is said once and waited out."""
    told = False
    while True:
        try:
            entries = await store.events_after(after, run_id=run_id, block_ms=BLOCK_MS)
        except StoreUnavailableError as error:
            if not told:
                say(f"{error}; still waiting")
            told = True
            await anyio.sleep(OUTAGE_PAUSE_S)
            continue
        told = False
        for entry in entries:
            after = entry.entry_id
            yield entry
