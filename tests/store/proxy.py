"""A Redis proxy that sends every EVALSHA twice, and on demand loses replies: what a bad network does to scripts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

Reply = bytes | int | None | list["Reply"] | Exception


class ServerSaid(Exception):
    """An error reply."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerSaid) and other.args == self.args

    __hash__ = Exception.__hash__


@dataclass
class Proxy:
    """Listens on loopback, forwards to a unix socket. `mismatches`: scripts that answered their repeat otherwise."""

    socket_path: str
    doubling: bool = True
    lose_replies: int = 0
    mismatches: list[tuple[Reply, Reply]] = field(default_factory=list)
    doubled: set[str] = field(default_factory=set)
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(self.socket_path, limit=2**24)
            try:
                while await self._one(reader, writer, server_reader, server_writer):
                    pass
            finally:
                server_writer.close()
        except (ConnectionError, asyncio.IncompleteReadError, FileNotFoundError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _one(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> bool:
        """One command; False = hang up (its reply is lost)."""
        raw, command = await read_value(reader)
        is_script = isinstance(command, list) and command[0] == b"EVALSHA"
        server_writer.write(raw)
        answer, first = await read_value(server_reader)
        # A script the server does not know did not run; another client may load it before the repeat.
        if is_script and self.doubling and not (isinstance(first, ServerSaid) and b"NOSCRIPT" in first.args[0]):
            server_writer.write(raw)
            answer, second = await read_value(server_reader)
            assert isinstance(command, list) and isinstance(command[1], bytes)
            self.doubled.add(command[1].decode())
            if not same_answer(first, second):
                self.mismatches.append((first, second))
        if is_script and self.lose_replies > 0 and not isinstance(first, ServerSaid):
            self.lose_replies -= 1
            return False
        writer.write(answer)
        await writer.drain()
        return True


def same_answer(first: object, second: object) -> bool:
    """Equal, but for what must differ: a replay is marked as one, and a held lease has less time left."""
    return _answer(first) == _answer(second)


def _answer(reply: object) -> object:
    match reply:
        case [b"replay", bytes(kept)]:
            return kept.split(b"\n")
        case [b"held", bytes(remaining_ms), holder] if remaining_ms.isdigit():
            return holder
    return reply


async def read_value(reader: asyncio.StreamReader) -> tuple[bytes, Reply]:
    """One RESP2 value: its bytes and what it means."""
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    match kind:
        case b"+":
            return line, rest
        case b"-":
            return line, ServerSaid(rest)
        case b":":
            return line, int(rest)
        case b"$":
            if rest == b"-1":
                return line, None
            body = await reader.readexactly(int(rest) + 2)
            return line + body, body[:-2]
        case b"*":
            parts, values = [line], list[Reply]()
            for _ in range(max(int(rest), 0)):
                raw, value = await read_value(reader)
                parts.append(raw)
                values.append(value)
            return b"".join(parts), values
    raise ValueError(f"not RESP2: {line!r}")
