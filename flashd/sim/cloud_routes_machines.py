"""Routes of the simulated cloud: virtual machines and volumes."""

from __future__ import annotations

import re

from flashd.sim import cloud_render as render
from flashd.sim.cloud_call import Call, Handler, Route
from flashd.sim.cloud_machines import POWER_VERBS
from flashd.sim.cloud_payload import flag_in, integer, number_in, strings
from flashd.sim.cloud_render import ok, page_of, stamp
from flashd.sim.cloud_routes import available_row
from flashd.sim.cloud_types import Json, bad_request

LOG_LINES_MAX = 10_000


def create(call: Call) -> object:
    cloud = call.cloud
    call.made = cloud.machines.create(call.account, call.body, cloud.balance(call.account))
    rows = [render.machine(cloud, machine) for machine in call.made]
    return ok("Virtual machines creation is in progress", instances=rows)


def list_machines(call: Call) -> object:
    search = call.query.get("search", "")
    environment = call.query.get("environment", "")
    exact = environment != "" and flag_in(call.query, "exact_environment_match", False)
    found = [
        machine
        for machine in call.cloud.machines.listed(call.account)
        if (search in machine.name or search == str(machine.id))
        and (machine.environment.name == environment if exact else environment in machine.environment.name)
        and not (call.hidden and re.search(call.hidden, machine.name))
    ]
    found.sort(key=lambda machine: (machine.created_at, machine.id))
    return page_of(call.cloud, found, call.query, "instances", render.machine)


def get(call: Call) -> object:
    return ok("Getting virtual machine successful", instance=render.machine(call.cloud, call.machine()))


def delete(call: Call) -> object:
    call.cloud.machines.delete(call.machine())
    return ok("Virtual machine deletion is in progress")


def name_available(call: Call) -> object:
    name, count = call.path["name"], number_in(call.query, "count") or 1
    wanted = [name] if count == 1 else [f"{name}-{number}" for number in range(1, count + 1)]
    free = all(call.cloud.machines.name_available(call.account, one) for one in wanted)
    return available_row(name, free)


def power(verb: str) -> Handler:
    def act(call: Call) -> object:
        call.cloud.machines.power(call.machine(), verb)
        return ok(f"Virtual machine {verb} is in progress")

    return act


def events(call: Call) -> object:
    machine = call.machine()
    rows: list[Json] = []
    for at, what, status in machine.events:
        about: Json = {"instance_id": machine.id, "object": "virtual-machine", "org_id": call.account.org_id}
        text: Json = {"type": "Normal", "reason": what, "message": status, "time": stamp(call.cloud, at)}
        rows.append({**about, **text, "user_id": 1})
    return ok("Getting events successful", instance_events=rows)


def request_logs(call: Call) -> object:
    """Half one of the pair: a handle, no envelope. The text is that of the moment of the request."""
    machine = call.machine()
    length = integer(call.body, "length", 1, LOG_LINES_MAX) if "length" in call.body else LOG_LINES_MAX
    return {"request_id": call.cloud.consoles.request(machine, length)}


def get_logs(call: Call) -> object:
    request_id = number_in(call.query, "request_id")
    if request_id is None:
        raise bad_request("request_id: required")
    return {"logs": call.cloud.consoles.read(call.machine(), request_id)}


def set_labels(call: Call) -> object:
    machine = call.machine()
    machine.labels = strings(call.body, "labels")
    return ok("Labels updated successfully", labels=list(machine.labels))


def create_volume(call: Call) -> object:
    made = call.cloud.volumes.create(call.account, call.body)
    return ok("Volume creation is in progress", volume=render.volume(call.cloud, made))


def list_volumes(call: Call) -> object:
    search, environment = call.query.get("search", ""), call.query.get("environment", "")
    found = [
        volume
        for volume in call.cloud.volumes.listed(call.account)
        if search in volume.name and environment in volume.environment.name
    ]
    return page_of(call.cloud, found, call.query, "volumes", render.volume)


def get_volume(call: Call) -> object:
    found = call.cloud.volumes.find(call.account, call.id)
    return ok("Getting volume successful", volume=render.volume(call.cloud, found))


def delete_volume(call: Call) -> object:
    call.cloud.volumes.delete(call.cloud.volumes.find(call.account, call.id))
    return ok("Volume deletion is in progress")


def volume_name_available(call: Call) -> object:
    name = call.path["name"]
    return available_row(name, call.cloud.volumes.name_available(call.account, name))


def attach_volumes(call: Call) -> object:
    done = call.cloud.volumes.attach(call.account, call.machine(), call.body)
    return ok("Attaching volumes", volume_attachments=[render.attachment_row(call.cloud, one) for one in done])


def detach_volumes(call: Call) -> object:
    done = call.cloud.volumes.detach(call.account, call.machine(), call.body)
    return ok("Detaching volumes", volume_attachments=[render.attachment_row(call.cloud, one) for one in done])


def protect_attachment(call: Call) -> object:
    done = call.cloud.volumes.protect(call.account, call.id, call.body)
    return ok("Volume attachment updated", volume_attachment=render.attachment_row(call.cloud, done))


_VM = "/core/virtual-machines"
ROUTES: tuple[Route, ...] = (
    ("POST", _VM, create),
    ("GET", _VM, list_machines),
    ("GET", f"{_VM}/name-availability/{{name}}", name_available),
    ("GET", f"{_VM}/{{id}}", get),
    ("DELETE", f"{_VM}/{{id}}", delete),
    *(("GET", f"{_VM}/{{id}}/{verb}", power(verb)) for verb in POWER_VERBS),
    ("GET", f"{_VM}/{{id}}/events", events),
    ("POST", f"{_VM}/{{id}}/logs", request_logs),
    ("GET", f"{_VM}/{{id}}/logs", get_logs),
    ("PUT", f"{_VM}/{{id}}/label", set_labels),
    ("POST", f"{_VM}/{{id}}/attach-volumes", attach_volumes),
    ("POST", f"{_VM}/{{id}}/detach-volumes", detach_volumes),
    ("POST", "/core/volumes", create_volume),
    ("GET", "/core/volumes", list_volumes),
    ("GET", "/core/volumes/{id}", get_volume),
    ("DELETE", "/core/volumes/{id}", delete_volume),
    ("GET", "/core/volume/name-availability/{name}", volume_name_available),
    ("PATCH", "/core/volume-attachments/{id}", protect_attachment),
)
