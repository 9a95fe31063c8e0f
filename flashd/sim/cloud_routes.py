"""Routes of the simulated cloud: catalogue, account, environments, keypairs, billing."""

from __future__ import annotations

from flashd.sim import cloud_render as render
from flashd.sim.cloud_billing import billed_minutes, billed_usd, seconds_in, volume_minutes, volume_usd
from flashd.sim.cloud_call import Call, Route
from flashd.sim.cloud_payload import KEY_TYPES, flag_in, number_in
from flashd.sim.cloud_render import ok, page_of, stamp
from flashd.sim.cloud_types import BILLED, Json, Machine, Status, bad_request, not_found


def regions(call: Call) -> object:
    return ok("Getting regions successful", regions=[render.region(found) for found in call.cloud.catalogue.regions])


def flavors(call: Call) -> object:
    region = call.query.get("region") or None
    if region is not None and not call.cloud.catalogue.has_region(region):
        raise not_found(f"Region {region} does not exist")
    return ok("Getting flavors successful", data=render.flavor_groups(call.cloud, region))


def stocks(call: Call) -> object:
    return {"stocks": call.cloud.catalogue.stock_rows()}


def gpus(call: Call) -> object:
    catalogue = call.cloud.catalogue
    rows: list[Json] = []
    for number, gpu in enumerate(sorted({flavor.gpu for flavor in catalogue.flavors if flavor.gpu}), 1):
        sold = {flavor.region for flavor in catalogue.flavors if flavor.gpu == gpu}
        places = [{"id": region.id, "name": region.name} for region in catalogue.regions if region.name in sold]
        rows.append({"id": number, "name": gpu, "regions": places})
    return ok("Getting GPUs successful", gpu_list=rows)


def images(call: Call) -> object:
    """Flat paging by image, then grouped; paging names are `page` and `per_page` here."""
    region, search = call.query.get("region") or None, call.query.get("search", "").lower()
    found = [
        image
        for image in call.cloud.catalogue.images
        if region in (None, image.region) and search in image.name.lower()
    ]
    if not flag_in(call.query, "include_public", True):
        found = []
    size = number_in(call.query, "per_page") or call.cloud.knobs.images_per_page
    if size:
        first = ((number_in(call.query, "page") or 1) - 1) * size
        found = found[first : first + size]
    return ok("Getting images successful", images=render.image_groups(call.cloud, found))


def prices(call: Call) -> object:
    return render.prices(call.cloud)


def list_environments(call: Call) -> object:
    search = call.query.get("search", "")
    found = [one for one in call.account.environments.values() if search in one.name]
    return page_of(call.cloud, found, call.query, "environments", render.environment)


def create_environment(call: Call) -> object:
    made = call.cloud.accounts.create_environment(call.account, call.body)
    return ok("Environment created successfully", environment=render.environment(call.cloud, made))


def get_environment(call: Call) -> object:
    found = call.cloud.accounts.environment(call.account, call.id)
    return ok("Getting environment successful", environment=render.environment(call.cloud, found))


def rename_environment(call: Call) -> object:
    found = call.cloud.accounts.rename_environment(call.account, call.id, call.body)
    return ok("Environment updated successfully", environment=render.environment(call.cloud, found))


def delete_environment(call: Call) -> object:
    found = call.cloud.accounts.environment(call.account, call.id)
    if any(machine.environment is found for machine in call.cloud.living()):
        raise bad_request(f"Environment {found.name} has resources and cannot be deleted")
    del call.account.environments[found.id]
    for keypair in [one for one in call.account.keypairs.values() if one.environment is found]:
        del call.account.keypairs[keypair.id]
    return ok("Environment deleted successfully")


def environment_name_available(call: Call) -> object:
    name = call.path["name"]
    taken = any(one.name == name for one in call.account.environments.values())
    return available_row(name, not taken)


def vm_quota(call: Call) -> object:
    found = call.cloud.accounts.environment(call.account, call.id)
    most = call.cloud.knobs.machines_per_environment
    here = sum(1 for machine in call.cloud.living() if machine.environment is found)
    numbers = {"current_vms": here, "max_vms": most, "available_vms": max(most - here, 0)}
    return ok("Getting quota successful", cidr="10.0.0.0/16", percentage_used=100 * here / most, **numbers)


def list_keypairs(call: Call) -> object:
    search = call.query.get("search", "")
    found = [one for one in call.account.keypairs.values() if search in one.name]
    return page_of(call.cloud, found, call.query, "keypairs", render.keypair)


