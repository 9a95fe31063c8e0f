"""machines, sweep --dry-run, submit --dry-run and doctor, against the simulated cloud and Hub."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator

import aiohttp
import anyio
import pytest

from flashd.adapters.store import Store
from flashd.core.names import machine_name
from flashd.daemon.memory import ACCEPT_FILE, MEMORY_FILE, StateDirectory
from flashd.sim.cloud import Cloud
from flashd.sim.cloud_http import serve_cloud
from flashd.sim.hub import SimHub, Token
from flashd.sim.hub_http import serve_hub
from tests.cli import runs
from tests.cli.conftest import NS, SECRETS, TIMEOUT_S, Cli
from tests.contract.sim_cloud_kit import KEY, PUBLIC_KEY, HandClock, World
from tests.store.makers import a_row, accepted, launched

HOUR_S = 3600.0


@pytest.fixture
async def world(cli: Cli) -> AsyncIterator[World]:
    """A cloud whose clock stands an hour ago: what is made in it is an hour old. The program is pointed at it."""
    clock = HandClock(time.time() - HOUR_S)
    cloud = Cloud(now=clock)
    account = cloud.add_account("main", KEY)
    keypair: dict[str, object] = {"name": "k", "environment_name": "default-NORWAY-1", "public_key": PUBLIC_KEY}
    cloud.accounts.import_keypair(account, keypair)
    async with await serve_cloud(cloud) as server, aiohttp.ClientSession() as session:
        cli.env = {**SECRETS, "FLASHD_PROVIDERS__HYPERSTACK__BASE_URL": server.base_url}
        yield World(cloud, server, clock, session)


async def made(world: World, name: str) -> str:
    """A machine of that name; its id."""
    answer = await world.create(name)
    assert answer.status == 200, answer.text
    (machine_id,) = [str(one.id) for one in world.cloud.machines.all.values() if one.name == name]
    return machine_id


async def test_machines_are_owned_orphan_unknown_and_foreign(cli: Cli, store: Store, world: World) -> None:
    owned = machine_name(NS, "r1", 0)
    await launched(store, a_row(owned, machine_id=None))
    machine_id = await made(world, owned)
    key = store.link.keys.name("machines")
    row = json.loads(str((await store.link.command("HGET", key, owned)).decode()))  # type: ignore[attr-defined]
    await store.link.command("HSET", key, owned, json.dumps(row | {"machine_id": machine_id}))
    orphan = machine_name(NS, "r1", 1)
    await store.link.command("HSET", store.link.keys.name("names"), orphan.split("-")[-2], "r1")
    for name in (orphan, "flash-t-who-knows", "someone-elses"):
        await made(world, name)

    done = await cli.beside("machines", "--json")
    assert done.status == 0, done.err
    whose = {one["name"]: one["ownership"] for one in done.json["machines"]}
    assert whose == {owned: "owned", orphan: "orphan", "flash-t-who-knows": "unknown"}
    assert all(abs(one["age_s"] - HOUR_S) < 60 for one in done.json["machines"])
    prices = {one["name"]: one["usd_per_hour"] for one in done.json["machines"]}
    assert prices[owned] == 1.35 and prices[orphan] == prices["flash-t-who-knows"] > 0
    assert done.json["usd_per_hour"] == pytest.approx(sum(prices.values()))

    text = (await cli.beside("machines")).out.splitlines()
    assert text[-1].startswith("3 machines: 1 owned, 1 orphan, 1 unknown; $")
    assert "  60 m  " in text[1] and max(map(len, text)) <= 80


async def test_a_booked_machine_that_is_not_listed_is_shown_and_paid_for(cli: Cli, store: Store, world: World) -> None:
    await launched(store, a_row(machine_name(NS, "r1", 0)))
    (one,) = (await cli.beside("machines", "--json")).json["machines"]
    assert (one["ownership"], one["listed"], one["ledger"], one["usd_per_hour"]) == ("owned", False, "live", 1.35)


async def test_sweep_shows_what_the_daemon_would_delete_and_deletes_nothing(
    cli: Cli, store: Store, world: World
) -> None:
    await accepted(store, "r1")
    orphan = machine_name(NS, "r1", 3)
    await store.link.command("HSET", store.link.keys.name("names"), orphan.split("-")[-2], "r1")
    for name in (orphan, "flash-t-who-knows", "someone-elses"):
        await made(world, name)
    done = await cli.beside("sweep", "--dry-run")
    assert done.status == 0, done.err
    assert [line.split("(")[0].split() for line in done.out.splitlines()] == [
        ["would", "delete", orphan],
        ["unknown,", "kept", "flash-t-who-knows"],
    ]
    as_json = (await cli.beside("sweep", "--dry-run", "--json")).json
    assert [one["name"] for one in as_json["deletes"]] == [orphan]
    none = (await cli.beside("sweep", "--dry-run", "--json", env={"FLASHD_SWEEP__MAX_DELETES": "0"})).json
    assert (none["deletes"], none["too_many"]) == ([], True)
    young = (await cli.beside("sweep", "--dry-run", env={"FLASHD_SWEEP__GRACE_S": "90000"})).out
    assert young.startswith(f"too young     {orphan}")
    assert len(world.cloud.living()) == 3


async def test_a_refused_key_is_77(cli: Cli, world: World) -> None:
    done = await cli.beside("machines", env={"FLASHD_PROVIDERS__HYPERSTACK__API_KEY": "another-key"})
    assert done.status == 77
    assert "credential" in done.err and "another-key" not in done.err


async def test_a_dry_run_shows_the_walk_and_writes_nothing(cli: Cli, store: Store, world: World, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "r.json"
    path.write_text(runs.request_json("r1", limits={"max_usd": 5, "max_attempts": 2}))
    done = await cli.beside("submit", str(path), "--dry-run", "--json")
    assert done.status == 0, done.err
    plan = done.json
    assert plan["places"] and all(one["gpu"] == "L40" for one in plan["places"])
    prices = [one["usd_per_hour"] for one in plan["places"]]
    assert prices == sorted(prices)
    assert plan["now"].startswith("launch at hyperstack")
    assert plan["worst_case_usd"] == 5
    text = (await cli.beside("submit", str(path), "--dry-run")).out.splitlines()
    assert text[0] == "r1: the request is right; nothing was written"
    assert max(map(len, text)) <= 80
    assert await store.queue_length() == 0
    assert world.cloud.machines.all == {}


async def test_the_doctor_finds_everything_well(cli: Cli, world: World) -> None:
    hub = SimHub()
    hub.add_token(SECRETS["FLASHD_HUB__TOKEN"], Token("team"))
    async with serve_hub(hub) as server:
        env = {"FLASHD_HUB__ENDPOINT": server.url}
        done = await cli.beside("doctor", "--json", env=env)
        refused = await cli.beside("doctor", env=env | {"FLASHD_HUB__TOKEN": "hf_AnotherTokenOfNobodyAtAll000001"})
    assert done.status == 0, done
    checks = {one["check"]: one["status"] for one in done.json["checks"]}
    assert checks.pop("state directory") == "WARN"  # no daemon has run here yet
    assert set(checks.values()) == {"OK"}
    assert set(checks) == {"redis", "redis durability", "redis memory", "clock", "hub", "hyperstack", "credentials"}
    assert refused.status == 77
    assert "FAIL  hub:" in refused.out


async def test_the_doctor_sees_safe_mode_and_careless_files(cli: Cli, world: World) -> None:
    token = cli.directory / "hf_token"
    token.write_text(SECRETS["FLASHD_HUB__TOKEN"])
    token.chmod(0o644)
    cli.state.mkdir()
    (cli.state / MEMORY_FILE).write_text(json.dumps({"safe_mode": "Redis has lost events"}))
    done = await cli.beside(
        "doctor", env={"FLASHD_HUB__TOKEN_FILE": str(token), "FLASHD_HUB__ENDPOINT": "http://127.0.0.1:1"}
    )
    assert done.status == 69  # the Hub; safe mode alone would be 1
    assert "FAIL  safe mode: nothing is launched or deleted: Redis has lost events" in done.out
    assert f"chmod 600 {token}" in done.out


def test_accepting_the_ledger_without_a_daemon_is_for_its_next_start(cli: Cli) -> None:
    cli.state.mkdir()
    done = cli("doctor", "--accept-ledger", "--json")
    assert (done.status, done.json["obeyed"]) == (0, False)
    assert (cli.state / ACCEPT_FILE).exists()


def test_accepting_the_ledger_where_there_is_no_state_directory_is_1(cli: Cli) -> None:
    done = cli("doctor", "--accept-ledger")
    assert done.status == 1
    assert "run this on the daemon's host" in done.err


async def test_accepting_the_ledger_is_seen_to_be_obeyed(cli: Cli) -> None:
    word = cli.state / ACCEPT_FILE
    with StateDirectory(cli.state):
        process = await cli.start("doctor", "--accept-ledger")
        with anyio.fail_after(TIMEOUT_S):
            while not word.exists():  # noqa: ASYNC110 - another process makes it
                await anyio.sleep(0.02)
        word.unlink()
        out, _ = await process.communicate()
    assert (process.returncode, out.decode().split(":")[0]) == (0, "accepted")


async def test_a_daemon_that_does_not_obey_is_75(cli: Cli) -> None:
    with StateDirectory(cli.state):
        done = await cli.beside("doctor", "--accept-ledger")
    assert done.status == 75
    assert (cli.state / ACCEPT_FILE).exists()  # it does as soon as Redis answers it
