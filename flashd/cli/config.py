"""`flashd check-config` and `print-default-config`."""

from __future__ import annotations

import argparse

from flashd.cli.exits import Exit
from flashd.cli.output import say, show, show_json
from flashd.cli.session import run_async, settings_for
from flashd.config import ALL_CREDENTIALS, fleet_ceiling, print_default_config, warnings
from flashd.errors import ConfigError


def print_default(options: argparse.Namespace) -> int:
    """Every key with its default."""
    text = print_default_config()
    show_json({"config": text}) if options.json else show(text.rstrip("\n"))
    return Exit.OK


def check_config(options: argparse.Namespace) -> int:
    """Syntax, keys, contradictions, credentials; without --offline also Redis, the Hub and the cloud."""
    try:
        settings = settings_for(options, ALL_CREDENTIALS)
    except ConfigError as error:
        say(str(error))
        if options.json:
            show_json({"ok": False, "exit": int(Exit.CONFIG), "errors": list(error.lines)})
        return Exit.CONFIG
    from flashd.cli.checks import ask_outside, show_checks, worst

    checks = () if options.offline else run_async(lambda: ask_outside(settings))
    status = worst(checks)
    doubts, ceiling = warnings(settings), fleet_ceiling(settings).text
    if options.json:
        document = {"ok": status == Exit.OK, "exit": int(status), "errors": [], "warnings": list(doubts)}
        show_json(document | {"ceiling": ceiling, "checks": [check.document for check in checks]})
        return status
    for doubt in doubts:
        say(f"warning: {doubt}")
    show_checks(checks)
    show(ceiling)
    if status == Exit.OK:
        show("the configuration is right" + (" (nothing outside was asked)" if options.offline else ""))
    return status
