"""What the simulated Hub says on the wire, and what its control surface makes it say."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest

from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_git import regular_blob, tree_ids
from flashd.sim.hub_http import kind_of, serve_hub
from flashd.sim.hub_quota import HubSettings

RUNS = "acme/runs"
API = f"/api/datasets/{RUNS}"
AUTH = {"Authorization": "Bearer hf_daemon"}


class World:
    """A Hub on a clock of its own, and a plain HTTP client."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.hub = SimHub(now=lambda: self.time)
        self.hub.add_token("hf_daemon", Token("acme"))
        self.hub.add_repo(RUNS)
        self.session: aiohttp.ClientSession

    async def get(self, path: str, **headers: str) -> tuple[int, aiohttp.ClientResponse, bytes]:
        async with self.session.get(path, headers=AUTH | headers, allow_redirects=False) as answer:
            return answer.status, answer, await answer.read()

    async def get_json(self, path: str) -> object:
        status, _, body = await self.get(path)
        assert status == 200, body
        return json.loads(body)

    async def post(self, path: str, body: object) -> tuple[int, object]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=data, headers=AUTH | {"Content-Type": "application/json"}) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    async with serve_hub(world.hub) as server, aiohttp.ClientSession(server.url) as session:
        world.session = session
        yield world


def commit_body(*lines: object) -> bytes:
    header = {"key": "header", "value": {"summary": "flashd run=r1 event=end", "description": ""}}
    return b"\n".join(json.dumps(line).encode() for line in (header, *lines))


def file_line(path: str, data: bytes) -> object:
    value = {"path": path, "content": base64.b64encode(data).decode(), "encoding": "base64"}
    return {"key": "file", "value": value}


def test_ids_are_those_of_git() -> None:
    assert regular_blob(b"hello\n").oid == "ce013625030ba8dba906f756967f9e9ca394464a"
    # `git write-tree` of the same files.
    files = {"a/b": b"2", "a-b": b"9", "d/e/f/g.txt": b"xx", "d/e.txt": b"q", "z/z/z": b""}
    trees = tree_ids({path: regular_blob(data).oid for path, data in files.items()})
    assert trees[""] == "0ee3144dd7f023e2e7fb48118da56ccc76095678"


def test_requests_are_counted_by_what_they_do() -> None:
    assert kind_of(f"{API}/commits/main") == "commits"
    assert kind_of(f"{API}/commit/main") == "commit"
    assert kind_of(API) == "info"
    assert kind_of(f"/datasets/{RUNS}/resolve/main/a/commit/b") == "resolve"
    assert kind_of(f"/datasets/{RUNS}.git/info/lfs/objects/batch") == "lfs-batch"


async def test_a_commit_by_plain_requests_is_one_atomic_step(world: World) -> None:
    status, answer = await world.post(f"{API}/commit/main", commit_body(file_line("a/b.json", b"{}")))
    assert status == 200
    head = world.hub.repo(RUNS).head
    assert isinstance(answer, dict)
    assert answer["commitOid"] == head.id
    assert len(head.id) == 40
    assert head.title == "flashd run=r1 event=end"
    missing = {"key": "deletedFile", "value": {"path": "absent"}}
    status, _ = await world.post(f"{API}/commit/main", commit_body(file_line("c", b"1"), missing))
    assert status == 404
    assert world.hub.repo(RUNS).head == head


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"key": "file", "value": {"path": "x", "content": ""}}',
        commit_body({"key": "file", "value": {}}),
        commit_body({"key": "copyFile", "value": {"path": "x"}}),
        commit_body({"key": "file", "value": {"path": "x", "content": "%%", "encoding": "base64"}}),
        commit_body({"key": "lfsFile", "value": {"path": "x", "oid": "0" * 64, "size": 3}}),
        commit_body(file_line("../x", b"")),
        commit_body(file_line("a", b""), file_line("a/b", b"")),
        commit_body(file_line("big", b"x" * 10_000_001)),
    ],
)
async def test_a_malformed_commit_is_refused_whole(world: World, body: bytes) -> None:
    status, answer = await world.post(f"{API}/commit/main", body)
    assert status == 400, answer
    assert len(world.hub.titles(RUNS)) == 1


async def test_an_unknown_branch_is_told_by_its_code(world: World) -> None:
    async with world.session.post(f"{API}/commit/dev", data=commit_body(), headers=AUTH) as answer:
        assert (answer.status, answer.headers["X-Error-Code"]) == (404, "RevisionNotFound")


async def test_a_missing_file_names_the_commit_that_was_looked_at(world: World) -> None:
    status, answer, _ = await world.get(f"/datasets/{RUNS}/resolve/main/absent")
    assert (status, answer.headers["X-Error-Code"]) == (404, "EntryNotFound")
    assert answer.headers["X-Repo-Commit"] == world.hub.repo(RUNS).head.id


