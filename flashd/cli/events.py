"""`flashd events`: the streams as subscribers read them."""

from __future__ import annotations

import argparse
import json
import sys

from flashd.adapters.store import Store
from flashd.adapters.store_types import StreamEntry
from flashd.cli.exits import Exit
from flashd.cli.follow import BLOCK_S, line_of
from flashd.cli.session import say, show, show_json, with_store
from flashd.config import Settings

LONGEST = 100_000


def events(options: argparse.Namespace) -> int:
    """The last N events, then with --follow the new ones."""

    async def work(_settings: Settings, store: Store) -> int:
        run_id = options.run or ""
        if run_id and not await store.fields(run_id):
            say(f"no run {run_id}")
            return Exit.NO_SUCH_RUN
        count = max(1, min(options.count, LONGEST))
        last = await store.events_last(count, run_id=run_id)
        if options.json and not options.follow:
            show_json([json.loads(entry.fields["event"]) for entry in last])
            return Exit.OK
        _print(last, options.json)
        cursor = last[-1].entry_id if last else "0-0"
        while options.follow:
            more = await store.events_after(cursor, run_id=run_id, block_ms=int(BLOCK_S * 1000))
            _print(more, options.json)
            cursor = more[-1].entry_id if more else cursor
        return Exit.OK

    return with_store(options, work)


def _print(entries: tuple[StreamEntry, ...], as_json: bool) -> None:
    for entry in entries:
        show(entry.fields["event"] if as_json else line_of(json.loads(entry.fields["event"])))
    sys.stdout.flush()
