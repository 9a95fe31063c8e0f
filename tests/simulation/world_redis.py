"""The simulated Redis: fakeredis with the real scripts, its answers late, sometimes lost, each a point for a crash."""

from __future__ import annotations

import random
from importlib import resources

from fakeredis import FakeServer
from fakeredis.aioredis import FakeAsyncRedisConnection, FakeRedis
from redis.asyncio import BlockingConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError

from flashd.adapters.store_scripts import script
from tests.simulation.wire import REDIS_LATENCY_S, Fault, Faults, Wire

CONNECTIONS = 32
LOST_ANSWER_S = 5.0
SCRIPTS = {
    script(file.name.removesuffix(".lua"), shebang=False).sha1: file.name.removesuffix(".lua")
    for file in (resources.files("flashd.adapters") / "scripts").iterdir()
    if file.name.endswith(".lua") and not file.name.startswith("_")
}


class WorldRedis(FakeRedis):  # type: ignore[misc]
    """A client of a process. `faults` has one kind of call: `redis`."""

    wire: Wire
    faults: Faults

    async def execute_command(self, *args: object, **options: object) -> object:
        what = f"redis {SCRIPTS[str(args[1])] if args[0] == 'EVALSHA' else args[0]}"
        await self.wire.leave(what, REDIS_LATENCY_S)
        fault = self.faults.draw("redis")
        if fault is Fault.BROKEN:
            raise RedisConnectionError("connection reset before the command was read")
        answer = await super().execute_command(*args, **options)
        await self.wire.come_back(REDIS_LATENCY_S, what)
        if fault is Fault.LOST:
            await self.wire.come_back((LOST_ANSWER_S, LOST_ANSWER_S))
            raise RedisConnectionError("connection reset while waiting for the answer")
        return answer


class RedisSide:
    """One server, and clients for processes and for onlookers."""

    def __init__(self, wire: Wire, seed: int) -> None:
        self.faults = Faults(random.Random(f"redis faults {seed}"))
        self._server = FakeServer()
        self._wire = wire

    def client(self) -> WorldRedis:
        """For a process: late, and sometimes without an answer."""
        client = WorldRedis(connection_pool=self._pool())
        client.wire, client.faults = self._wire, self.faults
        return client

    def onlooker(self) -> FakeRedis:
        """For producers, subscribers and the checker: never fails."""
        return FakeRedis(connection_pool=self._pool())

    def _pool(self) -> BlockingConnectionPool:
        return BlockingConnectionPool(
            connection_class=FakeAsyncRedisConnection,
            server=self._server,
            max_connections=CONNECTIONS,
            timeout=LOST_ANSWER_S,
            protocol=2,
        )
