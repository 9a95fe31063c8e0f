"""Everything durable that the leader writes: the lease, a run's steps, its machines' rows. One round trip a write.

Reads are in store_reads, the two consumed streams in store_intake; `Store` is all three over one link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from redis.asyncio import Redis

from flashd.adapters.redis_client import blocking_client, command_client
from flashd.adapters.store_intake import StoreIntake
from flashd.adapters.store_link import Args, Link, Linked
from flashd.adapters.store_reads import StoreReads
from flashd.adapters.store_rows import gone_to_json, row_from_json, row_to_json, unreadable
from flashd.adapters.store_types import (
    ConfirmRefused,
    ConfirmWhy,
    EventOut,
    GoneWord,
    Held,
    IntentRefused,
    IntentWhy,
    Led,
    Marked,
    Notes,
    Repaired,
    RowFate,
    StillHeld,
    Token,
    Write,
    Written,
)
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.errors import FencedError, StaleError, StoreError

REPAIR_CHUNK = 500
FORGET_CHUNK = 200


class StoreWrites(Linked):
    """The leader's writes. Every one raises FencedError (nothing written) when another daemon leads, and
    StoreUnavailableError when the outcome is unknown: repeat it unchanged (see `settle`). FencedError for such a repeat
    leaves the outcome of the first send open."""

    # The lease

    async def lead(self, holder: str, owner: str, ttl_ms: int, *, may_take_own: bool) -> Led | Held:
        """Take or renew the lease and remember the token. `holder` is the state directory's id, `owner` this process's.

        `may_take_own`: this process holds the flock of that state directory, so a lease with the same holder is taken
        over at once. A lease of ours that ran out without anybody taking it is renewed under the same fence.
        """
        known = self.link.token.fence if self.link.token and self.link.token.owner == owner else 0
        args = Args(holder, owner, ttl_ms, 1 if may_take_own else 0)
        word, value, other = await self.link.run("lead", args)
        if word == "held":
            self.link.token = None
            return Held(int(value), other)
        fence = int(value)
        self.link.token = Token(owner, fence)
        return Led(fence, fresh=fence != known)

    async def resign(self) -> None:
        """Free the lease if it is ours, so that a standby need not wait for it. Not leading = nothing to do."""
        token, self.link.token = self.link.token, None
        if token is not None:
            await self.link.run("resign", Args(token.owner, token.fence))

    # One run's steps

    async def transition(self, write: Write) -> Written:
        """A step of a run that has not ended. Raises StaleError when the run moved on, ended or is unknown."""
        return self._written(await self._write("transition", write), write.run_id)

    async def intent(
        self, write: Write, row: LedgerRow, max_machines: int, max_usd_per_hour: float
    ) -> Written | IntentRefused:
        """The step that reserves a machine name, before the create call. Nothing is written when refused.

        The limits count every row of the namespace that is not `abandoned`, after this step's own changes.
        """
        args = self._args(write, extra_rows={row.name: row}).one(row.name, max_machines, _micro(max_usd_per_hour))
        answer = await self.link.run("intent", args, write.run_id)
        if answer[0] in set(IntentWhy):
            return IntentRefused(IntentWhy(answer[0]))
        return self._written(answer, write.run_id)

    async def confirm(self, write: Write, row: LedgerRow) -> Written | ConfirmRefused:
        """The step that makes a `requested` row live. `row` is the live row with its machine id and `live_at`.

        Never raises FencedError or StaleError: the answer says what became of the row. Allowed without the lease.
        """
        if row.machine_id is None or row.live_at is None:
            raise ValueError(f"confirm of {row.name} needs a machine id and a time")
        token = self.link.token or Token("", 0)
        args = self._args(write, extra_rows={row.name: row}, token=token)
        answer = await self.link.run(
            "confirm", args.one(row.name, row_to_json(row.deleting(row.live_at))), write.run_id
        )
        if answer[0] in set(ConfirmWhy):
            return ConfirmRefused(ConfirmWhy(answer[0]), RowFate(answer[1]))
        return self._written(answer, write.run_id)

    async def requeue(self, write: Write, names: Sequence[str], now: float) -> Written:
        """An attempt ended, the run goes on: of the named rows the `live` ones become `deleting` in the same step."""
        return self._written(await self._write("transition", write, names, now), write.run_id)

    async def finish(self, write: Write, names: Sequence[str], now: float) -> Written:
        """The terminal step, once; rows as in `requeue`. The last event of `write` is the terminal one."""
        return self._written(await self._write("finish", write, names, now), write.run_id)

    async def released(
        self, write: Write, names: Sequence[str], now: float, runs_s: float, remember_s: float
    ) -> Written | StillHeld:
        """Every machine is proved gone: refused while one of `names` has a row that is not `abandoned`.

        The run's keys expire after `runs_s`, its tombstone after `remember_s` seconds.
        """
        args = self._args(write).many(names).one(_number(now), round(runs_s), round(remember_s))
        answer = await self.link.run("released", args, write.run_id)
        if answer[0] == "held":
            return StillHeld(tuple(answer[1:]))
        return self._written(answer, write.run_id)

    # Rows outside a run's step

    async def machine_gone(self, gone: Gone, run_id: str) -> GoneWord:
        """Remove a row after proof of absence and keep the proof with the run.

        Only when the row has no machine id, or exactly `gone.machine_id`. A repeat finds the kept proof.
        """
        args = Args(*self.link.leader(), gone.name, gone.machine_id or "", gone_to_json(gone))
        answer = await self.link.run("machine_gone", args, run_id)
        self._fenced_or_corrupt(answer)
        return GoneWord(answer[0])

    async def mark(self, expect: RowState, row: LedgerRow) -> Marked:
        """Change a row, if it is still in the state `expect`. A repeat of the same change answers the same."""
        answer = await self.link.run("mark", Args(*self.link.leader(), row.name, expect.value, row_to_json(row)))
        self._fenced_or_corrupt(answer)
        return Marked(answer[0] == "ok", row_from_json(row.name, answer[1]) if answer[1] else None)

    async def note(self, notes: Notes, changes: Mapping[str, str | None]) -> None:
        """Set (JSON text) or remove (None) entries of one of the small private maps."""
        args = Args(*self.link.leader()).pairs({key: value or "" for key, value in changes.items()})
        self._fenced_or_corrupt(await self.link.run("note", args, map=notes.value))

    # Maintenance

    async def repair(self, run_ids: Sequence[str], op_id: str) -> tuple[Repaired, ...]:
        """Make the indexes agree with these runs' hashes and recount the ledger's totals; says what was wrong."""
        leader = self.link.leader()
        found: list[Repaired] = []
        for at in range(0, len(run_ids), REPAIR_CHUNK):
            chunk = run_ids[at : at + REPAIR_CHUNK]
            answers = await self.link.run_many("repair", [(run_id, Args(*leader, op_id, run_id)) for run_id in chunk])
            for run_id, answer in zip(chunk, answers, strict=True):
                found.extend(Repaired(run_id, what) for what in self._told(answer))
        answer = await self.link.run("recount", Args(*leader, op_id))
        found.extend(Repaired("machines", what) for what in self._told(answer))
        return tuple(found)

    async def forget(self, now: float) -> None:
        """Drop names and index entries of runs whose time of being remembered is over, FORGET_CHUNK at a time."""
        answer = await self.link.run("forget", Args(*self.link.leader(), _number(now), FORGET_CHUNK))
        self._fenced_or_corrupt(answer)

    # How a write is sent and its answer read

    async def _write(self, name: str, write: Write, release: Sequence[str] = (), now: float | None = None) -> list[str]:
        both = set(release) & set(write.rows)
        if both:
            raise ValueError(f"rows both set and released in one step: {sorted(both)}")
        args = self._args(write).many(release).one("" if now is None else _number(now))
        return await self.link.run(name, args, write.run_id)

    def _args(
        self, write: Write, *, extra_rows: Mapping[str, LedgerRow] | None = None, token: Token | None = None
    ) -> Args:
        owner, fence = (token.owner, token.fence) if token else self.link.leader()
        args = Args(owner, fence, self.link.keys.notify(), write.run_id, write.expect, write.op_id, write.core)
        args.pairs(write.fields).one(len(write.events))
        for event in write.events:
            _event(args, event)
        args.one(len(write.progress))
        for event in write.progress:
            _event(args, event)
        rows = {**write.rows, **(extra_rows or {})}
        return args.pairs({name: row_to_json(row) if row else "" for name, row in rows.items()})

    def _written(self, answer: list[str], run_id: str) -> Written:
        """Reads `ok version last-event-id (name row)*`; a replay carries the first answer, joined by newlines."""
        match answer[0]:
            case "ok":
                pass
            case "replay":
                answer = answer[1].split("\n")
            case "stale" | "ended" | "missing":
                raise StaleError(f"{run_id}: not written, the run is {' '.join(answer)}")
            case _:
                self._fenced_or_corrupt(answer)
                raise StoreError(f"{run_id}: not written, the step itself is wrong: {' '.join(answer)}")
        names, rows = answer[3::2], answer[4::2]
        changed = {name: row_from_json(name, row) if row else None for name, row in zip(names, rows, strict=True)}
        return Written(int(answer[1]), answer[2], changed)

    def _told(self, answer: list[str]) -> list[str]:
        self._fenced_or_corrupt(answer)
        return (answer[1].split("\n") if answer[0] == "replay" else answer)[1:]

    def _fenced_or_corrupt(self, answer: list[str]) -> None:
        match answer[0]:
            case "fenced":
                raise FencedError("another daemon leads this namespace; this call wrote nothing")
            case "corrupt":
                raise unreadable(answer[1], "a script found no usable JSON object")


class Store(StoreWrites, StoreIntake, StoreReads):
    """The whole store of one namespace."""


def connect(url: str, ns: str, consumer: str) -> Store:
    """A store over two new clients; nothing is sent yet. `consumer` is this process's random id."""
    name = f"flashd:{consumer}"
    return over(command_client(url, name), blocking_client(url, name), ns, consumer)


def over(commands: Redis, blocking: Redis, ns: str, consumer: str) -> Store:
    """A store over given clients (the two may be one and the same fakeredis client). They must not decode replies."""
    return Store(Link(commands, blocking, ns, consumer))


def _event(args: Args, event: EventOut) -> Args:
    """As the stream's field list: the envelope first, then the flat copies."""
    return args.pairs({"event": event.envelope, **event.flat})


def _number(value: float) -> str:
    return json.dumps(value)


def _micro(usd: float) -> int:
    return round(usd * 1_000_000)
