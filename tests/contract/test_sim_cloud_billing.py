"""The world's own bill and its truth, independent of what any client believes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from flashd.sim.cloud_http import TICK_S
from flashd.sim.cloud_types import BoxHost, Json, Knobs, SimMachine, Status
from tests.contract.sim_cloud_kit import USER_DATA, World, a_world, instance_of

VMS = "/core/virtual-machines"
PRICE = 0.50
WAIT_S = 5.0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_world(Knobs(create_s=1, boot_s=60, delete_s=20, power_s=5)) as made:
        yield made


async def truth(world: World) -> Json:
    rows = (await world.call("GET", "/_sim/machines")).json["machines"]
    assert isinstance(rows, list) and len(rows) == 1
    return dict(rows[0])


async def test_only_active_time_is_billed_by_the_begun_minute(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.clock.forward(60)
    assert (await truth(world))["billed_minutes"] == 0
    world.clock.forward(61)
    assert (await truth(world))["billed_minutes"] == 2
    world.clock.forward(3539)
    await world.call("DELETE", path)
    world.clock.forward(1000)
    row = await truth(world)
    assert (row["active_at"], row["deleting_at"], row["gone_at"]) == (1_800_000_060, 1_800_003_660, 1_800_003_680)
    assert row["billed_minutes"] == 60
    assert row["billed_usd"] == pytest.approx(PRICE)


async def test_a_machine_that_never_became_active_costs_nothing(world: World) -> None:
    await world.fault("stuck")
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.clock.forward(7200)
    await world.call("DELETE", path)
    world.clock.forward(20)
    row = await truth(world)
    assert (row["status"], row["billed_usd"]) == ("GONE", 0)


@pytest.mark.parametrize(("how", "minutes"), [("die", 10), ("shutoff", 40), ("vanish", 10)])
async def test_shutoff_is_billed_in_full_and_error_is_not(world: World, how: str, minutes: int) -> None:
    await world.create("flash-a0")
    world.clock.forward(660)
    await world.call("POST", f"/_sim/machine/{world.only().id}", {"action": how})
    world.clock.forward(1800)
    assert (await truth(world))["billed_minutes"] == minutes


async def test_power_changes_and_hibernation_are_free(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.clock.forward(120)
    await world.call("GET", f"{path}/hibernate")
    world.clock.forward(3600)
    await world.call("GET", f"{path}/hibernate-restore")
    world.clock.forward(5 + 60)
    row = await truth(world)
    assert (row["status"], row["billed_minutes"]) == ("ACTIVE", 2)


async def test_public_ip_and_spot_and_gpu_count_are_in_the_price(world: World) -> None:
    for number, (flavor, public_ip, price) in enumerate(
        [
            ("n3-RTX-A6000x1", True, 0.50672),
            ("n3-RTX-A6000x4", False, 2.0),
            ("n3-RTX-A6000x1-spot", False, 0.4),
        ]
    ):
        made = await world.create(f"flash-{number}", flavor_name=flavor, assign_floating_ip=public_ip)
        machine = world.cloud.machine(int(str(instance_of(made)["id"])))
        assert machine.usd_per_hour == pytest.approx(price)


async def test_a_new_price_is_for_new_machines(world: World) -> None:
    await world.create("flash-a0")
    await world.call("POST", "/_sim/prices", {"RTX-A6000": 0.75})
    await world.create("flash-b0")
    assert [machine.usd_per_hour for machine in world.cloud.living()] == [0.50, 0.75]
    assert '"name": "RTX-A6000", "value": 0.75' in (await world.call("GET", "/pricebook")).text


async def test_the_balance_falls_with_the_bill_volumes_included(world: World) -> None:
    body = {"name": "cache", "environment_name": "default-NORWAY-1", "size": 100, "volume_type": "Cloud-SSD"}
    assert (await world.call("POST", "/core/volumes", body)).status == 200
    await world.create("flash-a0")
    world.clock.forward(60 + 36_000)
    data = (await world.call("GET", "/billing/user-credit/credit")).json["data"]
    assert isinstance(data, dict)
    volume = 601 / 60 * 100 * 0.000096774
    assert data["credit"] == pytest.approx(1000 - 10 * PRICE - volume, abs=1e-4)
    summary = (await world.call("GET", "/_sim/summary")).json
    assert summary["billed_usd"] == pytest.approx(10 * PRICE + volume)


async def test_the_usage_report_agrees_with_the_truth_and_outlives_the_machine(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.clock.forward(660)
    await world.call("DELETE", path)
    world.clock.forward(20)
    assert (await world.call("GET", "/billing/billing/usage")).json["data"] == []
    rows = (await world.call("GET", "/billing/billing/usage?deleted=true")).json["data"]
    assert isinstance(rows, list)
    row = await truth(world)
    assert (rows[0]["total_up_time"], rows[0]["total_bill"]) == (row["billed_minutes"], row["billed_usd"])
    history = await world.call("GET", f"/billing/billing/history/virtual-machine/{row['id']}")
    assert '"usage_time_ACTIVE": 0.16666666666666666' in history.text


async def test_the_summary_counts_what_was_launched_deleted_and_left(world: World) -> None:
    first = instance_of(await world.create("flash-a0"))["id"]
    await world.create("flash-b0")
    planted = {"name": "flash-t-orphan", "age_s": 600, "labels": ["launch=0"], "region": "US-1"}
    made = (await world.call("POST", "/_sim/machines", planted)).json["machine"]
    assert isinstance(made, dict) and made["created_at"] == world.clock.at - 600 and made["billed_minutes"] == 10
    await world.call("DELETE", f"{VMS}/{first}")
    world.clock.forward(20)
    summary = (await world.call("GET", "/_sim/summary")).json
    assert [summary[key] for key in ("launched", "deleted", "alive", "planted_alive")] == [2, 1, 1, 1]
    assert await world.listed() == ["flash-t-orphan", "flash-b0"]


async def test_the_log_tells_every_create_and_delete_in_order(world: World) -> None:
    path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
    world.clock.forward(100)
    await world.call("DELETE", path)
    world.clock.forward(100)
    rows = (await world.call("GET", "/_sim/log")).json["log"]
    assert isinstance(rows, list)
    assert [(row["what"], row["time"] - 1_800_000_000) for row in rows] == [
        ("create", 0),
        ("active", 60),
        ("delete", 100),
        ("gone", 120),
    ]


async def test_requests_are_counted_by_endpoint_and_by_sliding_minute(world: World) -> None:
    for _ in range(3):
        await world.call("GET", f"{VMS}/7")
        world.clock.forward(25)
    await world.call("GET", VMS)
    report = (await world.call("GET", "/_sim/requests")).json
    assert report["total"] == 4
    assert report["max_per_minute"] == 3
    assert report["max_per_minute_by_endpoint"] == {f"GET {VMS}": 1, f"GET {VMS}/{{id}}": 3}
    assert {"method": "GET", "endpoint": f"{VMS}/{{id}}", "status": 404, "count": 3} in list(_rows(report))
    await world.call("DELETE", "/_sim/requests")
    assert (await world.call("GET", "/_sim/requests")).json["total"] == 0


def _rows(report: Json) -> list[object]:
    rows = report["counts"]
    assert isinstance(rows, list)
    return rows


class NotingHost(BoxHost):
    """Writes down what it is told; a start of `broken` fails."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.machines: dict[int, SimMachine] = {}
        self.changed = asyncio.Event()
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(self, machine: SimMachine) -> None:
        if machine.name == "broken":
            self.changed.set()
            raise RuntimeError("no room for a box")
        await self.may_start.wait()
        self.machines[machine.id] = machine
        self._note(f"start {machine.name}")

    async def stop(self, machine_id: int) -> None:
        name = self.machines[machine_id].name if machine_id in self.machines else "broken"
        self._note(f"stop {name}")

    def _note(self, line: str) -> None:
        self.heard.append(line)
        self.changed.set()


