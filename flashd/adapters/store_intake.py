"""The two consumed streams: reading through the group, accepting, rejecting, cancelling. Scripts do the acks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from flashd.adapters.redis_client import execute
from flashd.adapters.store_link import Args, Link, Linked, decoded, mapping
from flashd.adapters.store_types import (
    GROUP,
    MAX_BLOCK_MS,
    RUN_FIELDS,
    Accept,
    AcceptAnswer,
    AcceptWord,
    CancelWord,
    Entry,
    Rejection,
    RejectWord,
    Source,
)
from flashd.errors import FencedError, StoreError, StoreUnavailableError

CLAIM_COUNT = 50
_PAYLOAD = {Source.REQUESTS: b"request", Source.CONTROL: b"command"}


class StoreIntake(Linked):
    """Reading needs no lease, everything else does (FencedError). Unanswered calls are repeated unchanged."""

    def __init__(self, link: Link) -> None:
        super().__init__(link)
        self._cursors: dict[Source, str] = {}

    async def ensure_groups(self) -> None:
        """Create both groups, from id 0: what was queued before is taken. Acceptance makes repeats harmless."""
        for source in Source:
            try:
                await self.link.command("XGROUP CREATE", self._key(source), GROUP, "0", "MKSTREAM")
            except StoreError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def read_new(
        self, count: int, block_ms: int, sources: Sequence[Source] = (Source.REQUESTS, Source.CONTROL)
    ) -> tuple[Entry, ...]:
        """New entries, at most `count` a stream, waiting up to `block_ms` (at most 5 s; 0 = do not wait).

        Let the wait run out instead of cancelling it: a cancelled read can take an entry with it (it comes back by
        `claim_stale`). A lost group is made again and StoreUnavailableError raised, so that the caller backs off.
        """
        parts: list[str | int] = ["XREADGROUP", "GROUP", GROUP, self.link.consumer, "COUNT", count]
        if block_ms > 0:
            parts += ["BLOCK", min(block_ms, MAX_BLOCK_MS)]
        keys = [self._key(source) for source in sources]
        try:
            async with mapping():
                command = (*parts, "STREAMS", *keys, *(">" for _ in keys))
                reply = await execute(self.link.blocking, *command)
        except StoreUnavailableError as error:
            if "NOGROUP" in str(error):
                await self.ensure_groups()
            raise
        by_key = dict(zip(keys, sources, strict=True))
        pairs = reply.items() if isinstance(reply, Mapping) else cast("Sequence[tuple[object, object]]", reply or ())
        return tuple(
            _entry(by_key[decoded(key)], raw, 1)
            for key, entries in pairs
            for raw in cast("Sequence[tuple[object, Mapping[bytes, bytes]]]", entries)
        )

    async def claim_stale(self, source: Source, min_idle_ms: int, count: int = CLAIM_COUNT) -> tuple[Entry, ...]:
        """Take over entries that were read at least `min_idle_ms` ago and neither accepted nor rejected.

        One page a call from a kept cursor, so that later entries are reached too. Counts as one more delivery.
        """
        key = self._key(source)
        cursor = self._cursors.get(source, "0-0")
        try:
            async with mapping():
                reply = await self.link.commands.xautoclaim(
                    key, GROUP, self.link.consumer, min_idle_ms, start_id=cursor, count=count
                )
        except StoreUnavailableError as error:
            if "NOGROUP" in str(error):
                await self.ensure_groups()
            raise
        page = cast("Sequence[object]", reply)
        self._cursors[source] = decoded(page[0])
        raw = cast("Sequence[tuple[object, Mapping[bytes, bytes] | None]]", page[1])
        claimed = [(entry_id, fields) for entry_id, fields in raw if fields is not None]
        if not claimed:
            return ()
        deliveries = await self._deliveries(key, decoded(claimed[0][0]), decoded(claimed[-1][0]), count)
        return tuple(
            _entry(source, (entry_id, fields), deliveries.get(decoded(entry_id), 1)) for entry_id, fields in claimed
        )

    def claimed_all(self, source: Source) -> bool:
        """Whether the last `claim_stale` reached the end of what is pending: the next one begins again."""
        return self._cursors.get(source, "0-0") == "0-0"

    async def excuse(self, entry: Entry) -> None:
        """Take back one delivery: Redis refused or did not answer the accept, which is not the entry's fault."""
        async with mapping():
            await self.link.commands.xclaim(
                self._key(entry.source),
                GROUP,
                self.link.consumer,
                0,
                [entry.entry_id],
                retrycount=max(entry.deliveries - 1, 0),
                justid=True,
            )

    async def accept(self, accept: Accept) -> AcceptAnswer:
        """Make a request durable and ack it in one step. A conflict writes nothing: reject the entry next.

        A duplicate is counted and its run's last event id published; a repeat of either does neither again.
        """
        fields = {name: "" for name in RUN_FIELDS} | {"released": "0"} | dict(accept.fields)
        args = Args(*self.link.leader(), self.link.keys.notify(), accept.run_id, accept.op_id, accept.entry_id)
        args.one(accept.hash10, accept.sha, json.dumps(accept.accepted_at), accept.core).pairs(fields)
        args.pairs({"event": accept.event.envelope, **accept.event.flat})
        answer = await self.link.run("accept", args, accept.run_id)
        _fenced(answer)
        if answer[0] == "illegal":
            raise StoreError(f"{accept.run_id}: not accepted, the step itself is wrong: {answer[1]}")
        word = AcceptWord(answer[0])
        match word:
            case AcceptWord.ACCEPTED:
                return AcceptAnswer(word, answer[1], cancelled=answer[2] == "1")
            case AcceptWord.DUPLICATE:
                return AcceptAnswer(word, answer[1])
            case AcceptWord.HASH_TAKEN:
                return AcceptAnswer(word, other_run_id=answer[1])
            case AcceptWord.CONFLICT:
                return AcceptAnswer(word)

    async def reject(self, rejection: Rejection) -> RejectWord:
        """Move an entry to `rejected` with its event, acked and deleted in one step."""
        fields = {
            "entry_id": rejection.entry_id,
            "reason": rejection.reason,
            "detail": rejection.detail,
            "time": json.dumps(rejection.time),
        }
        if rejection.run_id is not None:
            fields["run_id"] = rejection.run_id
        if rejection.request is not None:
            fields["request"] = rejection.request
        event = rejection.event
        args = Args(*self.link.leader(), self.link.keys.notify(), rejection.entry_id).pairs(fields)
        args.pairs({"event": event.envelope, **event.flat} if event else {})
        answer = await self.link.run("reject", args, source=rejection.source.value)
        _fenced(answer)
        return RejectWord(answer[0])

    async def cancel(self, entry_id: str, run_id: str, by: str, reason: str, now: float) -> CancelWord:
        """Apply a cancel command once and ack it. It is never taken back; the runner acts on it."""
        args = Args(*self.link.leader(), entry_id, run_id, by, reason, json.dumps(now))
        answer = await self.link.run("cancel", args, run_id)
        _fenced(answer)
        return CancelWord(answer[0])

    async def submit(self, request: str) -> str:
        """Queue a request as a producer does; the entry id."""
        return decoded(await self.link.command("XADD", self._key(Source.REQUESTS), "*", "request", request))

    async def send(self, command: str) -> str:
        """Queue a command as an operator does; the entry id."""
        return decoded(await self.link.command("XADD", self._key(Source.CONTROL), "*", "command", command))

    async def _deliveries(self, key: str, first: str, last: str, count: int) -> dict[str, int]:
        async with mapping():
            pending = await self.link.commands.xpending_range(
                key, GROUP, min=first, max=last, count=count * 2, consumername=self.link.consumer
            )
        rows = cast("Sequence[Mapping[str, object]]", pending)
        return {decoded(row["message_id"]): int(cast(int, row["times_delivered"])) for row in rows}

    def _key(self, source: Source) -> str:
        return self.link.keys.name(source.value)


def _fenced(answer: list[str]) -> None:
    if answer[0] == "fenced":
        raise FencedError("another daemon leads this namespace; this call wrote nothing")


def _entry(source: Source, raw: tuple[object, Mapping[bytes, bytes]], deliveries: int) -> Entry:
    entry_id, fields = raw
    return Entry(source, decoded(entry_id), fields.get(_PAYLOAD[source]), deliveries)
