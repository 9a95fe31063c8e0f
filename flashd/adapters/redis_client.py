"""The two Redis clients of a daemon, and the one place where redis-py's exceptions become flashd's.

redis-py's defaults send a write again after a lost reply and cut blocking reads at 5 s, so neither is left to them.
"""

from __future__ import annotations

from typing import cast

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from flashd.adapters.store_types import MAX_BLOCK_MS
from flashd.errors import StoreAuthError, StoreError, StoreFullError, StoreUnavailableError

MAX_CONNECTIONS = 16
SOCKET_TIMEOUT_S = 5.0
POOL_WAIT_S = 5.0

# Conditions of the server that pass; the command had no effect or an unknown one. Source: redis.io, error prefixes.
_PASSING = (
    "LOADING", "READONLY", "MISCONF", "NOREPLICAS", "UNBLOCKED", "BUSY", "MASTERDOWN", "NOGROUP",
)  # fmt: skip
_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM")


def command_client(url: str, client_name: str) -> Redis:
    """For everything that does not block: no retries, since the caller repeats with the same op_id."""
    return _client(url, client_name, SOCKET_TIMEOUT_S)


def blocking_client(url: str, client_name: str) -> Redis:
    """For XREAD and XREADGROUP with BLOCK: its sockets wait longer than the longest BLOCK."""
    return _client(url, client_name, MAX_BLOCK_MS / 1000 + SOCKET_TIMEOUT_S)


def _client(url: str, client_name: str, socket_timeout_s: float) -> Redis:
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=POOL_WAIT_S,
        socket_timeout=socket_timeout_s,
        socket_connect_timeout=SOCKET_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        client_name=client_name,
        protocol=2,
    )
    return Redis.from_pool(pool)


async def execute(client: Redis, *parts: str | int | bytes) -> object:
    """One command, its reply as redis-py gives it, its exceptions raw."""
    return cast(object, await client.execute_command(*parts))  # type: ignore[no-untyped-call]


def mapped(error: Exception) -> StoreError:
    """The flashd error for one of redis-py's. AuthenticationError and BusyLoadingError are ConnectionErrors there."""
    if isinstance(error, exceptions.ConnectionError) and isinstance(error.__cause__, exceptions.RedisError):
        return mapped(error.__cause__)  # a refusal of AUTH while connecting arrives wrapped as a plain ConnectionError
    text = str(error) or type(error).__name__
    match error:
        case exceptions.AuthenticationError() | exceptions.NoPermissionError() | exceptions.AuthorizationError():
            return StoreAuthError(f"Redis refused the credential or its rights: {text}; check the URL and the ACL user")
        case exceptions.OutOfMemoryError():
            return StoreFullError(f"Redis is out of memory, nothing was written: {text}; raise maxmemory")
        case (
            exceptions.ConnectionError()
            | exceptions.TimeoutError()
            | exceptions.ReadOnlyError()
            | exceptions.NoScriptError()
            | exceptions.ClusterDownError()
            | exceptions.TryAgainError()
            | exceptions.AskError()
            | OSError()
        ):
            return StoreUnavailableError(f"Redis gave no usable answer: {text}")
    if text.startswith(_REFUSED):
        return StoreAuthError(f"Redis refused the credential or its rights: {text}; check the URL and the ACL user")
    if text.startswith("OOM"):
        return StoreFullError(f"Redis is out of memory, nothing was written: {text}; raise maxmemory")
    if text.startswith(_PASSING):
        return StoreUnavailableError(f"Redis cannot serve this now: {text}")
    return StoreError(f"Redis refused a command, which is a fault of flashd or of its keys: {text}")