def import_keypair(call: Call) -> object:
    made = call.cloud.accounts.import_keypair(call.account, call.body)
    return ok("Keypair imported successfully", keypair=render.keypair(call.cloud, made))


def delete_keypair(call: Call) -> object:
    del call.account.keypairs[call.cloud.accounts.keypair(call.account, call.id).id]
    return ok("Keypair deleted successfully")


def key_types(call: Call) -> object:
    return ok("Getting key types successful", supported_key_types=list(KEY_TYPES))


def credit(call: Call) -> object:
    balance = call.cloud.balance(call.account)
    threshold = call.account.threshold
    data = {"credit": round(balance, 4), "threshold": threshold, "can_create_instance": balance > threshold}
    return ok("Getting credit successful", data=data)


def alive(call: Call) -> object:
    return ok("Alive")


def me(call: Call) -> object:
    name = call.account.name
    user = {"email": f"{name}@example.invalid", "name": name, "username": name, "created_at": _birth(call)}
    return ok("Getting user successful", user=user)


def organization(call: Call) -> object:
    return ok("Getting organization successful", organization=_organization(call))


def my_organizations(call: Call) -> object:
    return {"organizations": [_organization(call)]}


def usage(call: Call) -> object:
    """Bill of every resource; `deleted=true` shows the gone ones too; `environment` narrows by exact name."""
    gone, place = flag_in(call.query, "deleted", False), call.query.get("environment")
    rows = [
        _usage_of_machine(call, machine)
        for machine in _own_machines(call)
        if (gone or machine.gone_at is None) and place in (None, machine.environment.name)
    ]
    now = call.cloud.now()
    for volume in call.cloud.volumes.all.values():
        shown = gone or volume.gone_at is None
        if volume.account == call.account.name and shown and place in (None, volume.environment.name):
            row = _usage_row(call, "volume", volume.id, volume.name, (volume.created_at, volume.gone_at))
            minutes = volume_minutes(volume, now)
            money = {"bill_per_minute": volume.usd_per_hour / 60, "total_bill": volume_usd(volume, now)}
            rows.append({**row, **money, "total_up_time": minutes, "active": volume.gone_at is None})
    return ok("Getting usage successful", data=rows)


def billing_events(call: Call) -> object:
    machine, now = _own_machine(call), call.cloud.now()
    rows: list[Json] = []
    for span in machine.spans:
        length = (now if span.end is None else span.end) - span.start
        rate = machine.usd_per_hour if span.status in BILLED else 0.0
        hours = {"event_duration": length / 3600, "price_per_hour": rate, "total_cost": length / 3600 * rate}
        rows.append({"event": str(span.status), "start": stamp(call.cloud, span.start), **hours})
    return ok("Getting billing events successful", billing_events_history=rows)


