"""Intake on a real Redis: everything that is queued is accepted or rejected once, whatever dies or fails meanwhile."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from structlog.testing import capture_logs

from flashd.adapters.clock import SystemClock
from flashd.adapters.store import Store, connect
from flashd.adapters.store_types import Led, Source, StreamEntry
from flashd.core.model import Run
from flashd.core.names import run_hash
from flashd.core.observations import CancelAsked
from flashd.daemon.desk import Desk
from flashd.daemon.intake import POISON_DELIVERIES, Intake
from flashd.daemon.records import decode_run
from flashd.errors import FencedError, StoreError
from flashd.wire.request_model import RunRequest
from tests.daemon.bench import NS, a_desk, request_text
from tests.fakes.memory_cloud import MemoryCloud
from tests.redis_server import RedisServer

OWNER = "0123456789abcdef"
TOKEN = "hf_" + "a" * 34


def key(short: str) -> str:
    return f"flashd:{{{NS}}}:{short}"


class Consumer:
    """A leader's intake on a store of its own."""

    def __init__(self, store: Store, desk: Desk) -> None:
        self.store = store
        self.desk = desk
        self.accepted: list[tuple[Run, RunRequest, int]] = []
        self.cancels: list[tuple[str, CancelAsked]] = []
        self.intake = Intake(
            desk,
            secret_names=lambda: frozenset({"WANDB_API_KEY"}),
            on_accepted=lambda run, request, version: self.accepted.append((run, request, version)),
            on_cancel=lambda run_id, asked: self.cancels.append((run_id, asked)),
        )

    @property
    def ids(self) -> list[str]:
        return [run.terms.run_id for run, _, _ in self.accepted]

    async def lead(self) -> None:
        assert isinstance(await self.store.lead("host", self.desk.owner, 600_000, may_take_own=True), Led)

    async def until(self, fact: Callable[[], bool], within_s: float = 10.0) -> None:
        with anyio.fail_after(within_s):
            while not fact():  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def settled(self, within_s: float = 10.0) -> None:
        """Until both streams are empty."""
        with anyio.fail_after(within_s):
            while await self.store.queue_length() + await self.store.queue_length(Source.CONTROL):  # noqa: ASYNC110
                await anyio.sleep(0.02)

    async def rejected(self) -> list[dict[str, str]]:
        return [dict(entry.fields) for entry in reversed(await self.store.rejected())]

    async def event_types(self) -> list[str]:
        return [entry.fields["type"].split(".")[-2] for entry in await self.store.events_range()]


@asynccontextmanager
async def a_consumer(url: str, owner: str = OWNER) -> AsyncIterator[Consumer]:
    clock = SystemClock()
    store = connect(url, NS, owner)
    desk = a_desk(store, MemoryCloud(clock), clock)
    desk.owner = owner
    try:
        yield Consumer(store, desk)
    finally:
        await store.link.close()


@asynccontextmanager
async def serving(url: str, owner: str = OWNER) -> AsyncIterator[Consumer]:
    """A consumer that leads and whose intake runs."""
    async with a_consumer(url, owner) as consumer:
        await consumer.lead()
        async with anyio.create_task_group() as group:
            group.start_soon(consumer.intake.serve)
            yield consumer
            group.cancel_scope.cancel()


async def queued(consumer: Consumer, text: str) -> str:
    return await consumer.store.submit(text)


# Accepting


