"""From the request stream to a durable run: accept, duplicates, conflicts, rejection, cancel, and the group."""

from __future__ import annotations

import asyncio

import pytest

from flashd.adapters.store import Store
from flashd.adapters.store_types import RUN_FIELDS, AcceptWord, CancelWord, Entry, RejectWord, Source
from flashd.errors import StoreError, StoreUnavailableError
from tests.store.conftest import Backend
from tests.store.makers import T0, a_rejection, a_step, accepted, an_accept, event, lead


async def read_one(store: Store, source: Source = Source.REQUESTS) -> Entry:
    entries = await store.read_new(10, 0, (source,))
    assert len(entries) == 1, entries
    return entries[0]


@pytest.fixture
async def leader(store: Store) -> Store:
    await lead(store)
    await store.ensure_groups()
    return store


async def test_what_was_queued_before_the_first_start_is_read(store: Store) -> None:
    entry_id = await store.submit('{"run_id":"r1"}')
    await store.ensure_groups()
    await store.ensure_groups()
    assert await read_one(store) == Entry(Source.REQUESTS, entry_id, b'{"run_id":"r1"}', 1)


async def test_accepting_makes_the_run_durable_and_removes_the_entry(leader: Store, backend: Backend) -> None:
    entry_id = await leader.submit("{}")
    await read_one(leader)
    answer = await accepted(leader, entry_id=entry_id)
    assert answer.word is AcceptWord.ACCEPTED and not answer.cancelled
    assert await leader.queue_length() == 0
    assert await backend.text("XPENDING", backend.key("requests"), "flashd") in (
        [0, None, None, []],
        [0, None, None, None],
        {"pending": 0, "min": None, "max": None, "consumers": []},
    )
    run = await leader.load("r1")
    assert run is not None
    assert (run.version, run.core, run.request) == (1, '{"step":"accepted"}', "{}")
    assert set(RUN_FIELDS) <= set(run.fields)
    assert run.fields["released"] == "0" and run.fields["machine"] == "" and run.fields["sequence"] == "1"
    assert run.fields["last_event_id"] == answer.last_event_id
    assert await leader.active() == await leader.runs() == ("r1",)
    assert await leader.run_for_hash(["hash-r1", "none"]) == {"hash-r1": "r1"}


async def test_the_accepted_event_has_one_id_in_both_streams(leader: Store) -> None:
    answer = await accepted(leader)
    everywhere = await leader.events_range()
    own = await leader.events_range(run_id="r1")
    assert everywhere == own
    assert [entry.entry_id for entry in own] == [answer.last_event_id]
    assert list(own[0].fields) == ["event", "id", "type", "run_id", "sequence", "state"]


async def test_the_same_request_again_is_acked_counted_and_hinted(leader: Store, backend: Backend) -> None:
    first = await accepted(leader)
    hints = backend.raw.pubsub()
    await hints.subscribe(backend.key("notify:r1"))
    entry_id = await leader.submit("{}")
    await read_one(leader)
    answer = await accepted(leader, entry_id=entry_id)
    assert answer.word is AcceptWord.DUPLICATE and answer.last_event_id == first.last_event_id
    assert await leader.queue_length() == 0
    assert await leader.counters() == {"duplicates": 1}
    assert len(await leader.events_range()) == 1
    seen = [await hints.get_message(timeout=1) for _ in range(2)]
    assert [message["data"] for message in seen if message][1:] == [first.last_event_id.encode()]
    await hints.aclose()  # type: ignore[no-untyped-call]


async def test_other_content_under_the_same_id_is_a_conflict_and_writes_nothing(leader: Store) -> None:
    await accepted(leader)
    entry_id = await leader.submit("{}")
    assert (await accepted(leader, entry_id=entry_id, sha="other")).word is AcceptWord.CONFLICT
    assert await leader.queue_length() == 1
    assert await leader.reject(a_rejection(entry_id)) is RejectWord.REJECTED
    assert await leader.queue_length() == 0
    run = await leader.load("r1")
    assert run is not None and run.version == 1


async def test_a_name_hash_of_another_run_is_refused(leader: Store) -> None:
    await accepted(leader)
    answer = await accepted(leader, "r2", hash10="hash-r1")
    assert (answer.word, answer.other_run_id) == (AcceptWord.HASH_TAKEN, "r1")
    assert await leader.load("r2") is None


async def test_an_accepted_event_that_does_not_begin_the_sequence_is_a_fault(leader: Store) -> None:
    with pytest.raises(StoreError, match="sequence 1"):
        await leader.accept(an_accept(event=event("r1", 2, "queued", "accepted")))
    assert await leader.load("r1") is None


async def test_a_rejected_request_leaves_its_entry_and_its_event(leader: Store) -> None:
    entry_id = await leader.submit("nonsense")
    await read_one(leader)
    assert await leader.reject(a_rejection(entry_id)) is RejectWord.REJECTED
    (entry,) = await leader.rejected()
    assert entry.fields == {
        "entry_id": entry_id,
        "run_id": "r1",
        "reason": "conflict",
        "detail": "conflict: $: other content",
        "request": '{"run_id":"r1"}',
        "time": "1764543210.123456",
    }
    (said,) = await leader.events_range()
    assert list(said.fields) == ["event", "id", "type"]
    assert await leader.counters() == {"rejected": 1}


async def test_a_malformed_command_is_rejected_without_an_event(leader: Store) -> None:
    entry_id = await leader.send("nonsense")
    assert (await read_one(leader, Source.CONTROL)).payload == b"nonsense"
    assert await leader.reject(a_rejection(entry_id, source=Source.CONTROL)) is RejectWord.REJECTED
    assert await leader.events_range() == ()
    assert await leader.queue_length(Source.CONTROL) == 0


