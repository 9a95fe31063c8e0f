"""The ledger: intent, confirm, limits, proof of absence, and who may change a row."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from flashd.adapters.store import Store
from flashd.adapters.store_types import (
    ConfirmRefused,
    ConfirmWhy,
    GoneWord,
    IntentRefused,
    IntentWhy,
    Marked,
    Notes,
    RowFate,
    Totals,
    Written,
)
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.errors import FencedError, StaleError, StoreError
from tests.store.conftest import Backend
from tests.store.makers import T0, a_row, a_step, accepted, launched, lead, live, op

ROW = a_row()


@pytest.fixture
async def leader(store: Store) -> Store:
    await lead(store)
    return store


async def intended(leader: Store, row: LedgerRow = ROW, *, run_id: str = "r1") -> Written | IntentRefused:
    await accepted(leader, run_id)
    return await leader.intent(a_step("launching", 1, 2, run_id=run_id), row, 10, 100.0)


async def test_an_intent_reserves_the_name_and_counts(leader: Store) -> None:
    assert await intended(leader) == Written(2, (await leader.events_range())[-1].entry_id, {ROW.name: ROW})
    assert await leader.ledger() == {ROW.name: ROW}
    assert await leader.row(ROW.name) == ROW
    assert await leader.totals() == Totals(1, 1.35)


async def test_confirm_makes_the_row_live(leader: Store) -> None:
    await launched(leader, ROW)
    assert await leader.ledger() == {ROW.name: live(ROW)}
    assert (await leader.fields("r1"))["state"] == "booting"


@pytest.mark.parametrize(
    ("machines", "usd", "why"),
    [(1, 100.0, IntentWhy.MAX_MACHINES), (10, 2.69, IntentWhy.MAX_USD_PER_HOUR)],
)
async def test_the_limits_hold_over_all_runs(leader: Store, machines: int, usd: float, why: IntentWhy) -> None:
    await intended(leader)
    await accepted(leader, "r2")
    second = a_row("flash-t-r2-def-a0", run_id="r2")
    step = a_step("launching", 1, 2, run_id="r2")
    assert await leader.intent(step, second, machines, usd) == IntentRefused(why)
    assert await leader.ledger() == {ROW.name: ROW}
    assert isinstance(await leader.intent(step, second, 2, 2.70), Written)


async def test_many_intents_at_once_never_pass_the_limit(leader: Store) -> None:
    for n in range(20):
        await accepted(leader, f"r{n}")
    answers = await asyncio.gather(
        *(
            leader.intent(
                a_step("launching", 1, 2, run_id=f"r{n}"), a_row(f"m{n}", run_id=f"r{n}"), max_machines=7,
                max_usd_per_hour=100.0,
            )
            for n in range(20)
        )
    )  # fmt: skip
    assert sum(isinstance(answer, Written) for answer in answers) == 7
    assert await leader.totals() == Totals(7, 9.45)


async def test_the_next_place_replaces_the_refused_name_in_one_step(leader: Store) -> None:
    await intended(leader)
    second = a_row("flash-t-r1-abc-a1", attempt=1)
    step = a_step("launching", 2, 3, rows={ROW.name: None})
    answer = await leader.intent(step, second, 1, 1.35)
    assert isinstance(answer, Written) and answer.rows == {ROW.name: None, second.name: second}
    assert await leader.ledger() == {second.name: second}
    assert await leader.totals() == Totals(1, 1.35)


async def test_a_run_with_a_cancel_gets_no_machine(leader: Store) -> None:
    await accepted(leader)
    await leader.cancel("1-1", "r1", "ann", "", T0)
    answer = await leader.intent(a_step("launching", 1, 2), ROW, 10, 100.0)
    assert answer == IntentRefused(IntentWhy.CANCELLED)
    assert await leader.ledger() == {}


async def test_a_name_is_never_used_twice(leader: Store) -> None:
    await intended(leader)
    step = a_step("launching", 2, 3)
    assert await leader.intent(step, ROW, 10, 100.0) == IntentRefused(IntentWhy.NAME_USED)
    await leader.machine_gone(Gone(ROW.name, None, T0, T0), "r1")
    assert await leader.intent(step, ROW, 10, 100.0) == IntentRefused(IntentWhy.NAME_USED)


async def test_a_late_confirm_of_a_run_that_ended_hands_the_machine_to_the_releaser(leader: Store) -> None:
    await intended(leader)
    await leader.finish(a_step("cancelled", 2, 3), (ROW.name,), T0)
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.ENDED, RowFate.DELETING)
    row = (await leader.ledger())[ROW.name]
    assert (row.state, row.machine_id, row.deleting_at) == (RowState.DELETING, "77", T0 + 5)


async def test_a_late_confirm_of_a_run_that_moved_on_does_the_same(leader: Store) -> None:
    await intended(leader)
    await leader.transition(a_step("backoff", 2, 3))
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.STALE, RowFate.DELETING)


async def test_confirm_under_a_name_given_up_says_so(leader: Store) -> None:
    await intended(leader)
    await leader.mark(RowState.REQUESTED, replace(ROW, state=RowState.ABANDONED))
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.MOVED, RowFate.ABANDONED)
    await leader.machine_gone(Gone(ROW.name, None, T0, T0), "r1")
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.MOVED, RowFate.GONE)


async def test_a_fenced_confirm_writes_nothing_and_tells_the_row_s_state(leader: Store, backend: Backend) -> None:
    await intended(leader)
    await lead(backend.store("p2"), "p2", own=True)
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.FENCED, RowFate.REQUESTED)
    assert await leader.ledger() == {ROW.name: ROW}


async def test_a_process_that_gave_its_token_up_may_still_ask_by_confirm(leader: Store) -> None:
    await intended(leader)
    await leader.resign()
    answer = await leader.confirm(a_step("booting", 2, 3), live(ROW))
    assert answer == ConfirmRefused(ConfirmWhy.FENCED, RowFate.REQUESTED)


async def test_confirm_needs_a_machine_id(leader: Store) -> None:
    with pytest.raises(ValueError, match="machine id"):
        await leader.confirm(a_step("booting", 2, 3), ROW)


async def test_requeue_sends_the_live_machine_away_in_the_same_step(leader: Store) -> None:
    await launched(leader, ROW)
    written = await leader.requeue(a_step("backoff", 3, 4, name="attempt_failed"), (ROW.name,), T0 + 60)
    assert written.rows == {ROW.name: live(ROW).deleting(T0 + 60)}
    assert (await leader.fields("r1"))["state"] == "backoff"
    assert await leader.totals() == Totals(1, 1.35)


async def test_a_stale_requeue_leaves_the_machine(leader: Store) -> None:
    await launched(leader, ROW)
    with pytest.raises(StaleError):
        await leader.requeue(a_step("backoff", 2, 4), (ROW.name,), T0 + 60)
    assert await leader.ledger() == {ROW.name: live(ROW)}


async def test_proof_of_absence_removes_the_row_and_is_kept(leader: Store) -> None:
    await launched(leader, ROW)
    proof = Gone(ROW.name, "77", T0, T0 + 100)
    assert await leader.machine_gone(proof, "r1") is GoneWord.GONE
    assert await leader.ledger() == {}
    assert await leader.gone("r1") == {ROW.name: proof}
    assert await leader.totals() == Totals(0, 0.0)


async def test_proof_about_another_machine_removes_nothing(leader: Store) -> None:
    await launched(leader, ROW)
    assert await leader.machine_gone(Gone(ROW.name, "78", T0, T0), "r1") is GoneWord.OTHER_ID
    assert await leader.machine_gone(Gone(ROW.name, None, T0, T0), "r1") is GoneWord.OTHER_ID
    assert await leader.ledger() == {ROW.name: live(ROW)}
    assert await leader.gone("r1") == {}


async def test_proof_without_a_row_is_told(leader: Store) -> None:
    assert await leader.machine_gone(Gone(ROW.name, "77", T0, T0), "r1") is GoneWord.ABSENT


async def test_proof_that_comes_after_released_expires_with_the_rest(leader: Store, backend: Backend) -> None:
    await intended(leader)
    await leader.mark(RowState.REQUESTED, replace(ROW, state=RowState.ABANDONED))
    await leader.finish(a_step("failed", 2, 3), (), T0)
    await leader.released(a_step("failed", 3, 4, name="released"), (ROW.name,), T0, 604_800.0, 7_776_000.0)
    assert await leader.machine_gone(Gone(ROW.name, None, T0, T0), "r1") is GoneWord.GONE
    assert await backend.raw.ttl(backend.key("gone:r1")) > 0


async def test_a_row_changes_only_from_the_expected_state(leader: Store) -> None:
    await intended(leader)
    given_up = replace(ROW, state=RowState.ABANDONED)
    assert await leader.mark(RowState.LIVE, given_up) == Marked(False, ROW)
    assert await leader.mark(RowState.REQUESTED, given_up) == Marked(True, given_up)
    assert await leader.totals() == Totals(0, 0.0)
    leaving = given_up.deleting(T0 + 9, "91")
    assert await leader.mark(RowState.ABANDONED, leaving) == Marked(True, leaving)
    assert await leader.totals() == Totals(1, 1.35)
    assert await leader.mark(RowState.REQUESTED, a_row("nobody")) == Marked(False, None)


async def test_a_step_does_not_bring_back_a_row_that_is_gone(leader: Store) -> None:
    await intended(leader)
    await leader.machine_gone(Gone(ROW.name, None, T0, T0), "r1")
    written = await leader.transition(a_step("backoff", 2, 3, rows={ROW.name: replace(ROW, state=RowState.ABANDONED)}))
    assert written.rows == {}
    assert await leader.ledger() == {}


async def test_rows_set_and_released_in_one_step_are_refused(leader: Store) -> None:
    await launched(leader, ROW)
    with pytest.raises(ValueError, match="both"):
        await leader.requeue(a_step("backoff", 3, 4, rows={ROW.name: None}), (ROW.name,), T0)


async def test_a_damaged_row_is_named_and_stops_nothing_silently(leader: Store, backend: Backend) -> None:
    await launched(leader, ROW)
    await backend.raw.hset(backend.key("machines"), ROW.name, "{broken")
    with pytest.raises(StoreError, match=ROW.name):
        await leader.ledger()
    with pytest.raises(StoreError, match=ROW.name):
        await leader.requeue(a_step("backoff", 3, 4), (ROW.name,), T0)
    with pytest.raises(StoreError, match=ROW.name):
        await leader.machine_gone(Gone(ROW.name, "77", T0, T0), "r1")
    with pytest.raises(StoreError, match=ROW.name):
        await leader.mark(RowState.LIVE, ROW)
    run = await leader.load("r1")
    assert run is not None and run.version == 3


async def test_every_leader_s_write_is_fenced(leader: Store, backend: Backend) -> None:
    await launched(leader, ROW)
    await lead(backend.store("p2"), "p2", own=True)
    before = await backend.text("HGETALL", backend.key("run:r1"))
    for call in (
        leader.transition(a_step("setup", 3, 4)),
        leader.finish(a_step("failed", 3, 4), (), T0),
        leader.released(a_step("failed", 3, 4), (), T0, 1.0, 1.0),
        leader.intent(a_step("launching", 3, 4), a_row("x"), 10, 100.0),
        leader.machine_gone(Gone(ROW.name, "77", T0, T0), "r1"),
        leader.mark(RowState.LIVE, ROW),
        leader.note(Notes.PLACES, {"a": "1"}),
        leader.repair(["r1"], op()),
        leader.forget(T0),
        leader.cancel("1-1", "r1", "ann", "", T0),
        accepted(leader, "r2"),
    ):
        with pytest.raises(FencedError):
            await call
    assert await backend.text("HGETALL", backend.key("run:r1")) == before
    assert await leader.ledger() == {ROW.name: live(ROW)}


async def test_notes_are_kept_and_removed(leader: Store) -> None:
    await leader.note(Notes.BLIND, {"hub:o/r": '{"since":1}', "hyperstack": "{}"})
    await leader.note(Notes.BLIND, {"hyperstack": None})
    assert await leader.notes(Notes.BLIND) == {"hub:o/r": '{"since":1}'}
    assert await leader.notes(Notes.PLACES) == {}


async def test_times_keep_every_digit_through_a_release(leader: Store) -> None:
    row = a_row(requested_at=1764543210.1234567, posted_at=0.1 + 0.2)
    await launched(leader, row)
    await leader.requeue(a_step("backoff", 3, 4), (row.name,), 1764543999.7654321)
    found = (await leader.ledger())[row.name]
    assert (found.requested_at, found.posted_at, found.deleting_at) == (
        1764543210.1234567,
        0.1 + 0.2,
        1764543999.7654321,
    )


async def test_repair_makes_indexes_and_totals_true_again(leader: Store, backend: Backend) -> None:
    await launched(leader, ROW)
    await accepted(leader, "r2")
    await leader.finish(a_step("failed", 1, 2, run_id="r2"), (), T0)
    await backend.raw.delete(backend.key("active"), backend.key("unreleased"), backend.key("totals"))
    await backend.raw.zadd(backend.key("active"), {"ghost": 1, "r2": 2})
    found = await leader.repair(await leader.unsettled(), op())
    assert [(one.subject, one.what) for one in found] == [
        ("ghost", "taken out of active"),
        ("r1", "put back into active"),
        ("r2", "taken out of active"),
        ("r2", "put back into unreleased"),
        ("machines", "totals set to 1 machines, 1350000 micro-dollars an hour"),
    ]
    assert await leader.repair(await leader.unsettled(), op()) == ()
    assert (await leader.active(), await leader.unreleased()) == (("r1",), ("r2",))


async def test_repair_names_a_run_whose_private_state_is_lost(leader: Store, backend: Backend) -> None:
    await accepted(leader)
    await backend.raw.delete(backend.key("core:r1"))
    (found,) = await leader.repair(["r1"], op())
    assert (found.subject, found.what) == ("r1", "its private state is lost; it cannot go on")


async def test_an_operation_id_of_another_run_does_not_replay(leader: Store) -> None:
    await accepted(leader, "r1")
    await accepted(leader, "r2")
    same = op()
    await leader.transition(a_step("queued", 1, 2, name="waiting", op_id=same))
    written = await leader.transition(a_step("queued", 1, 2, run_id="r2", name="waiting", op_id=same))
    assert written.version == 2
    assert len(await leader.events_range(run_id="r2")) == 2
