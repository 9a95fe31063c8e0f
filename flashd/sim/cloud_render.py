"""State of the simulated cloud in the API's own JSON shapes, envelopes and oddities included.

Source: Hyperstack API models (region, flavor, image, environment, keypair, instance, volume, billing).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from flashd.sim.cloud import Cloud
from flashd.sim.cloud_catalogue import Flavor, Image, Region
from flashd.sim.cloud_payload import number_in
from flashd.sim.cloud_types import Environment, Json, Keypair, Machine, Status, Volume

_VM_STATE = {
    Status.CREATING: "building",
    Status.BUILD: "building",
    Status.SHUTOFF: "stopped",
    Status.ERROR: "error",
    Status.HIBERNATED: "shelved_offloaded",
}
_POWER_STATE = {
    Status.CREATING: "NO_STATE",
    Status.BUILD: "NO_STATE",
    Status.ERROR: "NO_STATE",
    Status.SHUTOFF: "SHUTDOWN",
    Status.STARTING: "SHUTDOWN",
    Status.HIBERNATED: "SHUTDOWN",
    Status.RESTORING: "SHUTDOWN",
}
PAGE_MAX = 10_000
T = TypeVar("T")


def ok(message: str, **payload: object) -> Json:
    return {"status": True, "message": message, **payload}


def page_of(
    cloud: Cloud, found: Sequence[T], query: Mapping[str, str], field: str, show: Callable[[Cloud, T], Json]
) -> Json:
    """One page in the list envelope; `page` and `page_size` are null when the client left them out."""
    page, size = number_in(query, "page"), number_in(query, "pageSize")
    length = min(size or cloud.knobs.default_page_size, cloud.knobs.max_page_size)
    first = (min(page or 1, PAGE_MAX) - 1) * length
    shown = [show(cloud, one) for one in found[first : first + length]]
    count = len(found) if cloud.knobs.count_is_total else len(shown)
    return ok(f"Getting {field} successful", count=count, page=page, page_size=size, **{field: shown})


def stamp(cloud: Cloud, at: float | None) -> str | None:
    if at is None:
        return None
    text = datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}Z" if cloud.knobs.zoned_times else text


def region(found: Region) -> Json:
    return {
        "id": found.id,
        "name": found.name,
        "country": found.country,
        "description": found.name,
        "features": {},
        "green_status": found.green_status,
    }


def flavor_groups(cloud: Cloud, only_region: str | None) -> list[Json]:
    """Flavors grouped by GPU and region, under `data`."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for found in cloud.catalogue.flavors:
        if only_region in (None, found.region):
            groups.setdefault((found.gpu, found.region), []).append(flavor(cloud, found))
    return [{"gpu": gpu, "region_name": place, "flavors": rows} for (gpu, place), rows in groups.items()]


def flavor(cloud: Cloud, found: Flavor) -> Json:
    return {
        **_flavor_size(found),
        "display_name": None,
        "region_name": found.region,
        "stock_available": cloud.catalogue.shelf(found.region, found.name).visible(),
        "image_restrictions": {"has_image_restrictions": False, "restriction_type": None, "compatible_images": []},
        "created_at": stamp(cloud, cloud.catalogue.priced_from),
    }


def _flavor_size(found: Flavor) -> Json:
    return {
        "id": found.id,
        "name": found.name,
        "cpu": found.cpu,
        "ram": found.ram,
        "disk": found.disk,
        "ephemeral": found.ephemeral,
        "gpu": found.gpu,
        "gpu_count": found.gpu_count,
        "labels": [{"id": number, "label": label} for number, label in enumerate(found.labels, 1)],
        "features": {},
    }