async def test_an_entry_that_is_gone_is_not_rejected(leader: Store) -> None:
    assert await leader.reject(a_rejection("1-1")) is RejectWord.GONE
    assert await leader.rejected() == ()


async def test_a_cancel_flags_the_run_once(leader: Store) -> None:
    await accepted(leader)
    entry_id = await leader.send("{}")
    assert await leader.cancel(entry_id, "r1", "ann", "mistake", T0) is CancelWord.FLAGGED
    assert await leader.cancel("1-2", "r1", "bob", "too", T0 + 9) is CancelWord.ALREADY
    run = await leader.load("r1")
    assert run is not None and run.fields["cancel_requested_at"]
    assert run.fields["cancel_requested_at"] == "1764543210.123456"
    assert (run.fields["cancel_by"], run.fields["cancel_reason"]) == ("ann", "mistake")
    assert await leader.queue_length(Source.CONTROL) == 0


async def test_a_cancel_that_comes_first_is_remembered_for_a_day_and_attached(leader: Store, backend: Backend) -> None:
    entry_id = await leader.send("{}")
    assert await leader.cancel(entry_id, "r1", "ann", "mistake", T0) is CancelWord.REMEMBERED
    assert 86_000 < await backend.raw.ttl(backend.key("cancel:r1")) <= 86_400
    assert (await accepted(leader)).cancelled
    run = await leader.load("r1")
    assert run is not None and run.fields["cancel_by"] == "ann"
    assert not await backend.raw.exists(backend.key("cancel:r1"))


async def test_a_cancel_of_an_ended_run_is_too_late(leader: Store) -> None:
    await accepted(leader)
    await leader.finish(a_step("cancelled", 1, 2), (), T0)
    assert await leader.cancel("1-1", "r1", "ann", "", T0) is CancelWord.ENDED


async def test_an_entry_without_our_field_is_read_as_such(leader: Store, backend: Backend) -> None:
    await backend.raw.xadd(backend.key("requests"), {"job": "x"})
    assert (await read_one(leader)).payload is None


async def test_bytes_that_are_no_text_reach_the_parser_unchanged(leader: Store, backend: Backend) -> None:
    await backend.raw.xadd(backend.key("requests"), {"request": b"\xff\x00{"})
    assert (await read_one(leader)).payload == b"\xff\x00{"


async def test_one_read_serves_both_streams(leader: Store) -> None:
    await leader.submit("a")
    await leader.send("b")
    entries = await leader.read_new(10, 50)
    assert {(entry.source, entry.payload) for entry in entries} == {(Source.REQUESTS, b"a"), (Source.CONTROL, b"b")}


async def test_a_wait_that_runs_out_reads_nothing(leader: Store) -> None:
    assert await leader.read_new(10, 20) == ()


async def test_a_waiting_read_wakes_up(leader: Store, backend: Backend) -> None:
    waiting = asyncio.create_task(leader.read_new(10, 5000))
    await asyncio.sleep(0.05)
    await backend.store("producer").submit("late")
    async with asyncio.timeout(2):
        assert [entry.payload for entry in await waiting] == [b"late"]


async def test_entries_of_a_dead_reader_are_claimed_with_their_delivery_count(leader: Store, backend: Backend) -> None:
    entry_id = await leader.submit("{}")
    await read_one(leader)
    second = backend.store("p2")
    assert await second.claim_stale(Source.REQUESTS, 60_000) == ()
    assert await second.claim_stale(Source.REQUESTS, 0) == (Entry(Source.REQUESTS, entry_id, b"{}", 2),)


async def test_an_excused_delivery_does_not_count(leader: Store) -> None:
    await leader.submit("{}")
    entry = await read_one(leader)
    await leader.excuse(entry)
    (again,) = await leader.claim_stale(Source.REQUESTS, 0)
    assert again.deliveries == 1


async def test_claiming_pages_on_and_reaches_later_entries(leader: Store) -> None:
    for n in range(5):
        await leader.submit(str(n))
    await leader.read_new(10, 0)
    pages = [await leader.claim_stale(Source.REQUESTS, 0, count=2) for _ in range(3)]
    assert [entry.payload for page in pages for entry in page] == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_lost_group_is_made_again_from_the_start(leader: Store, backend: Backend) -> None:
    await backend.raw.delete(backend.key("requests"))
    await leader.submit("{}")
    with pytest.raises(StoreUnavailableError, match="NOGROUP"):
        await leader.read_new(10, 0)
    assert [entry.payload for entry in await leader.read_new(10, 0)] == [b"{}"]


async def test_a_trimmed_pending_entry_is_not_claimed_and_not_fatal(leader: Store, backend: Backend) -> None:
    await leader.submit("{}")
    await read_one(leader)
    await backend.raw.xtrim(backend.key("requests"), maxlen=0, approximate=False)
    assert await leader.claim_stale(Source.REQUESTS, 0) == ()


async def test_the_queue_s_length_and_age_can_be_read(leader: Store) -> None:
    assert (await leader.queue_length(), await leader.oldest_request_at()) == (0, None)
    entry_id = await leader.submit("{}")
    assert await leader.oldest_request_at() == int(entry_id.split("-")[0]) / 1000
    assert await leader.queue_length() == 1


async def test_a_lone_surrogate_does_not_stop_a_write(leader: Store) -> None:
    await accepted(leader, fields={"state": "queued", "detail": "bad \ud800 text"})
    run = await leader.load("r1")
    assert run is not None and run.fields["detail"] == "bad \\ud800 text"
