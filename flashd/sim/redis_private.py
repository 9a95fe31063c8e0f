"""A private Redis for a demo or a rehearsal: redis-server on a unix socket, else fakeredis behind its TCP server.

The directory belongs to the caller. Either server is a child process that ends with this one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

START_S = 20.0
STOP_S = 5.0
POLL_S = 0.05
SOCKET_PATH_MAX = 100  # bytes; the kernel's limit for a unix socket is 107 and a zero


class RedisStartError(RuntimeError):
    """The server did not come up; the text says why."""


@dataclass(slots=True)
class PrivateRedis:
    """A running server. `cli` is the command line that reaches it, without a command of Redis."""

    url: str
    cli: str
    real: bool
    process: asyncio.subprocess.Process

    async def close(self) -> None:
        await end_process(self.process, STOP_S)


async def start_redis(directory: Path, *, prefer_real: bool = True) -> PrivateRedis:
    """Start one with its data in `directory`, which exists. Raises RedisStartError."""
    program = shutil.which("redis-server") if prefer_real else None
    if program is None:
        return await _start_fake(directory)
    return await _start_real(program, directory)


def with_parent(command: list[str]) -> list[str]:
    """The command, ended by the kernel should this process be killed; plain where util-linux has no setpriv."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", *command] if setpriv else command


async def end_process(process: asyncio.subprocess.Process, patience_s: float) -> None:
    """SIGTERM, then SIGKILL after `patience_s`; returns when it is gone."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(patience_s):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _start_real(program: str, directory: Path) -> PrivateRedis:
    socket = directory / "redis.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_MAX:
        raise RedisStartError(f"{socket}: the path is too long for a unix socket; set TMPDIR to a shorter one")
    log = directory / "redis.log"
    command = [program, "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"]
    command += ["--dir", str(directory), "--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    command += ["--maxmemory-policy", "noeviction", "--logfile", str(log)]
    process = await _spawn(command, directory / "redis.out")
    server = PrivateRedis(f"unix://{socket}?db=0", f"redis-cli -s {socket}", True, process)
    await _until_it_answers(server, log)
    return server


async def _start_fake(directory: Path) -> PrivateRedis:
    told = directory / "port"
    log = directory / "redis.log"
    process = await _spawn([sys.executable, "-m", "flashd.sim.redis_private", str(told)], log)
    server = PrivateRedis("", "", False, process)
    async with asyncio.timeout(START_S):
        while not told.exists():
            _check_alive(process, log)
            await asyncio.sleep(POLL_S)
    port = told.read_text()
    server.url, server.cli = f"redis://127.0.0.1:{port}/0", f"redis-cli -p {port}"
    await _until_it_answers(server, log)
    return server


async def _spawn(command: list[str], output: Path) -> asyncio.subprocess.Process:
    with output.open("ab") as log:
        return await asyncio.create_subprocess_exec(
            *with_parent(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C is for the one who started it
        )


async def _until_it_answers(server: PrivateRedis, log: Path) -> None:
    try:
        async with asyncio.timeout(START_S), Redis.from_url(server.url, protocol=2) as client:
            while not await _answers(client):
                _check_alive(server.process, log)
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        await server.close()
        raise RedisStartError(f"no answer within {START_S:.0f} s; see {log}") from error


async def _answers(client: Redis) -> bool:
    try:
        await client.execute_command("PING")  # type: ignore[no-untyped-call]
    except (RedisError, OSError):
        return False
    return True


def _check_alive(process: asyncio.subprocess.Process, log: Path) -> None:
    if process.returncode is not None:
        said = log.read_text(errors="replace")[-2_000:] if log.exists() else ""
        raise RedisStartError(f"the server ended with status {process.returncode}: {said.strip()}")


def _serve_fake(told: Path) -> None:
    from fakeredis import TcpFakeServer

    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis", server_version=(7, 0))
    server.daemon_threads = True  # its connections must not keep this process alive
    scratch = told.with_suffix(".new")
    scratch.write_text(str(server.server_address[1]))
    scratch.replace(told)
    server.serve_forever()


if __name__ == "__main__":
    _serve_fake(Path(sys.argv[1]))
