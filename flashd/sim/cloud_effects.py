"""Carries scripted faults out: on the request before it is served, on the answer after, and on the connection."""

from __future__ import annotations

import json
import re
import socket
import struct

import anyio
from aiohttp import web

from flashd.sim.cloud import Cloud
from flashd.sim.cloud_faults import Effect, Fault
from flashd.sim.cloud_machines import Machines
from flashd.sim.cloud_types import Fate, Json, Machine, Status

_REASONS = {400: "bad_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "not_allowed"}
_PAGE = "<html><head><title>{status}</title></head><body><center><h1>{status}</h1></center></body></html>"


class Cut(Exception):
    """The connection ends here without an answer."""


def json_answer(status: int, body: object) -> web.Response:
    return web.Response(status=status, text=json.dumps(body), content_type="application/json")


def page_answer(status: int) -> web.Response:
    return web.Response(status=status, text=_PAGE.format(status=status), content_type="text/html")


def error_answer(status: int, body: object) -> web.Response:
    """An answer with this status: the given body, or the one the real service sends with such a status."""
    match body:
        case None if status in (502, 503, 504):
            return page_answer(status)
        case None if status >= 500:
            return json_answer(status, {"message": "Internal Server Error"})
        case None if status < 400:
            return json_answer(status, {"status": True, "message": "ok"})
        case None:
            reason = {"error_reason": _REASONS[status]} if status in _REASONS else {}
            return json_answer(status, {"status": False, "message": f"scripted fault {status}", **reason})
        case str():
            return web.Response(status=status, text=body, content_type="text/html")
        case _:
            return json_answer(status, body)


def throttled_answer() -> web.Response:
    return json_answer(429, {"status": False, "message": "Too many requests"})


async def instead(cloud: Cloud, request: web.Request, fault: Fault) -> web.Response:
    """The answer in place of the real one. Raises Cut when there is none."""
    match fault.effect:
        case Effect.HTML:
            return page_answer(200)
        case Effect.HANG:
            await anyio.sleep(fault.seconds)
            raise Cut
        case Effect.RESET:
            _reset(request)
            raise Cut
        case Effect.THROTTLE:
            cloud.rate_limit.block(request.remote or "", fault.seconds or None)
            return throttled_answer()
        case Effect.NOT_FOUND:
            return error_answer(404, {"status": False, "message": "Not found", "error_reason": "not_found"})
        case Effect.CONFLICT:
            body = {"status": False, "message": "An operation is in progress", "error_reason": "conflict"}
            return error_answer(409, body)
        case Effect.UNAUTHORIZED:
            return error_answer(401, None)
        case Effect.LYING_DELETE:
            return json_answer(200, {"status": True, "message": "Virtual machine deletion is in progress"})
        case _:
            return error_answer(fault.status, fault.body)


def on_machine(machines: Machines, machine: Machine, fault: Fault) -> None:
    match fault.effect:
        case Effect.LIST_LAG:
            machine.listed_from = machine.created_at + fault.seconds
        case Effect.SLOW_BOOT:
            machines.build(machine, fault.seconds)
        case Effect.STUCK:
            machines.build(machine, None)
        case Effect.BUILD_ERROR:
            machines.build(machine, fault.seconds, Status.ERROR)
        case Effect.STRIKE:
            machines.doom(machine, Fate(fault.seconds, fault.how))
        case _:
            raise AssertionError(fault.effect)


async def after(request: web.Request, answer: web.Response, fault: Fault) -> web.StreamResponse:
    """What becomes of an answer. Raises Cut when the client gets none."""
    match fault.effect:
        case Effect.APPLIED_STATUS:
            return error_answer(fault.status, fault.body)
        case Effect.APPLIED_LOST:
            raise Cut
        case Effect.APPLIED_HANG:
            await anyio.sleep(fault.seconds)
            raise Cut
        case Effect.TRUNCATED:
            return await _truncate(request, answer)
        case Effect.MALFORMED:
            text = answer.text or ""
            return web.Response(status=answer.status, text=text[: len(text) // 2], content_type="application/json")
        case Effect.NO_ID | Effect.SHRINK | Effect.SHOW if answer.status < 400:
            return json_answer(answer.status, _edit(json.loads(answer.text or "null"), fault))
        case _:
            return answer


def cut(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


def _edit(document: object, fault: Fault) -> object:
    if not isinstance(document, dict):
        return document
    rows = document.get("instances")
    machines: list[Json] = [row for row in (rows if isinstance(rows, list) else [document.get("instance")]) if row]
    match fault.effect:
        case Effect.NO_ID:
            for machine in machines:
                machine.pop("id", None)
        case Effect.SHOW:
            for machine in machines:
                if re.search(fault.pattern, str(machine.get("name"))):
                    machine.update(fault.fields)
        case _:
            if isinstance(rows, list):
                document["instances"] = rows[: fault.rows]
    return document


async def _truncate(request: web.Request, answer: web.Response) -> web.StreamResponse:
    body = answer.body if isinstance(answer.body, bytes) else b""
    partial = web.StreamResponse(status=answer.status, headers={"Content-Type": "application/json"})
    partial.content_length = len(body)
    await partial.prepare(request)
    await partial.write(body[: len(body) // 2])
    cut(request)
    return partial


def _reset(request: web.Request) -> None:
    """Close with RST instead of FIN, as a dying load balancer does."""
    if request.transport is None:
        return
    sock = request.transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.transport.abort()
