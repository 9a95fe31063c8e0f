"""What, why, whose fault, what next: word for word, in 80 columns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import web

from flashd.adapters.store import Store
from flashd.cli.run_text import run_text
from tests.cli import runs
from tests.cli.conftest import Cli
from tests.cli.runs import T0, Story

NOW = T0 + 1210
WAITING = """\
waits: queued, no_capacity
  why       no stock in 2 places
            hyperstack NORWAY-1 L40: no_stock: the provider shows no stock
            hyperstack CANADA-1 L40: no_stock: the provider shows no stock
  fault     infrastructure
  next      flashd looks again by itself; more classes, regions or dollars help
            (at 2026-11-30T00:54:20Z)
  age       accepted 20 m ago; 0 of 3 attempts used
  cost      $0.0000 so far
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:25Z  waiting  no_capacity"""
TRAINING = """\
trains: training
  age       accepted 20 m ago; 1 of 3 attempts used
  machine   flash-t-trains-w4mhpshyjc-a0
            hyperstack NORWAY-1 L40, id 4711 at $1.00/h
  stage     train, step 350, heard of 40 s ago
  cost      $0.3333 so far
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:30Z  launching  hyperstack NORWAY-1 L40 flash-t-trains-w4mhp…
  2026-11-30T00:53:40Z  booting  flash-t-trains-w4mhpshyjc-a0
  2026-11-30T01:13:00Z  training  step 350"""
RETRYING = """\
retries: backoff, job_preempted
  why       the provider shows the machine as ERROR
  fault     infrastructure
  next      another machine, by itself (at 2026-11-30T01:13:50Z)
  age       accepted 20 m ago; 1 of 3 attempts used
  cost      $0.3333 so far
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:30Z  launching  hyperstack NORWAY-1 L40 flash-t-retries-uhmv…
  2026-11-30T00:53:40Z  booting  flash-t-retries-uhmvfwnem7-a0
  2026-11-30T01:13:00Z  training  step 350
  2026-11-30T01:13:20Z  attempt_failed  job_preempted the provider shows the ma…"""
FAILED = """\
fails: failed, job_failed
  why       Traceback (most recent call last):
              File "train.py", line 3, in <module>
            KeyError: 'learning_rate'
  fault     user
  next      mend the job, submit it under a new id; the box's error file and
            console are on the Hub
  age       accepted 20 m ago, ended after 20 m; 1 of 3 attempts used
  cost      $0.3333 so far
  machines  being deleted
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:30Z  launching  hyperstack NORWAY-1 L40 flash-t-fails-j76222…
  2026-11-30T00:53:40Z  booting  flash-t-fails-j76222ualt-a0
  2026-11-30T01:13:00Z  training  step 350
  2026-11-30T01:13:20Z  failed  job_failed Traceback (most recent call last): F…"""
CANCELLED = """\
stops: cancelled
  why       too slow
  age       accepted 20 m ago, ended after 20 m; 1 of 3 attempts used
  cost      $0.3333 so far
  machines  being deleted
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:30Z  launching  hyperstack NORWAY-1 L40 flash-t-stops-qckv24…
  2026-11-30T00:53:40Z  booting  flash-t-stops-qckv243kns-a0
  2026-11-30T01:13:00Z  training  step 350
  2026-11-30T01:13:20Z  cancelled  too slow $0.3333"""
SUCCEEDED = """\
succeeds: succeeded
  age       accepted 20 m ago, ended after 20 m; 1 of 3 attempts used
  result    {"loss":0.25,"steps":400}
  artifacts team/runs sft/succeeds/seed0
            at commit 0123456789abcdef0123456789abcdef01234567
  cost      $0.3667 so far
  machines  being deleted