async def until(host: NotingHost, *heard: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while host.heard != list(heard):
            host.changed.clear()
            await host.changed.wait()


async def test_the_box_starts_when_active_and_stops_with_its_machine() -> None:
    host = NotingHost()
    async with a_world(Knobs(boot_s=60, delete_s=20, power_s=5), host) as world:
        made = instance_of(await world.create("flash-a0", labels=["launch=1"]))
        await world.create("quiet", user_data=None)
        assert host.heard == []
        world.clock.forward(60)
        await until(host, "start flash-a0")
        machine = host.machines[int(str(made["id"]))]
        assert (machine.user_data, machine.gpu, machine.labels) == (USER_DATA, "RTX-A6000", ("launch=1",))
        assert machine.active_at == machine.created_at + 60
        machine.console("hello\n")
        await world.call("DELETE", f"{VMS}/{made['id']}")
        await until(host, "start flash-a0", "stop flash-a0")
        assert world.cloud.machine(machine.id).console == ["hello\n"]
    assert host.heard == ["start flash-a0", "stop flash-a0"]


async def test_a_machine_deleted_while_its_box_starts_is_stopped_after_the_start() -> None:
    host = NotingHost()
    host.may_start.clear()
    async with a_world(Knobs(boot_s=0, delete_s=0), host) as world:
        path = f"{VMS}/{instance_of(await world.create('flash-a0'))['id']}"
        await asyncio.sleep(3 * TICK_S)
        await world.call("DELETE", path)
        await asyncio.sleep(3 * TICK_S)
        assert host.heard == []
        host.may_start.set()
        await until(host, "start flash-a0", "stop flash-a0")


async def test_a_box_that_powers_itself_off_leaves_a_billed_machine() -> None:
    host = NotingHost()
    async with a_world(Knobs(boot_s=0), host) as world:
        await world.create("flash-a0")
        await until(host, "start flash-a0")
        host.machines[world.only().id].power_off()
        assert world.only().status is Status.SHUTOFF
        await until(host, "start flash-a0", "stop flash-a0")
        world.clock.forward(600)
        assert (await truth(world))["billed_minutes"] == 10


async def test_closing_the_server_powers_every_box_off() -> None:
    host = NotingHost()
    async with a_world(Knobs(boot_s=0), host) as world:
        await world.create("flash-a0")
        await until(host, "start flash-a0")
    assert host.heard == ["start flash-a0", "stop flash-a0"]


async def test_a_box_that_cannot_start_is_a_machine_without_a_sign_of_life() -> None:
    host = NotingHost()
    async with a_world(Knobs(boot_s=0), host) as world:
        await world.create("broken")
        async with asyncio.timeout(WAIT_S):
            await host.changed.wait()
        rows = (await world.call("GET", "/_sim/log")).json["log"]
        assert isinstance(rows, list)
        assert (rows[-1]["what"], rows[-1]["detail"]) == ("box_failed", "RuntimeError: no room for a box")
        assert world.only().status is Status.ACTIVE


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_sim/machine/5", {"action": "die"}),
        ("/_sim/stock", {"free": 1, "region": "MOON-1"}),
        ("/_sim/knobs", {"boot_s": "soon"}),
        ("/_sim/knobs", {"gravity": 1}),
        ("/_sim/machines", {"name": "x", "status": "GONE"}),
        ("/_sim/prices", {"L40": "cheap"}),
        ("/_sim/keys", {"key": "unknown", "revoked": True}),
    ],
)
async def test_the_control_surface_refuses_what_means_nothing(world: World, path: str, body: Json) -> None:
    answer = await world.call("POST", path, body)
    assert answer.status == 400 and answer.json["error"]
