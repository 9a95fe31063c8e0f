"""Tells systemd how the daemon is. Without a NOTIFY_SOCKET every call does nothing.

Source: sd_notify(3). Messages are single datagrams; they never block and a lost one is no error, since the service
manager may be restarting, and the next one says the same.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from flashd.adapters.clock import Clock
from flashd.errors import FlashdError

MAX_STATUS_BYTES = 2_000


class NotifySocketError(FlashdError):
    """NOTIFY_SOCKET is set, but is no address of a unix socket: the unit or whoever started us is at fault."""


class Notifier:
    """One connection to the service manager; `with` closes it."""

    def __init__(self, clock: Clock, environ: Mapping[str, str] = os.environ) -> None:
        """Raises NotifySocketError for an address that no service manager sets."""
        self._clock = clock
        self._status = ""
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_s = _watchdog_s(environ)
        self._socket: socket.socket | None = None
        if self._address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)

    @property
    def watchdog_s(self) -> float | None:
        """After this many seconds without `ping` systemd kills us; None = it does not watch."""
        return self._watchdog_s

    def ready(self, status: str) -> None:
        """The daemon serves; also what ends a reload."""
        self._send("READY=1", status=status)

    def status(self, text: str) -> None:
        """One line for `systemctl status`; sent only when it changes."""
        self._send(status=text)

    def ping(self) -> None:
        """Feed the watchdog: only ever after a completed pass of the work that must not stall."""
        self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """The configuration is being read anew; say `ready` when done, however it went."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={int(self._clock.monotonic() * 1_000_000)}")

    def stopping(self, status: str) -> None:
        self._send("STOPPING=1", status=status)

    def extend_timeout(self, seconds: float) -> None:
        """Starting or stopping takes at most this much longer, from now."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _send(self, *assignments: str, status: str | None = None) -> None:
        line = self._status if status is None else _one_line(status)
        message = [*assignments, f"STATUS={line}"] if line != self._status else [*assignments]
        if self._socket is None or self._address is None or not message:
            return
        with contextlib.suppress(OSError):  # see the module's docstring
            self._socket.sendto("\n".join(message).encode(), self._address)
            self._status = line


def _one_line(text: str) -> str:
    """A line break would begin another assignment."""
    return " ".join(text.split()).encode()[:MAX_STATUS_BYTES].decode(errors="ignore")


def _address(text: str) -> str | None:
    """A leading `@` stands for the NUL of Linux's abstract addresses."""
    if not text:
        return None
    if text[0] not in "/@" or len(text) < 2:
        raise NotifySocketError(f"NOTIFY_SOCKET={text!r} is neither a path nor an abstract address (@name)")
    return "\0" + text[1:] if text[0] == "@" else text


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    """Source: sd_watchdog_enabled(3). WATCHDOG_PID of another process: the variables were inherited."""
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or int(usec) == 0 or environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    return int(usec) / 1_000_000