async def test_a_private_repository_looks_absent_to_others(world: World) -> None:
    async with world.session.get(API) as answer:
        assert (answer.status, answer.headers["X-Error-Code"]) == (401, "RepoNotFound")
    world.hub.add_token("hf_other", Token("other", repos=("other/*",)))
    async with world.session.get(API, headers={"Authorization": "Bearer hf_other"}) as answer:
        assert (answer.status, answer.headers["X-Error-Code"]) == (404, "RepoNotFound")


async def test_escaped_slashes_work_in_paths_and_revisions(world: World) -> None:
    world.hub.commit(RUNS, {"sft/r1/seed0/DONE": "1"}, "t")
    found = await world.get_json(f"{API}/tree/refs%2Fheads%2Fmain/sft%2Fr1%2Fseed0?recursive=true")
    assert isinstance(found, list)
    assert [item["path"] for item in found] == ["sft/r1/seed0/DONE"]


async def test_paths_info_takes_json_too(world: World) -> None:
    world.hub.commit(RUNS, {"a/x": "1"}, "t")
    status, found = await world.post(f"{API}/paths-info/main", {"paths": ["a/x", "a", "nope"], "expand": True})
    assert status == 200
    assert isinstance(found, list)
    assert [(item["type"], item["lastCommit"]["title"]) for item in found] == [("file", "t"), ("directory", "t")]
    assert (await world.post(f"{API}/paths-info/main", {"paths": ["x"] * 1_001}))[0] == 413
    assert (await world.post(f"{API}/paths-info/main", {"paths": "x"}))[0] == 400


async def test_ranges_and_etags_are_served(world: World) -> None:
    world.hub.commit(RUNS, {"x": "0123456789"}, "t")
    path = f"/datasets/{RUNS}/resolve/main/x"
    status, answer, body = await world.get(path, Range="bytes=4-")
    assert (status, body, answer.headers["Content-Range"]) == (206, b"456789", "bytes 4-9/10")
    _, answer, _ = await world.get(path)
    status, _, body = await world.get(path, **{"If-None-Match": answer.headers["ETag"]})
    assert (status, body) == (304, b"")
    assert (await world.get(path, Range="bytes=99-"))[0] == 416


async def test_every_answer_tells_the_request_budget_until_it_is_used_up(world: World) -> None:
    world.hub.settings.api_per_window = 2
    world.time = 1_800_000_010.0
    _, answer, _ = await world.get(f"{API}/refs")
    assert answer.headers["RateLimit"] == '"api";r=1;t=290'
    assert answer.headers["RateLimit-Policy"] == '"fixed window";"api";q=2;w=300'
    await world.get(f"{API}/refs")
    status, answer, _ = await world.get(f"{API}/refs")
    assert (status, answer.headers["RateLimit"]) == (429, '"api";r=0;t=290')
    _, answer, _ = await world.get(f"/datasets/{RUNS}/resolve/main/.gitattributes")
    assert answer.headers["RateLimit"].startswith('"resolvers";r=11999')
    world.time += 290
    assert (await world.get(f"{API}/refs"))[0] == 200


async def test_readers_of_main_lag_behind_while_pinned_reads_do_not(world: World) -> None:
    world.hub.settings.read_lag_s = 30
    world.time += 60
    old = world.hub.repo(RUNS).head.id
    new = world.hub.commit(RUNS, {"x": "1"}, "t").id
    assert await head_seen(world) == old
    assert (await world.get(f"/datasets/{RUNS}/resolve/main/x"))[0] == 404
    assert (await world.get(f"/datasets/{RUNS}/resolve/{new}/x"))[0] == 200
    world.time += 30
    assert await head_seen(world) == new


async def head_seen(world: World) -> str:
    found = await world.get_json(f"{API}/commits/main")
    assert isinstance(found, list)
    return str(found[0]["id"])


async def test_after_a_squash_the_old_ids_are_gone(world: World) -> None:
    old = world.hub.commit(RUNS, {"x": "1"}, "t").id
    assert (await world.post(f"{API}/super-squash/main", {"message": "squashed"}))[0] == 200
    status, answer, _ = await world.get(f"/datasets/{RUNS}/resolve/{old}/x")
    assert (status, answer.headers["X-Error-Code"]) == (404, "RevisionNotFound")
    assert world.hub.titles(RUNS) == ["squashed"]
    assert world.hub.read(RUNS, "x") == b"1"


async def test_a_rule_acts_on_the_nth_matching_request_and_so_often(world: World) -> None:
    rule = {"effect": "status", "status": 503, "kind": "refs", "nth": 2, "times": 2}
    assert (await world.post("/_sim/faults", rule))[0] == 201
    seen = [(await world.get(f"{API}/refs"))[0] for _ in range(5)]
    assert seen == [200, 503, 503, 200, 200]
    assert (await world.get(API))[0] == 200


