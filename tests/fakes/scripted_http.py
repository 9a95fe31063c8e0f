"""A real HTTP server that answers what a test tells it to, byte for byte, and remembers what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from aiohttp import web


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


@dataclass(frozen=True, slots=True)
class Reply:
    """`cut` closes the connection after `promised` minus some bytes; `hang_s` waits first."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang_s: float = 0.0
    cut: bool = False


Script = Callable[[Asked], Reply]


def reply(status: int, body: object, **headers: str) -> Reply:
    """An answer with a JSON body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, json.dumps(body).encode(), {"Content-Type": "application/json", **named})


def page(status: int) -> Reply:
    """What a gateway in front of the API answers."""
    return Reply(status, b"<html><body>upstream</body></html>", {"Content-Type": "text/html"})


@dataclass(slots=True)
class Scripted:
    base_url: str
    script: Script
    asked: list[Asked] = field(default_factory=list)
    connections: set[str] = field(default_factory=set)

    def calls(self, method: str, path_part: str = "") -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method and path_part in asked.path]

    async def serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = Asked(request.method, request.path, dict(request.query), dict(request.headers), body)
        self.asked.append(asked)
        self.connections.add(str(request.transport.get_extra_info("peername")) if request.transport else "")
        found = self.script(asked)
        await anyio.sleep(found.hang_s)
        if not found.cut:
            return web.Response(status=found.status, body=found.body, headers=found.headers)
        response = web.StreamResponse(
            status=found.status, headers={**found.headers, "Content-Length": str(len(found.body) + 10)}
        )
        await response.prepare(request)
        await response.write(found.body)
        if request.transport is not None:
            request.transport.abort()
        return response


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[Scripted]:
    """Serve a script on a free loopback port."""
    server = Scripted("", script)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", server.serve)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
