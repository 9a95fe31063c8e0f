"""Offers of Hyperstack: which flavors, at what price, and what happens when one of the lists cannot be read."""

from __future__ import annotations

import anyio
import pytest

from flashd.core.places import Offer, RefusalKind
from flashd.errors import AuthError, RateLimitedError, UnavailableError
from tests.contract.hyperstack_kit import PLACE, an_account, flavors, refused
from tests.fakes.scripted_http import Reply, page, reply

IP = 0.00672


def listed(*rows: dict[str, object]) -> Reply:
    plain = {"region_name": PLACE.region, "gpu": "L40", "gpu_count": 1, "stock_available": True}
    return reply(200, {"data": [{"gpu": "L40", "region_name": PLACE.region, "flavors": [plain | row for row in rows]}]})


async def offers(flavor: Reply | None = None, prices: object = None, stocks: object = None) -> tuple[Offer, ...]:
    async with an_account() as (cloud, _, account):
        if flavor is not None:
            account.answers["GET", "/v1/core/flavors"] = flavor
        if prices is not None:
            account.answers["GET", "/v1/pricebook"] = reply(200, prices)
        if stocks is not None:
            account.answers["GET", "/v1/core/stocks"] = reply(200, {"stocks": stocks})
        return (await cloud.stock()).offers


@pytest.mark.parametrize(
    ("prices", "usd"),
    [
        ([{"name": "L40", "value": 1.25}], 1.25 + IP),
        ([{"name": "L40", "value": "1.25"}], 1.25 + IP),
        ([{"name": "L40", "value": 1}, {"name": "PublicIP", "value": "0.01"}], 1.01),
        ([{"name": "L40", "value": "free"}], 1.00 + IP),
        ([{"name": "L40", "value": -3}], 1.00 + IP),
        ([{"name": "L40", "value": "NaN"}], 1.00 + IP),
        ([{"name": "L40", "value": None}, {"name": None, "value": 4}], 1.00 + IP),
        ([], 1.00 + IP),
    ],
)
async def test_the_price_is_the_live_one_with_the_public_address(prices: object, usd: float) -> None:
    (offer,) = await offers(prices=prices)
    assert offer.place.usd_per_hour == pytest.approx(usd)


async def test_a_spot_flavor_has_its_own_price_or_the_full_one() -> None:
    flavor = listed({"name": "n3-L40x1-spot"})
    (own,) = await offers(flavor, [{"name": "L40", "value": 1.0}, {"name": "L40-spot", "value": 0.8}])
    (full,) = await offers(flavor, [{"name": "L40", "value": 1.0}])
    assert own.spot and full.spot
    assert own.place.usd_per_hour == pytest.approx(0.8 + IP)
    assert full.place.usd_per_hour == pytest.approx(1.0 + IP)


async def test_only_single_gpu_machines_of_the_catalogue_are_offered() -> None:
    flavor = listed(
        {"name": "n3-L40x1"},
        {"name": "n3-L40x2", "gpu_count": 2},
        {"name": "n3-L40x1-k8s"},
        {"name": "n3-B300x1", "gpu": "B300-SXM"},
        {"name": "n1-cpu-small", "gpu": "", "gpu_count": 0},
        {"name": None},
    )
    assert {offer.place.sku for offer in await offers(flavor)} == {"n3-L40x1"}


async def test_a_flavor_of_another_name_is_known_by_its_gpu() -> None:
    (offer,) = await offers(listed({"name": "n4-H200x1", "gpu": "H200-141G-SXM5"}))
    assert (offer.place.gpu, offer.place.sku) == ("H200 SXM", "n4-H200x1")


@pytest.mark.parametrize("said", [True, False, None])
async def test_only_the_providers_own_yes_is_stock(said: bool | None) -> None:
    (offer,) = await offers(listed({"name": "n3-L40x1", "stock_available": said}))
    assert offer.available is (said is True)


@pytest.mark.parametrize(
    ("model", "depth"),
    [
        ({"configurations": {"1x": 3, "8x": 0}}, 3),
        ({"available": "25+"}, 25),
        ({"available": "0", "configurations": {}}, 0),
        ({"available": "plenty"}, None),
        ({}, None),
    ],
)
async def test_the_depth_of_stock_is_a_hint(model: dict[str, object], depth: int | None) -> None:
    stocks = [{"region": PLACE.region, "stock-type": "GPU", "models": [{"model": "L40", **model}]}]
    (offer,) = await offers(stocks=stocks)
    assert offer.depth == depth


async def test_a_blocked_region_is_a_refusal_and_no_offer() -> None:
    async with an_account() as (cloud, _, account):
        account.answers["GET", "/v1/core/flavors"] = listed({"name": "n3-L40x1", "region_name": "CANADA-1"})
        stock = await cloud.stock()
    assert stock.offers == ()
    assert [(refusal.region, refusal.kind) for refusal in stock.refusals] == [("CANADA-1", RefusalKind.UNUSABLE)]


async def test_lists_that_only_help_may_fail() -> None:
    async with an_account() as (cloud, _, account):
        account.answers["GET", "/v1/core/stocks"] = page(502)
        account.answers["GET", "/v1/pricebook"] = page(502)
        (offer,) = (await cloud.stock()).offers
    assert offer.depth is None
    assert offer.place.usd_per_hour == pytest.approx(1.0 + IP)


async def test_a_region_whose_images_cannot_be_read_is_a_refusal() -> None:
    async with an_account() as (cloud, _, account):
        account.answers["GET", "/v1/core/images"] = page(502)
        stock = await cloud.stock()
    assert stock.offers == ()
    assert "GET /core/images" in stock.refusals[0].text


@pytest.mark.parametrize(
    ("path", "answer", "error"),
    [
        ("flavors", page(502), UnavailableError),
        ("flavors", reply(200, {"data": [3]}), UnavailableError),
        ("images", refused(401, "unauthorized"), AuthError),
        ("stocks", refused(429, None), RateLimitedError),
    ],
)
async def test_a_stock_that_cannot_be_read_is_an_error_and_not_empty(
    path: str, answer: Reply, error: type[Exception]
) -> None:
    async with an_account() as (cloud, _, account):
        account.answers["GET", f"/v1/core/{path}"] = answer
        with pytest.raises(error):
            await cloud.stock()


async def test_a_short_cache_serves_all_and_a_fresh_read_serves_all_who_asked_before_it() -> None:
    async with an_account() as (cloud, server, account):
        for _ in range(5):
            await cloud.stock()
        assert len(server.calls("GET", "flavors")) == 1
        account.answers["GET", "/v1/core/flavors"] = Reply(200, reply(200, flavors()).body, hang_s=0.1)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(lambda: cloud.stock(fresh=True))
        # The first begins a read; the others came after it began, so one more read serves them all.
        assert len(server.calls("GET", "flavors")) <= 3


async def test_an_outage_is_answered_to_all_who_wait_and_not_repeated_by_each() -> None:
    async with an_account() as (cloud, server, account):
        account.answers["GET", "/v1/core/flavors"] = Reply(502, b"", hang_s=0.1)
        errors: list[Exception] = []

        async def ask() -> None:
            try:
                await cloud.stock()
            except UnavailableError as error:
                errors.append(error)

        await cloud.account()
        async with anyio.create_task_group() as group:
            for _ in range(10):
                group.start_soon(ask)
    assert len(errors) == 10
    assert len(server.calls("GET", "flavors")) <= 2
