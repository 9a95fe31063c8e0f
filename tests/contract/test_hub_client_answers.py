"""What the Hub's client makes of each answer, good and bad: a server that says exactly what the test scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flashd.adapters.clock import SystemClock
from flashd.adapters.hub import Absent, CommitPage, Present, Quota
from flashd.adapters.hub_http import HttpHub
from flashd.adapters.hub_session import Ask, HubSession
from flashd.errors import (
    HubAuthError,
    HubError,
    HubForbiddenError,
    HubRepoMissingError,
    HubThrottledError,
    HubUnavailableError,
)

REPO = "acme/runs"
SHA = "a" * 40
TOKEN = "hf_verysecret"
OPEN_WINDOW = {"RateLimit": '"api";r=949;t=55', "RateLimit-Policy": '"fixed window";"api";q=1000;w=300'}
NO_WINDOW = {"RateLimit": '"api";r=0;t=55', "RateLimit-Policy": '"fixed window";"api";q=1000;w=300'}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Scripted:
    """A server with one handler for everything; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.handler: Handler = _teapot
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self.server = TestServer(app)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    def says(self, status: int, body: object = b"", **headers: str) -> None:
        """The same answer from now on; underscores in header names stand for dashes."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}

        async def handler(_: web.Request) -> web.StreamResponse:
            return web.Response(status=status, body=raw, headers=named)

        self.handler = handler

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append((request.method, request.raw_path, dict(request.headers), body))
        return await self.handler(request)


async def _teapot(_: web.Request) -> web.StreamResponse:
    return web.Response(status=418)


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.server.start_server()
    yield scripted
    await scripted.server.close()


class Counted:
    """What `on_request` was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __call__(self, kind: str, code: int) -> None:
        self.calls.append((kind, code))


@pytest.fixture
def counted() -> Counted:
    return Counted()


@pytest.fixture
async def hub(scripted: Scripted, counted: Counted) -> AsyncIterator[HttpHub]:
    async with HttpHub(scripted.url, lambda: TOKEN, SystemClock(), counted) as hub:
        yield hub


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (401, "", HubAuthError),
        (401, "RepoNotFound", HubRepoMissingError),
        (403, "", HubForbiddenError),
        (403, "GatedRepo", HubForbiddenError),
        (404, "RepoNotFound", HubRepoMissingError),
        (404, "EntryNotFound", HubUnavailableError),
        (404, "", HubUnavailableError),
        (400, "", HubError),
        (408, "", HubUnavailableError),
        (500, "", HubUnavailableError),
        (502, "", HubUnavailableError),
        (503, "", HubUnavailableError),
        (504, "", HubUnavailableError),
        (204, "", HubUnavailableError),
        (304, "", HubUnavailableError),
    ],
)
async def test_a_refused_list_says_whose_fault_it_is(
    scripted: Scripted, hub: HttpHub, status: int, code: str, expected: type[HubError]
) -> None:
    scripted.says(status, b"Entry not found" if status > 299 and status != 304 else b"", X_Error_Code=code)
    with pytest.raises(HubError) as caught:
        await hub.commits(REPO)
    assert type(caught.value) is expected
    assert caught.value.code == status


@pytest.mark.parametrize(
    ("code", "expected"),
    [("RevisionNotFound", HubUnavailableError), ("RepoNotFound", HubRepoMissingError), ("", HubUnavailableError)],
)
async def test_only_a_missing_entry_is_absence(
    scripted: Scripted, hub: HttpHub, code: str, expected: type[HubError]
) -> None:
    scripted.says(404, b"Entry not found", X_Error_Code=code)
    with pytest.raises(expected):
        await hub.read(REPO, SHA, "DONE", 100)
    scripted.says(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit=SHA)
    assert await hub.read(REPO, SHA, "DONE", 100) == Absent()


