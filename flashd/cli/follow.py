"""Following one run's events to its end."""

from __future__ import annotations

import json

import anyio

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.session import say, show, show_json
from flashd.wire.strict_json import compact

BLOCK_S = 2.0
ENDS = {"succeeded": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.FAILED}


async def follow_run(store: Store, run_id: str, *, timeout_s: float | None, as_json: bool) -> int:
    """Print transitions on stderr until the terminal one, which is the answer; 124 after `timeout_s`."""
    with anyio.move_on_after(timeout_s) as scope:
        try:
            return await _follow(store, run_id, as_json)
        except KeyboardInterrupt:
            say(f"detached; the run goes on. Stop it with: flashd cancel {run_id}")
            raise
    assert scope.cancelled_caught
    say(f"no end within {timeout_s:.0f} s; the run goes on. Stop it with: flashd cancel {run_id}")
    return Exit.TIMEOUT


async def _follow(store: Store, run_id: str, as_json: bool) -> int:
    last = "0-0"
    while True:
        for entry in await store.events_after(last, run_id=run_id, block_ms=int(BLOCK_S * 1000)):
            last = entry.entry_id
            event = json.loads(entry.fields["event"])
            say(line_of(event))
            status = ENDS.get(str(event["type"]).split(".")[-2])
            if status is not None:
                show_json(event) if as_json else show(result_of(event))
                return status


def line_of(event: dict[str, object]) -> str:
    """One event on one line."""
    data = event["data"]
    assert isinstance(data, dict)
    name = str(event["type"]).split(".")[-2]
    facts = [str(data[key]) for key in ("reason", "detail", "provider", "region", "gpu", "stage") if data.get(key)]
    if data.get("step"):
        facts.append(f"step {data['step']}")
    if data.get("cost_usd") is not None:
        facts.append(f"${data['cost_usd']:.4f}")
    run_id = data.get("run_id") or event.get("subject") or "-"
    text = " ".join(facts).splitlines()
    return f"{event['time']}  {run_id}  {name}  {text[0] if text else ''}".rstrip()


def result_of(event: dict[str, object]) -> str:
    """The terminal event as the answer."""
    data = event["data"]
    assert isinstance(data, dict)
    if data["state"] == "succeeded":
        metrics = data.get("metrics")
        return compact(metrics) if metrics is not None else compact(data.get("metrics_ref"))
    return f"{data['state']}: {data.get('reason') or ''}: {data.get('detail') or ''}".rstrip(": ")