async def test_a_request_becomes_a_run_with_its_first_event_and_leaves_the_stream(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await queued(consumer, request_text("r1", gpu={"class": ["a100", "L40"]}))
        await consumer.until(lambda: consumer.ids == ["r1"])
        run, request, version = consumer.accepted[0]
        assert run.terms.gpu_classes == ("A100 PCIe", "L40"), "the catalogue's own names"
        assert (version, run.sequence, run.state.value) == (1, 1, "queued")
        stored = await consumer.store.load("r1")
        assert stored is not None
        assert decode_run(stored.core) == run
        assert (stored.version, stored.fields["request_sha256"]) == (1, request.sha256)
        assert await consumer.store.queue_length() == 0
        (event,) = await consumer.store.events_range()
        body = json.loads(event.fields["event"])
        assert (body["type"], body["sequence"], body["subject"]) == ("dev.flashd.run.accepted.v1", 1, "r1")
        assert body["data"]["request_sha256"] == request.sha256


async def test_what_was_queued_before_the_first_start_is_taken_in_order(redis_url: str) -> None:
    async with a_consumer(redis_url) as producer:
        for number in range(250):
            await queued(producer, request_text(f"r{number}"))
    async with serving(redis_url) as consumer:
        await consumer.settled(30)
        assert consumer.ids == [f"r{number}" for number in range(250)]
        assert consumer.intake.last_pass_at is not None


async def test_58_the_same_request_again_is_counted_and_nothing_else(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await queued(consumer, request_text("r1"))
        await queued(consumer, request_text("r1"))
        await queued(consumer, " " + request_text("r1"))
        await consumer.settled()
        assert (consumer.ids, consumer.intake.duplicates) == (["r1"], 2)
        assert await consumer.event_types() == ["accepted"]
        assert (await consumer.store.counters())["duplicates"] == 2


async def test_59_an_entry_that_a_dead_leader_had_read_is_taken_at_once(redis_url: str) -> None:
    async with a_consumer(redis_url, "dead0000dead0000") as dead:
        await dead.store.ensure_groups()
        for number in range(120):
            await queued(dead, request_text(f"r{number}"))
        await dead.store.send('{"command": "cancel", "run_id": "r7"}')
        assert len(await dead.store.read_new(500, 0)) == 121
    async with serving(redis_url) as consumer:
        await consumer.settled(8)
        assert sorted(consumer.ids) == sorted(f"r{number}" for number in range(120))
        assert [run_id for run_id, _ in consumer.cancels] == ["r7"]


# Rejecting


@pytest.mark.parametrize(
    ("text", "reason", "run_id", "in_detail"),
    [
        ("{", "bad_json", None, "bad_json: $"),
        ("[1]", "bad_json", None, "must be an object"),
        (request_text("r1", colour="red"), "unknown_field", "r1", "colour"),
        (request_text("r1", gpu={"class": "Z9"}, priority=1000), "bad_value", "r1", "unknown_gpu"),
        (request_text("-bad"), "bad_run_id", None, "run_id"),
        (request_text("r1", worker={"secrets": ["NOPE"]}), "unknown_secret", "r1", "worker.secrets[0]"),
    ],
)
async def test_a_bad_request_is_rejected_with_every_fault_and_an_event(
    redis_url: str, text: str, reason: str, run_id: str | None, in_detail: str
) -> None:
    async with serving(redis_url) as consumer:
        entry_id = await queued(consumer, text)
        await consumer.settled()
        (record,) = await consumer.rejected()
        assert (record["entry_id"], record["reason"], record.get("run_id")) == (entry_id, reason, run_id)
        assert in_detail in record["detail"]
        assert record["request"] == text
        (event,) = await consumer.store.events_range()
        assert set(event.fields) == {"event", "id", "type"}
        body = json.loads(event.fields["event"])
        assert (body["type"], body["data"]["entry_id"]) == ("dev.flashd.request.rejected.v1", entry_id)
        assert (consumer.ids, consumer.intake.rejected) == ([], 1)


async def test_a_known_run_id_with_other_content_is_a_conflict_and_the_run_is_untouched(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await queued(consumer, request_text("r1"))
        await consumer.settled()
        before = await consumer.store.fields("r1")
        await queued(consumer, request_text("r1", seed=7))
        await consumer.settled()
        (record,) = await consumer.rejected()
        assert (record["reason"], record["run_id"]) == ("conflict", "r1")
        assert await consumer.store.fields("r1") == before
        assert await consumer.event_types() == ["accepted", "rejected"]


async def test_a_run_whose_name_hash_is_taken_is_refused(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await consumer.store.link.command("HSET", key("names"), run_hash(NS, "r1"), "other")
        await queued(consumer, request_text("r1"))
        await consumer.settled()
        (record,) = await consumer.rejected()
        assert record["reason"] == "bad_run_id"
        assert "other" in record["detail"]
        assert consumer.ids == []


async def test_an_entry_without_its_field_and_one_with_a_secret_are_rejected_without_a_copy(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await consumer.store.link.command("XADD", key("requests"), "*", "payload", "{}")
        await queued(consumer, request_text("r1", spec={"token": TOKEN}))
        await consumer.settled()
        empty, secret = await consumer.rejected()
        assert (empty["reason"], "request" in empty) == ("missing_field", False)
        assert (secret["reason"], "request" in secret) == ("inline_secret", False)
        everything = json.dumps([dict(entry.fields) for entry in await _all(consumer.store)])
        assert TOKEN not in everything


async def _all(store: Store) -> list[StreamEntry]:
    return [*await store.events_range(), *await store.rejected()]


# Commands


async def test_a_cancel_is_stored_told_and_acked_and_its_repeat_is_not_told(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await queued(consumer, request_text("r1"))
        await consumer.settled()
        for _ in range(100):
            await consumer.store.send('{"command": "cancel", "run_id": "r1", "by": "me", "reason": "enough"}')
        await consumer.settled()
        assert [(run_id, asked.by, asked.reason) for run_id, asked in consumer.cancels] == [("r1", "me", "enough")]
        assert (await consumer.store.fields("r1"))["cancel_requested_at"]


async def test_a_cancel_before_its_request_is_carried_by_the_run(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await consumer.store.send('{"command": "cancel", "run_id": "r1", "by": "me"}')
        await consumer.settled()
        await queued(consumer, request_text("r1"))
        await consumer.until(lambda: consumer.ids == ["r1"])
        run = consumer.accepted[0][0]
        assert run.cancel is not None
        assert run.cancel.by == "me"


async def test_a_malformed_command_is_rejected_without_an_event(redis_url: str) -> None:
    async with serving(redis_url) as consumer:
        await consumer.store.send('{"command": "stop", "run_id": "r1"}')
        await consumer.store.send("what?")
        await consumer.settled()
        assert [record["reason"] for record in await consumer.rejected()] == ["bad_value", "bad_json"]
        assert await consumer.store.events_range() == ()
        assert consumer.cancels == []


# Trouble


async def test_an_entry_is_poison_at_its_fifth_delivery(redis_url: str) -> None:
    async with a_consumer(redis_url, "dead0000dead0000") as dead:
        await dead.store.ensure_groups()
        await queued(dead, request_text("r1"))
        await dead.store.read_new(10, 0)
        for _ in range(POISON_DELIVERIES - 2):
            assert len(await dead.store.claim_stale(Source.REQUESTS, 0)) == 1
    async with serving(redis_url) as consumer:
        await consumer.settled()
        (record,) = await consumer.rejected()
        assert (record["reason"], consumer.ids) == ("poison", [])


async def test_a_fourth_delivery_is_still_accepted(redis_url: str) -> None:
    async with a_consumer(redis_url, "dead0000dead0000") as dead:
        await dead.store.ensure_groups()
        await queued(dead, request_text("r1"))
        await dead.store.read_new(10, 0)
        for _ in range(POISON_DELIVERIES - 3):
            await dead.store.claim_stale(Source.REQUESTS, 0)
    async with serving(redis_url) as consumer:
        await consumer.until(lambda: consumer.ids == ["r1"])


async def test_deliveries_that_redis_refused_for_want_of_memory_do_not_count(redis_url: str) -> None:
    async with a_consumer(redis_url) as producer:
        await producer.store.ensure_groups()
        await queued(producer, request_text("r1"))
        await producer.store.read_new(10, 0)
        await producer.store.link.command("CONFIG SET", "maxmemory", "1")
        try:
            for number in range(POISON_DELIVERIES + 2):
                async with serving(redis_url, f"{number:016x}") as consumer:
                    await _until_excused(consumer)
        finally:
            await producer.store.link.command("CONFIG SET", "maxmemory", "0")
        assert await producer.rejected() == []
    async with serving(redis_url) as consumer:
        await consumer.until(lambda: consumer.ids == ["r1"])


async def _until_excused(consumer: Consumer) -> None:
    """Until the entry was delivered to this consumer, refused by Redis and the delivery taken back."""
    with anyio.fail_after(10):
        while True:
            pending = await consumer.store.link.commands.xpending_range(
                key("requests"), "flashd", min="-", max="+", count=10, consumername=consumer.desk.owner
            )
            if pending and pending[0]["times_delivered"] == 1:
                return
            await anyio.sleep(0.05)


@pytest.mark.slow
async def test_while_redis_has_no_room_cancels_pass_and_an_alarm_is_up(redis_url: str) -> None:
    async with a_consumer(redis_url, "beef0000beef0000") as producer:
        async with serving(redis_url) as consumer:
            await queued(consumer, request_text("r1"))
            await consumer.settled()
        await queued(producer, request_text("r2"))
        await producer.store.send('{"command": "cancel", "run_id": "r1"}')
        await producer.store.link.command("CONFIG SET", "maxmemory", "1")
        try:
            async with serving(redis_url, "cafe0000cafe0000") as consumer:
                await consumer.until(lambda: [run_id for run_id, _ in consumer.cancels] == ["r1"])
                assert "redis_full" in consumer.desk.alarms.up
                assert consumer.ids == []
                await producer.store.link.command("CONFIG SET", "maxmemory", "0")
                await consumer.until(lambda: consumer.ids == ["r2"], 60)
                await consumer.until(lambda: consumer.desk.alarms.up == {}, 40)
        finally:
            await producer.store.link.command("CONFIG SET", "maxmemory", "0")


async def test_a_redis_that_is_down_for_a_while_costs_two_log_lines_and_no_entry(
    new_redis: Callable[..., RedisServer],
) -> None:
    server = new_redis()
    with capture_logs() as logs:
        async with serving(server.url) as consumer:
            await queued(consumer, request_text("r1"))
            await consumer.settled()
            server.kill()
            await anyio.sleep(1.5)
            server.start()
            with anyio.fail_after(20):
                while True:
                    try:
                        await queued(consumer, request_text("r2"))
                        break
                    except StoreError:
                        await anyio.sleep(0.1)
            await consumer.until(lambda: consumer.ids == ["r1", "r2"], 20)
    outage = [line["event"] for line in logs if line["event"] in ("intake_interrupted", "intake_resumed")]
    assert outage == ["intake_interrupted", "intake_resumed"]


async def test_a_deleted_stream_is_made_again_and_what_was_put_there_is_taken_once(redis_url: str) -> None:
    with capture_logs() as logs:
        async with serving(redis_url) as consumer:
            await queued(consumer, request_text("r1"))
            await consumer.settled()
            await consumer.store.link.command("DEL", key("requests"))
            await queued(consumer, request_text("r1"))
            await queued(consumer, request_text("r2"))
            await consumer.until(lambda: consumer.ids == ["r1", "r2"], 15)
            await consumer.settled()
    assert len([line for line in logs if line["log_level"] in ("warning", "error")]) < 5


async def test_one_entrys_fault_in_the_daemon_does_not_stop_the_others(redis_url: str) -> None:
    async with a_consumer(redis_url) as consumer:
        await consumer.lead()
        taken: list[str] = []

        def refuse_the_second(run: Run, _request: RunRequest, _version: int) -> None:
            if run.terms.run_id == "r2":
                raise ValueError("a fault of ours")
            taken.append(run.terms.run_id)

        intake = Intake(
            consumer.desk,
            secret_names=frozenset,
            on_accepted=refuse_the_second,
            on_cancel=lambda _run_id, _asked: None,
        )
        for number in (1, 2, 3):
            await queued(consumer, request_text(f"r{number}"))
        async with anyio.create_task_group() as group:
            group.start_soon(intake.serve)
            await consumer.until(lambda: taken == ["r1", "r3"])
            group.cancel_scope.cancel()


async def test_a_consumer_that_does_not_lead_takes_nothing(redis_url: str) -> None:
    async with serving(redis_url, "11111111aaaaaaaa") as leader, a_consumer(redis_url, "22222222bbbbbbbb") as other:
        leader.intake.stop()
        await anyio.sleep(2.2)
        await other.store.ensure_groups()
        await queued(other, request_text("r1"))
        with pytest.raises(FencedError):
            await other.intake.serve()
        assert other.ids == []
        assert await other.store.queue_length() == 1


# Stopping


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_stop_while_requests_pour_in_loses_none(redis_url: str, cancelled: bool) -> None:
    async with (
        a_consumer(redis_url, "dead0000dead0000") as first,
        a_consumer(redis_url, "beef0000beef0000") as producer,
    ):
        await first.lead()
        await producer.store.ensure_groups()

        async def pour() -> None:
            for number in range(400):
                await queued(producer, request_text(f"r{number}"))
                await anyio.sleep(0.001)

        async def stop(scope: anyio.CancelScope) -> None:
            await anyio.sleep(0.25)
            first.intake.stop()
            if cancelled:
                scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(pour)
            with anyio.CancelScope() as scope:
                group.start_soon(stop, scope)
                await first.intake.serve()
        assert 0 < len(first.ids) < 400
        async with serving(redis_url) as second:
            await second.settled(30)
        # A run whose acceptance was answered to nobody any more is in Redis, and found there by the next leader.
        assert sorted(await producer.store.active()) == sorted(f"r{number}" for number in range(400))
        assert len(set(first.ids) | set(second.ids)) == len(first.ids) + len(second.ids)


async def test_a_stop_ends_an_idle_read_within_seconds(redis_url: str) -> None:
    async with a_consumer(redis_url) as consumer:
        await consumer.lead()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(consumer.intake.serve)
                await consumer.until(lambda: consumer.intake.last_pass_at is not None)
                consumer.intake.stop()
