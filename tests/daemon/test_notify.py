"""What systemd hears from the daemon, at a real socket."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator

import pytest

from flashd.adapters.notify import MAX_STATUS_BYTES, Notifier, NotifySocketError


class FixedClock:
    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 12.5


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """A service manager's end, at a path and at an abstract address."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(f"{directory}/notify" if request.param == "path" else f"\0flashd-test-{os.urandom(8).hex()}")
        server.settimeout(5)
        yield server


@pytest.fixture
def notifier(manager: socket.socket) -> Iterator[Notifier]:
    name: str | bytes = manager.getsockname()
    address = "@" + name[1:].decode() if isinstance(name, bytes) else name
    with Notifier(FixedClock(), {"NOTIFY_SOCKET": address}) as notifier:
        yield notifier


def heard(manager: socket.socket) -> str:
    return manager.recv(1 << 16).decode()


def test_ready_carries_the_status(manager: socket.socket, notifier: Notifier) -> None:
    notifier.ready("0 runs, 0 machines")
    assert heard(manager) == "READY=1\nSTATUS=0 runs, 0 machines"


def test_a_status_is_sent_when_it_changes_and_not_otherwise(manager: socket.socket, notifier: Notifier) -> None:
    notifier.status("1 run")
    notifier.status("1 run")
    notifier.status("2 runs")
    assert [heard(manager), heard(manager)] == ["STATUS=1 run", "STATUS=2 runs"]


def test_a_status_cannot_smuggle_in_an_assignment(manager: socket.socket, notifier: Notifier) -> None:
    notifier.status("Redis says:\nSTOPPING=1")
    assert heard(manager) == "STATUS=Redis says: STOPPING=1"


def test_a_long_status_is_cut_at_a_whole_character(manager: socket.socket, notifier: Notifier) -> None:
    notifier.status("é" * MAX_STATUS_BYTES)
    assert heard(manager) == "STATUS=" + "é" * (MAX_STATUS_BYTES // 2)


def test_a_reload_is_stamped_with_the_monotonic_clock_and_ended_by_ready(
    manager: socket.socket, notifier: Notifier
) -> None:
    notifier.ready("1 run")
    notifier.reloading()
    notifier.ready("1 run")
    said = [heard(manager) for _ in range(3)]
    assert said == ["READY=1\nSTATUS=1 run", "RELOADING=1\nMONOTONIC_USEC=12500000", "READY=1"]


def test_ping_stop_and_more_time(manager: socket.socket, notifier: Notifier) -> None:
    notifier.ping()
    notifier.stopping("handing over")
    notifier.extend_timeout(1.5)
    said = [heard(manager) for _ in range(3)]
    assert said == ["WATCHDOG=1", "STOPPING=1\nSTATUS=handing over", "EXTEND_TIMEOUT_USEC=1500000"]


def test_a_manager_that_has_gone_stops_nobody(manager: socket.socket, notifier: Notifier) -> None:
    manager.close()
    notifier.ping()


def test_a_manager_that_does_not_listen_blocks_nobody_and_hears_the_status_later(
    manager: socket.socket, notifier: Notifier
) -> None:
    for _ in range(5_000):
        notifier.ping()
    notifier.status("unheard")
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        while heard(manager) == "WATCHDOG=1":
            pass
    notifier.status("unheard")
    assert heard(manager) == "STATUS=unheard"


def test_outside_systemd_nothing_happens() -> None:
    with Notifier(FixedClock(), {}) as notifier:
        notifier.ready("up")
        notifier.ping()
        assert notifier.watchdog_s is None


@pytest.mark.parametrize("address", ["relative/path", "@", "vsock:2:1"])
def test_an_address_of_another_kind_is_an_error_that_names_it(address: str) -> None:
    with pytest.raises(NotifySocketError, match="NOTIFY_SOCKET"):
        Notifier(FixedClock(), {"NOTIFY_SOCKET": address})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"WATCHDOG_USEC": "60000000"}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())}, 60.0),
        ({"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "often"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_for_this_process_only(environ: dict[str, str], expected: float | None) -> None:
    assert Notifier(FixedClock(), environ).watchdog_s == expected
