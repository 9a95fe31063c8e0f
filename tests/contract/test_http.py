"""The HTTP session of an account against a real server: deadlines, limits, counting, and what never leaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from flashd.adapters.clock import SystemClock
from flashd.adapters.http import AccountHttp, Call
from flashd.adapters.limiter import Lane, Limiter
from flashd.errors import FencedError, NotSentError, UnavailableError
from tests.fakes.scripted_http import Asked, Reply, Scripted, reply, scripted

GET = Call(Lane.LIST, "GET", "/things")
Seen = list[tuple[Lane, int]]


@asynccontextmanager
async def an_http(
    answer: Reply, *, in_flight: int = 8, **options: Any
) -> AsyncIterator[tuple[AccountHttp, Scripted, Seen]]:
    seen: Seen = []

    def script(asked: Asked) -> Reply:
        return answer

    async with scripted(script) as server:
        limiter = Limiter(SystemClock(), 100_000, max_in_flight=in_flight)
        http = AccountHttp(
            server.base_url,
            limiter,
            lambda: {"api_key": "secret-0123456789"},
            lambda lane, code: seen.append((lane, code)),
            **options,
        )
        yield http, server, seen
        await http.aclose()


async def test_the_answer_comes_as_it_is() -> None:
    async with an_http(reply(418, {"a": 1}, X_Kind="Tea")) as (http, server, seen):
        answer = await http.send(Call(Lane.REST, "POST", "/things", (("q", "a b&c"),), b'{"x":1}'))
        assert (answer.status, answer.body, answer.headers["x-kind"]) == (418, b'{"a": 1}', "Tea")
        (asked,) = server.asked
        assert (asked.method, asked.path, asked.query, asked.body) == ("POST", "/v1/things", {"q": "a b&c"}, b'{"x":1}')
        assert asked.headers["api_key"] == "secret-0123456789"
        assert seen == [(Lane.REST, 418)]


async def test_connections_are_reused() -> None:
    async with an_http(reply(200, {})) as (http, server, _):
        for _ in range(20):
            await http.send(GET)
        assert len(server.connections) == 1


async def test_a_redirect_is_not_followed_with_the_credential() -> None:
    async with an_http(reply(307, {}, Location="/v1/elsewhere")) as (http, server, _):
        assert (await http.send(GET)).status == 307
        assert len(server.asked) == 1


async def test_an_answer_that_is_too_large_is_not_read_to_its_end() -> None:
    async with an_http(Reply(200, b"x" * 300_000), max_body_bytes=100_000) as (http, _, seen):
        with pytest.raises(UnavailableError, match="larger than 100000 bytes"):
            await http.send(GET)
        assert seen == [(Lane.LIST, 0)]


@pytest.mark.parametrize("answer", [Reply(200, b"{}", cut=True), Reply(200, b"{}", hang_s=30)])
async def test_half_an_answer_or_none_is_no_answer(answer: Reply) -> None:
    async with an_http(answer) as (http, _, seen):
        with pytest.raises(UnavailableError) as caught:
            await http.send(Call(Lane.LIST, "GET", "/things", timeout_s=0.2))
        assert not isinstance(caught.value, NotSentError)
        assert "secret-0123456789" not in repr(caught.value)
        assert seen == [(Lane.LIST, 0)]


async def test_no_connection_is_known_to_have_sent_nothing() -> None:
    async with an_http(reply(200, {})) as (http, _, seen):
        pass
    with pytest.raises(NotSentError):
        await http.send(GET)
    await http.aclose()
    assert seen == [(Lane.LIST, 0)]


async def test_the_deadline_does_not_run_while_a_call_waits_for_its_turn() -> None:
    async with an_http(Reply(200, b"{}", hang_s=0.15), in_flight=2) as (http, _, seen):
        async with anyio.create_task_group() as group:
            for _ in range(12):  # 12 calls of 0.15 s on 2 places wait up to 0.75 s
                group.start_soon(http.send, Call(Lane.DELETE, "GET", "/things", timeout_s=0.5))
        assert seen == [(Lane.DELETE, 200)] * 12


async def test_a_throttled_answer_holds_every_lane_for_the_servers_time_or_a_window() -> None:
    async with an_http(reply(429, {}, Retry_After="7")) as (http, _, _):
        assert (await http.send(GET)).retry_after_s == 7.0
        assert 6.5 < http.limiter.blocked_for_s <= 7.0
    async with an_http(reply(429, {}, Retry_After="Fri, 31 Dec 2027 23:59:59 GMT")) as (http, server, _):
        await http.send(GET)
        assert 59.5 < http.limiter.blocked_for_s <= 60.0
        with anyio.move_on_after(0.1):
            await http.send(Call(Lane.DELETE, "DELETE", "/things"))
        assert len(server.asked) == 1


async def test_a_guard_is_asked_when_the_call_may_go_and_can_stop_it() -> None:
    def no() -> None:
        raise FencedError("another daemon leads")

    async with an_http(reply(200, {})) as (http, server, seen):
        with pytest.raises(FencedError):
            await http.send(Call(Lane.LAUNCH, "POST", "/things", guard=no))
        assert (server.asked, seen) == ([], [])


async def test_a_call_shows_neither_body_nor_credential_when_printed() -> None:
    assert "payload" not in repr(Call(Lane.LAUNCH, "POST", "/things", body=b"payload"))
