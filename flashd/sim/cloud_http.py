"""The simulated cloud on a port: authentication, rate limit, faults, routing, and the ticker that lets time pass."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import anyio
from aiohttp import web
from aiohttp.typedefs import Handler as WebHandler

from flashd.sim import cloud_routes, cloud_routes_machines
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_box import BoxPump
from flashd.sim.cloud_call import Call, Handler
from flashd.sim.cloud_control import control_routes
from flashd.sim.cloud_effects import Cut, after, cut, instead, json_answer, on_machine, throttled_answer
from flashd.sim.cloud_faults import BEFORE, INSTEAD, ON_MACHINE, Effect, Fault
from flashd.sim.cloud_types import Account, ApiError

API_PREFIX = "/v1"
TICK_S = 0.02
SHUTDOWN_S = 1.0
BODY_MAX = 4 << 20
_OPEN = frozenset({"/billing/alive"})


class CloudServer:
    """A running server. `base_url` is what a client is configured with, `url` the root with `/_sim/` below it."""

    def __init__(self, cloud: Cloud, runner: web.AppRunner, host: str, port: int) -> None:
        self.cloud = cloud
        self.host, self.port = host, port
        self.url = f"http://{host}:{port}"
        self.base_url = self.url + API_PREFIX
        self._runner = runner
        self._pump = BoxPump(cloud.machines, cloud.box) if cloud.box is not None else None
        self._ticker = asyncio.create_task(self._tick())

    async def close(self) -> None:
        """Stop listening, then power off every box. Safe to call twice."""
        self._ticker.cancel()
        await asyncio.gather(self._ticker, return_exceptions=True)
        await self._runner.cleanup()
        if self._pump is not None:
            await self._pump.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _tick(self) -> None:
        while True:
            self.cloud.advance()
            if self._pump is not None:
                self._pump.pump()
            await anyio.sleep(TICK_S)


async def serve_cloud(cloud: Cloud, host: str = "127.0.0.1", port: int = 0) -> CloudServer:
    """Serve the API below `/v1` and the control surface below `/_sim`. Port 0 takes a free one."""
    runner = web.AppRunner(make_app(cloud), handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return CloudServer(cloud, runner, host, int(runner.addresses[0][1]))


def make_app(cloud: Cloud) -> web.Application:
    api = _Api(cloud)
    app = web.Application(middlewares=[api.middleware], client_max_size=BODY_MAX)
    for method, path, handler in (*cloud_routes.ROUTES, *cloud_routes_machines.ROUTES):
        app.router.add_route(method, API_PREFIX + path, api.route(path, handler))
    app.add_routes(control_routes(cloud))
    return app


@dataclass(slots=True)
class _Flight:
    """What middleware and handler of one request tell each other; they run in one task."""

    faults: list[Fault]
    call: Call | None = None


_flight: ContextVar[_Flight] = ContextVar("flight")


class _Api:
    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    @web.middleware
    async def middleware(self, request: web.Request, handler: WebHandler) -> web.StreamResponse:
        self._cloud.advance()
        if request.path.startswith("/_sim/"):
            return await handler(request)
        endpoint = _endpoint(request)
        self._cloud.meter.arrived(request.method, endpoint)
        try:
            answer = await self._answer(request, handler)
        except Cut:
            self._cloud.meter.answered(request.method, endpoint, 0)
            cut(request)
            return web.Response()  # never sent: the connection is closed
        self._cloud.meter.answered(request.method, endpoint, answer.status)
        return answer

    def route(self, path: str, handler: Handler) -> WebHandler:
        """The web handler of one API call; faults of the request are found by the middleware."""

        async def serve(request: web.Request) -> web.StreamResponse:
            call = Call(self._cloud, self._account(request, path), request.query, request.match_info)
            call.raw_body = await _body_of(request)
            call.hidden = "|".join(
                f"(?:{fault.pattern})" for fault in _flight.get().faults if fault.effect is Effect.DROP_ROWS
            )
            _flight.get().call = call
            return json_answer(200, handler(call))

        return serve

    async def _answer(self, request: web.Request, handler: WebHandler) -> web.StreamResponse:
        knobs = self._cloud.knobs
        if not self._cloud.rate_limit.allows(request.remote or "", knobs.requests_per_minute):
            return throttled_answer()
        name = await self._name(request)
        faults = self._cloud.faults.hits(request.method, request.path_qs, name)
        flight = _Flight(faults)
        _flight.set(flight)
        for fault in faults:
            if fault.effect is Effect.DELAY:
                await anyio.sleep(fault.seconds)
                self._cloud.advance()
            elif fault.effect in INSTEAD:
                return await instead(self._cloud, request, fault)
        return await self._disturb(request, await self._served(request, handler), flight)

    async def _served(self, request: web.Request, handler: WebHandler) -> web.Response:
        try:
            answer = await handler(request)
        except ApiError as error:
            return json_answer(error.status, error.body())
        except web.HTTPMethodNotAllowed:
            body = {"status": False, "message": "Method not allowed", "error_reason": "not_allowed"}
            return json_answer(405, body)
        except web.HTTPNotFound:
            body = {"status": False, "message": "The requested URL was not found", "error_reason": "not_found"}
            return json_answer(404, body)
        assert isinstance(answer, web.Response)
        return answer

    async def _disturb(self, request: web.Request, answer: web.Response, flight: _Flight) -> web.StreamResponse:
        made = flight.call.made if flight.call is not None else []
        last: web.StreamResponse = answer
        for fault in flight.faults:
            if fault.effect in ON_MACHINE:
                for machine in made:
                    on_machine(self._cloud.machines, machine, fault)
            elif fault.effect not in BEFORE and isinstance(last, web.Response):
                last = await after(request, last, fault)
        return last

    def _account(self, request: web.Request, path: str) -> Account:
        if path in _OPEN:
            return self._cloud.account()
        writes = request.method != "GET"
        account = self._cloud.accounts.authenticate(request.headers.get("api_key"), writes=writes)
        for fault in _flight.get().faults:
            if fault.effect is Effect.ACCOUNT:
                account = self._cloud.account(fault.account)
        return account

    async def _name(self, request: web.Request) -> str:
        """What a fault's `name` is compared with: the name in the body, else that of the machine addressed."""
        if request.method == "POST":
            body = await _body_of(request, strict=False)
            if isinstance(body, dict) and isinstance(body.get("name"), str):
                return str(body["name"])
        raw = request.match_info.get("id", "")
        machine = self._cloud.machines.all.get(int(raw)) if raw.isdecimal() else None
        return machine.name if machine is not None and "virtual-machine" in request.path else ""


def _endpoint(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical.removeprefix(API_PREFIX) if resource is not None else "(unknown)"


async def _body_of(request: web.Request, *, strict: bool = True) -> object:
    """The parsed body; None when there is none. Text that is not JSON is a 400, or None when not `strict`."""
    raw = await request.read()
    if not raw:
        return None
    try:
        found: object = json.loads(raw)
    except ValueError as error:
        if strict:
            raise ApiError(400, "bad_request", "The request body is not valid JSON") from error
        return None
    return found
