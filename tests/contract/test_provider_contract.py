"""The provider suite against both clouds: Hyperstack over HTTP, simulated, and the Lambda-shaped fake."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flashd.adapters.clock import SystemClock, system_random
from flashd.core.places import Offer
from flashd.providers.base import Provider
from flashd.providers.hyperstack import Hyperstack, Settings
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_faults import Effect
from flashd.sim.cloud_faults import Fault as Rule
from flashd.sim.cloud_http import serve_cloud
from flashd.sim.cloud_types import Knobs, Planting
from tests.contract.provider_suite import Fault, ProviderSuite
from tests.fakes.lambda_api import REGIONS, LambdaApi
from tests.fakes.lambda_cloud import LambdaCloud, Weather

KEY = "key-0123456789-abcdef"
START = 1_800_000_000.0


class HandTime:
    """The world's own time; the provider under test runs on the real clock."""

    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> float:
        return self.at


class HyperstackRig:
    def __init__(self, cloud: Cloud, time: HandTime, base_url: str) -> None:
        self._cloud = cloud
        self._time = time
        settings = Settings(api_key=lambda: KEY, base_url=base_url, requests_per_minute=100_000)
        self.hyperstack = Hyperstack(settings, SystemClock(), system_random())

    @property
    def provider(self) -> Provider:
        return self.hyperstack

    @property
    def key(self) -> str:
        return KEY

    def now(self) -> float:
        return self._time()

    async def forward(self, seconds: float) -> None:
        self._time.at += seconds
        self._cloud.advance()

    async def fault(self, fault: Fault) -> None:
        rules = {
            Fault.NONE: None,
            Fault.LOST_REPLY: Rule(Effect.APPLIED_LOST, method="POST"),
            Fault.NO_ID: Rule(Effect.NO_ID, method="POST"),
            Fault.THROTTLED: Rule(Effect.STATUS, method="POST", status=429),
            Fault.KEY_REFUSED: Rule(Effect.UNAUTHORIZED),
            Fault.SERVER_ERROR: Rule(Effect.STATUS, path="virtual-machines", status=500),
            Fault.GATEWAY_PAGE: Rule(Effect.HTML, path="virtual-machines"),
        }
        self._cloud.faults.clear()
        if (rule := rules[fault]) is not None:
            # What a launch reads first is read now, so that the fault meets the create itself.
            offer = next(offer for offer in (await self.provider.stock()).offers if offer.available)
            await self.hyperstack.warm(offer.place)
            self._cloud.faults.add(rule)

    def plant(self, name: str) -> str:
        return str(self._cloud.plant(Planting(name)).id)

    def lose_host(self, machine_id: str) -> None:
        self._cloud.machines.strike(self._cloud.machine(int(machine_id)), "shutoff")

    def sell_out(self, offer: Offer) -> None:
        self._cloud.catalogue.set_stock(offer.place.region, offer.place.sku, 0)

    def take_credit(self) -> None:
        account = self._cloud.account()
        account.credit -= self._cloud.balance(account) + 1

    def alive(self) -> list[str]:
        return [machine.name for machine in self._cloud.living()]


class LambdaRig:
    def __init__(self) -> None:
        self._time = HandTime()
        self._api = LambdaApi(self._time, KEY)
        self._cloud = LambdaCloud(self._api, SystemClock(), KEY)

    @property
    def provider(self) -> Provider:
        return self._cloud

    @property
    def key(self) -> str:
        return KEY

    def now(self) -> float:
        return self._time()

    async def forward(self, seconds: float) -> None:
        self._time.at += seconds

    async def fault(self, fault: Fault) -> None:
        self._cloud.key = "another" if fault is Fault.KEY_REFUSED else KEY
        self._cloud.weather = {
            Fault.NONE: Weather.FINE,
            Fault.KEY_REFUSED: Weather.FINE,
            Fault.LOST_REPLY: Weather.REPLY_LOST,
            Fault.NO_ID: Weather.NO_ID,
            Fault.THROTTLED: Weather.THROTTLED,
            Fault.SERVER_ERROR: Weather.SERVER_ERROR,
            Fault.GATEWAY_PAGE: Weather.NOT_JSON,
        }[fault]

    def plant(self, name: str) -> str:
        return self._api.make(name, REGIONS[0], "gpu_1x_a6000").id

    def lose_host(self, machine_id: str) -> None:
        self._api.instances[machine_id].preempted = True

    def sell_out(self, offer: Offer) -> None:
        self._api.sold_out.add((offer.place.region, offer.place.sku))

    def take_credit(self) -> None:
        self._api.active = False

    def alive(self) -> list[str]:
        return [instance.name for instance in self._api.alive()]


class TestLambdaShape(ProviderSuite):
    @pytest.fixture
    async def rig(self) -> LambdaRig:
        return LambdaRig()


class TestHyperstack(ProviderSuite):
    """Page caps, meanings of `count` and time formats that the provider's pages leave open."""

    @pytest.fixture(
        params=[
            Knobs(max_page_size=20, count_is_total=False, images_per_page=3, console_s=0.0),
            Knobs(max_page_size=20, zoned_times=True, prices_as_text=True, console_s=0.0),
            Knobs(max_page_size=100, count_is_total=False, console_s=0.0),
        ],
        ids=["capped", "capped_with_total", "as_asked"],
    )
    async def rig(self, request: pytest.FixtureRequest) -> AsyncIterator[HyperstackRig]:
        time = HandTime()
        cloud = Cloud(now=time, knobs=request.param)
        cloud.add_account("main", KEY)
        async with await serve_cloud(cloud) as server:
            rig = HyperstackRig(cloud, time, server.base_url)
            yield rig
            await rig.hyperstack.aclose()
