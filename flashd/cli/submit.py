"""`flashd submit` and `cancel`: what producers can do with `redis-cli` too, with the faults told at once."""

from __future__ import annotations

import argparse
import getpass
import json
import sys
from pathlib import Path

import anyio

from flashd.adapters.store import Store
from flashd.cli.exits import Exit
from flashd.cli.follow import follow_run
from flashd.cli.plan import plan_text, planned
from flashd.cli.session import say, show, show_json, with_store
from flashd.config import ALL_CREDENTIALS, Settings
from flashd.config_credentials import REDIS_URL
from flashd.daemon.process import CredentialsAtHand
from flashd.providers.catalog import class_names
from flashd.wire.faults import Rejection
from flashd.wire.request import parse_request
from flashd.wire.request_model import RunRequest

ACCEPT_WAIT_S = 10.0
ACCEPT_LOOK_S = 0.2


def submit(options: argparse.Namespace) -> int:
    """Check, push, and tell whether it was accepted."""
    try:
        raw = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
    except OSError as error:
        say(f"{options.file}: {error.strerror}")
        return Exit.USAGE

    async def work(settings: Settings, store: Store) -> int:
        request = parse_request(
            raw,
            catalogue=class_names(),
            secrets=CredentialsAtHand(settings).run_secret_names() if options.dry_run else _AnyName(),
            default_image=settings.worker.image,
        )
        if isinstance(request, Rejection):
            return _refused(request, options.json)
        if options.dry_run:
            plan = await planned(settings, request)
            show_json(plan) if options.json else show(plan_text(plan))
            return Exit.OK
        return await _push(store, raw, request, options)

    return with_store(options, work, ALL_CREDENTIALS if options.dry_run else (REDIS_URL.name,))


class _AnyName(frozenset[str]):
    """Which secrets there are is known where the daemon runs, not here."""

    def __contains__(self, _name: object) -> bool:
        return True


def _refused(rejection: Rejection, as_json: bool) -> int:
    lines = rejection.detail.splitlines()
    if as_json:
        show_json({"accepted": False, "reason": rejection.reason, "detail": lines})
    else:
        say("the request would be rejected:\n" + "\n".join(f"  {line}" for line in lines))
    return Exit.FAILED


async def _push(store: Store, raw: bytes, request: RunRequest, options: argparse.Namespace) -> int:
    before = await store.fields(request.run_id)
    entry_id = await store.submit(raw.decode())
    say(f"pushed as {entry_id}")
    if options.wait:
        return await follow_run(store, request.run_id, timeout_s=options.timeout, as_json=options.json)
    accepted = bool(before) or await _accepted(store, request.run_id)
    if options.json:
        show_json({"accepted": accepted, "run_id": request.run_id, "entry_id": entry_id})
    elif accepted:
        show(f"{request.run_id} accepted; follow it with: flashd status {request.run_id}")
    else:
        show(f"{request.run_id} is queued in Redis; no daemon has taken it yet (is flashd running?)")
    return Exit.OK


async def _accepted(store: Store, run_id: str) -> bool:
    for _ in range(int(ACCEPT_WAIT_S / ACCEPT_LOOK_S)):
        if await store.fields(run_id):
            return True
        await anyio.sleep(ACCEPT_LOOK_S)
    return False


def cancel(options: argparse.Namespace) -> int:
    """Ask for the end of a run. Success means that the request is in Redis; its end comes as an event."""

    async def work(_settings: Settings, store: Store) -> int:
        fields = await store.fields(options.run)
        by = options.by or getpass.getuser()
        command = {"command": "cancel", "run_id": options.run, "by": by, "reason": options.reason}
        if fields.get("finished_at"):
            say(f"{options.run} has already ended: {fields['state']}")
            return Exit.FAILED
        entry_id = await store.send(json.dumps(command))
        if options.json:
            show_json({"run_id": options.run, "entry_id": entry_id, "known": bool(fields)})
        elif fields:
            show(f"cancel of {options.run} asked; it was {fields['state']}")
        else:
            show(f"no run {options.run} yet; the cancel is remembered for 24 h")
        return Exit.OK if fields else Exit.NO_SUCH_RUN

    return with_store(options, work)
