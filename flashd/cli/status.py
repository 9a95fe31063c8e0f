"""`flashd status`: alarms first, then what runs, what waits and why; 80 columns."""

from __future__ import annotations

import argparse
import textwrap
import time

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.follow import event_of
from flashd.cli.output import GAP, WIDTH, Row, age, fail, show, show_json, table
from flashd.cli.refused import why_no_run
from flashd.cli.run_fields import Fields, number, typed
from flashd.cli.run_text import run_text
from flashd.cli.session import with_store
from flashd.cli.statusz import alarms_of, statusz
from flashd.config import Settings

SHOWN = 50
EVENTS_OF_A_RUN = 1000
HEADERS = ("RUN", "STATE", "AGE", "TRY", "WHERE", "STEP", "COST")
ENDED = frozenset({"succeeded", "cancelled"})


def status(options: argparse.Namespace) -> int:
    """All runs, or one."""

    async def work(settings: Settings, store: Store) -> int:
        return await (_all(settings, store, options) if options.run is None else _one(store, options))

    return with_store(options, work)


async def _one(store: Store, options: argparse.Namespace) -> Exit:
    fields = await store.fields(options.run)
    if not fields:
        return fail(options, Exit.NO_SUCH_RUN, await why_no_run(store, options.run), run_id=options.run)
    entries = await store.events_last(EVENTS_OF_A_RUN, run_id=options.run)
    events = [event for entry in entries if (event := event_of(entry)) is not None]
    if options.json:
        show_json(typed(options.run, fields) | {"events": events})
    else:
        show(run_text(options.run, fields, events, time.time()))
    return Exit.OK


async def _all(settings: Settings, store: Store, options: argparse.Namespace) -> Exit:
    live, known = await store.active(), await store.runs()
    alive = set(live)
    order = [*reversed(live), *(run_id for run_id in reversed(known) if run_id not in alive)]
    runs = await store.fields_of(order if options.all else order[:SHOWN])
    queue, oldest_at, totals = await store.queue_length(), await store.oldest_request_at(), await store.totals()
    daemon = statusz(settings)
    alarms = alarms_of(daemon)
    now = time.time()
    if options.json:
        head: dict[str, object] = {"alarms": alarms, "daemon": daemon and daemon.get("status")}
        head |= {"queue": queue, "oldest_request_age_s": oldest_at and round(now - oldest_at, 1)}
        head |= {"live": len(live), "known": len(known)}
        head |= {"machines": totals.machines, "usd_per_hour": totals.usd_per_hour}
        listed = [_without_request(typed(run_id, fields)) for run_id, fields in runs.items()]
        show_json(head | {"runs": listed})
        return Exit.OK
    for alarm in alarms:
        show(textwrap.fill(f"ALARM {alarm['alarm']}: {alarm['detail']}", WIDTH, subsequent_indent=GAP))
    waits = f" (the oldest for {age(now - oldest_at)})" if oldest_at is not None else ""
    show(f"{len(live)} runs live, queue {queue}{waits}, {totals.machines} machines, ${totals.usd_per_hour:.2f}/h")
    if runs:
        show(table(HEADERS, [_row(run_id, fields, now) for run_id, fields in runs.items()]))
    if len(order) > len(runs) and not options.all:
        show(f"... {len(order) - len(runs)} more: flashd status --all")
    return Exit.OK


def _without_request(run: dict[str, object]) -> dict[str, object]:
    """A list of thousands of requests helps nobody; `flashd status RUN --json` has it."""
    return {name: value for name, value in run.items() if name != "request"}


def _row(run_id: str, fields: Fields, now: float) -> Row:
    state, why = fields.get("state", ""), fields.get("reason", "")
    # A wait says what it is first, a traceback last.
    detail = (fields.get("detail", "").splitlines() or [""])[-1 if state == "failed" else 0]
    cells = (
        run_id,
        state,
        age(now - (number(fields, "accepted_at") or now)),
        fields.get("attempts_used", ""),
        " ".join(part for part in (fields.get("gpu"), fields.get("region")) if part)[:22],
        fields.get("step", "")[:9],
        f"${number(fields, 'cost_usd') or 0:.2f}",
    )
    notes = (f"{why}: {detail}" if detail else why,) if why and state not in ENDED else ()
    return Row(cells, notes)
