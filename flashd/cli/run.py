"""`flashd run`: the daemon in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TextIO

import anyio

from flashd.adapters.clock import SystemClock
from flashd.adapters.notify import Notifier, NotifySocketError
from flashd.cli.exits import Exit
from flashd.cli.output import fail
from flashd.cli.session import settings_for
from flashd.config import ALL_CREDENTIALS, Settings, warnings
from flashd.daemon import process
from flashd.log_outputs import JournalOutput, JsonOutput, KeyValueOutput, Output, TerminalOutput
from flashd.logs import configure, get_logger, set_level
from flashd.redaction import Redactor


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM. 78 = the configuration is wrong, 75 = another daemon has the state directory."""
    settings = settings_for(options, ALL_CREDENTIALS)
    clock = SystemClock()
    output = output_of(settings.log.format, sys.stderr)
    redactor = redactor_of(settings)
    recent = configure(redactor, now=clock.now, level=settings.log.level, output=output)
    log = get_logger()
    for warning in warnings(settings):
        log.warning("configuration_warning", detail=warning)
    try:
        notifier = Notifier(clock)
    except NotifySocketError as error:
        return fail(options, Exit.CONFIG, str(error))
    with notifier:
        host = process.Host(
            notifier=notifier,
            redactor=redactor,
            recent=recent,
            read_settings=lambda: settings_for(options, ALL_CREDENTIALS),
            set_log_level=set_level,
        )
        anyio.run(process.run, settings, host)
    return Exit.OK


def redactor_of(settings: Settings) -> Redactor:
    """A redactor that knows every credential in use."""
    found = Redactor()
    for secret in settings.credentials.at_hand():
        found.add(secret.reveal())
    return found


def output_of(kind: str, stream: TextIO) -> Output | None:
    """The log's form as configured; None = the journal if `stream` is connected to it, else text."""
    match kind:
        case "journal":
            return JournalOutput(stream)
        case "json":
            return JsonOutput(stream)
        case "text" if stream.isatty():
            return TerminalOutput(stream, colour="NO_COLOR" not in os.environ)
        case "text":
            return KeyValueOutput(stream)
        case _:
            return None
