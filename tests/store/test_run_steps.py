"""A run's steps: versions, sequences, one end, and what is left after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.adapters.store import Store
from flashd.adapters.store_types import AcceptWord, CancelWord, EventOut, StillHeld, Write, Written
from flashd.core.ledger import Gone, RowState
from flashd.errors import StaleError, StoreError
from tests.store.conftest import Backend
from tests.store.makers import T0, a_row, a_step, accepted, event, launched, lead, live, op

WEEK_S, QUARTER_S = 7 * 86_400.0, 90 * 86_400.0


@pytest.fixture
async def leader(store: Store) -> Store:
    await lead(store)
    return store


async def test_a_step_changes_state_version_and_both_streams_together(leader: Store) -> None:
    await accepted(leader)
    written = await leader.transition(a_step("queued", 1, 2, name="waiting", reason="no_capacity"))
    run = await leader.load("r1")
    assert run is not None
    assert written == Written(2, run.fields["last_event_id"], {})
    assert (run.version, run.core, run.fields["reason"], run.fields["sequence"]) == (2, '{"at":1}', "no_capacity", "2")
    assert [entry.fields["sequence"] for entry in await leader.events_range(run_id="r1")] == ["1", "2"]
    assert await leader.events_range(run_id="r1") == await leader.events_range()


async def test_subscribers_get_the_newest_id_as_a_hint(leader: Store, backend: Backend) -> None:
    await accepted(leader)
    hints = backend.raw.pubsub()
    await hints.subscribe(backend.key("notify"), backend.key("notify:r1"))
    written = await leader.transition(a_step("queued", 1, 2, name="waiting"))
    seen = [await hints.get_message(timeout=1) for _ in range(4)]
    said = {message["channel"].decode(): message["data"].decode() for message in seen[2:] if message}
    assert said == dict.fromkeys([backend.key("notify"), backend.key("notify:r1")], written.last_event_id)
    await hints.aclose()  # type: ignore[no-untyped-call]


async def test_a_step_without_an_event_changes_fields_only(leader: Store) -> None:
    first = await accepted(leader)
    written = await leader.transition(Write("r1", 1, op(), "{}", {"step": "7", "heartbeat_at": "1.5"}))
    assert written.last_event_id == first.last_event_id
    assert len(await leader.events_range()) == 1


async def test_progress_goes_to_its_own_stream_without_a_sequence(leader: Store) -> None:
    await accepted(leader)
    said = EventOut("{}", {"id": "r1.p1", "type": "dev.flashd.run.progress.v1", "run_id": "r1", "state": "queued"})
    await leader.transition(Write("r1", 1, op(), "{}", {"step": "7"}, progress=(said,)))
    (entry,) = await leader.events_range(stream="progress")
    assert entry.fields == {"event": "{}", **said.flat}
    assert len(await leader.events_range()) == 1


async def test_the_same_operation_again_answers_the_same_and_writes_nothing(leader: Store) -> None:
    await accepted(leader)
    step = a_step("queued", 1, 2, name="waiting")
    assert await leader.transition(step) == await leader.transition(step)
    assert len(await leader.events_range()) == 2


async def test_a_step_on_an_old_version_is_stale(leader: Store) -> None:
    await accepted(leader)
    await leader.transition(a_step("queued", 1, 2, name="waiting"))
    with pytest.raises(StaleError, match="stale 2"):
        await leader.transition(a_step("backoff", 1, 2))
    assert len(await leader.events_range()) == 2


async def test_a_step_of_an_unknown_run_is_stale(leader: Store) -> None:
    with pytest.raises(StaleError, match="missing"):
        await leader.transition(a_step("queued", 1, 2))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(a_step("queued", 1, 3), id="gap"),
        pytest.param(a_step("queued", 1, 1), id="repeat"),
        pytest.param(replace(a_step("queued", 1, 2), fields={"state": "setup", "sequence": "2"}), id="hash_and_event"),
        pytest.param(replace(a_step("queued", 1, 2), fields={"state": "queued", "sequence": "3"}), id="hash_sequence"),
        pytest.param(replace(a_step("queued", 1, 2), fields={"state": "queued"}), id="hash_without_sequence"),
        pytest.param(Write("r1", 1, "o", "{}", {"state": "setup"}), id="state_without_event"),
        pytest.param(a_step("failed", 1, 2), id="end_without_finish"),
    ],
)
async def test_state_and_events_that_disagree_are_never_written(leader: Store, step: Write) -> None:
    await accepted(leader)
    with pytest.raises(StoreError, match="the step itself is wrong"):
        await leader.transition(step)
    run = await leader.load("r1")
    assert run is not None and run.version == 1 and run.fields["state"] == "queued"
    assert len(await leader.events_range()) == 1


async def test_two_events_in_one_step_are_contiguous(leader: Store) -> None:
    await accepted(leader)
    step = Write(
        "r1", 1, op(), "{}", {"state": "training", "sequence": "3"},
        (event("r1", 2, "setup"), event("r1", 3, "training")),
    )  # fmt: skip
    written = await leader.transition(step)
    entries = await leader.events_range(run_id="r1")
    assert [entry.fields["sequence"] for entry in entries] == ["1", "2", "3"]
    assert written.last_event_id == entries[-1].entry_id


async def test_a_run_ends_once_and_its_live_machines_go_to_deleting(leader: Store) -> None:
    row = a_row()
    await launched(leader, row)
    written = await leader.finish(a_step("succeeded", 3, 4, finished_at="9"), (row.name, "never-made"), T0 + 60)
    expected = live(row).deleting(T0 + 60)
    assert written.rows == {row.name: expected}
    assert await leader.ledger() == {row.name: expected}
    assert (await leader.active(), await leader.unreleased()) == ((), ("r1",))
    with pytest.raises(StaleError, match="ended"):
        await leader.finish(a_step("failed", 4, 5), (), T0)
    with pytest.raises(StaleError, match="ended"):
        await leader.transition(a_step("queued", 4, 5))
    assert [entry.fields["state"] for entry in await leader.events_range()][-1] == "succeeded"


async def test_finish_leaves_a_requested_row_to_the_releaser(leader: Store) -> None:
    await accepted(leader)
    row = a_row()
    await leader.intent(a_step("launching", 1, 2), row, 10, 100.0)
    await leader.finish(a_step("cancelled", 2, 3), (row.name,), T0)
    assert await leader.ledger() == {row.name: row}


async def test_finish_needs_a_terminal_state(leader: Store) -> None:
    await accepted(leader)
    with pytest.raises(StoreError, match="finish needs"):
        await leader.finish(a_step("queued", 1, 2), (), T0)


async def test_released_waits_for_every_machine_but_not_for_an_abandoned_name(leader: Store) -> None:
    row, given_up = a_row(), a_row("flash-t-r1-abc-a1", attempt=1)
    await launched(leader, row)
    await leader.intent(a_step("launching", 3, 4), given_up, 10, 100.0)
    await leader.mark(RowState.REQUESTED, replace(given_up, state=RowState.ABANDONED))
    await leader.finish(a_step("failed", 4, 5), (row.name,), T0)
    step = a_step("failed", 5, 6, name="released", cost_usd="0.1")
    names = (row.name, given_up.name)
    assert await leader.released(step, names, T0, WEEK_S, QUARTER_S) == StillHeld((row.name,))
    await leader.machine_gone(Gone(row.name, "77", T0, T0 + 100), "r1")
    assert isinstance(await leader.released(step, names, T0, WEEK_S, QUARTER_S), Written)
    with pytest.raises(StaleError, match="ended"):
        await leader.released(a_step("failed", 6, 7, name="released"), names, T0, WEEK_S, QUARTER_S)
    assert [entry.fields["type"] for entry in await leader.events_range(run_id="r1")][-2:] == [
        "dev.flashd.run.failed.v1",
        "dev.flashd.run.released.v1",
    ]


async def released_run(leader: Store) -> Written:
    await accepted(leader)
    await leader.finish(a_step("succeeded", 1, 2), (), T0)
    answer = await leader.released(a_step("succeeded", 2, 3, name="released"), (), T0, WEEK_S, QUARTER_S)
    assert isinstance(answer, Written)
    return answer


async def test_a_released_run_s_keys_expire_and_its_index_entries_stay(leader: Store, backend: Backend) -> None:
    await released_run(leader)
    for key in ("run:r1", "events:r1", "core:r1"):
        assert WEEK_S - 60 < await backend.raw.ttl(backend.key(key)) <= WEEK_S, key
    assert QUARTER_S - 60 < await backend.raw.ttl(backend.key("tomb:r1")) <= QUARTER_S
    assert (await leader.active(), await leader.unreleased(), await leader.runs()) == ((), (), ("r1",))
    assert (await leader.fields("r1"))["released"] == "1"


async def test_released_before_the_end_is_a_fault(leader: Store) -> None:
    await accepted(leader)
    with pytest.raises(StoreError, match="has not ended"):
        await leader.released(a_step("queued", 1, 2, name="released"), (), T0, WEEK_S, QUARTER_S)


async def test_the_tombstone_answers_for_an_expired_run(leader: Store, backend: Backend) -> None:
    written = await released_run(leader)
    await backend.raw.delete(*(backend.key(key) for key in ("run:r1", "events:r1", "core:r1")))
    again = await accepted(leader)
    assert (again.word, again.last_event_id) == (AcceptWord.DUPLICATE, written.last_event_id)
    assert (await accepted(leader, sha="other")).word is AcceptWord.CONFLICT
    assert await leader.cancel("1-1", "r1", "ann", "", T0) is CancelWord.ENDED
    assert await leader.load("r1") is None


async def test_a_forgotten_run_s_name_is_free_again(leader: Store, backend: Backend) -> None:
    await released_run(leader)
    await leader.forget(T0 + QUARTER_S - 10)
    assert await leader.runs() == ("r1",)
    await leader.forget(T0 + QUARTER_S + 10)
    assert await leader.runs() == ()
    assert await leader.run_for_hash(["hash-r1"]) == {}
    await backend.raw.delete(backend.key("tomb:r1"), backend.key("run:r1"), backend.key("core:r1"))
    assert (await accepted(leader)).word is AcceptWord.ACCEPTED


async def test_a_run_id_used_again_inherits_neither_expiry_nor_history(leader: Store, backend: Backend) -> None:
    await released_run(leader)
    await backend.raw.delete(backend.key("run:r1"), backend.key("tomb:r1"))
    assert (await accepted(leader)).word is AcceptWord.ACCEPTED
    for key in ("run:r1", "events:r1", "core:r1"):
        assert await backend.raw.ttl(backend.key(key)) == -1, key
    assert len(await leader.events_range(run_id="r1")) == 1
    await leader.forget(T0 + QUARTER_S + 10)
    assert await leader.runs() == ("r1",)
    assert await leader.run_for_hash(["hash-r1"]) == {"hash-r1": "r1"}


async def test_many_runs_load_in_one_go_and_unknown_ones_are_left_out(leader: Store) -> None:
    for n in range(5):
        await accepted(leader, f"r{n}")
    assert sorted(await leader.load_many([f"r{n}" for n in range(7)])) == ["r0", "r1", "r2", "r3", "r4"]


async def test_a_run_whose_private_state_is_lost_is_named(leader: Store, backend: Backend) -> None:
    await accepted(leader)
    await backend.raw.delete(backend.key("core:r1"))
    with pytest.raises(StoreError, match="run r1"):
        await leader.load("r1")
