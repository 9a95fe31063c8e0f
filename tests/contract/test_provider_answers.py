"""Every kind of answer that Hyperstack or a gateway in front of it may give, and what flashd makes of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from flashd.errors import (
    AmbiguousLaunchError,
    AuthError,
    ForbiddenError,
    NameTakenError,
    ProviderError,
    RateLimitedError,
    RejectedError,
    UnavailableError,
)
from flashd.providers.base import DeleteAnswer, MachinePhase
from tests.contract.hyperstack_kit import BROKEN, CUT, HANG, NAME, ORDER, ROW, an_account, refused
from tests.fakes.scripted_http import Reply, page, reply

CREATES: list[tuple[str, Reply, type[ProviderError] | None]] = [
    ("good", reply(200, {"status": True, "instances": [ROW]}), None),
    ("good_201", reply(201, {"status": True, "instances": [ROW]}), None),
    ("good_singular", reply(200, {"status": True, "instance": ROW}), None),
    ("good_with_nulls", reply(200, {"status": True, "instances": [{"id": 7, "name": None, "labels": None}]}), None),
    ("no_rows", reply(200, {"status": True, "instances": []}), AmbiguousLaunchError),
    ("no_list", reply(200, {"status": True}), AmbiguousLaunchError),
    ("no_id", reply(200, {"status": True, "instances": [{"name": NAME}]}), AmbiguousLaunchError),
    ("id_zero", reply(200, {"status": True, "instances": [{"id": 0}]}), AmbiguousLaunchError),
    ("status_false_in_200", reply(200, {"status": False, "message": "no"}), AmbiguousLaunchError),
    ("empty_200", Reply(200), AmbiguousLaunchError),
    ("page_200", page(200), AmbiguousLaunchError),
    ("half_a_document", BROKEN, AmbiguousLaunchError),
    ("truncated", CUT, AmbiguousLaunchError),
    ("no_answer", HANG, AmbiguousLaunchError),
    ("redirect", reply(302, {}, Location="http://127.0.0.1:9/"), AmbiguousLaunchError),
    ("bad_request", refused(400), RejectedError),
    ("bad_request_without_reason", refused(400, None), RejectedError),
    ("page_400", page(400), AmbiguousLaunchError),
    ("empty_400", Reply(400), AmbiguousLaunchError),
    ("foreign_json_400", reply(400, {"fault": {"code": 1}}), AmbiguousLaunchError),
    ("text_says_429", refused(400, "bad_request", "-> HTTP 429 too many"), RejectedError),
    ("unauthorized", refused(401, "unauthorized"), AuthError),
    ("page_401", page(401), AmbiguousLaunchError),
    ("payment", refused(402, None), RejectedError),
    ("forbidden", refused(403, "forbidden"), ForbiddenError),
    ("page_403", page(403), AmbiguousLaunchError),
    ("unknown_image", refused(404, "not_found"), RejectedError),
    ("page_404", page(404), AmbiguousLaunchError),
    ("not_allowed", refused(405, "not_allowed"), RejectedError),
    ("unacceptable", refused(406, None), RejectedError),
    ("timeout_408", refused(408, None), AmbiguousLaunchError),
    ("name_taken", refused(409, "already_exist"), NameTakenError),
    ("page_409", page(409), AmbiguousLaunchError),
    ("unprocessable", refused(422, None), RejectedError),
    ("throttled", refused(429, None), RateLimitedError),
    ("throttled_by_a_page", page(429), RateLimitedError),
    ("client_gone_499", refused(499, None), AmbiguousLaunchError),
    ("server_error", refused(500, "server_error"), AmbiguousLaunchError),
    ("bare_500", reply(500, {"message": "Internal Server Error"}), AmbiguousLaunchError),
    ("page_502", page(502), AmbiguousLaunchError),
    ("page_504", page(504), AmbiguousLaunchError),
]
GETS: list[tuple[str, Reply, type[ProviderError] | MachinePhase | None]] = [
    ("there", reply(200, {"status": True, "instance": ROW}), MachinePhase.RUNNING),
    ("unknown_status", reply(200, {"status": True, "instance": {**ROW, "status": "WEIRD"}}), MachinePhase.UNKNOWN),
    ("null_status", reply(200, {"status": True, "instance": {**ROW, "status": None}}), MachinePhase.UNKNOWN),
    ("lower_case_status", reply(200, {"status": True, "instance": {**ROW, "status": "shutoff"}}), MachinePhase.STOPPED),
    ("callback_status", reply(200, {"status": True, "instance": {**ROW, "status": "DELETED"}}), MachinePhase.DELETING),
    ("proven_absent", refused(404, "not_found"), None),
    ("404_without_reason", refused(404, None), UnavailableError),
    ("404_with_another_reason", refused(404, "bad_request"), UnavailableError),
    ("page_404", page(404), UnavailableError),
    ("forbidden", refused(403, "forbidden"), ForbiddenError),
    ("unauthorized", refused(401, "unauthorized"), AuthError),
    ("throttled", refused(429, None), RateLimitedError),
    ("bad_request", refused(400), UnavailableError),
    ("another_machine", reply(200, {"status": True, "instance": {**ROW, "id": 8}}), UnavailableError),
    ("no_machine", reply(200, {"status": True}), UnavailableError),
    ("status_false_in_200", reply(200, {"status": False, "message": "no"}), UnavailableError),
    ("page_200", page(200), UnavailableError),
    ("half_a_document", BROKEN, UnavailableError),
    ("truncated", CUT, UnavailableError),
    ("server_error", refused(500, "server_error"), UnavailableError),
]
DELETES: list[tuple[str, Reply, type[ProviderError] | DeleteAnswer]] = [
    ("accepted", reply(200, {"status": True, "message": "deleting"}), DeleteAnswer.ACCEPTED),
    ("accepted_without_body", Reply(204), DeleteAnswer.ACCEPTED),
    ("under_way", refused(409, None), DeleteAnswer.IN_PROGRESS),
    ("absent", refused(404, "not_found"), DeleteAnswer.NOT_FOUND),
    ("404_without_reason", refused(404, None), UnavailableError),
    ("page_404", page(404), UnavailableError),
    ("status_false_in_200", reply(200, {"status": False, "message": "no"}), UnavailableError),
    ("page_200", page(200), UnavailableError),
    ("bad_request", refused(400), UnavailableError),
    ("forbidden", refused(403, "forbidden"), ForbiddenError),
    ("unauthorized", refused(401, "unauthorized"), AuthError),
    ("throttled", refused(429, None), RateLimitedError),
    ("server_error", refused(500, None), UnavailableError),
]
LISTS: list[tuple[str, Reply, type[ProviderError] | int]] = [
    ("one", reply(200, {"status": True, "instances": [ROW], "count": 1}), 1),
    ("twice_the_same", reply(200, {"instances": [ROW, ROW], "count": 1}), 1),
    ("null_and_count_0", reply(200, {"status": True, "instances": None, "count": 0}), 0),
    ("null_list", reply(200, {"status": True, "instances": None}), UnavailableError),
    ("missing_list", reply(200, {"status": True, "count": 0}), UnavailableError),
    ("more_announced_than_shown", reply(200, {"status": True, "instances": [ROW], "count": 57}), UnavailableError),
    ("row_without_id", reply(200, {"status": True, "instances": [ROW, {"name": "x"}]}), UnavailableError),
    ("row_of_another_type", reply(200, {"status": True, "instances": [ROW, 3]}), UnavailableError),
    ("status_false_in_200", reply(200, {"status": False, "instances": [ROW]}), UnavailableError),
    ("another_top_level", reply(200, [ROW]), UnavailableError),
    ("page_200", page(200), UnavailableError),
    ("half_a_document", BROKEN, UnavailableError),
    ("truncated", CUT, UnavailableError),
    ("not_found", refused(404, "not_found"), UnavailableError),
    ("forbidden", refused(403, "forbidden"), ForbiddenError),
    ("unauthorized", refused(401, "unauthorized"), AuthError),
    ("throttled", refused(429, None), RateLimitedError),
    ("server_error", refused(503, None), UnavailableError),
]


def rows(table: list[tuple[str, Reply, object]]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    return pytest.mark.parametrize(("answer", "outcome"), [row[1:] for row in table], ids=[row[0] for row in table])


@rows([*CREATES])
async def test_an_answer_to_a_create(answer: Reply, outcome: type[ProviderError] | None) -> None:
    async with an_account(create=answer) as (cloud, server, _):
        if outcome is None:
            assert (await cloud.launch(ORDER)).machine_id == "7"
        else:
            with pytest.raises(ProviderError) as caught:
                await cloud.launch(ORDER)
            assert type(caught.value) is outcome
        assert len(server.calls("POST", "/virtual-machines")) == 1


@rows([*GETS])
async def test_an_answer_to_a_get(answer: Reply, outcome: type[ProviderError] | MachinePhase | None) -> None:
    async with an_account(get=answer) as (cloud, _, _):
        if isinstance(outcome, type):
            with pytest.raises(ProviderError) as caught:
                await cloud.get("7")
            assert type(caught.value) is outcome
        else:
            machine = await cloud.get("7")
            assert (machine.phase if machine else None) is outcome


@rows([*DELETES])
async def test_an_answer_to_a_delete(answer: Reply, outcome: type[ProviderError] | DeleteAnswer) -> None:
    async with an_account(delete=answer) as (cloud, server, _):
        if isinstance(outcome, type):
            with pytest.raises(ProviderError) as caught:
                await cloud.delete("7")
            assert type(caught.value) is outcome
        else:
            assert await cloud.delete("7") is outcome
        assert len(server.calls("DELETE")) == 1


@rows([*LISTS])
async def test_an_answer_to_a_list(answer: Reply, outcome: type[ProviderError] | int) -> None:
    async with an_account(list=answer) as (cloud, _, _):
        if isinstance(outcome, type):
            with pytest.raises(ProviderError) as caught:
                await cloud.list()
            assert type(caught.value) is outcome
        else:
            assert len(await cloud.list()) == outcome
