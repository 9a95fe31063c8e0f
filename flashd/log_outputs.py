"""The places a log line can go: journald, a terminal, key=value text or JSON. Lines are free of secrets already."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol, TextIO

from flashd.redaction import Plain

JOURNAL_SOCKET = "/run/systemd/journal/socket"
MAX_FIELD_BYTES = 64_000

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
_COLOURS = {"debug": "\x1b[2m", "info": "", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[1;31m"}
_BARE = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f-\x9f]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing to say, already free of secrets. `time` is in Unix seconds, or None before the clock is known."""

    time: float | None
    level: str
    event: str
    facts: Mapping[str, Plain]
    exception: str = ""

    @property
    def stamp(self) -> str:
        """RFC 3339, UTC, milliseconds."""
        if self.time is None:
            return ""
        return datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @property
    def message(self) -> str:
        """The event and its facts on one line, whatever the facts contain."""
        return cut(" ".join([_one_line(self.event), *(f"{key}={_value(fact)}" for key, fact in self.facts.items())]))


class Output(Protocol):
    """Where lines go."""

    def write(self, line: Line) -> None: ...


def choose_output(stream: TextIO, environ: Mapping[str, str]) -> Output:
    """The journal if `stream` is connected to it, a person's lines on a terminal, otherwise key=value lines."""
    if _is_the_journal(stream, environ):
        return JournalOutput(stream)
    if stream.isatty():
        return TerminalOutput(stream, colour="NO_COLOR" not in environ)
    return KeyValueOutput(stream)


@dataclass(frozen=True, slots=True)
class KeyValueOutput:
    """`time=... level=... event=... key=value`, one line each, values with spaces in JSON's quotes."""

    stream: TextIO

    def write(self, line: Line) -> None:
        pairs = [("time", line.stamp), ("level", line.level), ("event", line.event), *line.facts.items()]
        pairs = pairs if line.stamp else pairs[1:]
        if line.exception:
            pairs.append(("exception", line.exception))
        _print(self.stream, " ".join(f"{key}={_value(fact)}" for key, fact in pairs))


@dataclass(frozen=True, slots=True)
class TerminalOutput:
    """Time of day in UTC, level, message; a traceback on the lines below."""

    stream: TextIO
    colour: bool = False

    def write(self, line: Line) -> None:
        text = f"{line.stamp[11:23]} {line.level:<8} {line.message}".lstrip()
        if line.exception:
            text += "\n" + _CONTROL.sub("?", line.exception)
        if self.colour and _COLOURS[line.level]:
            text = f"{_COLOURS[line.level]}{text}\x1b[0m"
        _print(self.stream, text)


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """One JSON object a line: `time`, `level`, `event`, the facts, `exception`. A fact never hides those four."""

    stream: TextIO

    def write(self, line: Line) -> None:
        said = {"time": line.stamp, "level": line.level, "event": line.event, "exception": line.exception}
        document = {**line.facts, **{key: text for key, text in said.items() if text}}
        _print(self.stream, json.dumps(document, separators=(",", ":")))


class JournalOutput:
    """journald's native protocol: one datagram a line, each fact a field of its own. Source: systemd's page
    "Native Journal Protocol".

    The socket never blocks the daemon: what journald does not take at once is counted and said on the next line.
    """

    def __init__(self, stream: TextIO, address: str = JOURNAL_SOCKET) -> None:
        self._stream = stream
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._lost = 0

    def write(self, line: Line) -> None:
        fields = self._required(line) | {_field_name(key): _text(fact) for key, fact in line.facts.items()}
        if self._lost:
            fields["FLASHD_LINES_LOST"] = str(self._lost)
        try:
            self._send(fields)
        except BlockingIOError:
            self._lost += 1
            return
        except OSError:
            # Too large for one datagram, or journald is being restarted: the message still has every fact.
            self._send_less(line)
        self._lost = 0

    def _required(self, line: Line) -> dict[str, str]:
        message = f"{line.message}\n{line.exception}" if line.exception else line.message
        priority = str(PRIORITIES[line.level])
        event = {"SYSLOG_IDENTIFIER": "flashd", "FLASHD_EVENT": _one_line(line.event)}
        return {"MESSAGE": message, "PRIORITY": priority, **event}

    def _send_less(self, line: Line) -> None:
        try:
            self._send(self._required(line))
        except OSError:
            _print(self._stream, f"<{PRIORITIES[line.level]}>{line.message}")

    def _send(self, fields: Mapping[str, str]) -> None:
        self._socket.sendto(b"".join(_journal_field(name, text) for name, text in fields.items()), self._address)


def _text(fact: Plain) -> str:
    return cut(fact if isinstance(fact, str) else json.dumps(fact, ensure_ascii=False, separators=(",", ":")))


def _value(fact: Plain) -> str:
    """As one word: JSON quotes around what has spaces, quotes, line breaks, or nothing in it."""
    text = _text(fact)
    if isinstance(fact, str) and not _BARE.fullmatch(text):
        text = json.dumps(text, ensure_ascii=False)
    return _CONTROL.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def _one_line(text: str) -> str:
    return _CONTROL.sub("?", text.replace("\n", " "))


def cut(text: str) -> str:
    raw = text.encode("utf-8", errors="backslashreplace")
    if len(raw) <= MAX_FIELD_BYTES:
        return text
    return f"{raw[:MAX_FIELD_BYTES].decode('utf-8', errors='ignore')}... ({len(raw)} bytes)"


def _field_name(key: str) -> str:
    return f"FLASHD_{re.sub('[^A-Z0-9_]', '_', key.upper())}"[:64]


def _journal_field(name: str, text: str) -> bytes:
    raw = text.encode("utf-8", errors="backslashreplace")
    if b"\n" not in raw:
        return name.encode() + b"=" + raw + b"\n"
    return name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n"


def _is_the_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # a stream without a descriptor, or a closed one
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def _print(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
        stream.flush()
    except (OSError, ValueError):
        # The reader of our stderr has gone. There is nobody left to tell, and machines to look after.
        return
