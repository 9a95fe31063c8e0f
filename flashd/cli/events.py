"""`flashd events`: the streams as subscribers read them."""

from __future__ import annotations

import argparse
import sys

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.follow import Event, event_of, line_of
from flashd.cli.output import fail, show, show_json
from flashd.cli.refused import why_no_run
from flashd.cli.session import tail, with_store
from flashd.config import Settings
from flashd.wire.strict_json import compact


def events(options: argparse.Namespace) -> int:
    """The last N events, then with --follow the new ones."""

    async def work(_settings: Settings, store: Store) -> int:
        run_id = options.run or ""
        if run_id and not await store.fields(run_id):
            return fail(options, Exit.NO_SUCH_RUN, await why_no_run(store, run_id), run_id=run_id)
        last = await store.events_last(options.count, run_id=run_id)
        found = [event for entry in last if (event := event_of(entry)) is not None]
        if options.json and not options.follow:
            show_json(found)
            return Exit.OK
        for event in found:
            _print(event, options.json)
        if options.follow:
            sys.stdout.flush()
            async for entry in tail(store, last[-1].entry_id if last else "0-0", run_id):
                fresh = event_of(entry)
                if fresh is not None:
                    _print(fresh, options.json)
                    sys.stdout.flush()
        return Exit.OK

    return with_store(options, work)


def _print(event: Event, as_json: bool) -> None:
    """A line of JSON is printed as it is: `show` is for people's terminals."""
    print(compact(event)) if as_json else show(line_of(event))  # type: ignore[arg-type]
