"""huggingface_hub 2.4.0 drives the simulated Hub through every call that the box makes."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

import httpx2
import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    constants,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub._commit_api import CommitOperation
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils._http import close_session, set_client_factory

from flashd.sim.hub import Role, SimHub, Token
from flashd.sim.hub_faults import Effect, Fault
from flashd.sim.hub_http import serve_hub
from flashd.sim.hub_repo import RepoKind

P = ParamSpec("P")
T = TypeVar("T")
RUNS = "acme/runs"
CLIENT_TIMEOUT_S = 1.0


class Client:
    """The library as the box uses it, off the loop."""

    def __init__(self, hub: SimHub, url: str, cache: Path) -> None:
        self.hub = hub
        self.url = url
        self.cache = cache
        self.api = HfApi(endpoint=url, token="hf_box")

    async def commit(self, files: dict[str, bytes], title: str = "t", parent: str | None = None) -> str:
        adds = [CommitOperationAdd(path, data) for path, data in files.items()]
        call = partial(self.api.create_commit, RUNS, adds, commit_message=title, repo_type="dataset")
        done = await asyncio.to_thread(call, parent_commit=parent)
        return str(done.oid)

    async def perform(self, operations: list[CommitOperation]) -> None:
        await asyncio.to_thread(
            partial(self.api.create_commit, RUNS, operations, commit_message="t", repo_type="dataset")
        )

    async def download(self, path: str, revision: str | None = None, repo: str = RUNS) -> bytes:
        found = await in_thread(
            hf_hub_download,
            repo,
            path,
            repo_type="dataset",
            revision=revision,
            endpoint=self.url,
            token="hf_box",
            cache_dir=self.cache,
        )
        return read(found)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def names_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(call, *args, **kwargs)


@pytest.fixture(autouse=True)
def client_without_xet_and_with_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    # What HF_HUB_DISABLE_XET=1 sets at import; the box exports it.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    # Else each process asks HF_ENDPOINT, not `endpoint=`, for a list of agents to name in its user agent.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    close_session()
    set_client_factory(lambda: httpx2.Client(timeout=CLIENT_TIMEOUT_S, follow_redirects=True))


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    hub = SimHub()
    hub.add_token("hf_box", Token("acme"))
    hub.add_token("hf_reader", Token("guest", Role.READ))
    hub.add_token("hf_other", Token("other", repos=("other/*",)))
    hub.add_repo(RUNS)
    async with serve_hub(hub) as server:
        yield Client(hub, server.url, tmp_path / "cache")


async def test_one_commit_carries_all_its_files_at_once(client: Client) -> None:
    oid = await client.commit({"a/m.json": b"{}", "a/DONE": b"1.5", "a/console.txt": b"hello\n"}, "flashd run=r1")
    assert client.hub.repo(RUNS).head.id == oid
    assert client.hub.titles(RUNS) == ["initial commit", "flashd run=r1"]
    assert client.hub.read(RUNS, "a/DONE") == b"1.5"
    assert client.hub.requests["preupload", 200] == 1
    assert client.hub.requests["commit", 200] == 1


async def test_the_same_bytes_again_are_no_second_commit(client: Client) -> None:
    first = await client.commit({"a.json": b"{}", "b.bin": b"\0" * 40})
    assert await client.commit({"a.json": b"{}", "b.bin": b"\0" * 40}) == first
    assert len(client.hub.titles(RUNS)) == 2
    assert client.hub.requests["revision", 200] == 1


async def test_a_commit_adds_and_deletes_together(client: Client) -> None:
    await client.commit({"checkpoint/a0-1/w.txt": b"1", "checkpoint/a0-1/o.txt": b"2", "keep": b"3"})
    operations: list[CommitOperation] = [
        CommitOperationAdd("checkpoint/a0-2/w.txt", b"9"),
        CommitOperationDelete("checkpoint/a0-1/"),
    ]
    await client.perform(operations)
    assert sorted(client.hub.repo(RUNS).head.files) == [".gitattributes", "checkpoint/a0-2/w.txt", "keep"]


async def test_deleting_what_is_not_there_fails_and_changes_nothing(client: Client) -> None:
    operations: list[CommitOperation] = [CommitOperationAdd("x", b"9"), CommitOperationDelete("absent.txt")]
    with pytest.raises(RemoteEntryNotFoundError):
        await client.perform(operations)
    assert client.hub.read(RUNS, "x") is None


async def test_a_large_file_goes_through_lfs_and_comes_back(client: Client, tmp_path: Path) -> None:
    data = bytes(range(256)) * 50_000
    source = tmp_path / "adapter.safetensors"
    source.write_bytes(data)
    upload = partial(client.api.upload_file, path_or_fileobj=source, path_in_repo="artifacts/adapter.safetensors")
    await asyncio.to_thread(upload, repo_id=RUNS, repo_type="dataset")
    kinds = ("lfs-batch", "lfs-storage", "lfs-verify")
    assert [client.hub.requests[kind, 200] for kind in kinds] == [1, 1, 1]
    assert await client.download("artifacts/adapter.safetensors") == data
    (info,) = await in_thread(client.api.get_paths_info, RUNS, ["artifacts/adapter.safetensors"], repo_type="dataset")
    assert isinstance(info, RepoFile)
    assert info.lfs is not None
    assert info.lfs.sha256 == hashlib.sha256(data).hexdigest()


async def test_an_lfs_object_that_is_there_already_is_not_sent_again(client: Client) -> None:
    await client.commit({"a.bin": b"\0" * 1000})
    await client.commit({"b.bin": b"\0" * 1000})
    assert client.hub.requests["lfs-storage", 200] == 1
    assert await client.download("b.bin") == b"\0" * 1000


async def test_a_pinned_download_gives_the_old_bytes(client: Client) -> None:
    old = await client.commit({"heartbeat.json": b"1"})
    await client.commit({"heartbeat.json": b"2"})
    assert await client.download("heartbeat.json", revision=old) == b"1"
    assert await client.download("heartbeat.json") == b"2"


async def test_files_of_a_public_repository_take_the_pinned_second_hop(client: Client) -> None:
    client.hub.add_repo("acme/open", private=False)
    client.hub.commit("acme/open", {"d/ä b.txt": "x"}, "t")
    assert await client.download("d/ä b.txt", repo="acme/open") == b"x"
    assert client.hub.requests["resolve", 307] >= 1
    assert client.hub.requests["resolve-cache", 200] >= 1


async def test_snapshot_download_takes_only_what_is_allowed(client: Client) -> None:
    files = {f"code/m{number}.py": f"# {number}" for number in range(3)}
    client.hub.commit(RUNS, {**files, "code/sub/x.py": "x", "sft/r1/DONE": "1"}, "code")
    download = partial(snapshot_download, RUNS, repo_type="dataset", endpoint=client.url, token="hf_box")
    folder = Path(await asyncio.to_thread(download, allow_patterns=["code/**"], cache_dir=client.cache))
    assert names_below(folder) == ["code/m0.py", "code/m1.py", "code/m2.py", "code/sub/x.py"]


async def test_a_model_repository_can_be_downloaded(client: Client) -> None:
    client.hub.add_repo("acme/tiny", kind=RepoKind.MODEL, private=False)
    download = partial(snapshot_download, "acme/tiny", endpoint=client.url, token="hf_box", cache_dir=client.cache)
    assert (Path(await asyncio.to_thread(download)) / ".gitattributes").is_file()


async def test_the_tree_is_listed_over_pages(client: Client) -> None:
    client.hub.settings.tree_page = 3
    client.hub.commit(RUNS, {f"sft/r{number}/seed0/DONE": "1" for number in range(4)}, "t")
    everything = await in_thread(lambda: list(client.api.list_repo_tree(RUNS, recursive=True, repo_type="dataset")))
    assert len(everything) == 1 + 1 + 4 * 3
    inside = await in_thread(
        lambda: list(client.api.list_repo_tree(RUNS, "sft/r2", recursive=True, repo_type="dataset"))
    )
    assert [item.path for item in inside] == ["sft/r2/seed0", "sft/r2/seed0/DONE"]
    assert client.hub.requests["tree", 200] == 6
    with pytest.raises(RemoteEntryNotFoundError):
        await in_thread(lambda: list(client.api.list_repo_tree(RUNS, "sft/none", repo_type="dataset")))


async def test_paths_info_tells_the_last_commit_of_each_path(client: Client) -> None:
    first = await client.commit({"p/a": b"1", "p/b": b"1"}, "first")
    second = await client.commit({"p/b": b"2"}, "second")
    asked = partial(client.api.get_paths_info, RUNS, ["p/a", "p/b", "p", "q"], repo_type="dataset", expand=True)
    found = {info.path: info.last_commit for info in await asyncio.to_thread(asked)}
    assert {path: last and last.oid for path, last in found.items()} == {"p/a": first, "p/b": second, "p": second}


async def test_commits_are_listed_newest_first_over_pages(client: Client) -> None:
    client.hub.settings.commits_page = 2
    made = [client.hub.commit(RUNS, {"x": str(number)}, f"t{number}").id for number in range(5)]
    found = await in_thread(client.api.list_repo_commits, RUNS, repo_type="dataset")
    assert [commit.commit_id for commit in found][:5] == made[::-1]
    assert found[0].title == "t4"
    assert found[0].authors == ["sim"]
    assert found[0].created_at.timestamp() == int(client.hub.repo(RUNS).head.time)
    assert client.hub.requests["commits", 200] == 3


async def test_refs_info_and_whoami_answer(client: Client) -> None:
    head = await client.commit({"x": b"1"})
    refs = await in_thread(client.api.list_repo_refs, RUNS, repo_type="dataset")
    assert [(branch.name, branch.target_commit) for branch in refs.branches] == [("main", head)]
    info = await in_thread(client.api.dataset_info, RUNS, files_metadata=True)
    assert (info.sha, info.private) == (head, True)
    assert [item.rfilename for item in info.siblings or []] == [".gitattributes", "x"]
    assert (await in_thread(client.api.whoami))["auth"]["accessToken"]["role"] == "write"


async def test_a_readme_is_checked(client: Client) -> None:
    await client.commit({"README.md": b"---\nlicense: mit\n---\nhi"})
    assert client.hub.requests["validate-yaml", 200] == 1
    with pytest.raises(ValueError, match="Invalid YAML"):
        await client.commit({"README.md": b"---\nlicense: [\n---\nhi"})


async def test_creating_a_repository_twice_is_accepted_with_exist_ok(client: Client) -> None:
    create = partial(client.api.create_repo, "acme/new", repo_type="dataset", private=True)
    await asyncio.to_thread(create, exist_ok=True)
    await asyncio.to_thread(create, exist_ok=True)
    assert client.hub.repo("acme/new").private
    with pytest.raises(HfHubHTTPError) as refused:
        await asyncio.to_thread(create)
    assert refused.value.response.status_code == 409


async def test_file_exists_tells_present_from_absent(client: Client) -> None:
    await client.commit({"x": b"1"})
    assert await in_thread(client.api.file_exists, RUNS, "x", repo_type="dataset")
    assert not await in_thread(client.api.file_exists, RUNS, "y", repo_type="dataset")


async def test_missing_file_repository_and_revision_are_told_apart(client: Client) -> None:
    with pytest.raises(RemoteEntryNotFoundError):
        await client.download("absent")
    with pytest.raises(RepositoryNotFoundError):
        await client.download("x", repo="acme/none")
    with pytest.raises(RevisionNotFoundError):
        await client.download("x", revision="f" * 40)


@pytest.mark.parametrize(("token", "status"), [("hf_reader", 403), ("hf_other", 404), ("hf_wrong", 401), (False, 401)])
async def test_a_token_without_the_right_cannot_commit(client: Client, token: str | bool, status: int) -> None:
    add = [CommitOperationAdd("x", b"1")]
    with pytest.raises(HfHubHTTPError) as refused:
        call = partial(client.api.create_commit, RUNS, add, commit_message="t", repo_type="dataset", token=token)
        await asyncio.to_thread(call)
    assert refused.value.response.status_code == status
    assert client.hub.read(RUNS, "x") is None


async def test_a_stale_parent_is_refused_with_412(client: Client) -> None:
    old = await client.commit({"x": b"1"})
    await client.commit({"x": b"2"}, parent=old[:12])
    with pytest.raises(HfHubHTTPError) as refused:
        await client.commit({"x": b"3"}, parent=old)
    assert refused.value.response.status_code == 412


async def test_two_commits_at_once_give_one_409(client: Client) -> None:
    client.hub.settings.commit_latency_s = 0.3
    results = await asyncio.gather(*(client.commit({f"x{n}": b"1"}) for n in range(2)), return_exceptions=True)
    (refused,) = [result for result in results if isinstance(result, HfHubHTTPError)]
    assert refused.response.status_code == 409
    assert len(client.hub.titles(RUNS)) == 2


async def test_the_129th_commit_of_an_hour_is_refused_while_requests_are_left(client: Client) -> None:
    now = [1_800_000_000.0]
    client.hub.now = lambda: now[0]
    client.hub.settings.commits_per_hour = 3
    for number in range(3):
        await client.commit({"x": str(number).encode()})
    with pytest.raises(HfHubHTTPError, match=r"rate limit for repository commits \(3 per hour\)") as refused:
        await client.commit({"x": b"4"})
    assert refused.value.response.status_code == 429
    assert ";r=0;" not in refused.value.response.headers["RateLimit"]
    now[0] += 3_601
    await client.commit({"x": b"4"})


async def test_a_commit_answered_504_happened_and_its_repeat_is_a_no_op(client: Client) -> None:
    client.hub.faults.add(Fault(Effect.STATUS_AFTER, kind="commit"))
    with pytest.raises(HfHubHTTPError) as refused:
        await client.commit({"x": b"1"}, "end")
    assert refused.value.response.status_code == 504
    await client.commit({"x": b"1"}, "end")
    assert client.hub.titles(RUNS) == ["initial commit", "end"]


@pytest.mark.parametrize("effect", [Effect.RESET_AFTER, Effect.HANG_AFTER])
async def test_a_lost_reply_leaves_the_commit_done(client: Client, effect: Effect) -> None:
    client.hub.faults.add(Fault(effect, kind="commit"))
    with pytest.raises(httpx2.TransportError):
        await client.commit({"x": b"1"}, "end")
    assert client.hub.read(RUNS, "x") == b"1"


@pytest.mark.parametrize("effect", [Effect.RESET, Effect.HANG])
async def test_a_refused_connection_leaves_nothing(client: Client, effect: Effect) -> None:
    client.hub.faults.add(Fault(effect, kind="commit"))
    with pytest.raises(httpx2.TransportError):
        await client.commit({"x": b"1"}, "end")
    assert client.hub.read(RUNS, "x") is None


async def test_a_truncated_download_is_taken_up_again_by_the_client(client: Client) -> None:
    await client.commit({"x.txt": b"0123456789" * 5_000})
    client.hub.faults.add(Fault(Effect.TRUNCATE, method="GET", kind="resolve"))
    assert await client.download("x.txt") == b"0123456789" * 5_000
    assert client.hub.requests["resolve", 200] == 3


async def test_a_process_with_the_environment_of_a_box_finds_everything(client: Client) -> None:
    script = (
        "from huggingface_hub import HfApi, hf_hub_download as get; a = HfApi(); r = 'acme/runs'\n"
        "a.upload_file(path_or_fileobj=b'\\0' * 99, path_in_repo='w.bin', repo_id=r, repo_type='dataset')\n"
        "print(len(open(get(r, 'w.bin', repo_type='dataset'), 'rb').read()))"
    )
    environment = {
        "HF_ENDPOINT": client.url,
        "HF_TOKEN": "hf_box",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(client.cache),
        "HOME": str(client.cache),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.read()).strip() == b"99"
    assert await process.wait() == 0
    assert client.hub.requests["agent-harnesses", 200] == 1
    assert client.hub.requests["other", 404] == 0


async def test_a_hub_that_is_down_answers_nobody_until_it_is_up(client: Client) -> None:
    await client.commit({"x": b"1"})
    client.hub.down()
    with pytest.raises(httpx2.TransportError):
        await in_thread(client.api.file_exists, RUNS, "x", repo_type="dataset")
    client.hub.up()
    assert await in_thread(client.api.file_exists, RUNS, "x", repo_type="dataset")