async def test_an_answer_for_another_commit_is_no_answer(scripted: Scripted, hub: HttpHub) -> None:
    scripted.says(404, b"", X_Error_Code="EntryNotFound", X_Repo_Commit="b" * 40)
    with pytest.raises(HubUnavailableError):
        await hub.read(REPO, SHA, "DONE", 100)
    scripted.says(200, b"1.0", X_Repo_Commit="b" * 40)
    with pytest.raises(HubUnavailableError):
        await hub.read(REPO, SHA, "DONE", 100)


async def test_a_repository_without_a_commit_is_an_empty_page(scripted: Scripted, hub: HttpHub) -> None:
    scripted.says(404, b"", X_Error_Code="RevisionNotFound")
    assert await hub.commits(REPO) == CommitPage((), None)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>Bad gateway</html>",
        b"",
        b"{}",
        b"[1]",
        b'[{"id": "xyz", "title": "t", "date": "2026-01-01T00:00:00Z"}]',
        b'[{"id": "' + b"a" * 40 + b'", "title": "t", "date": "yesterday"}]',
        b'[{"id": "' + b"a" * 40 + b'", "title": 1, "date": "2026-01-01T00:00:00Z"}]',
        b'[{"id": "' + b"a" * 40 + b'", "title": "\xff", "date": "2026-01-01T00:00:00Z"}]',
    ],
)
async def test_a_list_that_cannot_be_read_is_no_answer(scripted: Scripted, hub: HttpHub, body: bytes) -> None:
    scripted.says(200, body)
    with pytest.raises(HubUnavailableError):
        await hub.commits(REPO)


async def test_dates_and_pages_are_read_from_what_the_hub_gives(scripted: Scripted, hub: HttpHub) -> None:
    row = {"id": SHA, "title": "t", "message": "", "authors": [], "date": "2027-01-15T08:00:00.000Z"}
    scripted.says(200, [row], Link='<https://elsewhere.example/api/x?p=1&limit=50>; rel="next"')
    page = await hub.commits(REPO)
    assert [commit.at for commit in page.commits] == [1_800_000_000.0]
    scripted.says(200, [])
    assert (await hub.commits(REPO, page.next)).next is None
    assert scripted.asked[-1][1] == f"/api/datasets/{REPO}/commits/main?p=1&limit=50", "asked where we were told to"


# Limits --------------------------------------------------------------------------------------------------------------


async def test_a_used_up_window_is_waited_out_without_asking_and_per_bucket(scripted: Scripted, hub: HttpHub) -> None:
    scripted.says(429, b"Too many requests", **{k.replace("-", "_"): v for k, v in NO_WINDOW.items()})
    with pytest.raises(HubThrottledError) as caught:
        await hub.commits(REPO)
    assert caught.value.retry_after_s == 56.0
    assert not caught.value.commit_quota
    with pytest.raises(HubThrottledError) as again:
        await hub.oids(REPO, SHA, ("a",))
    assert 50 < again.value.retry_after_s <= 56
    assert len(scripted.asked) == 1
    scripted.says(200, b"1.0", X_Repo_Commit=SHA)
    assert await hub.read(REPO, SHA, "DONE", 10) == Present(b"1.0"), "resolvers have a window of their own"


@pytest.mark.parametrize(
    ("headers", "retry_after_s", "commit_quota"),
    [
        (OPEN_WINDOW, 600.0, True),
        ({**OPEN_WINDOW, "Retry-After": "1800"}, 1800.0, True),
        ({"Retry-After": "90"}, 90.0, True),
        ({**OPEN_WINDOW, "Retry-After": "soon"}, 600.0, True),
        (NO_WINDOW, 56.0, False),
        ({**NO_WINDOW, "Retry-After": "120"}, 120.0, False),
    ],
)
async def test_a_throttled_commit_with_requests_left_is_the_commit_quota(
    scripted: Scripted, hub: HttpHub, headers: dict[str, str], retry_after_s: float, commit_quota: bool
) -> None:
    scripted.says(429, b"", **{name.replace("-", "_"): value for name, value in headers.items()})
    with pytest.raises(HubThrottledError) as caught:
        await hub.commit(REPO, "t", {"a": b"1"})
    assert caught.value.retry_after_s == retry_after_s
    assert caught.value.commit_quota is commit_quota
    scripted.says(200, [])
    if commit_quota:
        assert await hub.commits(REPO) == CommitPage((), None), "reading goes on"
    else:
        with pytest.raises(HubThrottledError):
            await hub.commits(REPO)