async def test_a_rule_can_look_into_the_body_of_a_commit(world: World) -> None:
    await world.post("/_sim/faults", {"effect": "status", "status": 500, "body": "event=end", "kind": "commit"})
    status, _ = await world.post(f"{API}/commit/main", commit_body(file_line("x", b"1")))
    assert status == 500
    assert world.hub.read(RUNS, "x") is None


async def test_a_rule_with_a_probability_acts_on_some(world: World) -> None:
    await world.post("/_sim/faults", {"effect": "status", "status": 500, "probability": 0.5, "times": None})
    seen = Counter([(await world.get(f"{API}/refs"))[0] for _ in range(40)])
    assert seen[200] >= 8
    assert seen[500] >= 8


async def test_a_scripted_429_carries_its_retry_after(world: World) -> None:
    rule = {"effect": "status", "status": 429, "headers": {"Retry-After": "7", "RateLimit": '"api";r=0;t=7'}}
    await world.post("/_sim/faults", rule)
    status, answer, _ = await world.get(f"{API}/refs")
    assert (status, answer.headers["Retry-After"], answer.headers["RateLimit"]) == (429, "7", '"api";r=0;t=7')


async def test_resets_delays_and_cut_bodies_reach_the_client(world: World) -> None:
    # Twice, since this client sends a GET again by itself when a connection that it reused breaks.
    await world.post("/_sim/faults", {"effect": "reset", "kind": "refs", "times": 2})
    with pytest.raises(aiohttp.ClientOSError):
        await world.get(f"{API}/refs")
    await world.post("/_sim/faults", {"effect": "truncate", "kind": "info"})
    with pytest.raises(aiohttp.ClientPayloadError):
        await world.get(API)
    await world.post("/_sim/faults", {"effect": "delay", "seconds": 0.2, "kind": "commits"})
    before = asyncio.get_running_loop().time()
    await world.get(f"{API}/commits/main")
    assert asyncio.get_running_loop().time() - before >= 0.2
    assert world.hub.requests["refs", 0] == 2


async def test_a_hub_that_is_down_comes_up_again(world: World) -> None:
    await world.post("/_sim/down", {"status": 503})
    assert (await world.get(API))[0] == 503
    await world.post("/_sim/up", {})
    assert (await world.get(API))[0] == 200


async def test_the_truth_is_told_to_whoever_asks(world: World) -> None:
    await world.post("/_sim/repos", {"repo": "acme/other"})
    await world.post("/_sim/tokens", {"token": "hf_new", "user": "new", "role": "read", "repos": ["acme/*"]})
    await world.post("/_sim/commit", {"repo": "acme/other", "title": "t1", "files": {"a/b": "text"}})
    truth = await world.get_json("/_sim/truth?repo=acme/other&content=1")
    assert isinstance(truth, dict)
    (repo,) = truth["repos"]
    assert [commit["title"] for commit in repo["commits"]] == ["initial commit", "t1"]
    assert repo["commits"][1]["changed"] == ["a/b"]
    assert repo["files"]["a/b"]["text"] == "text"
    async with world.session.get("/api/datasets/acme/other", headers={"Authorization": "Bearer hf_new"}) as answer:
        assert answer.status == 200


async def test_requests_and_commits_of_the_hour_are_counted(world: World) -> None:
    await world.get(f"{API}/refs")
    await world.post(f"{API}/commit/main", commit_body(file_line("x", b"1")))
    counts = await world.get_json("/_sim/requests")
    expected = {"requests": {"commit": {"200": 1}, "refs": {"200": 1}}, "commits_last_hour": {RUNS: 1}}
    assert counts == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/_sim/faults", {"effect": "explode"}),
        ("/_sim/faults", {"effect": "status", "color": 1}),
        ("/_sim/faults", {"effect": "delay"}),
        ("/_sim/faults", {"effect": "status", "path": "("}),
        ("/_sim/faults", {"effect": "status", "nth": "2"}),
        ("/_sim/tokens", {"token": 1}),
        ("/_sim/repos", {"repo": "no-slash"}),
        ("/_sim/commit", {"repo": RUNS, "files": []}),
    ],
)
async def test_a_wrong_order_to_the_simulation_is_refused(world: World, path: str, body: object) -> None:
    status, answer = await world.post(path, body)
    assert status == 400, answer


async def test_settings_can_be_changed_and_only_known_ones(world: World) -> None:
    async with world.session.patch("/_sim/settings", json={"commits_per_hour": 1, "read_lag_s": 2.5}) as answer:
        assert answer.status == 200
    assert world.hub.settings == HubSettings(commits_per_hour=1, read_lag_s=2.5)
    for wrong in ({"commits": 1}, {"tree_page": 1.5}, {"read_lag_s": -1}):
        async with world.session.patch("/_sim/settings", json=wrong) as answer:
            assert answer.status == 400


async def test_an_unknown_address_is_a_404_with_a_reason(world: World) -> None:
    status, _, body = await world.get("/api/spaces/x/y")
    assert status == 404
    assert "/api/spaces/x/y" in body.decode()
