"""`flashd submit`: what `redis-cli XADD` does too, with every fault told before anything is written."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import anyio

from flashd.adapters.store import Store
from flashd.cli.acceptance import Accepted, Refused, Remembered, taken
from flashd.cli.exits import Exit
from flashd.cli.follow import follow_run
from flashd.cli.output import fail, say, show, show_json
from flashd.cli.plan import plan_document, plan_text, planned
from flashd.cli.session import run_async, settings_for, with_store
from flashd.config import ALL_CREDENTIALS, Settings
from flashd.config_credentials import REDIS_URL
from flashd.providers.catalog import class_names
from flashd.wire.faults import Rejection
from flashd.wire.request import MAX_READ_BYTES, parse_request
from flashd.wire.request_model import RunRequest

ACCEPT_WAIT_S = 10.0
DRY_RUN_NEEDS = ALL_CREDENTIALS - {"hf_token", "hf_box_token"}


def submit(options: argparse.Namespace) -> int:
    """Check, push, and tell whether it was accepted; with --wait, how it ended."""
    wrong = _contradiction(options)
    if wrong:
        return fail(options, Exit.USAGE, wrong)
    try:
        raw = _read(options.file)
    except OSError as error:
        return fail(options, Exit.USAGE, f"{options.file}: {error.strerror}")
    settings = settings_for(options, _needs(options))
    request = parse_request(
        raw, catalogue=class_names(), secrets=_secret_names(settings), default_image=settings.worker.image
    )
    if isinstance(request, Rejection):
        return _refused(options, "not pushed, it would be rejected", request.reason, request.detail_lines)
    if options.dry_run:
        plan = run_async(lambda: planned(settings, request))
        show_json(plan_document(plan)) if options.json else show(plan_text(plan))
        return Exit.OK
    try:
        return with_store(options, lambda _settings, store: _submit(store, raw, request, options))
    except KeyboardInterrupt:
        if not options.wait:
            raise
        hint = f"detached; what was pushed goes on. Stop it with: flashd cancel {request.run_id}"
        return fail(options, Exit.INTERRUPTED, hint, run_id=request.run_id)


def _contradiction(options: argparse.Namespace) -> str:
    if options.dry_run and options.wait:
        return "--dry-run writes nothing, so there is nothing to --wait for"
    return "--timeout is for --wait" if options.timeout is not None and not options.wait else ""


def _needs(options: argparse.Namespace) -> Collection[str]:
    return DRY_RUN_NEEDS if options.dry_run else (REDIS_URL.name,)


def _read(file: str) -> bytes:
    """At most one byte more than is ever parsed: the parser says what is too large."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_READ_BYTES + 1)
    with Path(file).open("rb") as source:
        return source.read(MAX_READ_BYTES + 1)


def _secret_names(settings: Settings) -> Collection[str]:
    """The secrets that can be resolved. Elsewhere than on the daemon's host nobody can know: then any name passes."""
    try:
        return frozenset(entry.name for entry in Path(settings.secrets.directory).iterdir() if entry.is_file())
    except OSError:
        return _AnyName()


class _AnyName(Collection[str]):
    def __contains__(self, _name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


async def _submit(store: Store, raw: bytes, request: RunRequest, options: argparse.Namespace) -> Exit:
    known = await store.fields(request.run_id)
    if known and known.get("request_sha256") != request.sha256:
        conflict = f"conflict: $.run_id: {request.run_id} is taken by a run with another content ({known.get('state')})"
        return _refused(options, "not pushed, it would be rejected", "conflict", (conflict,))
    limit_s = options.timeout if options.wait else None if known else ACCEPT_WAIT_S
    entry_id: str | None = None
    with anyio.move_on_after(limit_s) as scope:
        if known:
            say(f"{request.run_id} was submitted before with this very content; nothing was pushed")
            answer: Accepted | Refused | Remembered = Accepted(known)
        else:
            last = await store.events_last(1)
            entry_id = await store.submit(raw.decode())
            say(f"pushed as {entry_id}")
            answer = await taken(store, request, entry_id, last[0].entry_id if last else "0-0")
        match answer:
            case Refused(reason, lines):
                return _refused(options, "rejected", reason, lines)
            case Remembered():
                text = f"{request.run_id} ended long ago: flashd remembers that it was done, and not how"
                return fail(options, Exit.FAILED, text, run_id=request.run_id, entry_id=entry_id)
            case Accepted(fields):
                if options.wait:
                    return await follow_run(store, request.run_id, options)
                return _accepted(options, request.run_id, entry_id, fields, duplicate=bool(known))
    assert scope.cancelled_caught
    return _gave_up(options, request.run_id, entry_id)


def _accepted(
    options: argparse.Namespace, run_id: str, entry_id: str | None, fields: Mapping[str, str], *, duplicate: bool
) -> Exit:
    state = fields.get("state", "")
    if options.json:
        document = {"run_id": run_id, "accepted": True, "duplicate": duplicate, "entry_id": entry_id, "state": state}
        show_json(document)
    else:
        show(f"{run_id} {'is known' if duplicate else 'accepted'}: {state}")
        say(f"follow it with: flashd status {run_id}")
    return Exit.OK


def _gave_up(options: argparse.Namespace, run_id: str, entry_id: str | None) -> Exit:
    """The wait is over; what was pushed stays pushed."""
    if options.wait:
        text = f"no end within {options.timeout:g} s; what was pushed goes on. Stop it with: flashd cancel {run_id}"
        return fail(options, Exit.TIMEOUT, text, run_id=run_id, entry_id=entry_id)
    say(f"no daemon took it within {ACCEPT_WAIT_S:g} s; it is taken when flashd runs: flashd status")
    if options.json:
        show_json({"run_id": run_id, "accepted": None, "duplicate": False, "entry_id": entry_id, "state": None})
    else:
        show(f"{run_id} is queued in Redis")
    return Exit.OK


def _refused(options: argparse.Namespace, what: str, reason: str, lines: tuple[str, ...]) -> Exit:
    say(f"{what}:\n" + "\n".join(f"  {line}" for line in lines))
    if options.json:
        show_json({"accepted": False, "exit": int(Exit.FAILED), "reason": reason, "detail": list(lines)})
    return Exit.FAILED
