"""The state directory: one process at a time, one id for ever, and a Redis that has forgotten is noticed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from fakeredis import FakeServer

from flashd.core.names import machine_name
from flashd.daemon.memory import ACCEPT_FILE, MEMORY_FILE, Memory, StateDirectory
from flashd.errors import StateDirectoryError, UnavailableError
from tests.daemon.bench import NS, Bench, with_bench

MACHINE = machine_name(NS, "r1", 0)
HOLD = """
import sys
from pathlib import Path
from flashd.daemon.memory import StateDirectory
with StateDirectory(Path(sys.argv[1])) as state:
    print(state.holder, flush=True)
    sys.stdin.read()
"""


def events_key() -> str:
    return f"flashd:{{{NS}}}:events"


async def wiped(bench: Bench) -> None:
    """Redis as after a loss of all its data, with the leader's lease taken again."""
    await bench.store.link.command("FLUSHALL")
    await bench.lead()


async def restarted(path: Path, bench: Bench) -> str | None:
    with StateDirectory(path) as state:
        return await state.check(bench.desk)


def in_directory(tmp_path: Path, scenario: Callable[[Bench, StateDirectory], Awaitable[None]]) -> None:
    async def entered(bench: Bench) -> None:
        with StateDirectory(tmp_path) as state:
            await scenario(bench, state)

    with_bench(entered)


# The directory itself


def test_a_directory_keeps_its_holder_id_and_two_have_different_ones(tmp_path: Path) -> None:
    with StateDirectory(tmp_path / "a") as state:
        first = state.holder
    with StateDirectory(tmp_path / "a") as state, StateDirectory(tmp_path / "b") as other:
        assert state.holder == first
        assert len(first) == 32
        assert other.holder != first


def test_a_second_process_is_told_who_is_to_blame_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "state"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        with pytest.raises(StateDirectoryError, match="in use by another flashd"), StateDirectory(path):
            pass
        child.kill()
        child.wait()
        with StateDirectory(path) as state:
            assert state.holder == holder
    finally:
        child.kill()
        child.communicate()


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirectoryError, match="file cannot be used"), StateDirectory(tmp_path / "file"):
        pass


@pytest.mark.parametrize("text", ["{", "[1]", '{"ledger_size": "3"}', '{"accepted": 1}', "\udcff"])
def test_a_damaged_memory_is_an_error_and_never_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / MEMORY_FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(StateDirectoryError, match=r"memory\.json cannot be read"), StateDirectory(tmp_path):
        pass
    with pytest.raises(StateDirectoryError, match=r"memory\.json"), StateDirectory(tmp_path):
        pass  # and the failed start has given its lock back


