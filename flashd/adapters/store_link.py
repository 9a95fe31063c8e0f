"""One namespace on one Redis: runs scripts and plain commands, maps their errors, repeats unanswered writes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar, cast

import anyio
from redis import exceptions
from redis.asyncio import Redis

from flashd.adapters.backoff import Backoff
from flashd.adapters.clock import Random
from flashd.adapters.redis_client import blocking_client, command_client, execute, mapped
from flashd.adapters.store_keys import Keys
from flashd.adapters.store_scripts import Script, script
from flashd.adapters.store_types import Token
from flashd.errors import FencedError, StoreError, StoreUnavailableError

T = TypeVar("T")
Arg = str | int | bytes
MAX_BACKOFF_S = 5.0
FIRST_BACKOFF_S = 0.1


class Args:
    """Builds a script's ARGV: single values, and lists with their length in front."""

    def __init__(self, *values: Arg) -> None:
        self.values: list[bytes] = [encoded(value) for value in values]

    def one(self, *values: Arg) -> Args:
        self.values.extend(encoded(value) for value in values)
        return self

    def many(self, values: Sequence[Arg]) -> Args:
        self.values.append(b"%d" % len(values))
        return self.one(*values)

    def pairs(self, values: Mapping[str, str]) -> Args:
        return self.many([part for pair in values.items() for part in pair])


class Link:
    """Shared by the store's parts. `token` is what the leader's scripts compare; None = not the leader."""

    def __init__(self, commands: Redis, blocking: Redis, ns: str, consumer: str) -> None:
        self.commands = commands
        self.blocking = blocking
        self.keys = Keys(ns)
        self.consumer = consumer
        self.token: Token | None = None
        self._shebang: bool | None = None

    def leader(self) -> tuple[str, int]:
        """Raises FencedError without a round trip when this process does not lead."""
        if self.token is None:
            raise FencedError("this process does not lead the namespace, so it may not write")
        return self.token.owner, self.token.fence

    async def readdress(self, url: str) -> None:
        """Go on with another user or password, same server. Calls in flight are cut; their callers repeat them."""
        name = f"flashd:{self.consumer}"
        commands, blocking = self.commands, self.blocking
        self.commands, self.blocking = command_client(url, name), blocking_client(url, name)
        await commands.aclose(close_connection_pool=True)
        await blocking.aclose(close_connection_pool=True)

    async def run(self, name: str, args: Args, run_id: str = "", **keys: str) -> list[str]:
        """Run one script; `keys` gives the short name that a script's variable key stands for.

        One round trip (two more the first time a server sees the script). Raises the store's errors.
        """
        ready = script(name, await self.shebang())
        names = [self.keys.name(keys.get(key, key), run_id) for key in ready.keys]
        async with mapping():
            try:
                reply = await self._evalsha(ready, names, args)
            except exceptions.NoScriptError:
                await execute(self.commands, "SCRIPT LOAD", ready.body)
                reply = await self._evalsha(ready, names, args)
        return texts(cast("list[bytes]", reply))

    async def _evalsha(self, ready: Script, names: list[str], args: Args) -> object:
        return await execute(self.commands, "EVALSHA", ready.sha1, len(names), *names, *args.values)

    async def run_many(self, name: str, calls: Sequence[tuple[str, Args]]) -> list[list[str]]:
        """The same script for many run ids in one pipeline. Not one atomic step: each call is one."""
        ready = script(name, await self.shebang())
        async with mapping():
            await execute(self.commands, "SCRIPT LOAD", ready.body)
            async with self.commands.pipeline(transaction=False) as pipe:
                for run_id, args in calls:
                    names = [self.keys.name(key, run_id) for key in ready.keys]
                    pipe.execute_command("EVALSHA", ready.sha1, len(names), *names, *args.values)
                replies = cast("list[list[bytes]]", await pipe.execute())
        return [texts(reply) for reply in replies]

    async def command(self, *parts: Arg) -> object:
        """One plain command on the command client; the reply as redis-py gives it."""
        async with mapping():
            return await execute(self.commands, *parts)

    async def pipelined(self, commands: Iterable[Sequence[Arg]]) -> list[object]:
        """Many reads in one round trip."""
        async with mapping(), self.commands.pipeline(transaction=False) as pipe:
            for parts in commands:
                pipe.execute_command(*parts)
            return cast("list[object]", await pipe.execute())

    async def shebang(self) -> bool:
        """Whether the server takes `#!lua` (7.0 and newer). An embedded one has no INFO and gets none."""
        if self._shebang is None:
            info = await self.server_section("server")
            version = info.get("redis_version", "0")
            self._shebang = int(version.split(".")[0]) >= 7
        return self._shebang

    async def server_section(self, section: str) -> dict[str, str]:
        """One section of INFO as text, empty where the server has no INFO."""
        try:
            async with mapping():
                raw = cast("dict[object, object]", await execute(self.commands, "INFO", section))
        except StoreUnavailableError:
            raise
        except StoreError as error:
            if "unknown command" in str(error):
                return {}
            raise
        return {str(key): str(value) for key, value in raw.items()}

    async def close(self) -> None:
        """Close both clients' connections."""
        await self.commands.aclose(close_connection_pool=True)
        await self.blocking.aclose(close_connection_pool=True)


class Linked:
    """What the store's parts have in common."""

    def __init__(self, link: Link) -> None:
        self.link = link


@asynccontextmanager
async def mapping() -> AsyncIterator[None]:
    """Turn redis-py's exceptions into the store's, once."""
    try:
        yield
    except (exceptions.RedisError, OSError) as error:
        raise mapped(error) from error


async def settle(call: Callable[[], Awaitable[T]], chance: Random) -> T:
    """Repeat an idempotent call until Redis answers, whatever the answer; `call` must send the same op_id each time.

    Waits between tries with jitter, up to 5 s; until cancelled.
    """
    backoff = Backoff(chance, FIRST_BACKOFF_S, MAX_BACKOFF_S)
    while True:
        with contextlib.suppress(StoreUnavailableError):
            return await call()
        await anyio.sleep(backoff.next_s())


def encoded(value: Arg) -> bytes:
    """UTF-8. A lone surrogate (JSON may carry one) is written as its escape: it must not stop a write."""
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "backslashreplace")


def decoded(value: object) -> str:
    """Text of a reply; what is not UTF-8 shows as U+FFFD."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def texts(reply: Sequence[object]) -> list[str]:
    return [decoded(part) for part in reply]


def as_map(reply: object) -> dict[str, str]:
    """A hash or an entry's fields, as the client gives them: a mapping, or a flat list."""
    if isinstance(reply, Mapping):
        return {decoded(key): decoded(value) for key, value in reply.items()}
    flat = cast("Sequence[object]", reply or ())
    return {decoded(flat[at]): decoded(flat[at + 1]) for at in range(0, len(flat), 2)}