async def test_a_retry_after_may_be_a_date(scripted: Scripted, hub: HttpHub) -> None:
    scripted.says(429, b"", Retry_After="Wed, 01 Jan 2020 00:00:00 GMT")
    with pytest.raises(HubThrottledError) as caught:
        await hub.read(REPO, SHA, "a", 1)
    assert caught.value.retry_after_s == 60.0, "a date in the past says nothing"


async def test_the_api_window_is_told_and_the_resolvers_one_is_not(scripted: Scripted, hub: HttpHub) -> None:
    assert hub.quota() is None
    scripted.says(200, [], **{name.replace("-", "_"): value for name, value in OPEN_WINDOW.items()})
    await hub.commits(REPO)
    assert hub.quota() == Quota(1000, 949, 55.0)
    scripted.says(200, b"x", RateLimit='"resolvers";r=1;t=5', RateLimit_Policy='"fixed window";"resolvers";q=9;w=300')
    await hub.read(REPO, SHA, "a", 1)
    assert hub.quota() == Quota(1000, 949, 55.0)


# The connection ------------------------------------------------------------------------------------------------------


async def test_a_redirect_to_another_host_is_followed_without_the_token(scripted: Scripted, hub: HttpHub) -> None:
    storage = Scripted()
    await storage.server.start_server()
    storage.says(200, b"large")
    scripted.says(302, b"", Location=f"{storage.url}/blob?sig=a%2Bb%27c&x=~", X_Repo_Commit=SHA)
    assert await hub.read(REPO, SHA, "a", 100) == Present(b"large")
    [(_, path, headers, _)] = storage.asked
    assert path == "/blob?sig=a%2Bb%27c&x=~", "a signed address goes out as it came"
    assert "Authorization" not in headers
    assert scripted.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"
    await storage.server.close()


async def test_a_redirect_on_the_same_host_keeps_the_token_and_a_circle_ends(scripted: Scripted, hub: HttpHub) -> None:
    async def hop(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/api/resolve-cache"):
            return web.Response(body=b"1")
        return web.Response(status=307, headers={"Location": "/api/resolve-cache/x"})

    scripted.handler = hop
    assert await hub.read(REPO, SHA, "a", 100) == Present(b"1")
    assert scripted.asked[1][2]["Authorization"] == f"Bearer {TOKEN}"
    scripted.says(302, b"", Location="/again")
    with pytest.raises(HubUnavailableError, match="redirects"):
        await hub.read(REPO, SHA, "a", 100)


async def test_no_more_than_eight_requests_are_in_flight_and_the_queue_is_not_part_of_the_deadline(
    scripted: Scripted, hub: HttpHub
) -> None:
    in_flight, most = 0, 0

    async def slow(_: web.Request) -> web.StreamResponse:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0.02)
        in_flight -= 1
        return web.json_response([])

    scripted.handler = slow
    async with anyio.create_task_group() as group:
        for _ in range(60):
            group.start_soon(hub.commits, REPO)
    assert most == 8


async def test_a_hub_that_never_answers_is_left_after_the_deadline(scripted: Scripted, counted: Counted) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    scripted.handler = never
    session = HubSession(scripted.url, lambda: TOKEN, SystemClock(), counted)
    with pytest.raises(HubUnavailableError, match="within"):
        await session.send(Ask("commits", "GET", "/x", timeout_s=0.2))
    assert counted.calls == [("commits", 0)]
    with anyio.move_on_after(0.1) as scope:
        await session.send(Ask("commits", "GET", "/x"))
    assert scope.cancelled_caught
    await session.close()


