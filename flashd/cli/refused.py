"""A run id that no run has: perhaps its request was refused."""

from __future__ import annotations

from flashd.adapters.store import Store

LOOKED_AT = 1000


async def why_no_run(store: Store, run_id: str) -> str:
    """One text for people: the newest refusal of a request of this id, or where else to look."""
    for entry in await store.rejected(LOOKED_AT):
        if entry.fields.get("run_id") == run_id:
            faults = entry.fields.get("detail", entry.fields.get("reason", ""))
            lines = "\n".join(f"  {line}" for line in faults.splitlines())
            return f"no run {run_id}: its request was rejected at {entry.fields.get('time', '?')}:\n{lines}"
    return f"no run {run_id}, and none of the last refused requests is of that id; `flashd status` lists the runs"
