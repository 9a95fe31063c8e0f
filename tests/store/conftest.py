"""Stores over a real redis-server behind a proxy that doubles every script, and over a fakeredis that does the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
from fakeredis import FakeServer
from fakeredis.aioredis import FakeRedis
from redis.asyncio import Redis

from flashd.adapters.store import Store, connect, over
from tests.redis_server import RedisServer
from tests.store.proxy import Proxy, same_answer

NS = "t"


class DoublingFakeRedis(FakeRedis):  # type: ignore[misc]
    """In-process fakeredis that runs every script twice, as the proxy does for the real server."""

    async def execute_command(self, *args: object, **options: object) -> object:
        first = await super().execute_command(*args, **options)
        if args[0] != "EVALSHA":
            return first
        second = await super().execute_command(*args, **options)
        assert same_answer(first, second), f"sent twice, answered {first!r}, then {second!r}"
        return second


@dataclass
class Backend:
    """One Redis: makes stores by process id; `raw` looks past them, `proxy` is in front of the real server only."""

    store: Callable[[str], Store]
    raw: Redis
    proxy: Proxy | None = None

    def key(self, short: str) -> str:
        return f"flashd:{{{NS}}}:{short}"

    async def text(self, *command: str) -> object:
        """One plain command, its reply with texts instead of bytes."""
        return plain(await self.raw.execute_command(*command))  # type: ignore[no-untyped-call]


def plain(reply: object) -> object:
    """Bytes as text, at any depth."""
    match reply:
        case bytes():
            return reply.decode()
        case list() | tuple():
            return [plain(item) for item in reply]
        case dict():
            return {plain(key): plain(value) for key, value in reply.items()}
    return reply


@pytest.fixture
async def real(redis_server: RedisServer) -> AsyncIterator[Backend]:
    """The real server behind the proxy; at the end every script must have answered its repeat alike."""
    redis_server.flush()
    async with proxied(redis_server) as backend:
        yield backend


class proxied:  # noqa: N801
    """Stores over a proxy over a server, closed in the right order; checks that repeats were answered alike."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.stack = AsyncExitStack()
        self.proxy = Proxy(str(server.socket))

    async def __aenter__(self) -> Backend:
        await self.proxy.start()
        self.stack.push_async_callback(self.proxy.stop)
        raw = Redis.from_url(self.server.url, protocol=2)
        self.stack.push_async_callback(raw.aclose)
        return Backend(self._store, raw, self.proxy)

    def _store(self, owner: str) -> Store:
        store = connect(f"redis://127.0.0.1:{self.proxy.port}/0", NS, owner)
        self.stack.push_async_callback(store.link.close)
        return store

    async def __aexit__(self, *exc: object) -> None:
        await self.stack.aclose()
        assert self.proxy.mismatches == []


@pytest.fixture
def fake() -> Backend:
    """An in-process fakeredis."""
    server = FakeServer()

    def store(owner: str) -> Store:
        client = DoublingFakeRedis(server=server, protocol=2)
        return over(client, client, NS, owner)

    return Backend(store, FakeRedis(server=server, protocol=2))


@pytest.fixture(params=["redis-server", "fakeredis"])
async def backend(request: pytest.FixtureRequest, redis_server: RedisServer, fake: Backend) -> AsyncIterator[Backend]:
    """Both in turn."""
    if request.param == "fakeredis":
        yield fake
        return
    redis_server.flush()
    async with proxied(redis_server) as found:
        yield found


@pytest.fixture
def store(backend: Backend) -> Store:
    """A store of the process `p1`, which does not lead yet."""
    return backend.store("p1")
