"""`flashd run`: the daemon in the foreground."""

from __future__ import annotations

import argparse
import os
import sys

import anyio

from flashd.adapters.clock import SystemClock
from flashd.adapters.notify import Notifier
from flashd.cli.exits import Exit
from flashd.config import Settings, load_settings, warnings
from flashd.daemon import process
from flashd.errors import ConfigError, StateDirectoryError
from flashd.log_outputs import JournalOutput, KeyValueOutput, Output, TerminalOutput
from flashd.logs import configure, get_logger
from flashd.redaction import Redactor


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM. 78 = the configuration is wrong, 75 = another daemon has the state directory."""
    try:
        settings = load_settings(options.config, os.environ)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return Exit.CONFIG
    clock = SystemClock()
    configure(redactor(settings), now=clock.now, level=settings.log.level, output=output_of(settings.log.format))
    log = get_logger()
    for warning in warnings(settings):
        log.warning("configuration_warning", detail=warning)
    with Notifier(clock) as notifier:
        try:
            anyio.run(process.run, settings, notifier)
        except StateDirectoryError as error:
            print(error, file=sys.stderr)
            return Exit.LATER
    return Exit.OK


def redactor(settings: Settings) -> Redactor:
    """A redactor that knows every credential in use."""
    found = Redactor()
    for secret in (
        settings.credentials.hf_token,
        settings.credentials.hf_box_token,
        settings.credentials.hyperstack_api_key,
        settings.credentials.redis_url,
    ):
        if secret:
            found.add(secret.reveal())
    return found


def output_of(kind: str) -> Output | None:
    """The log's form as configured; None = by what stderr is."""
    match kind:
        case "journal":
            return JournalOutput(sys.stderr)
        case "text":
            return TerminalOutput(sys.stderr)
        case "plain":
            return KeyValueOutput(sys.stderr)
        case _:
            return None
