"""The control surface below `/_sim/`: the truth about the simulated cloud, and the levers. Needs no key."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from flashd.sim import cloud_payload as payload
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_faults import Effect, read_fault
from flashd.sim.cloud_machines import STRIKES
from flashd.sim.cloud_types import ApiError, Json, Planting, Status, bad_request

Action = Callable[[Cloud, Json, dict[str, str]], object]


def machines(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return {"machines": cloud.truth()}


def plant(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"name", "region"?, "flavor"?, "account"?, "labels"?, "status"?, "age_s"?}`"""
    status = str(body.get("status", "ACTIVE"))
    if status not in Status.__members__ or status == "GONE":
        raise bad_request(f"status {status!r} is not one a machine can have")
    planting = Planting(
        payload.text(body, "name"),
        region=payload.optional_text(body, "region") or "NORWAY-1",
        flavor=payload.optional_text(body, "flavor") or "n3-RTX-A6000x1",
        account=payload.optional_text(body, "account"),
        labels=tuple(payload.strings(body, "labels")),
        status=Status(status),
        age_s=_number(body, "age_s", 0.0),
    )
    return {"machine": cloud.truth_of(cloud.plant(planting))}


def strike(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"action": "die" | "shutoff" | "vanish"}`"""
    if not path["id"].isdecimal():
        raise bad_request("a machine id is an integer")
    machine = cloud.machine(int(path["id"]))
    cloud.machines.strike(machine, payload.text(body, "action"))
    return {"machine": cloud.truth_of(machine)}


def requests(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return cloud.meter.report()


def forget_requests(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    cloud.meter.clear()
    cloud.rate_limit.clear()
    return {"cleared": True}


def stock(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"free": n, "region"?, "flavor"?, "shown"?}`; without region or flavor: all of them."""
    shown = body.get("shown")
    if shown is not None and not isinstance(shown, bool):
        raise bad_request("shown: a boolean or null is required")
    place = payload.optional_text(body, "region"), payload.optional_text(body, "flavor")
    changed = cloud.catalogue.set_stock(*place, payload.integer(body, "free", 0, 1_000_000), shown)
    if not changed:
        raise bad_request("no flavor in any region fits")
    return {"changed": changed}


def prices(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"<GPU model>": dollars per hour}`; for machines made from now on."""
    new = {name: _number(body, name, 0.0) for name in body}
    cloud.catalogue.prices.update(new)
    return {"prices": cloud.catalogue.prices}


def credit(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"balance": dollars, "account"?, "threshold"?}`: what is left from now on."""
    account = cloud.account(payload.optional_text(body, "account"))
    account.credit += _number(body, "balance", 0.0) - cloud.balance(account)
    account.threshold = _number(body, "threshold", account.threshold)
    return {"balance": cloud.balance(account), "threshold": account.threshold}


def keys(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    """`{"key", "account"?, "read_only"?}` adds or moves; `{"key", "revoked": bool}` revokes or restores."""
    key = payload.text(body, "key")
    if "revoked" in body:
        cloud.accounts.revoke(key, payload.flag(body, "revoked", True))
        return {"revoked": body["revoked"]}
    name = payload.text(body, "account")
    if name not in cloud.accounts.by_name:
        cloud.add_account(name)
    cloud.accounts.add_key(key, name, read_only=payload.flag(body, "read_only", False))
    return {"account": name, "org_id": cloud.account(name).org_id}


def faults(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return {"faults": cloud.faults.report()}


def add_fault(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    fault = read_fault(body)
    if fault.effect is Effect.ACCOUNT:
        cloud.account(fault.account)  # refuses an unknown one here, not in the middle of a client's request
    if fault.how not in STRIKES:
        raise bad_request(f"how {fault.how!r}: one of {', '.join(STRIKES)}")
    return {"id": cloud.faults.add(fault)}


def clear_faults(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    raw = path.get("id")
    if raw is not None and not raw.isdecimal():
        raise bad_request("a fault id is an integer")
    return {"removed": cloud.faults.clear(int(raw) if raw is not None else None)}


def show_knobs(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return dataclasses.asdict(cloud.knobs)


def change_knobs(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    for name, value in body.items():
        cloud.knobs.change(name, value)
    return dataclasses.asdict(cloud.knobs)


def log(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return {"log": [dataclasses.asdict(line) for line in cloud.machines.log]}


def volumes(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return {"volumes": [cloud.truth_of_volume(volume) for volume in cloud.volumes.all.values()]}


def summary(cloud: Cloud, body: Json, path: dict[str, str]) -> object:
    return cloud.summary()


_ACTIONS: tuple[tuple[str, str, Action], ...] = (
    ("GET", "/machines", machines),
    ("POST", "/machines", plant),
    ("POST", "/machine/{id}", strike),
    ("GET", "/requests", requests),
    ("DELETE", "/requests", forget_requests),
    ("POST", "/stock", stock),
    ("POST", "/prices", prices),
    ("POST", "/credit", credit),
    ("POST", "/keys", keys),
    ("GET", "/faults", faults),
    ("POST", "/faults", add_fault),
    ("DELETE", "/faults", clear_faults),
    ("DELETE", "/faults/{id}", clear_faults),
    ("GET", "/knobs", show_knobs),
    ("POST", "/knobs", change_knobs),
    ("GET", "/log", log),
    ("GET", "/volumes", volumes),
    ("GET", "/summary", summary),
)


def control_routes(cloud: Cloud) -> list[web.RouteDef]:
    return [web.route(method, f"/_sim{path}", _serve(cloud, action)) for method, path, action in _ACTIONS]


def _serve(cloud: Cloud, action: Action) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def serve(request: web.Request) -> web.StreamResponse:
        raw = await request.text()
        try:
            body = json.loads(raw) if raw else {}
            if not isinstance(body, dict):
                raise bad_request("a JSON object is required")
            found = action(cloud, body, dict(request.match_info))
        except ValueError as error:
            return web.json_response({"error": f"not JSON: {error}"}, status=400)
        except ApiError as error:
            return web.json_response({"error": error.message}, status=error.status)
        return web.json_response(found)

    return serve


def _number(body: Json, field: str, default: float) -> float:
    value = body.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise bad_request(f"{field}: a number is required")
    return float(value)
