"""A scripted Hyperstack account for tests of single answers: quiet until a test replaces one of its answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from flashd.adapters.clock import SystemClock, system_random
from flashd.core.places import Place
from flashd.providers.base import LaunchOrder
from flashd.providers.hyperstack import Hyperstack, Settings
from tests.fakes.scripted_http import Asked, Reply, Scripted, page, reply, scripted

KEY = "key-0123456789-abcdef"
NAME = "fl-t-abc-0"
PLACE = Place("hyperstack", "org:1", "NORWAY-1", "L40", "n3-L40x1", 1.00672)
TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ3rS5tU7vW9x"
ORDER = LaunchOrder(NAME, PLACE, f"#cloud-config\n# {TOKEN}\n", ("launch=0a1b2c3d", "until=1800003600"), timeout_s=0.5)
ROW: dict[str, object] = {
    "id": 7,
    "name": NAME,
    "status": "ACTIVE",
    "created_at": "2027-01-15T08:00:00",
    "environment": {"name": "default-NORWAY-1", "region": "NORWAY-1"},
    "flavor": {"name": "n3-L40x1"},
    "labels": ["launch=0a1b2c3d"],
}
BROKEN = Reply(200, b'{"status": true, "inst')
CUT = Reply(200, b'{"status": true}', cut=True)
HANG = Reply(200, b"{}", hang_s=30.0)


def refused(status: int, reason: str | None = "bad_request", message: str = "no", **headers: str) -> Reply:
    body = {"status": False, "message": message} | ({"error_reason": reason} if reason else {})
    return reply(status, body, **headers)


def flavors(*, available: bool = True, **extra: object) -> dict[str, object]:
    flavor = {"name": PLACE.sku, "gpu": "L40", "gpu_count": 1, "region_name": PLACE.region, "ram": 58.0, "disk": 100}
    rows = [{**flavor, "stock_available": available, **extra}]
    return {"status": True, "data": [{"gpu": "L40", "region_name": PLACE.region, "flavors": rows}]}


class Account:
    """A quiet account whose answers a test replaces one by one."""

    def __init__(self) -> None:
        image = {"id": 1, "name": "Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker", "region_name": PLACE.region}
        environment = {"id": 1, "name": "default-NORWAY-1", "region": PLACE.region}
        self.answers: dict[tuple[str, str], Reply | list[Reply]] = {
            ("GET", "/v1/auth/organizations"): reply(200, {"status": True, "organization": {"id": 1, "name": "o"}}),
            ("GET", "/v1/core/flavors"): reply(200, flavors()),
            ("GET", "/v1/core/stocks"): reply(200, {"stocks": []}),
            ("GET", "/v1/pricebook"): reply(200, [{"name": "L40", "value": 1.0}]),
            ("GET", "/v1/core/images"): reply(200, {"images": [{"region_name": PLACE.region, "images": [image]}]}),
            ("GET", "/v1/core/environments"): reply(200, {"environments": [environment]}),
            ("GET", "/v1/core/keypairs"): reply(
                200, {"keypairs": [{"id": 1, "name": "k", "environment": environment}]}
            ),
            ("GET", "/v1/billing/user-credit/credit"): credit(True),
        }

    def __call__(self, asked: Asked) -> Reply:
        if asked.query.get("page", "1") != "1":
            return reply(200, {"instances": [], "environments": [], "keypairs": [], "images": []})
        found = self.answers.get((asked.method, asked.path), page(404))
        if isinstance(found, list):
            return found.pop(0) if len(found) > 1 else found[0]
        return found


def credit(can_create: bool | None, balance: float | None = 9.5) -> Reply:
    return reply(200, {"status": True, "data": {"credit": balance, "can_create_instance": can_create}})


@asynccontextmanager
async def an_account(**answers: Reply | list[Reply]) -> AsyncIterator[tuple[Hyperstack, Scripted, Account]]:
    """`create`, `get`, `list`, `delete` script the machine calls."""
    account = Account()
    machines, one = "/v1/core/virtual-machines", "/v1/core/virtual-machines/7"
    where = {"create": ("POST", machines), "get": ("GET", one), "list": ("GET", machines), "delete": ("DELETE", one)}
    account.answers.update({where[name]: answer for name, answer in answers.items()})
    async with scripted(account) as server:
        settings = Settings(api_key=lambda: KEY, base_url=server.base_url, requests_per_minute=100_000)
        cloud = Hyperstack(settings, SystemClock(), system_random())
        try:
            yield cloud, server, account
        finally:
            await cloud.aclose()
