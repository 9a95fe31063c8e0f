"""What every Provider must do, whatever the cloud: one suite, run against each cloud through a rig.

A rig is a provider and a world behind it that can be told to fail and to let time pass.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

import pytest

from flashd.core.places import Offer
from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    CapacityError,
    FencedError,
    NameTakenError,
    NoCreditError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import DeleteAnswer, LaunchOrder, MachinePhase, Provider
from flashd.providers.catalog import resolve

USER_DATA = "#cloud-config\nruncmd: [true]\n"
SECRET = "hf_" + "aB3dE5gH7jK9mN1pQ3rS5tU7vW9x"


class Fault(StrEnum):
    """What the world does to every request from now on."""

    NONE = "none"
    LOST_REPLY = "lost_reply"  # applied, but no answer comes back
    NO_ID = "no_id"  # a create is applied and answered without an id
    THROTTLED = "throttled"
    KEY_REFUSED = "key_refused"
    SERVER_ERROR = "server_error"  # nothing is applied
    GATEWAY_PAGE = "gateway_page"  # a good status with a page that is not the API's


class Rig(Protocol):
    """A provider with a world that can be steered."""

    @property
    def provider(self) -> Provider: ...

    @property
    def key(self) -> str:
        """The credential, which may appear in no error."""

    def now(self) -> float:
        """The world's Unix time."""

    async def forward(self, seconds: float) -> None:
        """Let the world's time pass."""

    async def fault(self, fault: Fault) -> None: ...

    def plant(self, name: str) -> str:
        """Put a machine into the account past the API; returns its id."""

    def lose_host(self, machine_id: str) -> None:
        """Take the machine away as the cloud would: preempted, switched off."""

    def sell_out(self, offer: Offer) -> None: ...

    def take_credit(self) -> None: ...

    def alive(self) -> list[str]:
        """Names of all machines that exist in truth."""


AN_HOUR = 3_600.0


async def an_offer(rig: Rig) -> Offer:
    return next(offer for offer in (await rig.provider.stock()).offers if offer.available)


async def an_order(rig: Rig, name: str = "fl-t-abc-0", user_data: str = USER_DATA) -> LaunchOrder:
    labels = ("launch=0a1b2c3d",) if rig.provider.capabilities.labels else ()
    return LaunchOrder(name, (await an_offer(rig)).place, user_data, labels, timeout_s=5.0)


