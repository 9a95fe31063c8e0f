"""The command line's entry: parses, finds the verb's module, imports only that one."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from flashd import __version__
from flashd.cli.exits import Exit
from flashd.cli.verbs import GROUPS, Verb

DEFAULT_CONFIG = "/etc/flashd/config.toml"


class Parser(argparse.ArgumentParser):
    """argparse that suggests the nearest verb or option."""

    known: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        words = [word for word in message.replace("'", " ").replace(",", " ").split() if word]
        near = [close for word in words if word not in self.known for close in get_close_matches(word, self.known, 1)]
        hint = (
            f" (did you mean {near[0]}?)" if near and ("invalid choice" in message or "unrecognized" in message) else ""
        )
        shown = message.split(" (choose from")[0]
        self.exit(Exit.USAGE, f"{self.prog}: {shown}{hint}\nTry '{self.prog} --help'.\n")


def parser() -> Parser:
    """The whole command line."""
    top = Parser(prog="flashd", description=_description(), formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--version", action="version", version=f"flashd {__version__}")
    sub = top.add_subparsers(dest="verb", metavar="VERB", parser_class=Parser, help=argparse.SUPPRESS)
    verbs = [verb for _, group in GROUPS for verb in group]
    top.known = tuple(verb.name for verb in verbs)
    for verb in verbs:
        child = sub.add_parser(verb.name, description=verb.help)
        child.add_argument(
            "--config",
            default=os.environ.get("FLASHD_CONFIG", DEFAULT_CONFIG),
            metavar="FILE",
            help="configuration file (default: $FLASHD_CONFIG, else %(default)s)",
        )
        child.add_argument("--json", action="store_true", help="print one JSON document on stdout")
        for flags, settings in verb.arguments:
            child.add_argument(*flags, **settings)  # type: ignore[arg-type]
        child.known = tuple(option for action in child._actions for option in action.option_strings)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is the contract's."""
    top = parser()
    options, rest = top.parse_known_args(arguments)
    if options.verb is None:
        top.print_help()
        return Exit.USAGE if rest else Exit.OK
    if rest:
        chosen = next(verb for _, group in GROUPS for verb in group if verb.name == options.verb)
        _unknown(rest, chosen)
    verb = next(verb for _, group in GROUPS for verb in group if verb.name == options.verb)
    run: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(verb.module), verb.function)
    try:
        return int(run(options))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`flashd events | head`): that is its right, and no failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK


def _unknown(rest: Sequence[str], verb: Verb) -> NoReturn:
    known = ["--config", "--json", "--help", *(flag for flags, _ in verb.arguments for flag in flags)]
    near = get_close_matches(rest[0], known, 1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    print(f"flashd {verb.name}: unknown argument {rest[0]}{hint}\nTry 'flashd {verb.name} --help'.", file=sys.stderr)
    raise SystemExit(Exit.USAGE)


def _description() -> str:
    lines = ["Runs GPU fine-tuning jobs on rented machines and never leaks one.", ""]
    for title, group in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {verb.name:<22}{verb.help}" for verb in group]
        lines.append("")
    return "\n".join([*lines, "Every verb takes --config FILE, --json and --help."])


if __name__ == "__main__":
    sys.exit(main())
