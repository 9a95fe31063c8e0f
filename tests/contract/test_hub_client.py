"""What every Hub of flashd's does: the HTTP client against the simulated Hub, and the Hub in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from flashd.adapters.clock import SystemClock
from flashd.adapters.hub import Absent, Hub, Present, TooLarge
from flashd.adapters.hub_http import HttpHub
from flashd.errors import HubForbiddenError, HubRepoMissingError, HubUnavailableError
from flashd.sim.hub import Role, SimHub, Token
from flashd.sim.hub_http import serve_hub
from tests.fakes.memory_hub import MemoryHub, MemoryRepo

REPO = "acme/runs"
FOREIGN = "others/runs"


@dataclass(frozen=True, slots=True)
class World:
    """A Hub, and somebody else who commits to it."""

    hub: Hub
    push: Callable[[str, Mapping[str, bytes]], str]


@asynccontextmanager
async def in_memory() -> AsyncIterator[World]:
    hub = MemoryHub(SystemClock())
    hub.repos[FOREIGN] = MemoryRepo(writable=False)
    yield World(hub, lambda title, files: hub.push(REPO, title, files).id)


@asynccontextmanager
async def over_http() -> AsyncIterator[World]:
    sim = SimHub()
    sim.add_token("hf_daemon", Token("acme", Role.WRITE, ("acme/*",)))
    sim.add_repo(FOREIGN, private=False)
    async with serve_hub(sim) as server, HttpHub(server.url, lambda: "hf_daemon", SystemClock(), _ignore) as hub:

        def push(title: str, files: Mapping[str, bytes]) -> str:
            if not any(repo.id == REPO for repo in sim.repos.values()):
                sim.add_repo(REPO)
            return sim.commit(REPO, files, title).id

        yield World(hub, push)


@pytest.fixture(params=[in_memory, over_http])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with request.param() as world:
        yield world


async def test_commits_are_listed_newest_first_over_pages(world: World) -> None:
    pushed = [world.push(f"commit {number}", {"n": str(number).encode()}) for number in range(120)]
    seen: list[str] = []
    cursor: str | None = None
    for _ in range(4):
        page = await world.hub.commits(REPO, cursor)
        seen += [commit.id for commit in page.commits]
        cursor = page.next
        if cursor is None:
            break
    assert cursor is None
    assert seen[:120] == pushed[::-1]
    assert (await world.hub.commits(REPO)).commits[0].title == "commit 119"


async def test_commit_times_are_unix_seconds(world: World) -> None:
    before = SystemClock().now()
    world.push("now", {"n": b""})
    assert (await world.hub.commits(REPO)).commits[0].at == pytest.approx(before, abs=5)


async def test_a_read_is_pinned_to_its_commit(world: World) -> None:
    old = world.push("one", {"a/heartbeat.json": b"1"})
    new = world.push("two", {"a/heartbeat.json": b"2", "a/b c%.txt": b"x"})
    assert await world.hub.read(REPO, old, "a/heartbeat.json", 100) == Present(b"1")
    assert await world.hub.read(REPO, new, "a/heartbeat.json", 100) == Present(b"2")
    assert await world.hub.read(REPO, new, "a/b c%.txt", 100) == Present(b"x")
    assert await world.hub.read(REPO, old, "a/b c%.txt", 100) == Absent()


async def test_a_file_larger_than_wanted_is_not_read(world: World) -> None:
    sha = world.push("large", {"metrics.json": b"x" * 200_000})
    assert await world.hub.read(REPO, sha, "metrics.json", 199_999) == TooLarge(200_000)
    answer = await world.hub.read(REPO, sha, "metrics.json", 200_000)
    assert isinstance(answer, Present)
    assert len(answer.body) == 200_000


async def test_a_commit_that_is_not_there_is_never_absence(world: World) -> None:
    world.push("one", {"a": b"1"})
    with pytest.raises(HubUnavailableError):
        await world.hub.read(REPO, "f" * 40, "a", 100)
    with pytest.raises(HubUnavailableError):
        await world.hub.oids(REPO, "f" * 40, ("a",))


async def test_a_repository_that_is_not_there_says_so(world: World) -> None:
    with pytest.raises(HubRepoMissingError):
        await world.hub.commits("acme/nothing")
    with pytest.raises(HubRepoMissingError):
        await world.hub.read("acme/nothing", "f" * 40, "a", 100)
    with pytest.raises(HubRepoMissingError):
        await world.hub.resolve("acme/nothing", "main")


async def test_blob_ids_are_gits_and_any_number_of_paths_may_be_asked_for(world: World) -> None:
    sha = world.push("many", {f"runs/{number}/DONE": b"1.0" for number in range(1_100)})
    wanted = tuple(f"runs/{number}/DONE" for number in range(1_200))
    found = await world.hub.oids(REPO, sha, wanted)
    assert set(found) == set(wanted[:1_100])
    assert set(found.values()) == {"9f8e9b69a33f4e8067d5b21661a35d8856758aba"}, "git hash-object of 1.0"
    assert await world.hub.oids(REPO, sha, ()) == {}


async def test_revisions_resolve_to_commits(world: World) -> None:
    old = world.push("one", {"a": b"1"})
    new = world.push("two", {"a": b"2"})
    assert await world.hub.resolve(REPO, "main") == new
    assert await world.hub.resolve(REPO, old) == old
    assert await world.hub.resolve(REPO, "no/such branch") is None


async def test_a_repository_is_created_once_and_again_is_fine(world: World) -> None:
    await world.hub.ensure_repo(REPO)
    await world.hub.ensure_repo(REPO)
    head = await world.hub.commit(REPO, "first", {"job_spec.json": b"{}"})
    assert await world.hub.read(REPO, head, "job_spec.json", 100) == Present(b"{}")


async def test_a_repository_that_is_not_ours_is_refused(world: World) -> None:
    with pytest.raises(HubForbiddenError):
        await world.hub.ensure_repo(FOREIGN)


async def test_repeating_a_commit_changes_nothing(world: World) -> None:
    await world.hub.ensure_repo(REPO)
    files = {"a/job_spec.json": b'{"x": 1}', "a/note.txt": "ünïcode".encode()}
    first = await world.hub.commit(REPO, "flashd: spec", files)
    assert await world.hub.commit(REPO, "flashd: spec", files) == first
    titles = [commit.title for commit in (await world.hub.commits(REPO)).commits]
    assert titles.count("flashd: spec") == 1
    assert await world.hub.commit(REPO, "flashd: spec", {**files, "a/note.txt": b"new"}) != first


def _ignore(kind: str, code: int) -> None:
    """Nobody counts here."""