def test_what_is_remembered_survives_in_a_private_file(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.live("r1")
        await state.remember(bench.desk)
        raw = json.loads((tmp_path / MEMORY_FILE).read_text())
        info = await bench.store.info()
        assert raw["last_event_id"] == info.last_generated_id
        assert raw["ledger_size"] == 1
        assert (tmp_path / MEMORY_FILE).stat().st_mode & 0o777 == 0o600
        assert {entry.name for entry in os.scandir(tmp_path)} == {"lock", "holder", MEMORY_FILE}

    in_directory(tmp_path, scenario)


def test_a_standby_remembers_nothing(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.live("r1")
        bench.store.link.token = None
        await state.remember(bench.desk)
        assert state.memory == Memory()

    in_directory(tmp_path, scenario)


# A Redis that has forgotten


def test_a_fresh_start_and_an_ordinary_restart_are_no_reason_for_suspicion(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        assert await state.check(bench.desk) is None
        await bench.live("r1")
        await state.remember(bench.desk)
        assert await state.check(bench.desk) is None
        await bench.accepted("r2")
        assert await state.check(bench.desk) is None
        assert bench.cloud.count("list") == 1, "only the empty books of the first start made us ask"

    in_directory(tmp_path, scenario)


def test_an_emptied_redis_is_noticed_by_the_last_event(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.accepted("r1")
        await state.remember(bench.desk)
        await wiped(bench)
        reason = await state.check(bench.desk)
        assert reason is not None
        assert "no event at all" in reason

    in_directory(tmp_path, scenario)


def test_a_redis_from_an_older_copy_is_noticed_over_restarts(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        with StateDirectory(tmp_path) as state:
            await bench.accepted("r1")
            await bench.accepted("r2")
            await state.remember(bench.desk)
            newest = state.memory.last_event_id
            await bench.store.link.command("DEL", events_key())
            await bench.store.link.command("XADD", events_key(), "1-1", "event", "{}")
            reason = await state.check(bench.desk)
            assert reason is not None
            assert newest in reason
        await bench.accepted("r3")  # events go on; the doubt stays
        assert await restarted(tmp_path, bench) == reason

    with_bench(scenario)


def test_other_events_in_the_place_of_the_remembered_one_are_noticed(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.accepted("r1")
        await state.remember(bench.desk)
        await bench.store.link.command("DEL", events_key())
        await bench.store.link.command("XADD", events_key(), "1-1", "event", "{}")
        await bench.accepted("r2")
        reason = await state.check(bench.desk)
        assert reason is not None
        assert "other events" in reason

    in_directory(tmp_path, scenario)


def test_events_that_were_trimmed_away_are_no_loss(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.accepted("r1")
        await state.remember(bench.desk)
        await bench.accepted("r2")
        await bench.store.link.command("XTRIM", events_key(), "MAXLEN", 1)
        assert not await bench.store.has_event(state.memory.last_event_id)
        assert await state.check(bench.desk) is None

    in_directory(tmp_path, scenario)


def test_machines_alive_without_any_run_are_noticed_even_with_a_new_directory(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        bench.cloud.put(MACHINE)
        reason = await state.check(bench.desk)
        assert reason is not None
        assert MACHINE in reason
        assert bench.cloud.count("get") == 1

    in_directory(tmp_path, scenario)


def test_an_empty_ledger_that_was_not_empty_beside_a_living_machine_is_noticed(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.live("r1")
        await state.remember(bench.desk)
        await bench.store.link.command("DEL", f"flashd:{{{NS}}}:machines")
        reason = await state.check(bench.desk)
        assert reason is not None
        assert "where it knew 1" in reason

    in_directory(tmp_path, scenario)


@pytest.mark.parametrize("name", ["flash-x", "flash-t-debug", machine_name("prod", "r1", 0)])
def test_other_peoples_machines_are_no_reason(tmp_path: Path, name: str) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        bench.cloud.put(name)
        assert await state.check(bench.desk) is None

    in_directory(tmp_path, scenario)


def test_a_machine_that_only_a_lagging_list_shows_is_no_reason(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        bench.cloud.put(MACHINE)
        bench.observe()
        await anyio.sleep(20)
        bench.cloud._machines.clear()
        assert bench.observer.snapshot is not None
        assert bench.observer.snapshot.by_id
        assert await state.check(bench.desk) is None

    in_directory(tmp_path, scenario)


def test_a_cloud_that_does_not_answer_proves_nothing_and_is_asked_again(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        bench.cloud.put(MACHINE)
        bench.cloud.errors["list"] = UnavailableError("down", 503)
        assert await state.check(bench.desk) is None
        bench.group.start_soon(state.serve, bench.desk)
        bench.observe()
        await anyio.sleep(60)
        assert bench.desk.safe_mode == ""
        bench.cloud.errors.clear()
        await anyio.sleep(60)
        assert MACHINE in bench.desk.safe_mode
        assert "safe_mode" in bench.desk.alarms.up

    in_directory(tmp_path, scenario)


def test_a_redis_lost_while_running_is_noticed_within_seconds_and_its_memory_is_kept(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        await bench.accepted("r1")
        await state.remember(bench.desk)
        known = state.memory.last_event_id
        bench.group.start_soon(state.serve, bench.desk)
        await anyio.sleep(60)
        assert bench.desk.safe_mode == ""
        await wiped(bench)
        await state.remember(bench.desk)
        assert state.memory.last_event_id == known
        await anyio.sleep(11)
        assert bench.desk.safe_mode

    in_directory(tmp_path, scenario)


# An operator accepts


def test_accepting_is_obeyed_within_ten_seconds_and_holds_over_restarts(tmp_path: Path) -> None:
    async def scenario(bench: Bench) -> None:
        with StateDirectory(tmp_path) as state:
            bench.cloud.put(MACHINE)
            bench.desk.safe_mode = await state.check(bench.desk) or ""
            bench.desk.alarms.set("safe_mode", bench.desk.safe_mode)
            async with anyio.create_task_group() as group:
                group.start_soon(state.serve, bench.desk)
                await anyio.sleep(600)
                assert bench.desk.safe_mode
                (tmp_path / ACCEPT_FILE).touch()
                await anyio.sleep(10)
                assert bench.desk.safe_mode == ""
                assert bench.desk.alarms.up == {}
                assert not (tmp_path / ACCEPT_FILE).exists()
                await anyio.sleep(600)
                assert bench.desk.safe_mode == "", "the machine still lives, and is known to"
                group.cancel_scope.cancel()
        assert await restarted(tmp_path, bench) is None

    with_bench(scenario)


def test_after_an_acceptance_the_next_loss_is_noticed_again(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        bench.cloud.put(MACHINE)
        await state.accept(bench.desk)
        await bench.accepted("r2")
        await state.remember(bench.desk)
        assert await state.check(bench.desk) is None
        await wiped(bench)
        assert await state.check(bench.desk) is not None

    in_directory(tmp_path, scenario)


def test_while_redis_does_not_answer_the_watch_goes_on(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        server = bench.store.link.commands.connection_pool.connection_kwargs["server"]
        assert isinstance(server, FakeServer)
        bench.desk.safe_mode = "doubt"
        bench.group.start_soon(state.serve, bench.desk)
        server.connected = False
        (tmp_path / ACCEPT_FILE).touch()
        await anyio.sleep(60)
        assert bench.desk.safe_mode == "doubt"
        server.connected = True
        await anyio.sleep(10)
        assert bench.desk.safe_mode == ""

    in_directory(tmp_path, scenario)


def test_the_last_machine_leaving_is_remembered_at_once(tmp_path: Path) -> None:
    async def scenario(bench: Bench, state: StateDirectory) -> None:
        known = await bench.live("r1")
        await state.remember(bench.desk)
        bench.group.start_soon(state.serve, bench.desk)
        name = known.run.attempt.name  # type: ignore[union-attr]
        await bench.store.link.command("DEL", f"flashd:{{{NS}}}:machines")
        bench.desk.ledger.apply({name: None})
        await anyio.sleep(3)
        assert state.memory.ledger_size == 0
        assert await state.check(bench.desk) is None

    in_directory(tmp_path, scenario)
