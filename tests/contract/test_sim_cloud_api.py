"""Codes, envelopes and oddities of the simulated Hyperstack that a client must survive."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flashd.sim.cloud_types import Json, Knobs, Planting, Status
from tests.contract.sim_cloud_kit import IMAGE, PUBLIC_KEY, World, a_world, instance_of


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world(Knobs(create_s=1, boot_s=60, delete_s=20)) as made:
        yield made


BAD_CREATES: dict[str, tuple[Json, int, str]] = {
    "name_of_51": ({"name": "x" * 51}, 400, "bad_request"),
    "name_missing": ({"name": ""}, 400, "bad_request"),
    "count_missing": ({"count": None}, 400, "bad_request"),
    "count_21": ({"count": 21}, 400, "bad_request"),
    "suffix_makes_51": ({"name": "x" * 49, "count": 2}, 400, "bad_request"),
    "user_data_without_head": ({"user_data": "echo hello"}, 400, "bad_request"),
    "user_data_too_large": ({"user_data": "#!/bin/sh\n" + "x" * 49_200}, 400, "bad_request"),
    "labels_of_numbers": ({"labels": [1]}, 400, "bad_request"),
    "public_ip_as_text": ({"assign_floating_ip": "true"}, 400, "bad_request"),
    "unknown_environment": ({"environment_name": "nowhere"}, 404, "not_found"),
    "unknown_flavor": ({"flavor_name": "n3-none"}, 404, "not_found"),
    "flavor_of_another_region": ({"flavor_name": "n3-H100-SXM5x8"}, 404, "not_found"),
    "unknown_image": ({"image_name": "Plan 9"}, 404, "not_found"),
    "image_for_other_flavors": (
        {"image_name": "Ubuntu Server 24.04 LTS R580 CUDA 13.0 with Docker for SXM"},
        400,
        "bad_request",
    ),
    "unknown_key": ({"key_name": "none"}, 404, "not_found"),
    "key_of_another_environment": ({"environment_name": "default-US-1"}, 404, "not_found"),
}


@pytest.mark.parametrize("row", BAD_CREATES)
async def test_a_bad_create_is_refused_and_makes_nothing(world: World, row: str) -> None:
    changes, status, reason = BAD_CREATES[row]
    answer = await world.create("flash-a0", **changes)
    assert (answer.status, answer.json["status"], answer.json["error_reason"]) == (status, False, reason)
    assert isinstance(answer.json["message"], str)
    assert world.cloud.machines.all == {}
    assert world.cloud.catalogue.shelf("NORWAY-1", "n3-RTX-A6000x1").free == 8


async def test_a_name_is_taken_until_its_machine_is_gone(world: World) -> None:
    assert (await world.create("flash-a0")).status == 200
    again = await world.create("flash-a0")
    assert (again.status, again.json["error_reason"]) == (409, "already_exist")
    machine = world.only()
    await world.call("POST", f"/_sim/machine/{machine.id}", {"action": "die"})
    assert (await world.create("flash-a0")).status == 409
    await world.call("DELETE", f"/core/virtual-machines/{machine.id}")
    assert (await world.create("flash-a0")).status == 409
    world.clock.forward(20)
    assert (await world.create("flash-a0")).status == 200


async def test_a_machine_passes_creating_build_active_at_its_own_times(world: World) -> None:
    machine_id = instance_of(await world.create("flash-a0"))["id"]
    seen = []
    for step in (0.5, 1, 58, 1):
        world.clock.forward(step)
        found = instance_of(await world.call("GET", f"/core/virtual-machines/{machine_id}"))
        seen.append((found["status"], found["vm_state"], found["power_state"]))
    assert seen == [
        ("CREATING", "building", "NO_STATE"),
        ("BUILD", "building", "NO_STATE"),
        ("BUILD", "building", "NO_STATE"),
        ("ACTIVE", "active", "RUNNING"),
    ]
    assert world.only().active_at == world.only().created_at + 60


async def test_user_data_is_never_returned(world: World) -> None:
    made = await world.create("flash-a0", user_data="#cloud-config\n# secret-in-payload\n")
    got = await world.call("GET", f"/core/virtual-machines/{instance_of(made)['id']}")
    listed = await world.call("GET", "/core/virtual-machines")
    for answer in (made, got, listed):
        assert "secret-in-payload" not in answer.text and "user_data" not in answer.text
    assert "secret-in-payload" in world.only().user_data


async def test_the_public_ip_comes_after_active(world: World) -> None:
    machine_id = instance_of(await world.create("flash-a0", assign_floating_ip=True))["id"]
    world.clock.forward(60)
    early = instance_of(await world.call("GET", f"/core/virtual-machines/{machine_id}"))
    assert (early["floating_ip"], early["floating_ip_status"]) == (None, "ATTACHING")
    world.clock.forward(1)
    late = instance_of(await world.call("GET", f"/core/virtual-machines/{machine_id}"))
    assert late["floating_ip_status"] == "ATTACHED" and late["floating_ip"]


async def test_lists_have_ten_rows_a_page_unless_page_size_is_spelled_right(world: World) -> None:
    for number in range(25):
        world.cloud.plant(Planting(f"m{number:02}"))
    plain = await world.call("GET", "/core/virtual-machines")
    assert (plain.json["page"], plain.json["page_size"], plain.json["count"]) == (None, None, 25)
    assert len(await world.listed("")) == 10
    assert len(await world.listed("per_page=100")) == 10
    assert await world.listed("pageSize=20&page=2") == [f"m{number}" for number in range(20, 25)]
    assert await world.listed("pageSize=20&page=9") == []
    assert (await world.call("GET", "/core/virtual-machines?page=0")).status == 400
    assert (await world.call("GET", "/core/virtual-machines?pageSize=all")).status == 400


async def test_the_environment_filter_is_partial_unless_told_otherwise(world: World) -> None:
    for name in ("prod", "prod-eu"):
        await world.call("POST", "/core/environments", {"name": name, "region": "NORWAY-1"})
        key = {"name": "k", "environment_name": name, "public_key": PUBLIC_KEY}
        assert (await world.call("POST", "/core/keypairs", key)).status == 200
        await world.create(f"in-{name}", environment_name=name)
    assert await world.listed("environment=prod") == ["in-prod", "in-prod-eu"]
    assert await world.listed("environment=prod&exact_environment_match=true") == ["in-prod"]
    assert await world.listed("search=-eu") == ["in-prod-eu"]


async def test_no_stock_is_a_plain_400_and_the_shelf_refills_on_delete(world: World) -> None:
    await world.call("POST", "/_sim/stock", {"region": "NORWAY-1", "flavor": "n3-RTX-A6000x1", "free": 1})
    assert (await world.create("flash-a0")).status == 200
    refused = await world.create("flash-a1")
    assert (refused.status, refused.json["error_reason"]) == (400, "bad_request")
    groups = (await world.call("GET", "/core/flavors?region=NORWAY-1")).json["data"]
    assert isinstance(groups, list)
    shown = {row["name"]: row["stock_available"] for group in groups for row in group["flavors"]}
    assert shown["n3-RTX-A6000x1"] is False and shown["n3-L40x1"] is True
    await world.call("DELETE", f"/core/virtual-machines/{world.only().id}")
    world.clock.forward(20)
    assert (await world.create("flash-a1")).status == 200


async def test_stock_can_be_shown_that_is_not_there(world: World) -> None:
    await world.call("POST", "/_sim/stock", {"free": 0, "shown": True})
    groups = (await world.call("GET", "/core/flavors")).json["data"]
    assert isinstance(groups, list)
    assert all(row["stock_available"] for group in groups for row in group["flavors"])
    assert (await world.create("flash-a0")).status == 400


async def test_no_credit_is_a_400_and_the_balance_tells(world: World) -> None:
    await world.call("POST", "/_sim/credit", {"balance": -1})
    refused = await world.create("flash-a0")
    assert refused.status == 400
    assert refused.json["message"] == "Insufficient balance to create the resource"
    data = (await world.call("GET", "/billing/user-credit/credit")).json["data"]
    assert data == {"credit": -1.0, "threshold": 0.0, "can_create_instance": False}


async def test_a_second_delete_is_409_then_404(world: World) -> None:
    machine_id = instance_of(await world.create("flash-a0"))["id"]
    path = f"/core/virtual-machines/{machine_id}"
    assert (await world.call("DELETE", path)).status == 200
    assert (await world.call("DELETE", path)).status == 409
    assert instance_of(await world.call("GET", path))["status"] == "DELETING"
    world.clock.forward(20)
    for method in ("GET", "DELETE"):
        answer = await world.call(method, path)
        assert (answer.status, answer.json["error_reason"]) == (404, "not_found")
    assert await world.listed() == []


async def test_a_delete_while_building_can_be_refused(world: World) -> None:
    await world.call("POST", "/_sim/knobs", {"delete_refused_while_building": True})
    path = f"/core/virtual-machines/{instance_of(await world.create('flash-a0'))['id']}"
    assert (await world.call("DELETE", path)).status == 409
    world.clock.forward(60)
    assert (await world.call("DELETE", path)).status == 200


async def test_power_verbs_are_gets_with_effect_and_mind_the_status(world: World) -> None:
    path = f"/core/virtual-machines/{instance_of(await world.create('flash-a0'))['id']}"
    assert (await world.call("GET", f"{path}/stop")).status == 400
    world.clock.forward(60)
    assert (await world.call("GET", f"{path}/stop")).status == 200
    assert world.only().status is Status.STOPPING
    world.clock.forward(1)
    assert instance_of(await world.call("GET", path))["status"] == "SHUTOFF"
    assert (await world.call("GET", f"{path}/start")).status == 200
    world.clock.forward(1)
    assert instance_of(await world.call("GET", path))["status"] == "ACTIVE"


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/core/virtual-machines/999", 404, "not_found"),
        ("GET", "/core/virtual-machines/abc", 404, "not_found"),
        ("GET", "/core/nothing", 404, "not_found"),
        ("PUT", "/core/virtual-machines", 405, "not_allowed"),
        ("DELETE", "/core/keypairs/1", 404, "not_found"),
        ("DELETE", "/core/keypair/1", 404, "not_found"),
        ("POST", "/core/virtual-machines", 400, "bad_request"),
    ],
)
async def test_errors_have_the_documented_body(world: World, method: str, path: str, status: int, reason: str) -> None:
    answer = await world.call(method, path)
    assert answer.status == status
    assert set(answer.json) == {"status", "message", "error_reason"}
    assert (answer.json["status"], answer.json["error_reason"]) == (False, reason)


async def test_bare_bodies_stay_bare(world: World) -> None:
    assert (await world.call("GET", "/pricebook")).text.startswith('[{"id": 1, "name": "RTX-A6000", "value": 0.5')
    assert list((await world.call("GET", "/core/stocks")).json) == ["stocks"]
    assert "data" in (await world.call("GET", "/core/flavors")).json
    groups = (await world.call("GET", "/core/images?region=US-1")).json["images"]
    assert isinstance(groups, list)
    assert IMAGE in [image["name"] for group in groups for image in group["images"]]
    await world.call("POST", "/_sim/knobs", {"prices_as_text": True})
    assert '"value": "0.500000000"' in (await world.call("GET", "/pricebook")).text


@pytest.mark.parametrize(
    "public_key",
    ["", "ssh-dss AAAA", "ssh-ed25519 not-base64!", "ssh-rsa " + PUBLIC_KEY.split()[1], "ssh-ed25519 AAAA"],
)
async def test_a_key_that_is_no_ssh_key_is_refused(world: World, public_key: str) -> None:
    body = {"name": "other", "environment_name": "default-US-1", "public_key": public_key}
    assert (await world.call("POST", "/core/keypairs", body)).status == 400


async def test_keys_of_several_accounts_see_their_own_machines(world: World) -> None:
    await world.create("flash-a0")
    added = await world.call("POST", "/_sim/keys", {"key": "key-of-other", "account": "other"})
    assert added.json["org_id"] == 9002
    world.key = "key-of-other"
    assert await world.listed() == []
    assert (await world.call("GET", f"/core/virtual-machines/{world.only().id}")).status == 404
    assert (await world.call("DELETE", f"/core/virtual-machines/{world.only().id}")).status == 404
    world.key = "key-of-main"
    assert await world.listed() == ["flash-a0"]


async def test_a_revoked_key_is_401_and_a_read_only_key_is_403_for_writes(world: World) -> None:
    await world.call("POST", "/_sim/keys", {"key": "reader", "account": "main", "read_only": True})
    world.key = "reader"
    assert (await world.call("GET", "/core/virtual-machines")).status == 200
    refused = await world.create("flash-a0")
    assert (refused.status, refused.json["error_reason"]) == (403, "forbidden")
    await world.call("POST", "/_sim/keys", {"key": "reader", "revoked": True})
    gone = await world.call("GET", "/core/virtual-machines")
    assert (gone.status, gone.json["error_reason"]) == (401, "unauthorized")
    await world.call("POST", "/_sim/keys", {"key": "reader", "revoked": False})
    assert (await world.call("GET", "/core/virtual-machines")).status == 200


async def test_a_volume_needs_a_region_with_volumes_and_a_name_of_its_own(world: World) -> None:
    body = {"name": "cache", "environment_name": "default-CANADA-2", "size": 100, "volume_type": "Cloud-SSD"}
    refused = await world.call("POST", "/core/volumes", body)
    assert (refused.status, refused.json["message"]) == (400, "Volume operations are not supported in this region")
    body["environment_name"] = "default-US-1"
    assert (await world.call("POST", "/core/volumes", body)).status == 200
    again = await world.call("POST", "/core/volumes", {**body, "environment_name": "default-NORWAY-1"})
    assert (again.status, again.json["message"]) == (400, "This name is not available")


async def test_the_console_log_is_asked_for_and_fetched(world: World) -> None:
    path = f"/core/virtual-machines/{instance_of(await world.create('flash-a0'))['id']}/logs"
    world.only().console.append("one\ntwo\n")
    asked = await world.call("POST", path, {"length": 1})
    assert list(asked.json) == ["request_id"]
    fetch = f"{path}?request_id={asked.json['request_id']}"
    assert (await world.call("GET", fetch)).json == {"logs": None}
    world.clock.forward(1)
    assert (await world.call("GET", fetch)).json == {"logs": "two"}
    assert (await world.call("GET", f"{path}?request_id=1")).status == 404


async def test_a_free_volume_attaches_only_once_the_machine_is_active(world: World) -> None:
    body = {"name": "cache", "environment_name": "default-NORWAY-1", "size": 100, "volume_type": "Cloud-SSD"}
    volume = (await world.call("POST", "/core/volumes", body)).json["volume"]
    assert isinstance(volume, dict)
    path = f"/core/virtual-machines/{instance_of(await world.create('flash-a0'))['id']}/attach-volumes"
    wish = {"volume_ids": [volume["id"]], "protected": True}
    for forward, status in ((1.0, 400), (58.0, 400), (1.0, 200), (1.0, 400)):
        world.clock.forward(forward)
        assert (await world.call("POST", path, wish)).status == status
    detach = path.replace("attach", "detach")
    assert (await world.call("POST", detach, wish)).status == 405
    attachment = instance_of(await world.call("GET", path.removesuffix("/attach-volumes")))["volume_attachments"]
    assert isinstance(attachment, list)
    released = await world.call("PATCH", f"/core/volume-attachments/{attachment[0]['id']}", {"protected": False})
    assert released.status == 200
    assert (await world.call("POST", detach, wish)).status == 200
