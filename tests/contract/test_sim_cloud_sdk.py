"""The official SDK drives the simulated Hyperstack: the outside proof that shapes, names and codes are right."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import hyperstack
import pytest
from hyperstack.exceptions import ApiException, NotFoundException, UnauthorizedException

from flashd.sim.cloud import Cloud
from flashd.sim.cloud_http import CloudServer, serve_cloud
from flashd.sim.cloud_types import Knobs
from tests.contract.sim_cloud_kit import IMAGE, KEY, PUBLIC_KEY, USER_DATA

QUICK = Knobs(
    create_s=0.05, boot_s=0.15, delete_s=0.15, volume_s=0.05, attach_s=0.05, console_s=0.05, floating_ip_s=0.0
)
WAIT_S = 10.0


@pytest.fixture
async def server() -> AsyncIterator[CloudServer]:
    cloud = Cloud(knobs=QUICK)
    cloud.add_account("main", KEY)
    async with await serve_cloud(cloud) as running:
        yield running


@contextmanager
def sdk(server: CloudServer, key: str = KEY) -> Iterator[hyperstack.ApiClient]:
    settings = hyperstack.Configuration(host=server.base_url, api_key={"apiKey": key})
    with hyperstack.ApiClient(settings) as client:
        yield client


def payload(name: str, **changes: object) -> hyperstack.CreateInstancesPayload:
    fields: dict[str, object] = {
        "name": name,
        "environment_name": "flash-env",
        "flavor_name": "n3-L40x1",
        "key_name": "flash-key",
        "image_name": IMAGE,
        "count": 1,
        "user_data": USER_DATA,
        "labels": ["launch=0123abcd", "until=1800000000"],
    }
    return hyperstack.CreateInstancesPayload(**{**fields, **changes})


def prepare(client: hyperstack.ApiClient) -> None:
    environment = hyperstack.CreateEnvironment(name="flash-env", region="NORWAY-1")
    hyperstack.EnvironmentApi(client).create_environment(environment)
    key = hyperstack.ImportKeypairPayload(name="flash-key", environment_name="flash-env", public_key=PUBLIC_KEY)
    hyperstack.KeypairApi(client).import_key_pair(key)


def poll_until(machines: hyperstack.VirtualMachineApi, machine_id: int, status: str) -> hyperstack.InstanceFields:
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        instance = machines.get_vm(machine_id).instance
        if instance.status == status:
            return instance
        time.sleep(0.02)
    raise AssertionError(f"machine {machine_id} was not {status} within {WAIT_S} s")


def poll_until_gone(machines: hyperstack.VirtualMachineApi, machine_id: int) -> None:
    limit = time.monotonic() + WAIT_S
    while time.monotonic() < limit:
        try:
            assert machines.get_vm(machine_id).instance.status == "DELETING"
        except NotFoundException as error:
            assert error.data.error_reason == "not_found"
            return
        time.sleep(0.02)
    raise AssertionError(f"machine {machine_id} was not gone within {WAIT_S} s")


def life_of_one_machine(server: CloudServer) -> int:
    with sdk(server) as client:
        regions = {region.name for region in hyperstack.RegionApi(client).list_regions().regions}
        assert regions == {"NORWAY-1", "CANADA-1", "CANADA-2", "US-1"}
        groups = hyperstack.FlavorApi(client).list_flavors(region="NORWAY-1").data
        flavors = {flavor.name: flavor for group in groups for flavor in group.flavors}
        assert flavors["n3-L40x1"].stock_available and flavors["n3-L40x1"].gpu_count == 1
        prepare(client)
        machines = hyperstack.VirtualMachineApi(client)
        assert machines.check_vm_name_availability("flash-sdk-a0").available
        made = machines.create_vms(payload("flash-sdk-a0")).instances[0]
        assert (made.status, made.labels) == ("CREATING", ["launch=0123abcd", "until=1800000000"])
        assert not machines.check_vm_name_availability("flash-sdk-a0").available
        active = poll_until(machines, made.id, "ACTIVE")
        assert (active.vm_state, active.power_state) == ("active", "RUNNING")
        assert active.environment.region == "NORWAY-1"
        assert active.flavor.name == "n3-L40x1"
        machines.delete_vm(made.id)
        with pytest.raises(ApiException) as refused:
            machines.delete_vm(made.id)
        assert refused.value.status == 409
        poll_until_gone(machines, made.id)
        return int(made.id)


async def test_the_sdk_takes_a_machine_from_region_to_404(server: CloudServer) -> None:
    machine_id = await asyncio.to_thread(life_of_one_machine, server)
    (truth,) = server.cloud.truth()
    assert (truth["id"], truth["status"], truth["billed_minutes"]) == (machine_id, "GONE", 1)


def list_all(server: CloudServer, page_size: int | None) -> list[int]:
    with sdk(server) as client:
        prepare(client)
        machines = hyperstack.VirtualMachineApi(client)
        for batch in range(3):
            assert len(machines.create_vms(payload(f"flash-b{batch}", count=19)).instances) == 19
        found: list[int] = []
        for page in range(1, 20):
            answer = machines.list_vms(page=page, page_size=page_size)
            found += [instance.id for instance in answer.instances]
            if len(answer.instances) < (page_size or 10):
                break
        return found


@pytest.mark.parametrize("page_size", [None, 20])
async def test_the_sdk_lists_57_machines_over_pages_oldest_first(server: CloudServer, page_size: int | None) -> None:
    server.cloud.catalogue.set_stock(None, None, 100)
    found = await asyncio.to_thread(list_all, server, page_size)
    assert found == sorted(server.cloud.machines.all)
    assert len(found) == 57


def read_everything(server: CloudServer) -> None:
    with sdk(server) as client:
        stocks = hyperstack.StockApi(client).get_gpu_stock().stocks
        l40 = next(model for row in stocks if row.region == "NORWAY-1" for model in row.models if model.model == "L40")
        assert (l40.available, l40.configurations.var_1x) == ("25+", 8)
        prices = {row.name: row.value for row in hyperstack.PricebookApi(client).get_pricebook()}
        assert (prices["L40"], prices["PublicIP"], prices["Cloud-SSD"]) == (1.0, 0.00672, 0.000096774)
        groups = hyperstack.ImageApi(client).list_images(region="CANADA-1").images
        names = [image.name for group in groups for image in group.images]
        assert IMAGE not in names and any("with Docker" in name for name in names)
        assert {gpu.name for gpu in hyperstack.GpuApi(client).list_gpus().gpu_list} >= {"L40", "RTX-A6000"}
        credit = hyperstack.CreditApi(client).get_user_credit().data
        assert (credit.credit, credit.can_create_instance) == (1000.0, True)
        assert hyperstack.AuthApi(client).retrieve_authenticated_user_details().user.username == "main"
        assert hyperstack.OrganizationApi(client).retrieve_organization_information().organization.id == 9001
        environments = hyperstack.EnvironmentApi(client).list_environments(page_size="2", page="2")
        assert [row.name for row in environments.environments] == ["default-US-1", "default-CANADA-2"]
        quota = hyperstack.EnvironmentApi(client).get_environment_vm_quota(environments.environments[0].id)
        assert (quota.current_vms, quota.available_vms) == (0, quota.max_vms)
        assert "ssh-ed25519" in hyperstack.KeypairApi(client).list_supported_key_pair_types().supported_key_types


async def test_the_sdk_reads_catalogue_prices_credit_and_account(server: CloudServer) -> None:
    await asyncio.to_thread(read_everything, server)


def use_a_volume(server: CloudServer) -> None:
    with sdk(server) as client:
        prepare(client)
        volumes, machines = hyperstack.VolumeApi(client), hyperstack.VirtualMachineApi(client)
        order = hyperstack.CreateVolumePayload(
            name="cache", environment_name="flash-env", size=100, volume_type="Cloud-SSD"
        )
        volume = volumes.create_volume(order).volume
        assert volume.status == "creating"
        machine = machines.create_vms(payload("flash-v-a0")).instances[0]
        attachments = hyperstack.VolumeAttachmentApi(client)
        wish = hyperstack.AttachVolumesPayload(volume_ids=[volume.id])
        with pytest.raises(ApiException) as early:
            attachments.attach_volumes_to_vm(machine.id, wish)
        assert early.value.status == 400
        poll_until(machines, machine.id, "ACTIVE")
        made = attachments.attach_volumes_to_vm(machine.id, wish).volume_attachments[0]
        assert (made.volume_id, made.instance_id, made.device) == (volume.id, machine.id, "/dev/vdb")
        time.sleep(0.1)
        assert volumes.get_volume(volume.id).volume.status == "in-use"
        held = machines.get_vm(machine.id).instance.volume_attachments[0]
        assert (held.status, held.volume.name) == ("ATTACHED", "cache")
        with pytest.raises(ApiException) as attached:
            volumes.delete_volume(volume.id)
        assert attached.value.status == 400
        machines.delete_vm(machine.id)
        poll_until_gone(machines, machine.id)
        volumes.delete_volume(volume.id)
        time.sleep(0.25)
        assert volumes.list_volumes().volumes == []


async def test_the_sdk_creates_attaches_and_deletes_a_volume(server: CloudServer) -> None:
    await asyncio.to_thread(use_a_volume, server)


def read_bill_and_console(server: CloudServer, machine_id: int) -> None:
    with sdk(server) as client:
        billing = hyperstack.BillingApi(client)
        (row,) = billing.get_usage().data
        assert (row.resource_id, row.active, row.total_up_time) == (machine_id, True, 1)
        details = billing.get_vm_billing_details(machine_id).billing_history_vm_details.billing_history[0]
        assert details.metrics.price_per_hour == 1.0 and details.metrics.usage_time_active > 0
        events = billing.get_vm_billing_events(machine_id).billing_events_history
        assert [event.event for event in events] == ["CREATING", "BUILD", "ACTIVE"]
        machines = hyperstack.VirtualMachineApi(client)
        asked = machines.request_vm_logs(machine_id, hyperstack.RequestInstanceLogsPayload(length=2)).request_id
        time.sleep(0.1)
        assert machines.get_vm_logs(machine_id, asked).logs == "two\nthree"
        history = hyperstack.VirtualMachineEventsApi(client).list_vm_events(machine_id).instance_events
        assert [event.reason for event in history] == ["create", "active"]


def make_one(server: CloudServer) -> int:
    with sdk(server) as client:
        prepare(client)
        machines = hyperstack.VirtualMachineApi(client)
        machine_id = int(machines.create_vms(payload("flash-b-a0")).instances[0].id)
        poll_until(machines, machine_id, "ACTIVE")
        return machine_id


async def test_the_sdk_reads_bill_console_and_events(server: CloudServer) -> None:
    machine_id = await asyncio.to_thread(make_one, server)
    server.cloud.machine(machine_id).console.append("one\ntwo\nthree\n")
    await asyncio.to_thread(read_bill_and_console, server, machine_id)


async def test_the_sdk_sees_401_for_a_wrong_key(server: CloudServer) -> None:
    def ask() -> None:
        with sdk(server, "wrong") as client, pytest.raises(UnauthorizedException) as refused:
            hyperstack.RegionApi(client).list_regions()
        assert refused.value.data.error_reason == "unauthorized"

    await asyncio.to_thread(ask)
