"""Watches this process for traffic that leaves the machine: a test that causes some has failed, whatever it asserts.

Child processes are not watched.
"""

from __future__ import annotations

import ipaddress
import socket
import sys

_attempts: list[str] = []


class LeftTheMachineError(OSError):
    """A test tried to reach an address that is not this machine."""


def install() -> None:
    """Watch from now on; Python has no way to take an audit hook back."""
    sys.addaudithook(_watch)


def drain() -> list[str]:
    """What was tried since the last call."""
    tried = _attempts.copy()
    _attempts.clear()
    return tried


def _watch(event: str, args: tuple[object, ...]) -> None:
    match event, args:
        case (("socket.connect" | "socket.sendto"), (socket.socket() as sock, (host, port, *_))):
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                _check(host, port)
        case "socket.getaddrinfo", (host, port, *_) if host is not None:
            _check(host, port)


def _check(host: object, port: object) -> None:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if _is_loopback(name):
        return
    _attempts.append(f"{name}:{port}")
    raise LeftTheMachineError(f"tests talk to this machine only, not to {name}:{port}; use a closed port of 127.0.0.1")


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return name in ("localhost", "")
