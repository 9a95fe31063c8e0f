"""A Provider in Lambda's shape: proof that the Protocol carries a second cloud, and a cloud without sockets."""

from __future__ import annotations

import builtins
import hashlib
from enum import StrEnum

import anyio

from flashd.adapters.clock import Clock
from flashd.core.places import Offer, Place
from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    CapacityError,
    NoCreditError,
    NotFoundError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import (
    Capabilities,
    Credit,
    DeleteAnswer,
    Launched,
    LaunchOrder,
    Machine,
    MachinePhase,
    Stock,
)
from flashd.providers.catalog import by_lambda
from tests.fakes.lambda_api import Json, LambdaApi, LambdaRefusal

PHASES = {
    "booting": MachinePhase.PENDING,
    "active": MachinePhase.RUNNING,
    "unhealthy": MachinePhase.UNKNOWN,  # it may come back, and it is billed
    "preempted": MachinePhase.STOPPED,
    "terminating": MachinePhase.DELETING,
    "terminated": MachinePhase.DELETING,  # still listed; only a 404 proves absence
}
LATENCY_S = 0.001


class Weather(StrEnum):
    """What happens to every request from now on."""

    FINE = "fine"
    REPLY_LOST = "reply_lost"
    NO_ID = "no_id"
    THROTTLED = "throttled"
    SERVER_ERROR = "server_error"
    NOT_JSON = "not_json"


class LambdaCloud:
    """See `flashd.providers.base.Provider`. `key` may be changed at any time, as a credential may."""

    def __init__(self, api: LambdaApi, clock: Clock, key: str) -> None:
        self.api = api
        self.key = key
        self.weather = Weather.FINE
        self._clock = clock

    @property
    def name(self) -> str:
        return "lambda"

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            name_max=64,
            names_unique=False,
            boot_bytes_max=1_000_000,
            storage_attach="at_launch",
            labels=True,
            console_log=False,
        )

    async def account(self) -> str:
        """Lambda has no page about the account; its SSH keys belong to nobody else."""
        keys = sorted(str(row["id"]) for row in _rows(await self._call("GET", "/ssh-keys")))
        return hashlib.sha256("/".join(keys).encode()).hexdigest()[:16]

    async def stock(self, *, fresh: bool = False) -> Stock:
        account, read_at = await self.account(), self._clock.now()
        types = (await self._call("GET", "/instance-types"))["data"]
        assert isinstance(types, dict)
        offers = [offer for sku, row in sorted(types.items()) for offer in _offers(sku, row, account)]
        return Stock(tuple(offers), (), read_at)

    async def launch(self, order: LaunchOrder) -> Launched:
        limits = self.capabilities
        if len(order.name) > limits.name_max or len(order.user_data.encode()) > limits.boot_bytes_max:
            raise RejectedError("the name or the payload is too long")
        body: Json = {
            "region_name": order.place.region,
            "instance_type_name": order.place.sku,
            "ssh_key_names": ["key-1f2e"],
            "name": order.name,
            "user_data": order.user_data,
            "file_system_names": [order.volume] if order.volume else [],
            "tags": [{"key": "flashd", "value": label} for label in order.labels],
        }
        if order.guard is not None:
            order.guard()
        try:
            data = (await self._call("POST", "/instance-operations/launch", body))["data"]
        except UnavailableError as error:
            raise AmbiguousLaunchError(error.text, error.code) from error
        ids = data.get("instance_ids") if isinstance(data, dict) else None
        if not ids:
            raise AmbiguousLaunchError("a good answer without an id", 200)
        return Launched(str(ids[0]))

    async def find(self, name: str) -> tuple[Machine, ...]:
        return tuple(machine for machine in await self.list() if machine.name == name)

    async def get(self, machine_id: str) -> Machine | None:
        try:
            row = (await self._call("GET", f"/instances/{machine_id}"))["data"]
        except NotFoundError:
            return None
        assert isinstance(row, dict)
        return _machine(row)

    async def list(self) -> tuple[Machine, ...]:
        return tuple(_machine(row) for row in _rows(await self._call("GET", "/instances")))

    async def delete(self, machine_id: str) -> DeleteAnswer:
        """A batch of one: an unknown id would fail the others."""
        try:
            answer = await self._call("POST", "/instance-operations/terminate", {"instance_ids": [machine_id]})
        except NotFoundError:
            return DeleteAnswer.NOT_FOUND
        data = answer["data"]
        assert isinstance(data, dict)
        was = data["terminated_instances"][0]["status"]
        return DeleteAnswer.IN_PROGRESS if was in ("terminating", "terminated") else DeleteAnswer.ACCEPTED

    async def console_log(self, machine_id: str) -> str:
        return ""

    async def credit(self) -> Credit:
        """Lambda bills afterwards; an inactive account is what comes nearest to no credit."""
        return Credit(None, None if self.api.active else False)

    async def _call(self, method: str, path: str, body: Json | None = None) -> Json:
        await anyio.sleep(LATENCY_S)
        match self.weather:
            case Weather.THROTTLED:
                raise RateLimitedError("Rate limit exceeded", 12.0)
            case Weather.SERVER_ERROR:
                raise UnavailableError("Internal error", 500)
            case Weather.NOT_JSON:
                raise UnavailableError("an answer that is not JSON", 200)
            case _:
                pass
        try:
            answer = self.api.call(method, path, self.key, body)
        except LambdaRefusal as refusal:
            raise _error(refusal) from refusal
        if self.weather is Weather.REPLY_LOST:
            raise UnavailableError("the connection broke")
        return {"data": {}} if self.weather is Weather.NO_ID and path.endswith("/launch") else answer


def _error(refusal: LambdaRefusal) -> ProviderError:
    error = refusal.body["error"]
    assert isinstance(error, dict)
    text, code = str(error["message"]), str(error["code"])
    match refusal.status, code:
        case 401, _:
            return AuthError(text, 401)
        case 404, "global/object-does-not-exist":
            return NotFoundError(text, 404)
        case 400, "instance-operations/launch/insufficient-capacity":
            return CapacityError(text, 400)
        case 403, "global/account-inactive":
            return NoCreditError(text, 403)
        case status, _:
            return RejectedError(text, status)


def _rows(answer: Json) -> builtins.list[Json]:
    rows = answer["data"]
    assert isinstance(rows, list)
    return rows


def _machine(row: Json) -> Machine:
    region, kind, tags = row["region"], row["instance_type"], row["tags"]
    assert isinstance(region, dict)
    assert isinstance(kind, dict)
    assert isinstance(tags, list)
    status = str(row["status"])
    return Machine(
        id=str(row["id"]),
        name=str(row["name"]),
        phase=PHASES.get(status, MachinePhase.UNKNOWN),
        raw_status=status,
        created_at=None,  # Lambda does not say
        region=str(region["name"]),
        sku=str(kind["name"]),
        labels=tuple(str(tag["value"]) for tag in tags),
    )


def _offers(sku: str, row: Json, account: str) -> builtins.list[Offer]:
    gpu, kind, regions = by_lambda(sku), row["instance_type"], row["regions_with_capacity_available"]
    assert isinstance(kind, dict)
    assert isinstance(regions, list)
    if gpu is None:
        return []
    usd, specs = kind["price_cents_per_hour"] / 100, kind["specs"]
    return [
        Offer(
            place=Place("lambda", account, str(region["name"]), gpu.name, sku, usd),
            available=True,  # a region without capacity is not listed at all
            vram_gb=gpu.vram_gb,
            disk_gb=specs["storage_gib"],
            ram_gb=specs["memory_gib"],
        )
        for region in regions
    ]