async def test_a_body_that_breaks_off_is_no_answer(scripted: Scripted, hub: HttpHub) -> None:
    async def half(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100", "X-Repo-Commit": SHA})
        await response.prepare(request)
        await response.write(b"half")
        assert request.transport is not None
        request.transport.abort()
        return response

    scripted.handler = half
    with pytest.raises(HubUnavailableError):
        await hub.read(REPO, SHA, "a", 1_000)


async def test_nobody_listening_is_no_answer_and_the_error_names_the_endpoint(counted: Counted) -> None:
    async with HttpHub("http://127.0.0.1:9", lambda: TOKEN, SystemClock(), counted) as hub:
        with pytest.raises(HubUnavailableError, match=r"127\.0\.0\.1:9"):
            await hub.commits(REPO)
    assert counted.calls == [("commits", 0)]


async def test_every_request_is_counted_by_kind_and_code(scripted: Scripted, hub: HttpHub, counted: Counted) -> None:
    scripted.says(200, [])
    await hub.commits(REPO)
    scripted.says(503)
    with pytest.raises(HubUnavailableError):
        await hub.oids(REPO, SHA, ("a",))
    assert counted.calls == [("commits", 200), ("paths-info", 503)]


async def test_the_token_is_asked_for_each_request_and_never_told(scripted: Scripted) -> None:
    tokens = iter(["hf_first\n", "", "hf_\r\nbroken"])
    async with HttpHub(scripted.url, lambda: next(tokens), SystemClock(), Counted()) as hub:
        scripted.says(401, b"Invalid credentials in Authorization header")
        with pytest.raises(HubAuthError):
            await hub.commits(REPO)
        assert scripted.asked[0][2]["Authorization"] == "Bearer hf_first"
        with pytest.raises(HubAuthError):
            await hub.commits(REPO)
        with pytest.raises(HubError) as caught:
            await hub.commits(REPO)
        assert "broken" not in str(caught.value)


# Writing -------------------------------------------------------------------------------------------------------------


async def test_a_commit_that_the_hub_wants_as_lfs_is_refused_before_it_is_sent(
    scripted: Scripted, hub: HttpHub
) -> None:
    scripted.says(200, {"files": [{"path": "a", "uploadMode": "lfs", "shouldIgnore": False}]})
    with pytest.raises(HubError, match="upload mode lfs"):
        await hub.commit(REPO, "t", {"a": b"1"})
    assert len(scripted.asked) == 1


async def test_a_busy_repository_is_unavailable_not_forbidden(scripted: Scripted, hub: HttpHub) -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        if "preupload" in request.path:
            return web.json_response({"files": [{"path": "a", "uploadMode": "regular", "shouldIgnore": False}]})
        return web.json_response({"error": "Another commit operation is in progress"}, status=409)

    scripted.handler = busy
    with pytest.raises(HubUnavailableError) as caught:
        await hub.commit(REPO, "t", {"a": b"1"})
    assert caught.value.code == 409
    header, line = scripted.asked[1][3].splitlines()
    assert json.loads(header) == {"key": "header", "value": {"summary": "t", "description": ""}}
    assert json.loads(line)["value"] == {"path": "a", "encoding": "base64", "content": "MQ=="}


async def test_a_token_that_may_write_but_not_create_is_enough_for_a_repository_that_exists(
    scripted: Scripted, hub: HttpHub
) -> None:
    preupload = 200

    async def narrow(request: web.Request) -> web.StreamResponse:
        if request.path == "/api/repos/create":
            return web.Response(status=403)
        files = {"files": [{"path": "p", "uploadMode": "regular", "shouldIgnore": False}]}
        code = {"X-Error-Code": "RepoNotFound"} if preupload == 404 else {}
        return web.json_response(files, status=preupload, headers=code)

    scripted.handler = narrow
    await hub.ensure_repo(REPO)
    preupload = 404
    with pytest.raises(HubForbiddenError):
        await hub.ensure_repo(REPO)
    preupload = 403
    with pytest.raises(HubForbiddenError):
        await hub.ensure_repo(REPO)
