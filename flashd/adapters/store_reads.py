"""Plain reads: runs, ledger, streams, notes, and what the start-up check asks of the server. Needs no lease."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from flashd.adapters.redis_client import execute
from flashd.adapters.store_link import Linked, as_map, decoded, mapping
from flashd.adapters.store_rows import gone_from_json, row_from_json
from flashd.adapters.store_types import MAX_BLOCK_MS, Notes, ServerInfo, Source, StoredRun, StreamEntry, Totals
from flashd.core.ledger import Gone, LedgerRow
from flashd.errors import StoreError

LOAD_CHUNK = 200
FIELDS_CHUNK = 500
REPAIR_SCAN_CHUNK = 1000


class StoreReads(Linked):
    """Raises StoreUnavailableError when Redis gives no answer; StoreError when what it holds cannot be read."""

    # Runs

    async def load(self, run_id: str) -> StoredRun | None:
        """One run, None when it is unknown or has expired."""
        return (await self.load_many((run_id,))).get(run_id)

    async def load_many(self, run_ids: Sequence[str]) -> dict[str, StoredRun]:
        """The known ones among these runs, pipelined. Raises StoreError for a run hash without its private state."""
        found: dict[str, StoredRun] = {}
        name = self.link.keys.name
        for at in range(0, len(run_ids), LOAD_CHUNK):
            chunk = run_ids[at : at + LOAD_CHUNK]
            commands: list[tuple[str, ...]] = []
            for run_id in chunk:
                commands += [("HGETALL", name("run", run_id)), ("HMGET", name("core", run_id), "version", "state")]
            replies = await self.link.pipelined(commands)
            for run_id, fields, core in zip(chunk, replies[0::2], replies[1::2], strict=True):
                if fields:
                    found[run_id] = _run(run_id, as_map(fields), cast("Sequence[object]", core))
        return found

    async def fields(self, run_id: str) -> dict[str, str]:
        """The public run hash, empty when unknown."""
        return as_map(await self.link.command("HGETALL", self.link.keys.name("run", run_id)))

    async def fields_of(self, run_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """The public hashes of the known ones among these runs, in this order, pipelined."""
        found: dict[str, dict[str, str]] = {}
        for at in range(0, len(run_ids), FIELDS_CHUNK):
            chunk = run_ids[at : at + FIELDS_CHUNK]
            replies = await self.link.pipelined(("HGETALL", self.link.keys.name("run", run_id)) for run_id in chunk)
            found |= {run_id: fields for run_id, raw in zip(chunk, replies, strict=True) if (fields := as_map(raw))}
        return found

    async def active(self) -> tuple[str, ...]:
        """Runs that have not ended, oldest first."""
        return await self._members("active")

    async def unreleased(self) -> tuple[str, ...]:
        """Runs that have ended and still wait for `released`, oldest end first."""
        return await self._members("unreleased")

    async def runs(self) -> tuple[str, ...]:
        """Every run, live and remembered, oldest first."""
        return await self._members("runs")

    async def unsettled(self) -> tuple[str, ...]:
        """What `repair` should look at: everything indexed, and every known run whose hash says it is not released."""
        known = await self.runs()
        wanted = {*(await self.active()), *(await self.unreleased())}
        for at in range(0, len(known), REPAIR_SCAN_CHUNK):
            chunk = known[at : at + REPAIR_SCAN_CHUNK]
            key = self.link.keys.name
            replies = await self.link.pipelined(("HGET", key("run", run_id), "released") for run_id in chunk)
            wanted.update(
                run_id for run_id, released in zip(chunk, replies, strict=True) if released not in (None, b"1")
            )
        return tuple(sorted(wanted))

    async def run_for_hash(self, hashes: Iterable[str]) -> dict[str, str]:
        """Which remembered run each name hash belongs to; unknown hashes are left out."""
        wanted = list(hashes)
        if not wanted:
            return {}
        reply = await self.link.command("HMGET", self.link.keys.name("names"), *wanted)
        pairs = zip(wanted, cast("Sequence[object]", reply), strict=True)
        return {hash10: decoded(run_id) for hash10, run_id in pairs if run_id is not None}

    # Machines

    async def ledger(self) -> dict[str, LedgerRow]:
        """Every row by machine name. Raises StoreError naming the first row that cannot be read."""
        raw = as_map(await self.link.command("HGETALL", self.link.keys.name("machines")))
        return {name: row_from_json(name, text) for name, text in sorted(raw.items())}

    async def row(self, name: str) -> LedgerRow | None:
        """One row, None when there is none."""
        text = await self.link.command("HGET", self.link.keys.name("machines"), name)
        return None if text is None else row_from_json(name, decoded(text))

    async def gone(self, run_id: str) -> dict[str, Gone]:
        """The proofs of absence of a run's machines, by name."""
        raw = as_map(await self.link.command("HGETALL", self.link.keys.name("gone", run_id)))
        return {name: gone_from_json(name, text) for name, text in sorted(raw.items())}

    async def totals(self) -> Totals:
        """Machines and dollars per hour that the limits count."""
        raw = as_map(await self.link.command("HGETALL", self.link.keys.name("totals")))
        return Totals(int(raw.get("count", "0")), int(raw.get("micro_usd", "0")) / 1_000_000)

    # Streams and notes

    async def events_after(
        self, after: str, *, run_id: str = "", count: int = 100, block_ms: int | None = None, stream: str = "events"
    ) -> tuple[StreamEntry, ...]:
        """Entries after an id (`$` = from now on), of one run if named; waits up to `block_ms` (at most 5 s)."""
        key = self.link.keys.name("log", run_id) if run_id else self.link.keys.name(stream)
        parts: list[str | int] = ["XREAD", "COUNT", count]
        if block_ms is not None:
            parts += ["BLOCK", max(1, min(block_ms, MAX_BLOCK_MS))]
        client = self.link.commands if block_ms is None else self.link.blocking
        async with mapping():
            reply = await execute(client, *parts, "STREAMS", key, after)
        return tuple(entry for _, entries in streams(reply) for entry in entries)

    async def events_range(
        self, *, run_id: str = "", start: str = "-", end: str = "+", count: int = 1000, stream: str = "events"
    ) -> tuple[StreamEntry, ...]:
        """Entries from `start` to `end`, both included, oldest first."""
        key = self.link.keys.name("log", run_id) if run_id else self.link.keys.name(stream)
        return entries_of(await self.link.command("XRANGE", key, start, end, "COUNT", count))

    async def events_last(self, count: int, *, run_id: str = "", stream: str = "events") -> tuple[StreamEntry, ...]:
        """The newest `count` entries, oldest first."""
        key = self.link.keys.name("log", run_id) if run_id else self.link.keys.name(stream)
        return entries_of(await self.link.command("XREVRANGE", key, "+", "-", "COUNT", count))[::-1]

    async def rejected(self, count: int = 100) -> tuple[StreamEntry, ...]:
        """The newest rejected entries, newest first."""
        return entries_of(
            await self.link.command("XREVRANGE", self.link.keys.name("rejected"), "+", "-", "COUNT", count)
        )

    async def has_event(self, entry_id: str) -> bool:
        """Whether this very id is in `events`."""
        reply = await self.link.command("XRANGE", self.link.keys.name("events"), entry_id, entry_id)
        return bool(reply)

    async def queue_length(self, source: Source = Source.REQUESTS) -> int:
        """Entries not yet accepted or rejected."""
        return int(cast(int, await self.link.command("XLEN", self.link.keys.name(source.value))))

    async def oldest_request_at(self) -> float | None:
        """When the oldest waiting request was added, by the server's clock; None = none waits."""
        reply = await self.link.command("XRANGE", self.link.keys.name("requests"), "-", "+", "COUNT", 1)
        found = entries_of(reply)
        return int(found[0].entry_id.split("-")[0]) / 1000 if found else None

    async def notes(self, notes: Notes) -> dict[str, str]:
        """One of the small private maps."""
        return as_map(await self.link.command("HGETALL", self.link.keys.name(notes.value)))

    async def counters(self) -> dict[str, int]:
        """How often the rare ways were taken since the namespace exists: `duplicates`, `rejected`."""
        raw = as_map(await self.link.command("HGETALL", self.link.keys.name("counters")))
        return {key: int(value) for key, value in raw.items()}

    async def info(self) -> ServerInfo:
        """What the start-up check and the safe mode look at. Works on servers without INFO (None fields)."""
        server = await self.link.server_section("server")
        persistence = await self.link.server_section("persistence")
        memory = await self.link.server_section("memory")
        replication = await self.link.server_section("replication")
        seconds, micros = cast("tuple[int, int]", await self.link.command("TIME"))
        last, first = await self._bounds()
        runs = cast(int, await self.link.command("ZCARD", self.link.keys.name("runs")))
        aof = persistence.get("aof_enabled")
        return ServerInfo(
            version=_version(server.get("redis_version")),
            aof=None if aof is None else aof == "1",
            appendfsync=await self._appendfsync() if aof == "1" else None,
            maxmemory_policy=memory.get("maxmemory_policy"),
            role=replication.get("role"),
            replid=replication.get("master_replid"),
            time=seconds + micros / 1_000_000,
            last_generated_id=last,
            first_entry_id=first,
            runs_empty=runs == 0,
        )

    async def _appendfsync(self) -> str | None:
        """Needs the right to CONFIG GET; None without it."""
        try:
            reply = as_map(await self.link.command("CONFIG GET", "appendfsync"))
        except StoreError:
            return None
        return reply.get("appendfsync")

    async def _bounds(self) -> tuple[str | None, str | None]:
        """Last generated and first id of `events`; None while the stream does not exist or is empty."""
        key = self.link.keys.name("events")
        if not await self.link.command("EXISTS", key):
            return None, None
        reply = as_map(await self.link.command("XINFO STREAM", key))
        first = entries_of(await self.link.command("XRANGE", key, "-", "+", "COUNT", 1))
        return reply.get("last-generated-id"), first[0].entry_id if first else None

    async def _members(self, index: str) -> tuple[str, ...]:
        reply = await self.link.command("ZRANGE", self.link.keys.name(index), 0, -1)
        return tuple(decoded(member) for member in cast("Sequence[object]", reply))


def _run(run_id: str, fields: Mapping[str, str], core: Sequence[object]) -> StoredRun:
    if core[0] is None or core[1] is None:
        raise StoreError(
            f"run {run_id} has its public hash but not its private state: keys were removed from outside; "
            "nothing can be decided about it until an operator removes it or restores Redis"
        )
    return StoredRun(run_id, int(decoded(core[0])), decoded(core[1]), fields)


def _version(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def streams(reply: object) -> list[tuple[str, tuple[StreamEntry, ...]]]:
    """The reply of XREAD and XREADGROUP: one list of entries a stream, nothing when the wait ran out."""
    pairs = reply.items() if isinstance(reply, Mapping) else cast("Sequence[tuple[object, object]]", reply or ())
    return [(decoded(key), entries_of(entries)) for key, entries in pairs]


def entries_of(reply: object) -> tuple[StreamEntry, ...]:
    """The reply of XRANGE. An entry whose body is gone (trimmed while pending) is left out."""
    raw = cast("Sequence[tuple[object, object]]", reply or ())
    return tuple(StreamEntry(decoded(entry_id), as_map(fields)) for entry_id, fields in raw if fields is not None)