def image_groups(cloud: Cloud, images: list[Image]) -> list[Json]:
    """Images two levels deep: by region and type, then the images."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for found in images:
        groups.setdefault((found.region, found.type), []).append(image(cloud, found))
    return [{"region_name": place, "type": kind, "logo": "", "images": rows} for (place, kind), rows in groups.items()]


def image(cloud: Cloud, found: Image) -> Json:
    only = [size for name in found.only_flavors if (size := cloud.catalogue.flavor(found.region, name)) is not None]
    return {
        "id": found.id,
        "name": found.name,
        "region_name": found.region,
        "type": found.type,
        "version": found.version,
        "size": found.size,
        "display_size": f"{found.size >> 30} GB",
        "description": found.name,
        "is_public": True,
        "labels": [],
        "flavor_restrictions": {
            "has_flavor_restrictions": bool(found.only_flavors),
            "restriction_type": "hard" if found.only_flavors else None,
            "compatible_flavors": [
                {"flavor_id": size.id, "flavor_name": size.name, "link_type": "hard"} for size in only
            ],
        },
    }


def environment(cloud: Cloud, found: Environment) -> Json:
    return {
        "id": found.id,
        "name": found.name,
        "region": found.region,
        "features": {"network_optimised": False},
        "created_at": stamp(cloud, found.created_at),
    }


def keypair(cloud: Cloud, found: Keypair) -> Json:
    return {
        "id": found.id,
        "name": found.name,
        "environment": environment(cloud, found.environment),
        "fingerprint": found.fingerprint,
        "public_key": found.public_key,
        "created_at": stamp(cloud, found.created_at),
    }


def prices(cloud: Cloud) -> list[Json]:
    """The bare array of `/pricebook`."""
    rows: list[Json] = []
    for number, (name, value) in enumerate(cloud.catalogue.price_list().items(), 1):
        shown: object = f"{value:.9f}" if cloud.knobs.prices_as_text else value
        rows.append(
            {
                "id": number,
                "name": name,
                "value": shown,
                "original_value": shown,
                "discount_applied": False,
                "start_time": stamp(cloud, cloud.catalogue.priced_from),
                "end_time": None,
            }
        )
    return rows


def machine(cloud: Cloud, found: Machine) -> Json:
    """An instance as the API shows it. `user_data` is never among its fields."""
    size = cloud.catalogue.flavor(found.region, found.flavor)
    place: Json = {
        "id": found.environment.id,
        "name": found.environment.name,
        "org_id": cloud.account(found.account).org_id,
    }
    return {
        "id": found.id,
        "name": found.name,
        "status": str(found.status),
        "vm_state": _VM_STATE.get(found.status, "active"),
        "power_state": _POWER_STATE.get(found.status, "RUNNING"),
        "environment": {**place, "region": found.region, "features": {}},
        "flavor": _flavor_size(size) if size else None,
        "image": {"name": found.image},
        "keypair": {"name": found.keypair},
        "labels": list(found.labels),
        "fixed_ip": f"10.0.{found.id // 250 % 250}.{found.id % 250 + 2}" if found.active_at is not None else None,
        **_public_ip(cloud, found),
        "security_rules": [{"id": number, **rule} for number, rule in enumerate(found.security_rules, 1)],
        "volume_attachments": [_attachment(cloud, volume) for volume in cloud.volumes.attached_to(found)],
        "locked": False,
        "os": found.image,
        "contract_id": None,
        "cluster_id": None,
        "callback_url": None,
        "port_randomization": found.port_randomization and found.public_ip,
        "features": {},
        "created_at": stamp(cloud, found.created_at),
    }


def _public_ip(cloud: Cloud, found: Machine) -> Json:
    if not found.public_ip:
        return {"floating_ip": None, "floating_ip_status": None}
    ready = found.active_at is not None and cloud.now() >= found.active_at + cloud.knobs.floating_ip_s
    if not ready:
        return {"floating_ip": None, "floating_ip_status": "ATTACHING"}
    return {"floating_ip": f"203.0.113.{found.id % 250 + 1}", "floating_ip_status": "ATTACHED"}


def _attachment(cloud: Cloud, volume: Volume) -> Json | None:
    held = volume.attachment
    if held is None:
        return None
    inner: Json = {"id": volume.id, "name": volume.name, "size": volume.size, "volume_type": volume.volume_type}
    return {
        "id": held.id,
        "device": held.device,
        "status": _attachment_status(volume),
        "protected": held.protected,
        "created_at": stamp(cloud, held.attached_at),
        "volume": {**inner, "description": volume.description, "bootable": False},
    }


def attachment_row(cloud: Cloud, volume: Volume) -> Json:
    held = volume.attachment
    return {
        "id": held.id if held else None,
        "device": held.device if held else None,
        "status": _attachment_status(volume),
        "instance_id": held.machine_id if held else None,
        "volume_id": volume.id,
        "protected": held.protected if held else None,
        "created_at": stamp(cloud, held.attached_at) if held else None,
    }


def _attachment_status(volume: Volume) -> str:
    return {"attaching": "ATTACHING", "detaching": "DETACHING"}.get(volume.status, "ATTACHED")


def volume(cloud: Cloud, found: Volume) -> Json:
    held = found.attachment
    row: Json = {"id": held.id, "instance_id": held.machine_id, "device": held.device} if held else {}
    rows = [{**row, "status": _attachment_status(found), "protected": held.protected}] if held else []
    return {
        "id": found.id,
        "name": found.name,
        "description": found.description,
        "size": found.size,
        "status": found.status,
        "volume_type": found.volume_type,
        "bootable": False,
        "image_id": None,
        "callback_url": None,
        "environment": {"name": found.environment.name, "region": found.environment.region, "features": {}},
        "attachments": rows,
        "created_at": stamp(cloud, found.created_at),
        "updated_at": stamp(cloud, found.created_at),
    }
