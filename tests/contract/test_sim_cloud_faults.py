"""Each scripted fault does what its name says, to the requests it is meant for and to no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from flashd.sim.cloud_faults import Effect
from flashd.sim.cloud_types import Knobs, Planting, Status
from tests.contract.sim_cloud_kit import World, a_world, instance_of, names_in

VMS = "/core/virtual-machines"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world(Knobs(create_s=1, boot_s=60, delete_s=20)) as made:
        yield made


async def test_status_answers_in_place_of_the_request(world: World) -> None:
    await world.fault("status", method="POST", path="/virtual-machines$", status=500, times=1)
    failed = await world.create("flash-a0")
    assert (failed.status, failed.json) == (500, {"message": "Internal Server Error"})
    assert world.cloud.machines.all == {}
    assert (await world.create("flash-a0")).status == 200


async def test_status_can_carry_any_body(world: World) -> None:
    await world.fault("status", path="page=1", status=400, body={"status": False, "message": "HTTP 429"})
    await world.fault("status", path="page=2", status=200, body={"status": False, "message": "no"})
    await world.fault("status", path="page=3", status=502)
    first, second, third = [await world.call("GET", f"{VMS}?page={page}") for page in (1, 2, 3)]
    assert (first.status, first.json["message"]) == (400, "HTTP 429")
    assert (second.status, second.json["status"]) == (200, False)
    assert (third.status, third.content_type) == (502, "text/html")


async def test_html_is_a_200_that_is_no_json(world: World) -> None:
    await world.fault("html", method="GET", times=1)
    page = await world.call("GET", VMS)
    assert (page.status, page.content_type) == (200, "text/html")
    assert (await world.call("GET", VMS)).content_type == "application/json"


@pytest.mark.parametrize(("effect", "made"), [("reset", 0), ("hang", 0), ("applied_lost", 1), ("applied_hang", 1)])
async def test_a_create_without_an_answer_was_applied_or_not(world: World, effect: str, made: int) -> None:
    await world.fault(effect, method="POST", seconds=0.05, times=1)
    with pytest.raises(aiohttp.ClientConnectionError):
        await world.create("flash-a0")
    assert len(world.cloud.machines.all) == made
    counts = (await world.call("GET", "/_sim/requests")).json["counts"]
    assert counts == [{"method": "POST", "endpoint": VMS, "status": 0, "count": 1}]


async def test_hang_keeps_the_client_waiting(world: World) -> None:
    await world.fault("hang", method="GET", seconds=30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(world.call("GET", VMS), 0.1)


async def test_delay_only_makes_it_late(world: World) -> None:
    loop = asyncio.get_running_loop()
    await world.fault("delay", method="GET", seconds=0.1, times=1)
    began = loop.time()
    assert (await world.call("GET", VMS)).status == 200
    assert loop.time() - began >= 0.1


async def test_applied_504_made_the_machine_all_the_same(world: World) -> None:
    await world.fault("applied_status", method="POST", times=1)
    answer = await world.create("flash-a0")
    assert (answer.status, answer.content_type) == (504, "text/html")
    assert await world.listed() == ["flash-a0"]
    assert (await world.create("flash-a0")).status == 409


async def test_throttle_blocks_the_rest_of_the_minute(world: World) -> None:
    world.clock.forward(50)
    await world.fault("throttle", method="POST", times=1)
    assert (await world.create("flash-a0")).status == 429
    refused = await world.call("GET", VMS)
    assert (refused.status, "error_reason" in refused.json) == (429, False)
    world.clock.forward(9)
    assert (await world.call("GET", VMS)).status == 429
    world.clock.forward(1)
    assert (await world.create("flash-a0")).status == 200


async def test_the_rate_limit_is_500_a_minute_when_switched_on(world: World) -> None:
    await world.call("POST", "/_sim/knobs", {"requests_per_minute": 500})
    codes = [(await world.call("GET", "/billing/alive")).status for _ in range(502)]
    assert (codes.count(200), codes[-2:]) == (500, [429, 429])
    world.clock.forward(60)
    assert (await world.call("GET", "/billing/alive")).status == 200


async def test_no_id_is_a_2xx_without_a_usable_id(world: World) -> None:
    await world.fault("no_id", method="POST", times=1)
    answer = await world.create("flash-a0")
    assert answer.status == 200 and "id" not in instance_of(answer)
    assert await world.listed() == ["flash-a0"]


async def test_conflict_answers_a_delete_with_409_and_deletes_nothing(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    await world.fault("conflict", method="DELETE", times=2)
    codes = [(await world.call("DELETE", path)).status for _ in range(3)]
    assert codes == [409, 409, 200]
    assert world.only().status is Status.DELETING


async def test_a_lying_delete_says_200_and_the_machine_lives(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    await world.fault("lying_delete", method="DELETE", times=1)
    assert (await world.call("DELETE", path)).json["status"] is True
    world.clock.forward(100)
    assert instance_of(await world.call("GET", path))["status"] == "ACTIVE"
    assert (await world.call("DELETE", path)).status == 200


async def test_list_lag_hides_a_new_machine_from_listings_only(world: World) -> None:
    await world.fault("list_lag", name="flash-a0", seconds=60)
    made = instance_of(await world.create("flash-a0"))
    await world.create("flash-b0")
    assert await world.listed() == ["flash-b0"]
    assert (await world.call("GET", f"{VMS}/{made['id']}")).status == 200
    world.clock.forward(60)
    assert await world.listed() == ["flash-a0", "flash-b0"]


async def test_dropped_rows_are_missing_from_full_pages(world: World) -> None:
    for number in range(12):
        world.cloud.plant(Planting(f"m{number:02}"))
    await world.fault("drop_rows", path="page=1", pattern="m0[3-4]", times=1)
    first = await world.listed("page=1")
    assert (len(first), first[3]) == (10, "m05")
    assert len(await world.listed("page=1&pageSize=20")) == 12


async def test_a_page_shrinks(world: World) -> None:
    for number in range(12):
        world.cloud.plant(Planting(f"m{number:02}"))
    await world.fault("shrink", path=r"virtual-machines\?", rows=4, times=1)
    answer = await world.call("GET", f"{VMS}?page=1")
    assert (names_in(answer), answer.json["count"]) == (["m00", "m01", "m02", "m03"], 12)


async def test_page_two_is_malformed(world: World) -> None:
    for number in range(12):
        world.cloud.plant(Planting(f"m{number:02}"))
    await world.fault("malformed", path=r"[?&]page=2\b")
    assert len(await world.listed("page=1")) == 10
    second = await world.call("GET", f"{VMS}?page=2")
    assert (second.status, second.content_type) == (200, "application/json")
    with pytest.raises(json.JSONDecodeError):
        json.loads(second.text)


async def test_a_truncated_body_breaks_off(world: World) -> None:
    await world.fault("truncated", method="GET", times=1)
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.call("GET", VMS)
    assert (await world.call("GET", VMS)).status == 200


async def test_unauthorized_is_401_on_everything_until_cleared(world: World) -> None:
    await world.fault("unauthorized")
    for method, path in (("GET", VMS), ("POST", VMS), ("DELETE", f"{VMS}/1")):
        answer = await world.call(method, path)
        assert (answer.status, answer.json["error_reason"]) == (401, "unauthorized")
    assert (await world.call("DELETE", "/_sim/faults")).json == {"removed": 1}
    assert (await world.call("GET", VMS)).status == 200


async def test_another_accounts_key_sees_an_empty_world_and_404(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.cloud.add_account("stranger")
    await world.fault("account", account="stranger")
    assert await world.listed() == []
    assert (await world.call("GET", path)).status == 404
    organization = (await world.call("GET", "/auth/organizations")).json["organization"]
    assert isinstance(organization, dict)
    assert (organization["id"], organization["name"]) == (9002, "stranger")


async def test_not_found_lies_so_many_times(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    await world.fault("not_found", path=path, times=3)
    answers = [await world.call("GET", path) for _ in range(4)]
    assert [answer.status for answer in answers] == [404, 404, 404, 200]
    assert answers[0].json["error_reason"] == "not_found"


async def test_a_stuck_machine_stays_in_build(world: World) -> None:
    await world.fault("stuck", name="flash-a0")
    await world.create("flash-a0")
    await world.create("flash-b0")
    world.clock.forward(86_400)
    states = {machine.name: machine.status for machine in world.cloud.living()}
    assert states == {"flash-a0": Status.BUILD, "flash-b0": Status.ACTIVE}


async def test_a_build_can_be_slow_or_end_in_error(world: World) -> None:
    await world.fault("slow_boot", name="slow", seconds=300)
    await world.fault("build_error", name="bad", seconds=30)
    await world.create("slow")
    await world.create("bad")
    world.clock.forward(299)
    assert [machine.status for machine in world.cloud.living()] == [Status.BUILD, Status.ERROR]
    world.clock.forward(1)
    assert world.cloud.living()[0].status is Status.ACTIVE


@pytest.mark.parametrize(
    ("how", "status"), [("die", Status.ERROR), ("shutoff", Status.SHUTOFF), ("vanish", Status.GONE)]
)
async def test_a_machine_is_struck_some_time_after_active(world: World, how: str, status: Status) -> None:
    await world.fault("strike", how=how, seconds=100)
    await world.create("flash-a0")
    world.clock.forward(159)
    world.cloud.advance()
    assert world.only().status is Status.ACTIVE
    world.clock.forward(5)
    world.cloud.advance()
    assert world.only().status is status
    assert world.only().spans[-1].start == world.only().created_at + 160


async def test_shown_fields_replace_the_true_ones(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0', labels=['launch=1']))['id']}"
    await world.create("flash-b0", labels=["launch=2"])
    await world.fault("show", method="GET", pattern="a0$", fields={"labels": [], "status": "QUANTUM"})
    found = instance_of(await world.call("GET", path))
    assert (found["labels"], found["status"]) == ([], "QUANTUM")
    rows = (await world.call("GET", VMS)).json["instances"]
    assert isinstance(rows, list)
    assert [row["labels"] for row in rows] == [[], ["launch=2"]]
    assert world.cloud.living()[0].labels == ["launch=1"]


async def test_nth_and_times_choose_among_the_fitting_requests(world: World) -> None:
    await world.fault("status", method="GET", path="/regions", nth=3, times=2)
    codes = [(await world.call("GET", "/core/regions")).status for _ in range(6)]
    assert codes == [200, 200, 500, 500, 200, 200]


async def test_probability_follows_its_seed(world: World) -> None:
    async def codes() -> list[int]:
        await world.call("DELETE", "/_sim/faults")
        await world.fault("status", probability=0.5, seed=7)
        return [(await world.call("GET", "/core/regions")).status for _ in range(40)]

    first = await codes()
    assert first == await codes()
    assert 10 < first.count(500) < 30


async def test_a_name_selects_a_machine_by_body_and_by_id(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    other = f"{VMS}/{instance_of(await world.create('flash-b0'))['id']}"
    await world.fault("status", name="^flash-a0$", status=503)
    assert [(await world.call("GET", one)).status for one in (path, other)] == [503, 200]
    assert (await world.create("flash-a0")).status == 503


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"effect": "explode"},
        {"effect": "html", "when": 1},
        {"effect": "html", "times": "once"},
        {"effect": "html", "path": "("},
        {"effect": "account", "account": "nobody"},
        {"effect": "strike", "how": "gently"},
    ],
)
async def test_a_fault_that_means_nothing_is_refused(world: World, body: object) -> None:
    assert (await world.call("POST", "/_sim/faults", body)).status == 400
    assert (await world.call("GET", "/_sim/faults")).json == {"faults": []}


def test_every_effect_has_a_test_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [effect for effect in Effect if f'"{effect}"' not in text] == []
