"""A bad day of Redis: lost replies, a full memory, forgotten scripts, wrong passwords, a restart, other servers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from fakeredis import TcpFakeServer
from redis.asyncio import Redis

from flashd.adapters.store import Store, connect
from flashd.adapters.store_link import settle
from flashd.adapters.store_scripts import ALLOW_OOM, script
from flashd.adapters.store_types import AcceptWord, CancelWord, GoneWord, Notes, StoredRun, Write, Written
from flashd.core.ledger import Gone, RowState
from flashd.errors import FencedError, StaleError, StoreAuthError, StoreError, StoreFullError, StoreUnavailableError
from tests.redis_server import RedisServer
from tests.store.conftest import Backend, proxied
from tests.store.makers import T0, a_rejection, a_row, a_step, accepted, an_accept, launched, lead, live, op

NewRedis = Callable[..., RedisServer]


def chance() -> random.Random:
    return random.Random(1)


@pytest.fixture
async def leader(real: Backend) -> Store:
    store = real.store("p1")
    await lead(store)
    return store


async def test_a_write_whose_reply_is_lost_is_not_known_and_settles_to_one_write(leader: Store, real: Backend) -> None:
    assert real.proxy is not None
    real.proxy.doubling = False
    await accepted(leader)
    step = a_step("queued", 1, 2, name="waiting")
    real.proxy.lose_replies = 1
    with pytest.raises(StoreUnavailableError):
        await leader.transition(step)
    real.proxy.lose_replies = 2
    written = await settle(lambda: leader.transition(step), chance())
    entries = await leader.events_range()
    assert [entry.fields["sequence"] for entry in entries] == ["1", "2"]
    assert (written.version, written.last_event_id) == (2, entries[-1].entry_id)


async def test_every_script_survives_three_lost_replies(leader: Store, real: Backend) -> None:
    """The whole life of a run in which no reply of a write ever arrives at the first three tries."""
    proxy = real.proxy
    assert proxy is not None
    row = a_row()

    async def stubborn(call: Callable[[], Awaitable[object]]) -> object:
        proxy.lose_replies = 3
        return await settle(call, chance())

    await leader.ensure_groups()
    entry_id = await leader.submit("{}")
    request = an_accept(entry_id=entry_id)
    steps = [a_step("launching", 1, 2), a_step("booting", 2, 3), a_step("backoff", 3, 4)]
    end, over = a_step("failed", 4, 5), a_step("failed", 5, 6, name="released")
    await stubborn(lambda: leader.accept(request))
    await stubborn(lambda: leader.intent(steps[0], row, 10, 100.0))
    await stubborn(lambda: leader.confirm(steps[1], live(row)))
    await stubborn(lambda: leader.cancel("1-1", "r1", "ann", "", T0))
    await stubborn(lambda: leader.requeue(steps[2], (row.name,), T0 + 9))
    await stubborn(lambda: leader.finish(end, (row.name,), T0 + 9))
    assert await stubborn(lambda: leader.machine_gone(Gone(row.name, "77", T0, T0), "r1")) is GoneWord.GONE
    assert isinstance(await stubborn(lambda: leader.released(over, (row.name,), T0, 60.0, 90.0)), Written)
    entries = await leader.events_range(run_id="r1")
    assert [entry.fields["sequence"] for entry in entries] == ["1", "2", "3", "4", "5", "6"]
    assert await leader.ledger() == {}
    assert (await leader.totals()).machines == 0
    assert await leader.counters() == {}


async def test_every_script_there_is_has_been_sent_twice(leader: Store, real: Backend) -> None:
    """A new script must join this walk; the fixture compares the two answers of each."""
    row = a_row()
    entry_id = await leader.submit("nonsense")
    await leader.reject(a_rejection(entry_id))
    await accepted(leader)
    await leader.intent(a_step("launching", 1, 2), row, 10, 100.0)
    await leader.confirm(a_step("booting", 2, 3), live(row))
    await leader.cancel("1-1", "r1", "ann", "", T0)
    await leader.transition(a_step("setup", 3, 4))
    await leader.finish(a_step("cancelled", 4, 5), (row.name,), T0)
    await leader.mark(RowState.DELETING, replace(live(row).deleting(T0), until=T0 + 9))
    await leader.machine_gone(Gone(row.name, "77", T0, T0), "r1")
    await leader.released(a_step("cancelled", 5, 6, name="released"), (row.name,), T0, 60.0, 90.0)
    await leader.note(Notes.PLACES, {"a": "1"})
    await real.raw.hset(real.key("totals"), "count", "5")
    found = await leader.repair(["r1"], op())
    assert [one.what for one in found] == ["totals set to 0 machines, 0 micro-dollars an hour"]
    await leader.forget(T0)
    await leader.resign()
    assert real.proxy is not None
    directory = resources.files("flashd.adapters") / "scripts"
    names = {Path(file.name).stem for file in directory.iterdir() if file.name.endswith(".lua")} - {"_lib"}
    assert {name for name in names if script(name, True).sha1 not in real.proxy.doubled} == set()


async def test_of_many_steps_on_one_version_exactly_one_is_written(leader: Store) -> None:
    await accepted(leader)
    steps = [leader.transition(a_step("queued", 1, 2, name="waiting")) for _ in range(20)]
    answers = await asyncio.gather(*steps, return_exceptions=True)
    assert sum(isinstance(answer, Written) for answer in answers) == 1
    assert sum(isinstance(answer, StaleError) for answer in answers) == 19
    assert len(await leader.events_range()) == 2


async def test_two_leaders_racing_for_one_run_leave_one_story(leader: Store, real: Backend) -> None:
    """The old leader writes on while the new one takes over: whatever won, no gap and no step twice."""
    assert real.proxy is not None
    real.proxy.doubling = (
        False  # a takeover between a step and its repeat is answered `fenced`, although it was written
    )
    await accepted(leader)
    successor = real.store("p2")

    async def write_on() -> int:
        for version in range(1, 200):
            try:
                await leader.transition(a_step("queued", version, version + 1, name="waiting"))
            except FencedError:
                return version
        raise AssertionError("the old leader was never fenced")

    async def take_over() -> int:
        await asyncio.sleep(0.01)
        await lead(successor, "p2", own=True)
        run = await successor.load("r1")
        assert run is not None
        await successor.transition(a_step("backoff", run.version, run.version + 1))
        return run.version

    fenced_at, taken_at = await asyncio.gather(write_on(), take_over())
    assert fenced_at == taken_at
    entries = await successor.events_range(run_id="r1")
    assert [entry.fields["sequence"] for entry in entries] == [str(n + 1) for n in range(taken_at + 1)]
    assert [entry.fields["state"] for entry in entries][-1] == "backoff"


async def test_settle_hands_on_what_redis_answered(leader: Store, real: Backend) -> None:
    await accepted(leader)
    await lead(real.store("p2"), "p2", own=True)
    with pytest.raises(FencedError):
        await settle(lambda: leader.transition(a_step("queued", 1, 2)), chance())


async def test_forgotten_scripts_are_loaded_again(leader: Store, real: Backend) -> None:
    await accepted(leader)
    await real.raw.script_flush()
    assert (await leader.transition(a_step("queued", 1, 2, name="waiting"))).version == 2
    await real.raw.script_flush()
    assert await leader.repair(["r1"], op()) == ()


async def test_a_full_redis_refuses_new_work_but_lets_runs_end(new_redis: NewRedis) -> None:
    async with proxied(new_redis()) as backend:
        store = backend.store("p1")
        await lead(store)
        row, late = a_row(), a_row("flash-t-r2-def-a0", run_id="r2")
        await launched(store, row)
        await accepted(store, "r2")
        await store.intent(a_step("launching", 1, 2, run_id="r2"), late, 10, 100.0)
        await backend.raw.config_set("maxmemory", "1")

        before = await backend.text("XLEN", backend.key("events"))
        for refused in (
            store.accept(an_accept("r3")),
            store.intent(a_step("launching", 3, 4), a_row("x"), 10, 100.0),
            store.transition(a_step("setup", 3, 4)),
        ):
            with pytest.raises(StoreFullError):
                await refused
        assert await backend.text("XLEN", backend.key("events")) == before
        assert await store.load("r3") is None

        await lead(store)
        assert await store.cancel("1-1", "r1", "ann", "", T0) is CancelWord.FLAGGED
        assert isinstance(await store.confirm(a_step("booting", 2, 3, run_id="r2"), live(late, "78")), Written)
        await store.finish(a_step("cancelled", 3, 4), (row.name,), T0)
        assert (await store.mark(RowState.LIVE, live(late, "78").deleting(T0))).done
        assert await store.machine_gone(Gone(row.name, "77", T0, T0), "r1") is GoneWord.GONE
        step = a_step("cancelled", 4, 5, name="released")
        assert isinstance(await store.released(step, (row.name,), T0, 60.0, 90.0), Written)


async def test_a_server_that_is_gone_is_unavailable_and_back_again_by_itself(new_redis: NewRedis) -> None:
    server = new_redis()
    async with proxied(server) as backend:
        store = backend.store("p1")
        await lead(store)
        await accepted(store)
        server.kill()
        with pytest.raises(StoreUnavailableError):
            await store.load("r1")
        with pytest.raises(StoreUnavailableError):
            await store.transition(a_step("queued", 1, 2))
        server.start()
        written = await settle(lambda: store.transition(a_step("queued", 1, 2, name="waiting")), chance())
        assert written.version == 2
        assert await store.active() == ("r1",)


async def test_a_wrong_password_is_told_apart_from_an_outage(new_redis: NewRedis) -> None:
    server = new_redis()
    async with proxied(server) as backend:
        await backend.raw.config_set("requirepass", "right")
        with pytest.raises(StoreAuthError):
            await backend.store("p1").load("r1")
        wrong = connect(f"{server.url}&password=wrong", "t", "p2")
        with pytest.raises(StoreAuthError):
            await wrong.load("r1")
        await wrong.link.close()


async def test_missing_rights_are_told_apart_too(real: Backend, redis_server: RedisServer) -> None:
    await real.text("ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@read", "+@connection")
    store = connect(f"{redis_server.url}&username=reader&password=pw", "t", "p2")
    assert await store.load("r1") is None
    with pytest.raises(StoreAuthError):
        await store.submit("{}")
    await store.link.close()
    await real.text("ACL", "DELUSER", "reader")


async def test_a_read_only_replica_is_an_outage(new_redis: NewRedis) -> None:
    async with proxied(new_redis()) as backend:
        await backend.text("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreUnavailableError):
            await backend.store("p1").submit("{}")


async def test_a_key_of_another_type_is_a_fault_that_names_itself(leader: Store, real: Backend) -> None:
    await real.raw.set(real.key("run:r1"), "x")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await leader.accept(an_accept())


async def test_cancelled_calls_do_not_mix_up_later_replies(leader: Store) -> None:
    for n in range(20):
        await accepted(leader, f"r{n}")

    async def load(n: int) -> StoredRun | None:
        return await leader.load(f"r{n}")

    for _ in range(5):
        tasks = [asyncio.create_task(load(n)) for n in range(20)]
        await asyncio.sleep(0.002)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for n, result in enumerate(results):
            if isinstance(result, StoredRun):
                assert result.run_id == f"r{n}" and result.fields["request_sha256"] == f"sha-r{n}"


async def test_more_callers_than_connections_wait_their_turn(leader: Store) -> None:
    answers = await asyncio.gather(*(accepted(leader, f"r{n}") for n in range(100)))
    assert {answer.word for answer in answers} == {AcceptWord.ACCEPTED}


async def test_the_start_up_check_sees_what_matters(leader: Store) -> None:
    info = await leader.info()
    assert info.version is not None and info.version >= (7, 0)
    assert (info.aof, info.appendfsync, info.maxmemory_policy, info.role) == (True, "always", "noeviction", "master")
    assert info.replid is not None and len(info.replid) == 40
    assert (info.last_generated_id, info.first_entry_id, info.runs_empty) == (None, None, True)
    answer = await accepted(leader)
    info = await leader.info()
    assert (info.last_generated_id, info.first_entry_id) == (answer.last_event_id, answer.last_event_id)
    assert not info.runs_empty
    assert await leader.has_event(answer.last_event_id)
    assert not await leader.has_event("1-1")


async def test_an_embedded_server_without_info_is_no_error(fake: Backend) -> None:
    info = await fake.store("p1").info()
    assert (info.version, info.aof, info.replid, info.runs_empty) == (None, None, None, True)


@pytest.fixture
def fake_server_url() -> Iterator[str]:
    server = TcpFakeServer(("127.0.0.1", 0), server_type="redis")
    import threading

    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()


async def test_a_run_s_whole_life_on_fakeredis_behind_tcp(fake_server_url: str) -> None:
    store = connect(fake_server_url, "t", "p1")
    await lead(store)
    await store.ensure_groups()
    await store.submit("{}")
    (entry,) = await store.read_new(10, 100)
    row = a_row()
    await accepted(store, entry_id=entry.entry_id)
    await store.intent(a_step("launching", 1, 2), row, 10, 100.0)
    await store.confirm(a_step("booting", 2, 3), live(row))
    await store.finish(a_step("succeeded", 3, 4), (row.name,), T0)
    await store.machine_gone(Gone(row.name, "77", T0, T0), "r1")
    step = a_step("succeeded", 4, 5, name="released")
    assert isinstance(await store.released(step, (row.name,), T0, 60.0, 90.0), Written)
    assert [entry.fields["sequence"] for entry in await store.events_range()] == ["1", "2", "3", "4", "5"]
    await store.link.close()


async def test_following_events_wakes_up_on_a_write(leader: Store) -> None:
    answer = await accepted(leader)
    waiting = asyncio.create_task(leader.events_after(answer.last_event_id, run_id="r1", block_ms=5000))
    await asyncio.sleep(0.05)
    await leader.transition(a_step("queued", 1, 2, name="waiting"))
    async with asyncio.timeout(2):
        assert [entry.fields["sequence"] for entry in await waiting] == ["2"]
    assert await leader.events_after("0", run_id="r1") == await leader.events_range(run_id="r1")


async def test_a_state_of_a_hundred_kilobytes_is_kept_to_the_byte(leader: Store) -> None:
    await accepted(leader)
    core = '{"text":"' + "\\u00e4ö\\n\\u0000" * 20_000 + '"}'
    await leader.transition(replace(a_step("queued", 1, 2, name="waiting"), core=core))
    run = await leader.load("r1")
    assert run is not None and run.core == core


async def test_the_events_stream_deleted_from_outside_does_not_stop_a_run(leader: Store, real: Backend) -> None:
    await accepted(leader)
    await real.raw.delete(real.key("events"))
    await real.raw.xadd(real.key("events:r1"), {"from": "the future"}, id="9999999999999-0")
    assert (await leader.transition(a_step("queued", 1, 2, name="waiting"))).version == 2
    assert [entry.fields.get("sequence") for entry in await leader.events_range(run_id="r1")] == ["1", None, "2"]


def test_scripts_that_must_work_in_a_full_redis_say_so_and_the_others_refuse_at_the_door() -> None:
    for name in ALLOW_OOM:
        assert script(name, True).body.startswith("#!lua flags=allow-oom\n"), name
    for name in ("accept", "intent", "transition", "reject"):
        assert script(name, True).body.startswith("#!lua\n"), name
        assert not script(name, False).body.startswith("#!"), name


async def test_clients_use_no_retries_of_their_own(leader: Store) -> None:
    for client in (leader.link.commands, leader.link.blocking):
        assert isinstance(client, Redis)
        assert client.connection_pool.connection_kwargs["retry"].get_retries() == 0


async def test_an_empty_write_of_fields_is_allowed(leader: Store) -> None:
    await accepted(leader)
    assert (await leader.transition(Write("r1", 1, op(), '{"only":"core"}'))).version == 2
