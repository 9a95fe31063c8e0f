"""`flashd cancel`: what anybody can do with `redis-cli` too, checked first."""

from __future__ import annotations

import argparse
import getpass
import json
import os

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.output import fail, say, show, show_json
from flashd.cli.session import with_store
from flashd.config import Settings
from flashd.wire.command import parse_command
from flashd.wire.faults import Rejection


def cancel(options: argparse.Namespace) -> int:
    """Ask for the end of a run. Success means that the request is in Redis; the end itself comes as an event."""
    said = {"by": options.by or _user(), "reason": options.reason}
    command = {"command": "cancel", "run_id": options.run} | {key: text for key, text in said.items() if text}
    text = json.dumps(command)
    checked = parse_command(text)
    if isinstance(checked, Rejection):
        detail = list(checked.detail_lines)
        return fail(options, Exit.USAGE, "not sent:\n" + "\n".join(f"  {line}" for line in detail), detail=detail)

    async def work(_settings: Settings, store: Store) -> int:
        fields = await store.fields(options.run)
        if fields.get("finished_at"):
            text_ = f"{options.run} has already ended: {fields['state']}; what has ended stays ended"
            return fail(options, Exit.FAILED, text_, run_id=options.run, state=fields["state"])
        entry_id = await store.send(text)
        if not fields:
            unknown = f"no run {options.run}; should it come within 24 h, it is cancelled at once"
            return fail(options, Exit.NO_SUCH_RUN, unknown, run_id=options.run, entry_id=entry_id)
        if options.json:
            show_json({"run_id": options.run, "entry_id": entry_id, "state": fields["state"]})
        else:
            show(f"{options.run}: its end was asked for; it was {fields['state']}")
            say(f"its machine is deleted and `cancelled` comes as an event; see: flashd status {options.run}")
        return Exit.OK

    return with_store(options, work)


def _user() -> str:
    """Whoever asks; behind sudo the person, not root."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        return f"uid {os.getuid()}"
