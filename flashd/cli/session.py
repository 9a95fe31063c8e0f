"""What verbs share: settings, a store, output on stdout, talk on stderr, and errors as exit statuses."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable, Collection

import anyio

from flashd.adapters.store import Store, connect
from flashd.cli.exits import Exit
from flashd.config import Settings, load_settings
from flashd.config_credentials import REDIS_URL
from flashd.errors import (
    AuthError,
    ConfigError,
    HubAuthError,
    HubError,
    ProviderError,
    StoreAuthError,
    StoreError,
    StoreUnavailableError,
)

Work = Callable[[Settings, Store], Awaitable[int]]


def with_store(options: argparse.Namespace, work: Work, need: Collection[str] = (REDIS_URL.name,)) -> int:
    """Load the configuration, open Redis, do `work`, close; every error of flashd becomes its exit status."""
    try:
        settings = load_settings(options.config, os.environ, frozenset(need))
    except ConfigError as error:
        say(str(error))
        return Exit.CONFIG

    async def session() -> int:
        store = connect(settings.credentials.redis_url.reveal(), settings.namespace, f"cli{os.getpid()}")
        try:
            return await work(settings, store)
        finally:
            await store.link.close()

    try:
        return anyio.run(session)
    except BaseExceptionGroup as group:
        return _status(_first(group))
    except (StoreError, ProviderError, HubError) as error:
        return _status(error)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def _status(error: BaseException) -> int:
    match error:
        case KeyboardInterrupt():
            raise error
        case StoreAuthError():
            say(f"Redis refused us: {error}. Check redis.url or redis.url_file.")
            return Exit.REFUSED
        case StoreUnavailableError():
            say(f"Redis does not answer: {error}. Is it running, and is redis.url right?")
            return Exit.UNREACHABLE
        case StoreError():
            say(str(error))
            return Exit.FAILED
        case AuthError() | HubAuthError():
            say(f"the credential was refused: {error}")
            return Exit.REFUSED
        case ProviderError() | HubError():
            say(f"no usable answer: {error}")
            return Exit.UNREACHABLE
        case _:
            raise error


def say(text: str) -> None:
    """Talk: stderr."""
    print(text, file=sys.stderr)


def show(text: str) -> None:
    """Data: stdout."""
    print(text)


def show_json(document: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, ensure_ascii=False, indent=2, sort_keys=False))


def table(rows: list[tuple[str, ...]], headers: tuple[str, ...]) -> str:
    """Left-aligned columns, two spaces apart, no line longer than it must be."""
    widths = [max(len(row[i]) for row in [headers, *rows]) for i in range(len(headers))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [headers, *rows]]
    return "\n".join(line.rstrip() for line in lines)
