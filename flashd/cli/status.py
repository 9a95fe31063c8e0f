"""`flashd status`: what runs, what waits and why; of one run what, why, whose fault and what next. 80 columns."""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections.abc import Mapping

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.session import say, show, show_json, table, with_store
from flashd.config import Settings
from flashd.core.model import Reason
from flashd.core.retry import fault_of
from flashd.wire.events import rfc3339

WIDTH = 80
SHOWN = 50
NUMBERS = ("sequence", "attempt", "attempts_used", "step")
TIMES = ("accepted_at", "updated_at", "finished_at", "heartbeat_at", "cancel_requested_at")
MONEY = ("usd_per_hour", "cost_usd")

NEXT = {
    "no_capacity": "flashd looks again by itself; more gpu.class or regions help",
    "cooldown": "the place refused a moment ago; it is tried again by itself",
    "auth": "an operator must renew the provider's key or the run's secret",
    "no_credit": "an operator must top up the provider's account",
    "provider_unreachable": "flashd goes on when the provider answers",
    "hub_unreachable": "flashd goes on when the Hub answers",
    "hub_forbidden": "give flashd's token write access to the repository",
    "hub_budget": "too many live runs or commits in this repository; use another",
    "max_machines": "waits for a machine to end; limits.max_machines is reached",
    "max_usd_per_hour": "waits for a machine to end; limits.max_usd_per_hour is reached",
    "draining": "an operator drains this fleet",
    "ledger": "safe mode: an operator must look at `flashd doctor`",
    "job_failed": "see the error above; mend the job and submit it under a new id",
    "deadline": "raise limits.max_wall_s or deadline_s and submit under a new id",
    "budget": "raise limits.max_usd and submit under a new id",
    "launch_refused": "every place refused this request; see the text above",
}


def status(options: argparse.Namespace) -> int:
    """All runs, or one."""

    async def work(_settings: Settings, store: Store) -> int:
        return await _one(store, options) if options.run else await _all(store, options)

    return with_store(options, work)


async def _one(store: Store, options: argparse.Namespace) -> int:
    fields = await store.fields(options.run)
    if not fields:
        say(f"no run {options.run}. `flashd status` lists them; a rejected request is in `flashd events`.")
        return Exit.NO_SUCH_RUN
    events = [json.loads(entry.fields["event"]) for entry in await store.events_range(run_id=options.run)]
    if options.json:
        show_json(shown_run(options.run, fields) | {"events": events})
    else:
        show(run_text(options.run, fields, events, time.time()))
    return Exit.OK


async def _all(store: Store, options: argparse.Namespace) -> int:
    run_ids = await store.runs()
    runs = {run_id: await store.fields(run_id) for run_id in run_ids[-SHOWN:] if run_id}
    runs = {run_id: fields for run_id, fields in runs.items() if fields}
    queued = await store.queue_length()
    totals = await store.totals()
    if options.json:
        show_json(
            {
                "queue": queued,
                "machines": totals.machines,
                "usd_per_hour": totals.usd_per_hour,
                "runs": [shown_run(run_id, fields) for run_id, fields in runs.items()],
            }
        )
        return Exit.OK
    show(f"queue {queued}, {totals.machines} machines, ${totals.usd_per_hour:.2f}/h")
    rows = [_row(run_id, fields, time.time()) for run_id, fields in reversed(list(runs.items()))]
    if rows:
        show(table(rows, ("RUN", "STATE", "AGE", "TRY", "WHERE", "STEP", "COST", "WHY")))
    if len(run_ids) > SHOWN:
        show(f"... the newest {SHOWN} of {len(run_ids)} runs")
    return Exit.OK


def _row(run_id: str, fields: Mapping[str, str], now: float) -> tuple[str, ...]:
    where = "/".join(part for part in (fields["gpu"], fields["region"]) if part)
    return (
        run_id[:24],
        fields["state"],
        age(now - float(fields["accepted_at"] or now)),
        fields["attempts_used"],
        where[:20],
        fields["step"],
        f"${float(fields['cost_usd'] or 0):.2f}",
        fields["reason"],
    )


def shown_run(run_id: str, fields: Mapping[str, str]) -> dict[str, object]:
    """The public fields with their types; unset ones are null, times RFC 3339."""
    shown: dict[str, object] = {"run_id": run_id}
    for name, text in fields.items():
        if name == "request":
            shown[name] = json.loads(text)
        elif text == "":
            shown[name] = None
        elif name in NUMBERS:
            shown[name] = int(text)
        elif name in TIMES:
            shown[name] = rfc3339(float(text))
        elif name in MONEY:
            shown[name] = float(text)
        elif name == "metrics":
            shown[name] = json.loads(text)
        elif name == "released":
            shown[name] = text == "1"
        else:
            shown[name] = text
    return shown


def run_text(run_id: str, fields: Mapping[str, str], events: list[dict[str, object]], now: float) -> str:
    """Everything about one run, for people; no line is longer than 80 columns."""
    lines = [f"{run_id}: {fields['state']}" + (f" ({fields['reason']})" if fields["reason"] else "")]
    lines += _facts(fields, now)
    if fields["detail"]:
        lines.append("why:")
        for line in fields["detail"].splitlines()[-12:]:
            lines += textwrap.wrap(line, WIDTH - 2, initial_indent="  ", subsequent_indent="    ") or [""]
    if fields["reason"] in set(Reason):
        lines.append(f"fault: {fault_of(Reason(fields['reason'])).value}")
    if (next_step := NEXT.get(fields["reason"])) is not None and fields["state"] != "succeeded":
        lines += textwrap.wrap(f"next: {next_step}", WIDTH, subsequent_indent="  ")
    elif fields["state"] == "backoff":
        lines.append("next: another machine, by itself")
    lines.append("events:")
    for event in events[-15:]:
        lines.append(f"  {event['time']}  {str(event['type']).split('.')[-2]}"[:WIDTH])
    return "\n".join(lines)


def _facts(fields: Mapping[str, str], now: float) -> list[str]:
    lines = [f"accepted {age(now - float(fields['accepted_at']))} ago, {fields['attempts_used']} attempts used"]
    if fields["machine"]:
        where = f"{fields['provider']} {fields['region']} {fields['gpu']} at ${float(fields['usd_per_hour']):.2f}/h"
        lines += [f"machine {fields['machine']} ({fields['machine_id'] or 'id unknown'})"[:WIDTH], where[:WIDTH]]
    if fields["stage"] or fields["step"]:
        beat = f", heard of {age(now - float(fields['heartbeat_at']))} ago" if fields["heartbeat_at"] else ""
        lines.append(f"stage {fields['stage'] or '-'}, step {fields['step'] or '-'}{beat}"[:WIDTH])
    cost = f"${float(fields['cost_usd'] or 0):.4f}"
    lines.append(f"cost {cost}" + (" final" if fields["released"] == "1" else " so far"))
    if fields["pending"]:
        lines.append(f"waits for an answer about: {fields['pending']}")
    return lines


def age(seconds: float) -> str:
    """`42 s`, `17 m`, `3.2 h`, `4.5 d`."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} m"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
