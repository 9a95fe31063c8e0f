"""Hyperstack beyond single answers: why a create was refused, what is sent, what is read when."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from flashd.adapters.clock import SystemClock, system_random
from flashd.adapters.userdata import MAX_USER_DATA_BYTES
from flashd.errors import CapacityError, NoCreditError, NotSentError, ProviderError, RejectedError, UnavailableError
from flashd.providers.hyperstack import Hyperstack, Settings
from tests.contract.hyperstack_kit import (
    KEY,
    NAME,
    ORDER,
    PLACE,
    ROW,
    TOKEN,
    Account,
    an_account,
    credit,
    flavors,
    refused,
)
from tests.fakes.scripted_http import Asked, Reply, page, reply, scripted


@pytest.fixture
def far_from_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose own time zone must not matter."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "XYZ-9")
        time.tzset()
        yield
    time.tzset()


async def test_hyperstack_takes_the_largest_payload_that_flashd_makes() -> None:
    async with an_account(create=reply(200, {"instances": [ROW]})) as (cloud, _, _account):
        order = replace(ORDER, user_data="#" * MAX_USER_DATA_BYTES)
        assert (await cloud.launch(order)).machine_id
        with pytest.raises(RejectedError):
            await cloud.launch(replace(ORDER, user_data="#" * (MAX_USER_DATA_BYTES + 1)))


REASONS: list[tuple[str, Reply, Reply, Reply, type[ProviderError]]] = [
    ("no_credit", refused(400), credit(False), reply(200, flavors()), NoCreditError),
    ("no_credit_by_balance", refused(400), credit(None, 0.0), reply(200, flavors()), NoCreditError),
    ("payment_required", refused(402, None), credit(False), reply(200, flavors()), NoCreditError),
    ("no_stock", refused(400), credit(True), reply(200, flavors(available=False)), CapacityError),
    ("no_such_flavor_any_more", refused(404, "not_found"), credit(True), reply(200, {"data": []}), CapacityError),
    ("neither", refused(400), credit(True), reply(200, flavors()), RejectedError),
    ("credit_unreadable", refused(400), page(502), reply(200, flavors()), RejectedError),
    ("stock_unreadable", refused(400), credit(None, None), page(502), RejectedError),
]


@pytest.mark.parametrize(
    ("answer", "money", "stock", "outcome"), [row[1:] for row in REASONS], ids=[row[0] for row in REASONS]
)
async def test_a_refused_create_is_explained_by_fresh_reads(
    answer: Reply, money: Reply, stock: Reply, outcome: type[ProviderError]
) -> None:
    async with an_account(create=answer) as (cloud, _, account):
        account.answers["GET", "/v1/billing/user-credit/credit"] = money
        account.answers["GET", "/v1/core/flavors"] = [reply(200, flavors()), stock]
        with pytest.raises(RejectedError) as caught:
            await cloud.launch(ORDER)
        assert type(caught.value) is outcome


async def test_a_create_sends_exactly_what_the_contract_asks_for() -> None:
    async with an_account(create=reply(200, {"instances": [ROW]})) as (cloud, server, _):
        await cloud.launch(ORDER)
        (asked,) = server.calls("POST")
        assert asked.headers["api_key"] == KEY
        assert asked.json == {
            "name": NAME,
            "environment_name": "default-NORWAY-1",
            "image_name": "Ubuntu Server 24.04 LTS R570 CUDA 12.8 with Docker",
            "flavor_name": "n3-L40x1",
            "key_name": "k",
            "count": 1,
            "assign_floating_ip": True,
            "enable_port_randomization": False,
            "labels": ["launch=0a1b2c3d", "until=1800003600"],
            "user_data": ORDER.user_data,
        }


@pytest.mark.parametrize("path", ["images", "environments", "keypairs", "flavors"])
async def test_a_read_before_the_create_that_fails_means_that_nothing_was_sent(path: str) -> None:
    async with an_account(create=reply(200, {"instances": [ROW]})) as (cloud, server, account):
        account.answers["GET", f"/v1/core/{path}"] = page(502)
        with pytest.raises(NotSentError):
            await cloud.launch(ORDER)
        assert server.calls("POST") == []


async def test_no_connection_means_that_nothing_was_sent() -> None:
    async with an_account() as (cloud, server, _):
        await cloud.warm(PLACE)
    # The server is gone, what the launch needs is cached.
    with pytest.raises(NotSentError):
        await cloud.launch(ORDER)
    await cloud.aclose()
    assert server.calls("POST") == []


async def test_a_refusal_that_quotes_key_and_payload_shows_neither() -> None:
    quoted = f"bad script: # {TOKEN}, sent with {KEY} for {PLACE.sku}"
    async with an_account(create=refused(400, "bad_request", quoted)) as (cloud, _, _):
        with pytest.raises(RejectedError) as caught:
            await cloud.launch(ORDER)
    assert str(caught.value) == "HTTP 400: create: bad script: # [payload], sent with [key] for n3-L40x1"


async def test_the_providers_words_are_cut_and_on_one_line() -> None:
    async with an_account(get=refused(500, None, "a\nb\x1b[31m " + "c" * 5_000)) as (cloud, _, _):
        with pytest.raises(UnavailableError) as caught:
            await cloud.get("7")
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


async def test_a_machine_id_cannot_leave_its_path() -> None:
    async with an_account() as (cloud, server, _):
        with pytest.raises(UnavailableError):
            await cloud.delete("../keypairs?x=1")
    assert [asked.query for asked in server.asked] == [{}]


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("2027-01-15T08:00:00", 1_800_000_000.0),
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
        ("2027-01-15T09:00:00.500+01:00", 1_800_000_000.5),
        ("2027-01-15 08:00:00", 1_800_000_000.0),
        (1_800_000_000, 1_800_000_000.0),
        ("yesterday", None),
        ("", None),
        (None, None),
        (-5, None),
    ],
)
async def test_a_creation_time_is_read_in_every_form_or_not_known(
    stamp: object, seconds: float | None, far_from_utc: None
) -> None:
    answer = reply(200, {"status": True, "instance": {**ROW, "created_at": stamp}})
    async with an_account(get=answer) as (cloud, _, _):
        machine = await cloud.get("7")
    assert machine is not None
    assert machine.created_at == seconds


async def test_a_server_that_ignores_the_page_number_is_no_complete_list() -> None:
    def same(asked: Asked) -> Reply:
        rows = [{**ROW, "id": number} for number in range(10)]
        return Reply(200, json.dumps({"instances": rows, "count": 10}).encode())

    async with scripted(same) as server:
        cloud = Hyperstack(
            Settings(lambda: KEY, server.base_url, requests_per_minute=100_000), SystemClock(), system_random()
        )
        with pytest.raises(UnavailableError, match="repeats"):
            await cloud.list()
        await cloud.aclose()
    assert [asked.query["pageSize"] for asked in server.asked] == ["100", "100"]


async def test_rows_that_move_while_the_list_is_read_are_found_by_a_second_pass() -> None:
    """A machine deleted on page 1 moves everything behind it forward: one row is skipped."""
    names = [f"m-{number}" for number in range(50)]
    seen = 0

    def moving(asked: Asked) -> Reply:
        nonlocal seen
        seen += 1
        if seen == 2:
            names.remove("m-3")
        first = (int(asked.query["page"]) - 1) * 20
        rows = [{"id": int(name[2:]), "name": name} for name in names[first : first + 20]]
        return reply(200, {"instances": rows, "count": len(names)})

    async with scripted(moving) as server:
        settings = Settings(lambda: KEY, server.base_url, requests_per_minute=100_000)
        cloud = Hyperstack(settings, SystemClock(), system_random())
        found = {machine.name for machine in await cloud.list()}
        await cloud.aclose()
    assert found >= set(names)


async def test_a_key_that_may_not_read_its_organisation_is_known_by_its_user() -> None:
    async with an_account() as (cloud, _, account):
        account.answers["GET", "/v1/auth/organizations"] = refused(403, "forbidden")
        account.answers["GET", "/v1/auth/me"] = reply(200, {"status": True, "user": {"email": "Ops@example.org"}})
        found = await cloud.account()
    assert found.startswith("user:")
    assert "ops" not in found


async def test_a_renewed_key_is_used_at_once_and_asked_for_its_account() -> None:
    keys = ["old-key-000000000000"]
    account = Account()
    async with scripted(account) as server:
        cloud = Hyperstack(Settings(lambda: keys[0], server.base_url), SystemClock(), system_random())
        assert await cloud.account() == "org:1"
        keys[0] = "new-key-000000000000"
        account.answers["GET", "/v1/auth/organizations"] = reply(200, {"organization": {"id": 2}})
        assert await cloud.account() == "org:2"
        await cloud.aclose()
    assert [asked.headers["api_key"] for asked in server.asked] == ["old-key-000000000000", "new-key-000000000000"]
