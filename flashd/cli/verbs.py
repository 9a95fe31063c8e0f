"""Every verb as data: its module (imported only when it is used), its help and its arguments."""

from __future__ import annotations

from dataclasses import dataclass

Argument = tuple[tuple[str, ...], dict[str, object]]


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    help: str
    module: str
    function: str
    arguments: tuple[Argument, ...] = ()


def _arg(*flags: str, **settings: object) -> Argument:
    return flags, settings


_RUN = _arg("run", metavar="RUN", help="run id")
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
            _arg("--timeout", type=float, metavar="S", help="with --wait: give up waiting after S seconds (exit 124)"),
        ),
    ),
    Verb(
        "status",
        "what runs, what waits and why; with RUN, everything about it",
        "flashd.cli.status",
        "status",
        (_arg("run", metavar="RUN", nargs="?", help="run id"),),
    ),
    Verb(
        "events",
        "the events of all runs, or of one",
        "flashd.cli.events",
        "events",
        (
            _arg("--follow", action=_SWITCH, help="go on as new ones come (with --json: JSON lines)"),
            _arg("--run", metavar="RUN", help="only this run's"),
            _arg("--count", type=int, default=100, metavar="N", help="the last N (default %(default)s)"),
        ),
    ),
    Verb(
        "cancel",
        "cancel a run; a success that is already there wins",
        "flashd.cli.submit",
        "cancel",
        (
            _RUN,
            _arg("--reason", default="", metavar="TEXT", help="shown in the run's events"),
            _arg("--by", default="", metavar="WHO", help="default: the user's name"),
        ),
    ),
)
OPERATE = (
    Verb("run", "the daemon, in the foreground", "flashd.cli.run", "run"),
    Verb("machines", "the ledger beside the provider's list", "flashd.cli.machines", "machines"),
    Verb(
        "sweep",
        "what the sweep would delete",
        "flashd.cli.machines",
        "sweep",
        (_arg("--dry-run", action=_SWITCH, help="list only; needed in this version"),),
    ),
    Verb(
        "doctor",
        "check Redis and the memory; accept a ledger that was lost",
        "flashd.cli.doctor",
        "doctor",
        (_arg("--accept-ledger", action=_SWITCH, help="end safe mode: what Redis remembers now is the truth"),),
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
