"""The simulated Hub on a socket: counting, faults, quotas and error headers around every handler."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import assert_never

from aiohttp import web
from aiohttp.typedefs import Middleware

from flashd.sim.hub import ANONYMOUS, SimHub, Token
from flashd.sim.hub_control import HubControl
from flashd.sim.hub_faults import Asked, Effect, Fault
from flashd.sim.hub_quota import Bucket
from flashd.sim.hub_reads import HubReads
from flashd.sim.hub_repo import HubRefusal
from flashd.sim.hub_writes import HubWrites

MAX_BODY_BYTES = 1 << 30
SHUTDOWN_S = 0.2
LEFT_CHECK_S = 0.05
NO_ANSWER = 0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_KINDS = (
    (re.compile(r"^/api/(?:datasets|models)/[^/]+/[^/]+/([a-z-]+)(?:/|$)"), None),
    (re.compile(r"^/api/(?:datasets|models)/[^/]+/[^/]+$"), "info"),
    (re.compile(r"^/api/resolve-cache/"), "resolve-cache"),
    (re.compile(r"^/(?:datasets/)?[^/]+/[^/]+/resolve/"), "resolve"),
    (re.compile(r"\.git/info/lfs/objects/batch$"), "lfs-batch"),
    (re.compile(r"\.git/info/lfs/objects/verify$"), "lfs-verify"),
    (re.compile(r"^/_lfs/"), "lfs-storage"),
    (re.compile(r"^/api/repos/create$"), "create"),
    (re.compile(r"^/api/whoami-v2$"), "whoami"),
    (re.compile(r"^/api/validate-yaml$"), "validate-yaml"),
    (re.compile(r"^/api/agent-harnesses$"), "agent-harnesses"),
)


@dataclass(frozen=True, slots=True)
class HubServer:
    """A served Hub; `url` is what HF_ENDPOINT wants."""

    url: str
    host: str
    port: int


@asynccontextmanager
async def serve_hub(hub: SimHub, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[HubServer]:
    """Serve until the block ends; port 0 takes a free one. Requests still held by a fault are dropped then."""
    runner = web.AppRunner(hub_app(hub), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, reuse_address=True)
        await site.start()
        bound = int(runner.addresses[0][1])
        yield HubServer(f"http://{host}:{bound}", host, bound)
    finally:
        await runner.cleanup()


def hub_app(hub: SimHub) -> web.Application:
    app = web.Application(middlewares=[_Front(hub).middleware], client_max_size=MAX_BODY_BYTES)
    for part in (HubReads(hub), HubWrites(hub), HubControl(hub)):
        app.add_routes(part.routes())
    return app


def kind_of(path: str) -> str:
    """The name under which a request is counted and matched by faults, e.g. `commit`, `resolve`, `tree`."""
    for pattern, name in _KINDS:
        found = pattern.search(path)
        if found:
            return name or found.group(1)
    return "other"


class _Front:
    """Everything that happens to a request outside its handler."""

    def __init__(self, hub: SimHub) -> None:
        self._hub = hub

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path.startswith("/_sim/"):
                return await self._guarded(request, handler)
            kind = kind_of(request.path)
            response = await self._with_faults(request, handler, kind)
            status = NO_ANSWER if response is None else response.status
            self._hub.requests[kind, status] += 1
            return response if response is not None else _gone(request)

        return answer

    async def _with_faults(self, request: web.Request, handler: Handler, kind: str) -> web.StreamResponse | None:
        """The answer, or None when there is none."""
        body = (await request.read()).decode(errors="replace") if self._hub.faults.wants_body() else ""
        fault = self._hub.faults.pick(Asked(request.method, kind, request.path, body), self._hub.now())
        if fault is None:
            return await self._limited(request, handler, kind)
        match fault.effect:
            case Effect.STATUS:
                return self._faulty(request, kind, fault)
            case Effect.STATUS_AFTER:
                await self._limited(request, handler, kind)
                return self._faulty(request, kind, fault)
            case Effect.HANG:
                await _hang(request, fault.seconds)
                return None
            case Effect.HANG_AFTER:
                await self._limited(request, handler, kind)
                await _hang(request, fault.seconds)
                return None
            case Effect.RESET:
                return None
            case Effect.RESET_AFTER:
                await self._limited(request, handler, kind)
                return None
            case Effect.DELAY:
                await asyncio.sleep(fault.seconds or 0.0)
                return await self._limited(request, handler, kind)
            case Effect.TRUNCATE:
                return await _truncated(request, await self._limited(request, handler, kind))
            case never:
                assert_never(never)

    async def _limited(self, request: web.Request, handler: Handler, kind: str) -> web.StreamResponse:
        if kind == "lfs-storage":  # not the Hub itself, but the object storage behind it
            return await self._guarded(request, handler)
        caller, bucket = self._who(request), _bucket(kind)
        if self._hub.request_quota.take(caller.user, bucket, self._hub.now()):
            response = await self._guarded(request, handler)
        else:
            response = _error(HubRefusal(429, f"We had to rate limit you: the quota of '{bucket}' requests is used up"))
        response.headers.update(self._hub.request_quota.headers(caller.user, bucket, self._hub.now()))
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except HubRefusal as refusal:
            return _error(refusal)
        except web.HTTPException as error:
            return _error(HubRefusal(error.status, f"{error.reason}: {request.method} {request.path}"))

    def _faulty(self, request: web.Request, kind: str, fault: Fault) -> web.Response:
        message = "Invalid credentials in Authorization header" if fault.status == 401 else "Scripted by the simulation"
        response = _error(HubRefusal(fault.status, message))
        if fault.json is not None:
            response = web.json_response(dict(fault.json), status=fault.status)
        headers = self._hub.request_quota.headers(self._who(request).user, _bucket(kind), self._hub.now())
        response.headers.update(headers | dict(fault.headers))
        return response

    def _who(self, request: web.Request) -> Token:
        try:
            return self._hub.caller(request.headers.get("Authorization"))
        except HubRefusal:
            return ANONYMOUS


def _bucket(kind: str) -> Bucket:
    # Whether the second hop of a public file counts again is not published; here it does.
    return Bucket.RESOLVERS if kind in ("resolve", "resolve-cache") else Bucket.API


def _error(refusal: HubRefusal) -> web.Response:
    headers = {"X-Error-Message": " ".join(refusal.message.split()), **refusal.headers}
    if refusal.code:
        headers["X-Error-Code"] = refusal.code
    return web.json_response({"error": refusal.message}, status=refusal.status, headers=headers)


async def _hang(request: web.Request, seconds: float | None) -> None:
    """Wait until the client leaves, or for so many seconds."""
    loop = asyncio.get_running_loop()
    end = None if seconds is None else loop.time() + seconds
    while request.transport is not None and not request.transport.is_closing():
        if end is not None and loop.time() >= end:
            return
        await asyncio.sleep(LEFT_CHECK_S)


async def _truncated(request: web.Request, response: web.StreamResponse) -> web.StreamResponse | None:
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes | bytearray) or len(body) < 2 or request.method == "HEAD":
        return None
    cut = web.StreamResponse(status=response.status, headers=response.headers)
    cut.content_length = len(body)
    await cut.prepare(request)
    await cut.write(bytes(body[: len(body) // 2]))
    if request.transport is not None:
        request.transport.close()
    return cut


def _gone(request: web.Request) -> web.Response:
    """End the connection with a reset; the response returned is never seen."""
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            # Lingering for zero seconds makes the kernel send RST instead of an orderly end.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response()
