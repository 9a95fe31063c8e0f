"""Small builders for store tests: requests, steps, rows with only what a test cares about."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

from flashd.adapters.store import Store
from flashd.adapters.store_types import Accept, AcceptAnswer, EventOut, Led, Rejection, Source, Write, Written
from flashd.core.ledger import LedgerRow, RowState

T0 = 1_764_543_210.123456
_ids = itertools.count(1)


def op() -> str:
    """A new operation id."""
    return f"op-{next(_ids)}"


def event(run_id: str, sequence: int, state: str, name: str = "") -> EventOut:
    kind = f"dev.flashd.run.{name or state}.v1"
    flat = {"id": f"{run_id}.{sequence}", "type": kind, "run_id": run_id, "sequence": str(sequence), "state": state}
    return EventOut(f'{{"type":"{kind}"}}', flat)


def an_accept(run_id: str = "r1", **changes: object) -> Accept:
    given: dict[str, object] = {
        "op_id": op(),
        "entry_id": "",
        "run_id": run_id,
        "hash10": f"hash-{run_id}",
        "sha": f"sha-{run_id}",
        "accepted_at": T0,
        "core": '{"step":"accepted"}',
        "fields": {"state": "queued", "attempts_used": "0", "request": "{}"},
        "event": event(run_id, 1, "queued", "accepted"),
    }
    return Accept(**(given | changes))  # type: ignore[arg-type]


def a_step(
    state: str,
    expect: int,
    sequence: int,
    *,
    run_id: str = "r1",
    rows: Mapping[str, LedgerRow | None] | None = None,
    op_id: str = "",
    name: str = "",
    **fields: str,
) -> Write:
    """A step with one event."""
    return Write(
        run_id=run_id,
        expect=expect,
        op_id=op_id or op(),
        core=f'{{"at":{expect}}}',
        fields={"state": state, "sequence": str(sequence), **fields},
        events=(event(run_id, sequence, state, name),),
        rows=rows or {},
    )


def a_row(name: str = "flash-t-r1-abc-a0", *, state: RowState = RowState.REQUESTED, **changes: object) -> LedgerRow:
    given: dict[str, object] = {
        "name": name,
        "run_id": "r1",
        "attempt": 0,
        "provider": "hyperstack",
        "account": "org-1",
        "region": "CANADA-1",
        "gpu": "A100 PCIe",
        "machine_id": None,
        "state": state,
        "usd_per_hour": 1.35,
        "requested_at": T0,
        "launch": "0123abcd",
    }
    return LedgerRow(**(given | changes))  # type: ignore[arg-type]


def live(row: LedgerRow, machine_id: str = "77") -> LedgerRow:
    return replace(row, state=RowState.LIVE, machine_id=machine_id, live_at=T0 + 5)


def a_rejection(entry_id: str, *, run_id: str | None = "r1", source: Source = Source.REQUESTS) -> Rejection:
    said = EventOut("{}", {"id": f"rejected-{entry_id}", "type": "dev.flashd.request.rejected.v1"})
    return Rejection(
        source, entry_id, "conflict", "conflict: $: other content", T0, run_id, '{"run_id":"r1"}',
        said if source is Source.REQUESTS else None,
    )  # fmt: skip


async def lead(store: Store, owner: str = "p1", holder: str = "host-a", *, own: bool = False) -> Led:
    answer = await store.lead(holder, owner, 60_000, may_take_own=own)
    assert isinstance(answer, Led), answer
    return answer


async def accepted(store: Store, run_id: str = "r1", **changes: object) -> AcceptAnswer:
    return await store.accept(an_accept(run_id, **changes))


async def launched(store: Store, row: LedgerRow, *, run_id: str = "r1") -> Written:
    """Accepted, intent recorded and confirmed: version 3, sequence 3."""
    await accepted(store, run_id)
    intent = await store.intent(a_step("launching", 1, 2, run_id=run_id), row, 10, 100.0)
    assert isinstance(intent, Written), intent
    answer = await store.confirm(a_step("booting", 2, 3, run_id=run_id), live(row))
    assert isinstance(answer, Written), answer
    return answer
