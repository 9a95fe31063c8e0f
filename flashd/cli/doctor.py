"""`flashd doctor`: one line a check, the worst is the exit status; with --accept-ledger the way out of safe mode."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from pathlib import Path

from flashd.cli.checks import Check, ask_outside, failed, ok, show_checks, warn, worst
from flashd.cli.exits import Exit
from flashd.cli.output import fail, say, show, show_json
from flashd.cli.session import run_async, settings_for
from flashd.cli.statusz import alarms_of, statusz
from flashd.config import ALL_CREDENTIALS, Settings
from flashd.daemon.memory import ACCEPT_FILE, LOCK_FILE, MEMORY_FILE

OBEYED_WITHIN_S = 12.0  # the contract gives the daemon 10
LOOK_S = 0.2


def doctor(options: argparse.Namespace) -> int:
    """Look at everything, or leave safe mode."""
    settings = settings_for(options, () if options.accept_ledger else ALL_CREDENTIALS)
    if options.accept_ledger:
        return _accept_ledger(settings, options)
    checks = (*run_async(lambda: ask_outside(settings)), *local_checks(settings))
    status = worst(checks)
    if options.json:
        show_json({"ok": status == Exit.OK, "exit": int(status), "checks": [check.document for check in checks]})
    else:
        show_checks(checks)
    return status


def _accept_ledger(settings: Settings, options: argparse.Namespace) -> Exit:
    """Leave the word in the state directory, where only the daemon's own host can, and see it taken."""
    directory = Path(settings.state_directory)
    word = directory / ACCEPT_FILE
    try:
        word.touch(mode=0o600)
    except OSError as error:
        text = f"{word}: {error.strerror}; run this on the daemon's host, as root or as the daemon's user"
        return fail(options, Exit.FAILED, text)
    if not is_held(directory):
        text = "no daemon runs here; the next start accepts the ledger as Redis has it"
        return _accepted(options, text, obeyed=False)
    deadline = time.monotonic() + OBEYED_WITHIN_S
    while time.monotonic() < deadline:
        if not word.exists():
            return _accepted(options, "accepted: what Redis holds now is what flashd remembers", obeyed=True)
        time.sleep(LOOK_S)
    text = f"the daemon did not take it within {OBEYED_WITHIN_S:g} s; it does when Redis answers it: see its log"
    return fail(options, Exit.LATER, text)


def _accepted(options: argparse.Namespace, text: str, *, obeyed: bool) -> Exit:
    show_json({"accepted": True, "obeyed": obeyed, "detail": text}) if options.json else show(text)
    if obeyed:
        say("compare with the provider: flashd machines")
    return Exit.OK


def is_held(directory: Path) -> bool:
    """Whether a daemon holds the state directory now. Raises OSError when that cannot be seen."""
    try:
        lock = os.open(directory / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def local_checks(settings: Settings) -> tuple[Check, ...]:
    """What can be seen on this host: credential files, the state directory, the daemon's own word."""
    return (*_credential_files(settings), *_state_directory(Path(settings.state_directory)), *_daemon(settings))


def _credential_files(settings: Settings) -> list[Check]:
    hub, cloud = settings.hub, settings.providers.hyperstack
    named = [hub.token_file, hub.box_token_file, cloud.api_key_file, settings.redis.url_file]
    found: list[Check] = []
    for path in (Path(name) for name in named if name):
        try:
            mode = path.stat().st_mode & 0o777
        except OSError:
            continue  # it came from somewhere else, or the configuration would have been refused
        if mode & 0o077:
            found.append(warn("credentials", f"{path} can be read by others ({mode:o})", f"chmod 600 {path}"))
    return found or [ok("credentials", "no file can be read by others")]


def _state_directory(directory: Path) -> list[Check]:
    name = "state directory"
    try:
        held = is_held(directory)
        if not directory.is_dir():
            return [warn(name, f"{directory} does not exist", "the daemon makes it at its first start")]
        memory = _memory(directory)
    except OSError as error:
        return [warn(name, f"{error.filename or directory}: {error.strerror}", "ask as root or the daemon's user")]
    except ValueError as error:
        fix = "remove it if Redis is known to be whole"
        return [failed(name, f"{directory / MEMORY_FILE} cannot be read: {error}", fix)]
    checks = [ok(name, f"{directory}, {'held by a daemon' if held else 'no daemon holds it'}")]
    why = memory.get("safe_mode")
    if why:
        fix = "compare with `flashd machines`, then: flashd doctor --accept-ledger"
        return [*checks, failed("safe mode", f"nothing is launched or deleted: {why}", fix)]
    return [*checks, ok("safe mode", "off")]


def _memory(directory: Path) -> dict[str, object]:
    try:
        found = json.loads((directory / MEMORY_FILE).read_bytes())
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError("not a JSON object")
    return found


def _daemon(settings: Settings) -> list[Check]:
    if not settings.http.listen:
        return []
    document = statusz(settings)
    if document is None:
        fix = "on its host: systemctl status flashd"
        return [warn("daemon", f"none of namespace {settings.namespace} answers at {settings.http.listen}", fix)]
    alarms = [
        warn("alarm", f"{one['alarm']}: {one['detail']}", "see its page in the runbook") for one in alarms_of(document)
    ]
    if not document.get("ready"):
        return [warn("daemon", f"not ready: {document.get('reason')}", "see its log"), *alarms]
    return [ok("daemon", str(document.get("status"))), *alarms]