class ProviderSuite:
    """Subclass it as `Test…` with a fixture `rig`."""

    async def test_the_account_is_known_and_stable(self, rig: Rig) -> None:
        account = await rig.provider.account()
        assert account
        assert rig.key not in account
        assert await rig.provider.account() == account

    async def test_every_offer_is_a_priced_place_of_the_catalogue(self, rig: Rig) -> None:
        stock = await rig.provider.stock()
        assert stock.offers
        for offer in stock.offers:
            place, gpu = offer.place, resolve(offer.place.gpu)
            assert gpu is not None and gpu.name == place.gpu
            assert (place.provider, place.account) == (rig.provider.name, await rig.provider.account())
            assert place.usd_per_hour > rig.provider.capabilities.extra_usd_per_hour
            assert offer.vram_gb == gpu.vram_gb

    async def test_a_fresh_read_of_the_stock_sees_what_was_sold(self, rig: Rig) -> None:
        offer = await an_offer(rig)
        rig.sell_out(offer)
        stock = await rig.provider.stock(fresh=True)
        assert [found.available for found in stock.offers if found.place.key == offer.place.key] in ([False], [])

    async def test_a_launched_machine_is_found_by_its_exact_name(self, rig: Rig) -> None:
        order = await an_order(rig)
        rig.plant(order.name + "1")
        launched = await rig.provider.launch(order)
        (found,) = await rig.provider.find(order.name)
        assert (found.id, found.name) == (launched.machine_id, order.name)
        assert (found.region, found.sku) == (order.place.region, order.place.sku)
        assert found.phase in (MachinePhase.PENDING, MachinePhase.RUNNING)
        assert found.created_at is None or abs(found.created_at - rig.now()) <= 60
        assert found.labels == order.labels

    async def test_nothing_is_found_under_a_name_that_nobody_has(self, rig: Rig) -> None:
        rig.plant("somebody-elses")
        assert await rig.provider.find("fl-t-none-0") == ()

    async def test_a_machine_boots_and_runs(self, rig: Rig) -> None:
        launched = await rig.provider.launch(await an_order(rig))
        await rig.forward(AN_HOUR)
        machine = await rig.provider.get(launched.machine_id)
        assert machine is not None and machine.phase is MachinePhase.RUNNING

    async def test_a_lost_host_is_neither_running_nor_coming_up(self, rig: Rig) -> None:
        launched = await rig.provider.launch(await an_order(rig))
        await rig.forward(AN_HOUR)
        rig.lose_host(launched.machine_id)
        await rig.forward(60)
        machine = await rig.provider.get(launched.machine_id)
        assert machine is None or machine.phase in (MachinePhase.STOPPED, MachinePhase.FAILED)

    async def test_the_list_holds_every_machine_once(self, rig: Rig) -> None:
        planted = {rig.plant(f"somebody-{number}") for number in range(57)}
        machines = await rig.provider.list()
        assert len(machines) == 57
        assert {machine.id for machine in machines} == planted

    async def test_an_empty_account_has_an_empty_list(self, rig: Rig) -> None:
        assert await rig.provider.list() == ()

    async def test_a_deleted_machine_is_gone_when_the_provider_proves_it(self, rig: Rig) -> None:
        launched = await rig.provider.launch(await an_order(rig))
        await rig.forward(AN_HOUR)
        assert await rig.provider.delete(launched.machine_id) is DeleteAnswer.ACCEPTED
        again = await rig.provider.delete(launched.machine_id)
        assert again in (DeleteAnswer.IN_PROGRESS, DeleteAnswer.NOT_FOUND)
        deleting = await rig.provider.get(launched.machine_id)
        assert deleting is None or deleting.phase is MachinePhase.DELETING
        await rig.forward(AN_HOUR)
        assert await rig.provider.get(launched.machine_id) is None
        assert await rig.provider.delete(launched.machine_id) is DeleteAnswer.NOT_FOUND
        assert rig.alive() == []

    async def test_a_delete_touches_one_machine(self, rig: Rig) -> None:
        ids = [rig.plant(f"somebody-{number}") for number in range(3)]
        await rig.provider.delete(ids[1])
        await rig.forward(AN_HOUR)
        assert rig.alive() == ["somebody-0", "somebody-2"]

    async def test_a_lost_reply_leaves_an_ambiguous_launch_and_a_machine_to_find(self, rig: Rig) -> None:
        order = await an_order(rig)
        await rig.fault(Fault.LOST_REPLY)
        with pytest.raises(AmbiguousLaunchError):
            await rig.provider.launch(order)
        await rig.fault(Fault.NONE)
        assert [machine.name for machine in await rig.provider.find(order.name)] == [order.name]

    async def test_an_answer_without_an_id_is_an_ambiguous_launch(self, rig: Rig) -> None:
        order = await an_order(rig)
        await rig.fault(Fault.NO_ID)
        with pytest.raises(AmbiguousLaunchError):
            await rig.provider.launch(order)
        assert rig.alive() == [order.name]

    @pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.GATEWAY_PAGE])
    async def test_an_outage_proves_nothing(self, rig: Rig, fault: Fault) -> None:
        machine_id = rig.plant("somebody")
        order = await an_order(rig)
        await rig.fault(fault)
        for call in (rig.provider.list(), rig.provider.find("somebody"), rig.provider.get(machine_id)):
            with pytest.raises(UnavailableError):
                await call
        with pytest.raises(UnavailableError):
            await rig.provider.delete(machine_id)
        with pytest.raises(AmbiguousLaunchError):
            await rig.provider.launch(order)
        assert rig.alive() == ["somebody"]

    async def test_a_refused_key_is_said_so_by_every_call(self, rig: Rig) -> None:
        machine_id = rig.plant("somebody")
        order = await an_order(rig)
        await rig.fault(Fault.KEY_REFUSED)
        provider = rig.provider
        for call in (provider.list(), provider.find("x"), provider.get(machine_id), provider.delete(machine_id)):
            with pytest.raises(AuthError):
                await call
        with pytest.raises(AuthError):
            await provider.launch(order)
        assert rig.alive() == ["somebody"]

    async def test_a_throttled_launch_made_nothing_and_says_when_to_ask_again(self, rig: Rig) -> None:
        order = await an_order(rig)
        await rig.fault(Fault.THROTTLED)
        with pytest.raises(RateLimitedError) as caught:
            await rig.provider.launch(order)
        assert caught.value.retry_after_s > 0
        assert rig.alive() == []

    async def test_a_place_that_sold_out_meanwhile_is_want_of_capacity(self, rig: Rig) -> None:
        order = await an_order(rig)
        rig.sell_out(await an_offer(rig))
        with pytest.raises(CapacityError):
            await rig.provider.launch(order)
        assert rig.alive() == []

    async def test_an_empty_account_is_want_of_credit(self, rig: Rig) -> None:
        order = await an_order(rig)
        rig.take_credit()
        with pytest.raises(NoCreditError):
            await rig.provider.launch(order)
        assert rig.alive() == []

    async def test_a_name_that_is_taken_is_said_so_where_names_are_unique(self, rig: Rig) -> None:
        order = await an_order(rig)
        await rig.provider.launch(order)
        if rig.provider.capabilities.names_unique:
            with pytest.raises(NameTakenError):
                await rig.provider.launch(order)
            assert len(await rig.provider.find(order.name)) == 1
        else:
            await rig.provider.launch(order)
            assert len(await rig.provider.find(order.name)) == 2

    async def test_what_the_cloud_cannot_take_is_refused_before_it_is_sent(self, rig: Rig) -> None:
        limits = rig.provider.capabilities
        too_long = await an_order(rig, "n" * (limits.name_max + 1))
        too_large = await an_order(rig, user_data=USER_DATA + "#" * limits.boot_bytes_max)
        await rig.fault(Fault.LOST_REPLY)  # would make a sent order ambiguous
        for order in (too_long, too_large):
            with pytest.raises(RejectedError):
                await rig.provider.launch(order)
        assert rig.alive() == []

    async def test_a_guard_that_objects_stops_the_create(self, rig: Rig) -> None:
        order = await an_order(rig)

        def object_to_it() -> None:
            raise FencedError("another daemon leads")

        guarded = LaunchOrder(order.name, order.place, order.user_data, guard=object_to_it)
        with pytest.raises(FencedError):
            await rig.provider.launch(guarded)
        assert rig.alive() == []

    @pytest.mark.parametrize("fault", [Fault.SERVER_ERROR, Fault.KEY_REFUSED, Fault.LOST_REPLY])
    async def test_no_error_shows_the_credential_or_the_payload(self, rig: Rig, fault: Fault) -> None:
        order = await an_order(rig, user_data=f"{USER_DATA}# {SECRET}\n")
        await rig.fault(fault)
        with pytest.raises(ProviderError) as caught:
            await rig.provider.launch(order)
        shown = f"{caught.value} {caught.value!r} {caught.value.__cause__!r} {order!r}"
        assert rig.key not in shown
        assert SECRET not in shown

    async def test_the_credit_can_be_read(self, rig: Rig) -> None:
        assert (await rig.provider.credit()).can_create is not False
        rig.take_credit()
        assert (await rig.provider.credit()).can_create is not True

    async def test_a_console_is_text_where_there_is_one(self, rig: Rig) -> None:
        machine_id = rig.plant("somebody")
        log = await rig.provider.console_log(machine_id)
        assert rig.provider.capabilities.console_log or log == ""