def history(call: Call) -> object:
    rows = []
    for machine in _own_machines(call):
        numbers = _history_metrics(call, machine)
        metrics = {name: numbers[name] for name in ("incurred_bill", "price_per_hour", "usage_time")}
        attributes = {**_history_attributes(machine), "status": str(machine.status), "contract_id": None}
        rows.append({"attributes": attributes, "metrics": metrics})
    size = number_in(call.query, "per_page") or call.cloud.knobs.default_page_size
    page = number_in(call.query, "page") or 1
    shown = rows[(page - 1) * size : page * size]
    pages = {"page": page, "per_page": size, "pages": -(-len(rows) // size)}
    found = {"org_id": call.account.org_id, "total_count": len(rows), "pagination": pages, "billing_history": shown}
    return ok("Getting billing history successful", billing_history_vm=found)


def history_of_machine(call: Call) -> object:
    machine = _own_machine(call)
    numbers = _history_metrics(call, machine)
    for status in (Status.ACTIVE, Status.SHUTOFF, Status.HIBERNATED):
        numbers[f"usage_time_{status}"] = seconds_in(machine, frozenset({status}), call.cloud.now()) / 3600
    row = {"attributes": _history_attributes(machine), "metrics": numbers}
    found = {"org_id": call.account.org_id, "total_count": 1, "billing_history": [row]}
    return ok("Getting billing history successful", billing_history_vm_details=found)


def rate_of_resource(call: Call) -> object:
    kind = call.path["kind"]
    if kind in ("vm", "virtual-machine", "instance"):
        machine = call.machine()
        name, price, status = machine.name, machine.usd_per_hour, str(machine.status)
    elif kind == "volume":
        volume = call.cloud.volumes.find(call.account, call.id)
        name, price, status = volume.name, volume.usd_per_hour, volume.status
    else:
        raise bad_request(f"resource type {kind!r}: vm or volume")
    inner: Json = {"infrahub_id": call.id, "name": name, "type": kind, "price": price, "actual_price": price}
    bills = {"org_id": call.account.org_id, "resource": {**inner, "status": status, "resources": []}}
    return ok("Calculated", calculated_resource_bills=bills)


def available_row(name: str, free: bool) -> Json:
    return {"available": free, "name": name, "message": "Name is available" if free else "Name is already in use"}


def _birth(call: Call) -> str | None:
    return stamp(call.cloud, min(one.created_at for one in call.account.environments.values()))


def _organization(call: Call) -> Json:
    living = sum(1 for machine in call.cloud.living() if machine.account == call.account.name)
    counts = {"total_instances": living, "total_volumes": len(call.cloud.volumes.listed(call.account))}
    money = {"credit": int(call.cloud.balance(call.account)), "threshold": int(call.account.threshold)}
    return {"id": call.account.org_id, "name": call.account.name, "created_at": _birth(call), **counts, **money}


def _own_machines(call: Call) -> list[Machine]:
    return [machine for machine in call.cloud.machines.all.values() if machine.account == call.account.name]


def _own_machine(call: Call) -> Machine:
    """Bills outlive their machine: gone ones are found too."""
    found = call.cloud.machines.all.get(call.id)
    if found is None or found.account != call.account.name:
        raise not_found(f"Virtual machine {call.id} does not exist")
    return found


def _usage_row(call: Call, kind: str, number: int, name: str, life: tuple[float, float | None]) -> Json:
    times = {"create_time": stamp(call.cloud, life[0]), "terminate_time": stamp(call.cloud, life[1])}
    ids: Json = {"resource_id": number, "resource_type": kind, "name": name, "organization_id": call.account.org_id}
    return {**ids, **times, "exclude_billing": False}


def _usage_of_machine(call: Call, machine: Machine) -> Json:
    now = call.cloud.now()
    row = _usage_row(call, "vm", machine.id, machine.name, (machine.created_at, machine.gone_at))
    money = {"bill_per_minute": machine.usd_per_hour / 60, "total_bill": billed_usd(machine, now)}
    return {**row, **money, "total_up_time": billed_minutes(machine, now), "active": machine.status in BILLED}


def _history_attributes(machine: Machine) -> Json:
    return {"id": str(machine.id), "infrahub_id": machine.id, "resource_name": machine.name}


def _history_metrics(call: Call, machine: Machine) -> Json:
    now = call.cloud.now()
    bill, rate = billed_usd(machine, now), machine.usd_per_hour
    full = {"non_discounted_bill": bill, "non_discounted_price_per_hour": rate}
    return {"incurred_bill": bill, "price_per_hour": rate, "usage_time": billed_minutes(machine, now) / 60, **full}


def volume_types(call: Call) -> object:
    return ok("Getting volume types successful", volume_types=["Cloud-SSD"])


ROUTES: tuple[Route, ...] = (
    ("GET", "/core/regions", regions),
    ("GET", "/core/flavors", flavors),
    ("GET", "/core/stocks", stocks),
    ("GET", "/core/gpus", gpus),
    ("GET", "/core/images", images),
    ("GET", "/pricebook", prices),
    ("GET", "/pricebook/calculate/resource/{kind}/{id}", rate_of_resource),
    ("GET", "/core/environments", list_environments),
    ("POST", "/core/environments", create_environment),
    ("GET", "/core/environments/name-availability/{name}", environment_name_available),
    ("GET", "/core/environments/{id}", get_environment),
    ("PUT", "/core/environments/{id}", rename_environment),
    ("DELETE", "/core/environments/{id}", delete_environment),
    ("GET", "/core/environments/{id}/vm-quota", vm_quota),
    ("GET", "/core/keypairs", list_keypairs),
    ("POST", "/core/keypairs", import_keypair),
    ("DELETE", "/core/keypair/{id}", delete_keypair),
    ("GET", "/core/supported-keypairs", key_types),
    ("GET", "/core/volume-types", volume_types),
    ("GET", "/billing/user-credit/credit", credit),
    ("GET", "/billing/alive", alive),
    ("GET", "/billing/billing/usage", usage),
    ("GET", "/billing/billing/virtual-machine/{id}/billing-events", billing_events),
    ("GET", "/billing/billing/history/virtual-machine", history),
    ("GET", "/billing/billing/history/virtual-machine/{id}", history_of_machine),
    ("GET", "/auth/me", me),
    ("GET", "/auth/me/organizations", my_organizations),
    ("GET", "/auth/organizations", organization),
)
