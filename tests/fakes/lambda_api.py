"""Lambda's API in miniature and in memory: one unpaged list, terminate by batch, storage at launch, its own states.

Source: Lambda Cloud API guide. Names are not unique, a dying machine shows `terminated` before it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Json = dict[str, object]
BOOT_S = 120.0
TERMINATE_S = 30.0
SHOWN_TERMINATED_S = 60.0
TYPES = {
    "gpu_1x_a6000": (0.80, 100.0, 512.0),
    "gpu_1x_h100_pcie": (2.49, 200.0, 1_024.0),
    "gpu_1x_h100_sxm5": (3.29, 225.0, 2_816.0),
}
REGIONS = ("us-east-1", "us-west-2")


class LambdaRefusal(Exception):
    """An error answer: `{"error": {code, message}}`."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: Json = {"error": {"code": code, "message": message}}


@dataclass(slots=True)
class Instance:
    id: str
    name: str
    region: str
    sku: str
    created_at: float
    tags: tuple[str, ...] = ()
    file_systems: tuple[str, ...] = ()
    terminated_at: float | None = None
    preempted: bool = False

    def status(self, now: float) -> str | None:
        """None = gone, the API answers 404."""
        if self.terminated_at is not None:
            if now < self.terminated_at + TERMINATE_S:
                return "terminating"
            return "terminated" if now < self.terminated_at + TERMINATE_S + SHOWN_TERMINATED_S else None
        if self.preempted:
            return "preempted"
        return "active" if now >= self.created_at + BOOT_S else "booting"


@dataclass(slots=True)
class LambdaApi:
    """One account. `call` is one request with a JSON body; it raises LambdaRefusal for an error answer."""

    now: Callable[[], float]
    key: str
    instances: dict[str, Instance] = field(default_factory=dict)
    sold_out: set[tuple[str, str]] = field(default_factory=set)
    ssh_keys: tuple[str, ...] = ("key-1f2e",)
    active: bool = True

    def call(self, method: str, path: str, key: str, body: Json | None = None) -> Json:
        if key != self.key:
            raise LambdaRefusal(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.")
        match method, path.split("/")[1:]:
            case "GET", ["instance-types"]:
                return {"data": {sku: self._type(sku) for sku in TYPES}}
            case "GET", ["ssh-keys"]:
                return {"data": [{"id": name, "name": name} for name in self.ssh_keys]}
            case "GET", ["instances"]:
                return {"data": [row for found in self.instances.values() if (row := self._row(found))]}
            case "GET", ["instances", instance_id]:
                return {"data": self._existing(instance_id)}
            case "POST", ["instance-operations", "launch"]:
                return self._launch(body or {})
            case "POST", ["instance-operations", "terminate"]:
                return self._terminate(body or {})
        raise LambdaRefusal(404, "global/object-does-not-exist", "no such endpoint")

    def make(self, name: str, region: str, sku: str, tags: tuple[str, ...] = ()) -> Instance:
        made = Instance(f"{len(self.instances):032x}", name, region, sku, self.now(), tags)
        self.instances[made.id] = made
        return made

    def alive(self) -> list[Instance]:
        return [found for found in self.instances.values() if found.status(self.now()) not in (None, "terminated")]

    def _type(self, sku: str) -> Json:
        usd, ram, disk = TYPES[sku]
        return {
            "instance_type": {
                "name": sku,
                "price_cents_per_hour": round(usd * 100),
                "specs": {"memory_gib": ram, "storage_gib": disk, "gpus": 1},
            },
            "regions_with_capacity_available": [
                {"name": region} for region in REGIONS if (region, sku) not in self.sold_out
            ],
        }

    def _row(self, found: Instance) -> Json | None:
        status = found.status(self.now())
        if status is None:
            return None
        return {
            "id": found.id,
            "name": found.name,
            "status": status,
            "region": {"name": found.region},
            "instance_type": {"name": found.sku},
            "tags": [{"key": "flashd", "value": tag} for tag in found.tags],
            "file_system_names": list(found.file_systems),
        }

    def _existing(self, instance_id: str) -> Json:
        found = self.instances.get(instance_id)
        row = self._row(found) if found else None
        if row is None:
            raise LambdaRefusal(404, "global/object-does-not-exist", "Specified instance does not exist.")
        return row

    def _launch(self, body: Json) -> Json:
        sku, region = str(body["instance_type_name"]), str(body["region_name"])
        if not self.active:
            raise LambdaRefusal(403, "global/account-inactive", "Your account is inactive.")
        if (region, sku) in self.sold_out:
            raise LambdaRefusal(400, "instance-operations/launch/insufficient-capacity", "Not enough capacity.")
        tags, storage = body.get("tags"), body.get("file_system_names")
        assert isinstance(tags, list)
        assert isinstance(storage, list)
        made = self.make(str(body["name"]), region, sku, tuple(str(tag["value"]) for tag in tags))
        made.file_systems = tuple(str(name) for name in storage)
        return {"data": {"instance_ids": [made.id]}}

    def _terminate(self, body: Json) -> Json:
        ids = body["instance_ids"]
        assert isinstance(ids, list)
        before = [self._existing(str(instance_id)) for instance_id in ids]  # one unknown id fails the whole batch
        for instance_id in ids:
            found = self.instances[str(instance_id)]
            if found.terminated_at is None:
                found.terminated_at = self.now()
        return {"data": {"terminated_instances": before}}