events
  2026-11-30T00:53:20Z  accepted
  2026-11-30T00:53:30Z  launching  hyperstack NORWAY-1 L40 flash-t-succeeds-tlc…
  2026-11-30T00:53:40Z  booting  flash-t-succeeds-tlczeniwit-a0
  2026-11-30T01:13:00Z  training  step 350
  2026-11-30T01:13:20Z  succeeded  $0.3667"""


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (runs.waiting, WAITING),
        (runs.training, TRAINING),
        (runs.retrying, RETRYING),
        (runs.failed, FAILED),
        (runs.cancelled, CANCELLED),
        (runs.succeeded, SUCCEEDED),
    ],
)
def test_one_run_for_people(make: Callable[[], Story], expected: str) -> None:
    story = make()
    assert run_text(story.run_id, story.fields, story.events, NOW) == expected
    assert max(map(len, expected.splitlines())) <= 80


def test_a_long_traceback_shows_its_end() -> None:
    story = runs.failed()
    fields = story.fields | {"detail": "\n".join(f"line {number}" for number in range(40))}
    text = run_text(story.run_id, fields, story.events, NOW)
    assert "line 39" in text and "line 27" not in text


async def test_the_list_shows_live_runs_first_each_with_its_reason(cli: Cli, store: Store) -> None:
    for story in (runs.waiting(), runs.failed(), runs.training(), runs.retrying()):
        await story.put(store)
    done = cli("status")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "3 runs live, queue 0, 0 machines, $0.00/h"
    assert lines[1].split() == ["RUN", "STATE", "AGE", "TRY", "WHERE", "STEP", "COST"]
    assert [line.split()[0] for line in lines[2:] if not line.startswith(" ")] == [
        "waits",
        "trains",
        "retries",
        "fails",
    ]
    assert "  no_capacity: no stock in 2 places" in lines
    assert "  job_failed: KeyError: 'learning_rate'" in lines
    assert max(map(len, lines)) <= 80


async def test_a_run_id_without_room_has_a_line_of_its_own(cli: Cli, store: Store) -> None:
    run_id = "x" * 100
    await runs.waiting(run_id).put(store)
    await runs.training().put(store)
    lines = cli("status").out.splitlines()
    assert run_id in lines
    assert max(len(line) for line in lines if line != run_id) <= 80


async def test_the_list_as_json_has_types(cli: Cli, store: Store) -> None:
    await runs.training().put(store)
    shown = cli("status", "--json").json
    (run,) = shown["runs"]
    assert (shown["live"], shown["queue"], shown["alarms"]) == (1, 0, [])
    assert (run["run_id"], run["state"], run["attempt"], run["step"]) == ("trains", "training", 0, 350)
    assert (run["released"], run["finished_at"], run["accepted_at"]) == (False, None, "2026-11-30T00:53:20Z")
    assert "request" not in run


async def test_one_run_as_json_has_request_and_events(cli: Cli, store: Store) -> None:
    await runs.succeeded().put(store)
    run = cli("status", "succeeds", "--json").json
    assert run["request"]["run_id"] == "succeeds"
    assert run["metrics"] == {"loss": 0.25, "steps": 400}
    assert [event["sequence"] for event in run["events"]] == [1, 2, 3, 4, 5]


async def test_more_than_fifty_runs_are_said_to_be_more(cli: Cli, store: Store) -> None:
    for number in range(53):
        await runs.waiting(f"r{number}").put(store)
    assert cli("status").out.splitlines()[-1] == "... 3 more: flashd status --all"
    assert len(cli("status", "--all", "--json").json["runs"]) == 53


async def test_what_others_wrote_into_a_hash_stops_nothing(cli: Cli, store: Store) -> None:
    await runs.training().put(store)
    key = store.link.keys.name("run", "trains")
    await store.link.command("HSET", key, "accepted_at", "soon", "cost_usd", "nan", "step", "\x1b[31m", "request", "{")
    await store.link.command("XADD", store.link.keys.name("log", "trains"), "*", "event", "nonsense")
    for words in (("status",), ("status", "trains"), ("status", "--json"), ("status", "trains", "--json")):
        done = cli(*words)
        assert done.status == 0, done.err
        assert "\x1b" not in done.out and "Traceback" not in done.err


async def test_the_daemons_alarms_stand_on_top(cli: Cli, redis_url: str) -> None:
    async def statusz(_request: web.Request) -> web.Response:
        alarm = {"alarm": "safe_mode", "detail": "Redis has lost events"}
        return web.json_response({"namespace": "t", "status": "0 runs", "alarms": [alarm]})

    app = web.Application()
    app.add_routes([web.get("/statusz", statusz)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listen = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        done = await cli.beside("status", env={"FLASHD_HTTP__LISTEN": listen})
        as_json = await cli.beside("status", "--json", env={"FLASHD_HTTP__LISTEN": listen})
        other = await cli.beside("status", env={"FLASHD_HTTP__LISTEN": listen, "FLASHD_NAMESPACE": "other"})
    finally:
        await runner.cleanup()
    assert done.out.splitlines()[0] == "ALARM safe_mode: Redis has lost events"
    assert as_json.json["alarms"] == [{"alarm": "safe_mode", "detail": "Redis has lost events"}]
    assert "ALARM" not in other.out  # another fleet's daemon has that port


def test_without_a_daemon_nothing_is_said_of_alarms(cli: Cli) -> None:
    done = cli("status", env={"FLASHD_HTTP__LISTEN": "127.0.0.1:1"})
    assert (done.status, done.out, done.err) == (0, "0 runs live, queue 0, 0 machines, $0.00/h\n", "")
