"""submit and events, beside a store that answers as the daemon does."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import anyio
import pytest

from flashd.adapters.store import Store
from flashd.adapters.store_types import Rejection, Source
from flashd.daemon.announce import out
from flashd.wire.events import RequestRejected, Stamp
from tests.cli import runs
from tests.cli.conftest import TIMEOUT_S, Cli, ended, first_line
from tests.cli.runs import T0, Story


async def taken_entry(store: Store) -> str:
    """The id of the one queued request, read through the group as the daemon does."""
    await store.ensure_groups()
    with anyio.fail_after(TIMEOUT_S):
        while not (entries := await store.read_new(10, 200)):
            pass
    (entry,) = entries
    return entry.entry_id


async def reject(store: Store, entry_id: str, run_id: str, detail: str) -> None:
    said = RequestRejected(entry_id=entry_id, run_id=run_id, reason="unknown_secret", detail=detail)
    event = out(said, Stamp(id=f"rejected-{entry_id}", ns=runs.NS, time=T0))
    await store.reject(Rejection(Source.REQUESTS, entry_id, "unknown_secret", detail, T0, run_id, None, event))


def file_of(story: Story, directory: Path) -> str:
    path = directory / f"{story.run_id}.json"
    path.write_text(story.request.canonical_json)
    return str(path)


async def test_an_accepted_request_is_said_to_be_accepted(cli: Cli, store: Store, tmp_path: Path) -> None:
    story = runs.waiting()
    process = await cli.start("submit", file_of(story, tmp_path), "--json")
    entry_id = await taken_entry(store)
    await story.put(store, entry_id)
    done = await ended(process)
    assert done.status == 0, done.err
    assert done.json["entry_id"] == entry_id
    assert (done.json["accepted"], done.json["duplicate"], done.json["run_id"]) == (True, False, "waits")


@pytest.mark.parametrize("more", [(), ("--wait",)])
async def test_a_request_that_the_daemon_rejects_ends_the_wait(
    cli: Cli, store: Store, tmp_path: Path, more: tuple[str, ...]
) -> None:
    process = await cli.start("submit", file_of(runs.waiting(), tmp_path), "--json", *more)
    await reject(store, await taken_entry(store), "waits", "unknown_secret: $.worker.secrets[0]: X is not there")
    done = await ended(process)
    assert done.status == 1
    assert (done.json["accepted"], done.json["reason"]) == (False, "unknown_secret")
    assert "X is not there" in done.err


async def test_the_rejection_of_another_entry_does_not_end_the_wait(cli: Cli, store: Store, tmp_path: Path) -> None:
    process = await cli.start("submit", file_of(runs.waiting(), tmp_path))
    entry_id = await taken_entry(store)
    other = await store.submit("{}")
    await reject(store, other, "waits", "bad_json: $: other")
    await runs.waiting().put(store, entry_id)
    assert (await ended(process)).status == 0


@pytest.mark.parametrize(("story", "status"), [(runs.succeeded(), 0), (runs.failed(), 1)])
async def test_waiting_ends_with_the_run(cli: Cli, store: Store, tmp_path: Path, story: Story, status: int) -> None:
    process = await cli.start("submit", file_of(story, tmp_path), "--wait")
    await story.put(store, await taken_entry(store))
    done = await ended(process)
    assert done.status == status
    answer = '{"loss":0.25,"steps":400}\n' if status == 0 else "failed: job_failed: Traceback"
    assert done.out.startswith(answer)
    told = [line.split()[2] for line in done.err.splitlines() if line.startswith("2026-")]
    assert told[:4] == ["accepted", "launching", "booting", "training"]


async def test_the_answer_of_a_wait_is_the_terminal_event(cli: Cli, store: Store, tmp_path: Path) -> None:
    story = runs.succeeded()
    await story.put(store)
    done = cli("submit", file_of(story, tmp_path), "--wait", "--json")
    assert done.status == 0
    assert done.json == story.events[-1]


async def test_a_wait_that_is_over_leaves_the_run(cli: Cli, store: Store, tmp_path: Path) -> None:
    story = runs.training()
    await story.put(store)
    done = cli("submit", file_of(story, tmp_path), "--wait", "--timeout", "1")
    assert done.status == 124
    assert "Stop it with: flashd cancel trains" in done.err
    assert await store.events_range(stream="control") == ()


async def test_an_interrupted_wait_detaches(cli: Cli, store: Store, tmp_path: Path) -> None:
    story = runs.training()
    await story.put(store)
    process = await cli.start("submit", file_of(story, tmp_path), "--wait")
    while "training" not in await first_line(process.stderr):
        pass
    process.send_signal(signal.SIGINT)
    done = await ended(process)
    assert done.status == 130
    assert "detached" in done.err and "flashd cancel trains" in done.err and "Traceback" not in done.err
    assert await store.events_range(stream="control") == ()


async def test_a_duplicate_says_so_and_pushes_nothing(cli: Cli, store: Store, tmp_path: Path) -> None:
    story = runs.training()
    await story.put(store)
    done = cli("submit", file_of(story, tmp_path), "--json")
    assert done.status == 0
    assert (done.json["duplicate"], done.json["state"], done.json["entry_id"]) == (True, "training", None)
    assert "was submitted before" in done.err
    assert await store.queue_length() == 0


async def test_another_content_under_a_known_id_is_a_conflict(cli: Cli, store: Store) -> None:
    await runs.training().put(store)
    done = cli("submit", "-", "--json", stdin=runs.request_json("trains", seed=7))
    assert done.status == 1
    assert (done.json["accepted"], done.json["reason"]) == (False, "conflict")
    assert await store.queue_length() == 0


def test_every_fault_is_told_and_nothing_pushed(cli: Cli, redis_url: str) -> None:
    request = json.dumps({"run_id": "a b", "gpu": {"class": "L4O"}, "hub": {"repo": "x"}, "sead": 1})
    done = cli("submit", "-", "--json", stdin=request)
    assert done.status == 1
    reasons = [line.split(":")[0] for line in done.json["detail"]]
    assert reasons == ["unknown_field", "bad_value", "bad_run_id", "unknown_gpu"]
    assert done.json["reason"] == reasons[0]
    assert cli("status", "--json").json["queue"] == 0


def test_without_a_daemon_it_stays_queued(cli: Cli) -> None:
    done = cli("submit", "-", "--json", stdin=runs.request_json("r1"))
    assert done.status == 0
    assert (done.json["accepted"], done.json["run_id"]) == (None, "r1")
    assert "it is taken when flashd runs" in done.err
    assert cli("status", "--json").json["queue"] == 1


async def test_events_are_an_array(cli: Cli, store: Store) -> None:
    first, second = runs.waiting(), runs.training()
    await first.put(store)
    await second.put(store)
    assert cli("events", "--json").json == first.events + second.events
    assert cli("events", "--json", "--run", "waits").json == first.events
    assert cli("events", "--json", "--count", "1").json == second.events[-1:]
    lines = cli("events", "--run", "waits").out.splitlines()
    assert lines[1] == "2026-11-30T00:53:25Z  waits  waiting  no_capacity"


async def test_followed_events_are_json_lines(cli: Cli, store: Store) -> None:
    first, second = runs.waiting(), runs.waiting("later")
    await first.put(store)
    process = await cli.start("events", "--follow", "--json")
    told = [json.loads(await first_line(process.stdout)) for _ in first.events]
    await second.put(store)
    told += [json.loads(await first_line(process.stdout)) for _ in second.events]
    assert told == first.events + second.events
    process.send_signal(signal.SIGINT)
    assert (await ended(process)).status == 130


async def test_a_reader_that_goes_away_ends_following_quietly(cli: Cli, store: Store) -> None:
    await runs.waiting().put(store)
    process = await cli.start("events", "--follow")
    await first_line(process.stdout)
    assert process.stdout is not None
    process.stdout._transport.close()  # type: ignore[attr-defined]
    for number in range(3):
        await runs.waiting(f"later-{number}").put(store)
        await anyio.sleep(0.1)
    with anyio.fail_after(TIMEOUT_S):
        assert await process.wait() == 0
