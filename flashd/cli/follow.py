"""Following one run's events to its end, and events as lines."""

from __future__ import annotations

import argparse
import json

from flashd.adapters.store import Store
from flashd.adapters.store_types import StreamEntry
from flashd.cli.exits import Exit
from flashd.cli.output import say, show, show_json
from flashd.cli.session import tail
from flashd.wire.strict_json import compact

Event = dict[str, object]
ENDS = {"succeeded": Exit.OK, "failed": Exit.FAILED, "cancelled": Exit.FAILED}
_FACTS = ("reason", "detail", "provider", "region", "gpu", "machine", "stage")


async def follow_run(store: Store, run_id: str, options: argparse.Namespace) -> Exit:
    """Print the run's transitions on stderr until the terminal one, which is the answer."""
    async for entry in tail(store, "0-0", run_id):
        event = event_of(entry)
        if event is None:
            continue
        say(line_of(event))
        status = ENDS.get(name_of(event))
        if status is not None:
            show_json(event) if options.json else show(result_of(event))
            return status
    raise AssertionError("tail never ends")


def event_of(entry: StreamEntry) -> Event | None:
    """The event of a stream entry; None, and said so, when it is none of flashd's: anybody may XADD."""
    try:
        event = json.loads(entry.fields["event"], parse_constant=lambda _: None)
        if isinstance(event, dict) and isinstance(event["data"], dict) and isinstance(event["type"], str):
            return event
    except (KeyError, ValueError):
        pass
    say(f"entry {entry.entry_id} is no event of flashd; left out")
    return None


def name_of(event: Event) -> str:
    """`dev.flashd.run.<name>.v1` -> name."""
    parts = str(event["type"]).split(".")
    return parts[-2] if len(parts) > 1 else parts[0]


def line_of(event: Event) -> str:
    """One event on one line: when, which run, what, and its facts."""
    data = data_of(event)
    return f"{event.get('time')}  {data.get('run_id') or '-'}  {name_of(event)}  {facts_of(event)}".rstrip()


def facts_of(event: Event) -> str:
    """What an event says, without line breaks."""
    data = data_of(event)
    facts = [str(data[key]) for key in _FACTS if data.get(key)]
    if data.get("step"):
        facts.append(f"step {data['step']}")
    cost_usd = data.get("cost_usd")
    if isinstance(cost_usd, int | float):
        facts.append(f"${cost_usd:.4f}")
    return " ".join(" ".join(facts).split())


def result_of(event: Event) -> str:
    """The terminal event as the answer: a success's metrics, else the state and why."""
    data = data_of(event)
    if data.get("state") == "succeeded":
        metrics = data.get("metrics")
        return compact(metrics if metrics is not None else data.get("metrics_ref"))  # type: ignore[arg-type]
    return ": ".join(str(data[key]) for key in ("state", "reason", "detail") if data.get(key))


def data_of(event: Event) -> dict[str, object]:
    data = event["data"]
    assert isinstance(data, dict)
    return data
