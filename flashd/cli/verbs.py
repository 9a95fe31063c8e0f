"""Every verb as data: its module (imported only when it is used), its help and its arguments."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from dataclasses import dataclass

Argument = tuple[tuple[str, ...], dict[str, object]]
MOST_EVENTS = 100_000


@dataclass(frozen=True, slots=True)
class Verb:
    """`function` in `module` takes the parsed arguments and answers the exit status."""

    name: str
    help: str
    module: str
    function: str
    arguments: tuple[Argument, ...] = ()


def _arg(*flags: str, **settings: object) -> Argument:
    return flags, settings


def _run_id(text: str) -> str:
    if not text.strip():
        raise ArgumentTypeError("a run id is not empty")
    return text


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentTypeError(f"{text} is no number of seconds above 0")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_EVENTS:
        raise ArgumentTypeError(f"{text} is no number from 1 to {MOST_EVENTS}")
    return int(text)


_SWITCH = "store_true"

PRODUCE = (
    Verb(
        "submit",
        "push a run request (JSON file, - = stdin)",
        "flashd.cli.submit",
        "submit",
        (
            _arg("file", metavar="FILE", help="the request as JSON; - = standard input"),
            _arg("--dry-run", action=_SWITCH, help="check and show places and worst-case dollars; nothing is written"),
            _arg("--wait", action=_SWITCH, help="follow the run to its end; its success is the exit status"),
            _arg("--timeout", type=_seconds, metavar="S", help="with --wait: stop waiting after S seconds (exit 124)"),
        ),
    ),
    Verb(
        "status",
        "alarms, what runs, what waits and why; with RUN, all about it",
        "flashd.cli.status",
        "status",
        (
            _arg("run", metavar="RUN", nargs="?", type=_run_id, help="run id"),
            _arg("--all", action=_SWITCH, help="every remembered run, not only the newest"),
        ),
    ),
    Verb(
        "events",
        "the events of all runs, or of one",
        "flashd.cli.events",
        "events",
        (
            _arg("--follow", action=_SWITCH, help="go on as new ones come (with --json: JSON lines)"),
            _arg("--run", metavar="RUN", type=_run_id, help="only this run's"),
            _arg("--count", type=_count, default=100, metavar="N", help="the last N (default %(default)s)"),
        ),
    ),
    Verb(
        "cancel",
        "cancel a run; a success that is already there wins",
        "flashd.cli.cancel",
        "cancel",
        (
            _arg("run", metavar="RUN", type=_run_id, help="run id"),
            _arg("--reason", default="", metavar="TEXT", help="shown in the run's events"),
            _arg("--by", default="", metavar="WHO", help="default: the user's name"),
        ),
    ),
)
OPERATE = (
    Verb("run", "the daemon, in the foreground", "flashd.cli.run", "run"),
    Verb("machines", "the books beside the provider's list; dollars per hour", "flashd.cli.machines", "machines"),
    Verb(
        "sweep",
        "what the daemon's sweep would delete now (--dry-run)",
        "flashd.cli.machines",
        "sweep",
        (_arg("--dry-run", action=_SWITCH, help="list only; the daemon does the deleting"),),
    ),
    Verb(
        "doctor",
        "is everything well? one line a check; exit status = the worst",
        "flashd.cli.doctor",
        "doctor",
        (
            _arg(
                "--accept-ledger",
                action=_SWITCH,
                help="end safe mode: what Redis holds now is the truth; on the daemon's host",
            ),
        ),
    ),
    Verb(
        "check-config",
        "check the configuration; exit 78 with every fault",
        "flashd.cli.config",
        "check_config",
        (_arg("--offline", action=_SWITCH, help="do not ask Redis, the Hub or a cloud"),),
    ),
    Verb("print-default-config", "every key with its default and its meaning", "flashd.cli.config", "print_default"),
)
LEARN = (
    Verb(
        "demo",
        "everything on this machine, no account, no money",
        "flashd.cli.demo",
        "demo",
        (
            _arg("--keep", action=_SWITCH, help="leave it running for your own requests"),
            _arg("--crash", action=_SWITCH, help="kill the daemon in mid-run and start it again"),
        ),
    ),
)

GROUPS: tuple[tuple[str, tuple[Verb, ...]], ...] = (("Produce", PRODUCE), ("Operate", OPERATE), ("Learn", LEARN))
