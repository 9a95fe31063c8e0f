"""The command line's entry: finds the verb, parses its arguments, imports only its module, answers the exit status."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from flashd import __version__
from flashd.cli.exits import Exit, exit_of
from flashd.cli.output import fail, say
from flashd.cli.verbs import GROUPS, Verb
from flashd.errors import ConfigError, FlashdError

DEFAULT_CONFIG = "/etc/flashd/config.toml"
VERBS = {verb.name: verb for _, group in GROUPS for verb in group}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit status is the contract's. Wrong usage raises SystemExit."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _say_everything()
    if not words:
        say(help_text())
        return Exit.USAGE
    match words[0]:
        case "-h" | "--help" | "help":
            print(help_text())
            return Exit.OK
        case "--version":
            print(f"flashd {__version__}")
            return Exit.OK
        case name if name in VERBS:
            verb = VERBS[name]
        case name if name.startswith("-"):
            _usage("flashd", f"{name} before the verb: options come after it")
        case name:
            _usage("flashd", f"no verb {name}{_hint(name, VERBS)}")
    return _run(verb, parser_of(verb).parse_args(words[1:]))


def _run(verb: Verb, options: argparse.Namespace) -> int:
    try:
        call: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(verb.module), verb.function)
        status = int(call(options))
        _flush()
    except BaseException as error:
        return _ended_by(_innermost(error), options)
    return status


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _ended_by(error: BaseException, options: argparse.Namespace) -> Exit:
    """The status for what a verb did not handle itself. A fault of our own keeps its traceback."""
    match error:
        case KeyboardInterrupt():
            say("interrupted")
            return Exit.INTERRUPTED
        case BrokenPipeError():
            # The reader of our output went away (`flashd events | head`): that is its right, and no failure.
            _to_nowhere()
            return Exit.OK
        case FlashdError():
            status, text = exit_of(error)
            faults = {"errors": list(error.lines)} if isinstance(error, ConfigError) else {}
            return fail(options, status, text, **faults)
        case _:
            raise error


class _Parser(argparse.ArgumentParser):
    """argparse with the nearest option in its complaints."""

    options: tuple[str, ...] = ()

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        hint = _hint(unknown.split()[0].split("=")[0], self.options) if unknown != message else ""
        _usage(self.prog, f"{message}{hint}")


def parser_of(verb: Verb) -> argparse.ArgumentParser:
    """One verb's arguments."""
    parser = _Parser(prog=f"flashd {verb.name}", description=verb.help, allow_abbrev=False)
    parser.add_argument(
        "--config",
        default=os.environ.get("FLASHD_CONFIG") or DEFAULT_CONFIG,
        metavar="FILE",
        help="configuration file (default: $FLASHD_CONFIG, else %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    for flags, settings in verb.arguments:
        parser.add_argument(*flags, **settings)  # type: ignore[arg-type]
    flags_of_verb = (flag for flags, _ in verb.arguments for flag in flags if flag.startswith("-"))
    parser.options = ("--config", "--json", "--help", *flags_of_verb)
    return parser


def help_text() -> str:
    """One screen of verbs."""
    lines = ["usage: flashd VERB [ARGUMENTS]", "", "Runs GPU fine-tuning jobs on rented machines and never leaks one."]
    for title, group in GROUPS:
        lines += ["", f"{title}:", *(f"  {verb.name:<22}{verb.help}" for verb in group)]
    return "\n".join([*lines, "", "Every verb takes --config FILE, --json and --help; flashd --version."])


def _usage(program: str, text: str) -> NoReturn:
    say(f"{program}: {text}\nTry '{program} --help'.")
    raise SystemExit(Exit.USAGE)


def _hint(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _say_everything() -> None:
    """A terminal that cannot show a letter gets its escape, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flush() -> None:
    """Now, while a reader that went away can still be told from a fault."""
    if sys.stdout is not None:  # closed by the caller: flashd status >&-
        sys.stdout.flush()


def _to_nowhere() -> None:
    """So that the interpreter's own flush at the end finds nothing to complain about."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            os.dup2(nowhere, stream.fileno())


if __name__ == "__main__":
    sys.exit(main())
