"""A simulated cloud under a clock of our own, and a bare HTTP client for it (not flashd's)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from flashd.sim.cloud import Cloud
from flashd.sim.cloud_http import CloudServer, serve_cloud
from flashd.sim.cloud_types import BoxHost, Json, Knobs, Machine

KEY = "key-of-main"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f flashd"
IMAGE = "Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker"
START = 1_800_000_000.0
USER_DATA = "#cloud-config\nruncmd: [true]\n"


@dataclass(slots=True)
class HandClock:
    """Moves only when told."""

    at: float = START

    def __call__(self) -> float:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += seconds


@dataclass(slots=True)
class Answer:
    status: int
    text: str
    content_type: str

    @property
    def json(self) -> Json:
        found = json.loads(self.text)
        assert isinstance(found, dict)
        return found


@dataclass(slots=True)
class World:
    cloud: Cloud
    server: CloudServer
    clock: HandClock
    session: aiohttp.ClientSession
    key: str = KEY

    async def call(self, method: str, path: str, body: object = None) -> Answer:
        """One API call below `/v1`, or below `/_sim` when the path says so."""
        root = self.server.url if path.startswith("/_sim") else self.server.base_url
        async with self.session.request(method, root + path, json=body, headers={"api_key": self.key}) as answer:
            return Answer(answer.status, await answer.text(), answer.content_type)

    async def create(self, machine: str, **changes: object) -> Answer:
        body: Json = {
            "name": machine,
            "environment_name": "default-NORWAY-1",
            "flavor_name": "n3-RTX-A6000x1",
            "key_name": "k",
            "image_name": IMAGE,
            "count": 1,
            "user_data": USER_DATA,
        }
        return await self.call("POST", "/core/virtual-machines", {**body, **changes})

    async def fault(self, effect: str, **fields: object) -> None:
        answer = await self.call("POST", "/_sim/faults", {"effect": effect, **fields})
        assert answer.status == 200, answer.text

    async def listed(self, query: str = "pageSize=100") -> list[str]:
        answer = await self.call("GET", f"/core/virtual-machines?{query}")
        assert answer.status == 200, answer.text
        return names_in(answer)

    def only(self) -> Machine:
        """The single machine that was ever made."""
        (machine,) = self.cloud.machines.all.values()
        return machine


def names_in(answer: Answer) -> list[str]:
    rows = answer.json["instances"]
    assert isinstance(rows, list)
    return [str(row["name"]) for row in rows]


def instance_of(answer: Answer) -> Json:
    """The machine in the answer of a create or a get."""
    body = answer.json
    rows = body.get("instances")
    found = rows[0] if isinstance(rows, list) else body.get("instance")
    assert isinstance(found, dict), answer.text
    return found


@asynccontextmanager
async def a_world(knobs: Knobs | None = None, box: BoxHost | None = None) -> AsyncIterator[World]:
    """One account `main` with a keypair `k` in the default environment of NORWAY-1."""
    clock = HandClock()
    cloud = Cloud(now=clock, knobs=knobs, box=box)
    account = cloud.add_account("main", KEY)
    cloud.accounts.import_keypair(
        account, {"name": "k", "environment_name": "default-NORWAY-1", "public_key": PUBLIC_KEY}
    )
    async with await serve_cloud(cloud) as server, aiohttp.ClientSession() as session:
        yield World(cloud, server, clock, session)
