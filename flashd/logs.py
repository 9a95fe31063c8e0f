"""structlog, set up once: journald's own fields under systemd, readable lines on a terminal, key=value lines elsewhere.

Every value, exception text included, passes the redactor; tracebacks have no local variables.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections import deque
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, cast

import structlog
from structlog.typing import FilteringBoundLogger, Processor, WrappedLogger

from flashd.log_outputs import PRIORITIES, KeyValueOutput, Line, Output, choose_output, cut
from flashd.redaction import Redactor

MAX_RECENT = 50


@dataclass(slots=True)
class Recent:
    """The last lines at `warning` and above, oldest first; for `/statusz`."""

    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=MAX_RECENT))

    def note(self, line: Line) -> None:
        if PRIORITIES[line.level] <= PRIORITIES["warning"]:
            self.lines.append(line)


def configure(
    redactor: Redactor, *, now: Callable[[], float] | None = None, level: str = "info", output: Output | None = None
) -> Recent:
    """Set up logging for this process; the last call counts, for loggers handed out earlier too.

    `now` gives Unix seconds; `output` None = chosen by what stderr is. Raises KeyError for an unknown level.
    """
    recent = Recent()
    sink = _Sink(output or choose_output(sys.stderr, os.environ))
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, _finisher(redactor, now, recent)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=False,
    )
    _adopt_stdlib_logging()
    return recent


def set_level(level: str) -> None:
    """Change the threshold of a configured process. Raises KeyError for an unknown level."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))


def get_logger(**facts: object) -> FilteringBoundLogger:
    """A logger with these facts bound. Before `configure` it already redacts by shape and name."""
    if not structlog.is_configured():
        configure(Redactor(), output=_CurrentStderr())
    return cast(FilteringBoundLogger, structlog.get_logger(**facts))


class _Sink:
    """What structlog calls at the end of its chain: one method a level, all the same."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def write(self, line: Line) -> None:
        self._output.write(line)

    debug = info = warning = error = critical = write


class _CurrentStderr:
    """Until `configure` is called: whatever stderr is at the moment of the line."""

    def write(self, line: Line) -> None:
        KeyValueOutput(sys.stderr).write(line)


class _FromStdlib(logging.Handler):
    """Libraries' warnings go the same way as our own lines."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = get_logger()
        say = logger.error if record.levelno >= logging.ERROR else logger.warning
        say("library_warned", library=record.name, text=record.getMessage(), exc_info=record.exc_info)


def _adopt_stdlib_logging() -> None:
    root = logging.getLogger()
    if not any(isinstance(handler, _FromStdlib) for handler in root.handlers):
        root.addHandler(_FromStdlib(logging.WARNING))


def _finisher(redactor: Redactor, now: Callable[[], float] | None, recent: Recent) -> Processor:
    def finish(_: WrappedLogger, level: str, said: MutableMapping[str, Any]) -> tuple[tuple[Line], dict[str, object]]:
        event = redactor.text(str(said.pop("event", "")))
        exception = _traceback(said.pop("exc_info", None))
        facts = redactor.plain(dict(said))
        assert isinstance(facts, dict)
        # Cut only what is redacted: half a secret would not be known as one.
        line = Line(now() if now else None, level, event, facts, cut(redactor.text(exception)))
        recent.note(line)
        return (line,), {}

    return finish


def _traceback(exc_info: object) -> str:
    match exc_info:
        case BaseException():
            error: BaseException | None = exc_info
        case (_, BaseException() as error, _):
            pass
        case _:
            error = sys.exception() if exc_info else None
    if error is None:
        return ""
    # Never with local variables: they hold tokens and boot payloads.
    return "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format()).rstrip()
