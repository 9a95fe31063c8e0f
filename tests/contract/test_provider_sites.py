"""Environments, keypairs and images of Hyperstack: found, made, chosen, forgotten."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from flashd.adapters.clock import SystemClock, system_random
from flashd.core.places import RefusalKind
from flashd.errors import NotSentError, RejectedError
from flashd.providers.hyperstack import Hyperstack, Settings
from flashd.providers.hyperstack_images import FlavorRestrictions, Image, Label, Link, Need, choose_image, cuda_version
from flashd.providers.ssh_key import ed25519_public, public_key
from tests.contract.hyperstack_kit import KEY, ORDER, PLACE, ROW, Account, flavors, refused
from tests.fakes.scripted_http import Asked, Reply, Scripted, page, reply, scripted

DOCKER = "Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker"


class Region(Account):
    """An account whose environments and keypairs can really be made. `race`: another one makes them first."""

    def __init__(self, *environments: str, race: bool = False) -> None:
        super().__init__()
        self.environments = [
            {"id": number, "name": name, "region": PLACE.region} for number, name in enumerate(environments)
        ]
        self.keypairs: list[dict[str, object]] = []
        self.race = race
        self.answers["POST", "/v1/core/virtual-machines"] = reply(200, {"instances": [ROW]})

    def __call__(self, asked: Asked) -> Reply:
        match asked.method, asked.path.removeprefix("/v1/core/"):
            case "GET", "environments" if asked.query["page"] == "1":
                return reply(200, {"environments": self.environments})
            case "GET", "keypairs" if asked.query["page"] == "1":
                return reply(200, {"keypairs": self.keypairs})
            case "POST", "environments":
                self.environments.append({"id": 90, **asked.json})
                return refused(409, "already_exist") if self.race else reply(200, {"environment": {"id": 90}})
            case "POST", "keypairs":
                name = asked.json["environment_name"]
                self.keypairs.append({"id": 91, "name": asked.json["name"], "environment": {"name": name}})
                return refused(409, "already_exist") if self.race else reply(200, {"keypair": {"id": 91}})
        return super().__call__(asked)

    def add_key(self, name: str, environment: str) -> None:
        self.keypairs.append({"id": len(self.keypairs), "name": name, "environment": {"name": environment}})


@asynccontextmanager
async def a_cloud(region: Account, **settings: str) -> AsyncIterator[tuple[Hyperstack, Scripted]]:
    async with scripted(region) as server:
        chosen = Settings(lambda: KEY, server.base_url, requests_per_minute=100_000, **settings)  # type: ignore[arg-type]
        cloud = Hyperstack(chosen, SystemClock(), system_random())
        yield cloud, server
        await cloud.aclose()


async def launched_in(region: Region, **settings: str) -> tuple[object, object]:
    """Environment and keypair that a create was sent with."""
    async with a_cloud(region, **settings) as (cloud, server):
        await cloud.launch(ORDER)
        sent = server.calls("POST", "virtual-machines")[0].json
        return sent["environment_name"], sent["key_name"]


@pytest.mark.parametrize(
    ("environments", "chosen"),
    [
        (["team", "default-NORWAY-1", "flashd-norway-1"], "flashd-norway-1"),
        (["team", "default-NORWAY-1"], "default-NORWAY-1"),
        (["team", "other"], "team"),
        ([], "flashd-norway-1"),
    ],
)
async def test_the_environment_is_ours_or_the_default_or_the_oldest_or_made(
    environments: list[str], chosen: str
) -> None:
    assert (await launched_in(Region(*environments)))[0] == chosen


async def test_a_keypair_of_exactly_that_environment_is_used() -> None:
    region = Region("default-NORWAY-1")
    region.add_key("of-another", "default-NORWAY-10")
    region.add_key("of-ours", "default-NORWAY-1")
    assert (await launched_in(region))[1] == "of-ours"


async def test_a_missing_keypair_is_made_from_a_key_that_nobody_has() -> None:
    region = Region("default-NORWAY-1")
    async with a_cloud(region) as (cloud, server):
        await cloud.launch(ORDER)
        (made,) = server.calls("POST", "keypairs")
        assert made.json["name"] == "flashd-default-NORWAY-1"
        kind, blob, comment = str(made.json["public_key"]).split(" ")
        raw = base64.b64decode(blob, validate=True)
        assert (kind, comment, len(raw)) == ("ssh-ed25519", "flashd", 51)
        assert raw[:19] == b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"


async def test_many_launches_in_a_new_region_make_one_environment_and_one_key() -> None:
    async with a_cloud(Region()) as (cloud, server):
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(cloud.launch, ORDER)
        assert len(server.calls("POST", "environments")) == 1
        assert len(server.calls("POST", "keypairs")) == 1


async def test_a_race_for_the_names_is_settled_by_the_list() -> None:
    assert await launched_in(Region(race=True)) == ("flashd-norway-1", "flashd-flashd-norway-1")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"environment": "prod"}, "the configured environment 'prod' is not in NORWAY-1"),
        ({"keypair": "ops"}, "the configured keypair 'ops' is not in environment 'default-NORWAY-1'"),
        ({"image": "mine"}, "the configured image 'mine' is not offered in NORWAY-1 for n3-L40x1"),
    ],
)
async def test_a_configured_name_that_is_not_there_makes_the_place_unusable(
    settings: dict[str, str], words: str
) -> None:
    region = Region("default-NORWAY-1")
    async with a_cloud(region, **settings) as (cloud, server):
        stock = await cloud.stock()
        assert stock.offers == ()
        assert [(refusal.kind, refusal.text) for refusal in stock.refusals] == [(RefusalKind.UNUSABLE, words)]
        with pytest.raises(RejectedError, match=words):
            await cloud.launch(ORDER)
        assert server.calls("POST") == []


async def test_configured_names_are_used() -> None:
    region = Region("default-NORWAY-1", "prod")
    region.add_key("ops", "prod")
    assert await launched_in(region, environment="prod", keypair="ops", image=DOCKER) == ("prod", "ops")


async def test_reading_the_stock_makes_nothing() -> None:
    async with a_cloud(Region()) as (cloud, server):
        assert len((await cloud.stock()).offers) == 1
        assert server.calls("POST") == []


async def test_a_refused_environment_leaves_the_create_unsent() -> None:
    class Full(Region):
        def __call__(self, asked: Asked) -> Reply:
            return refused(400) if asked.method == "POST" else super().__call__(asked)

    async with a_cloud(Full()) as (cloud, server):
        with pytest.raises(RejectedError):
            await cloud.launch(ORDER)
        assert server.calls("POST", "virtual-machines") == []


async def test_an_environment_whose_making_got_no_answer_leaves_the_create_unsent() -> None:
    class Lost(Region):
        def __call__(self, asked: Asked) -> Reply:
            return page(504) if asked.method == "POST" else super().__call__(asked)

    async with a_cloud(Lost()) as (cloud, server):
        with pytest.raises(NotSentError):
            await cloud.launch(ORDER)
        assert server.calls("POST", "virtual-machines") == []


async def test_an_image_that_is_gone_is_replaced_at_the_next_launch() -> None:
    region = Region("default-NORWAY-1")
    async with a_cloud(region) as (cloud, server):
        await cloud.launch(ORDER)
        region.answers["POST", "/v1/core/virtual-machines"] = refused(404, "not_found", "image gone")
        newer = {"id": 2, "name": DOCKER.replace("12.8", "12.9")}
        region.answers["GET", "/v1/core/images"] = reply(200, {"images": [{"images": [newer]}]})
        with pytest.raises(RejectedError):
            await cloud.launch(ORDER)
        region.answers["POST", "/v1/core/virtual-machines"] = reply(200, {"instances": [ROW]})
        await cloud.launch(ORDER)
        images = [asked.json["image_name"] for asked in server.calls("POST", "virtual-machines")]
        assert images == [DOCKER, DOCKER, newer["name"]]


NEED = Need(PLACE.region, PLACE.sku, (12, 8))


def image(name: str, *flavors: str, kind: str = "hard", label: str = "") -> Image:
    rule = FlavorRestrictions(bool(flavors), kind, [Link(flavor_name=sku) for sku in flavors])
    return Image(id=name, name=name, flavor_restrictions=rule, labels=[Label(label)])


JAMMY = DOCKER.replace("24.04", "22.04")
CHOICES: list[tuple[str, list[Image], str]] = [
    ("the_only_one", [image(DOCKER)], DOCKER),
    ("lowest_cuda", [image(DOCKER.replace("12.8", "13.0")), image(JAMMY)], JAMMY),
    ("numbers_not_text", [image("CUDA 12.10 Docker"), image("CUDA 12.9 Docker")], "CUDA 12.9 Docker"),
    ("newer_ubuntu", [image(JAMMY), image(DOCKER)], DOCKER),
    ("cuda_too_old", [image(DOCKER.replace("12.8", "12.4"))], ""),
    ("no_docker", [image("Ubuntu Server 24.04 LTS R570 CUDA 12.8")], ""),
    ("docker_by_label", [image("Ubuntu 24.04 CUDA 12.8", label="docker")], "Ubuntu 24.04 CUDA 12.8"),
    ("no_cuda", [image("Ubuntu Server 24.04 LTS with Docker")], ""),
    ("for_other_flavors", [image(DOCKER, "n3-H100-SXM5x8"), image(JAMMY)], JAMMY),
    ("for_this_flavor", [image(DOCKER, "n3-H100x1", "n3-L40x1")], DOCKER),
    ("soft_advice", [image(DOCKER, "n3-H100x1", kind="soft")], DOCKER),
    ("nothing", [], ""),
]


@pytest.mark.parametrize(("images", "chosen"), [row[1:] for row in CHOICES], ids=[row[0] for row in CHOICES])
def test_the_image_is_the_lowest_cuda_that_is_enough(images: list[Image], chosen: str) -> None:
    if chosen:
        assert choose_image(images, NEED) == chosen
        assert choose_image(reversed(images), NEED) == chosen
    else:
        with pytest.raises(RejectedError, match=r"no image with Docker and CUDA 12\.8"):
            choose_image(images, NEED)


def test_a_flavor_that_allows_few_images_gets_one_of_them() -> None:
    need = Need(PLACE.region, PLACE.sku, (12, 8), frozenset({JAMMY}))
    assert choose_image([image(DOCKER), image(JAMMY)], need) == JAMMY


async def test_a_flavors_own_restriction_reaches_the_choice_of_image() -> None:
    region = Region("default-NORWAY-1")
    rule = {"has_image_restrictions": True, "restriction_type": "hard", "compatible_images": [{"image_name": "other"}]}
    region.answers["GET", "/v1/core/flavors"] = reply(200, flavors(image_restrictions=rule))
    async with a_cloud(region) as (cloud, _):
        assert (await cloud.stock()).offers == ()


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("R570 CUDA 12.8 with Docker", (12, 8)),
        ("cuda-12.10", (12, 10)),
        ("CUDA12.8", (12, 8)),
        ("barracuda 12.8", None),
    ],
)
def test_the_cuda_version_stands_in_the_name(name: str, version: tuple[int, int] | None) -> None:
    assert cuda_version(name) == version


@pytest.mark.parametrize(
    ("seed", "public"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        ),
        (
            "833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42",
            "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        ),
    ],
)
def test_public_keys_are_those_of_rfc_8032(seed: str, public: str) -> None:
    assert ed25519_public(bytes.fromhex(seed)).hex() == public


def test_a_key_needs_a_whole_seed() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        public_key(b"short", "x")
