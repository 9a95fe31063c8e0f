"""What all tests share: a private Redis, and a guard against leaving this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis
import pytest

from tests import network_guard
from tests.redis_server import RedisMissingError, RedisServer

# A shared machine is slow at odd moments, so no deadline; the blob is what replays a failure elsewhere.
hypothesis.settings.register_profile("flashd", deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("flashd")
    network_guard.install()


@pytest.fixture(autouse=True)
def stays_on_this_machine() -> Iterator[None]:
    network_guard.drain()
    yield
    tried = network_guard.drain()
    assert not tried, f"this test tried to leave the machine: {', '.join(tried)}"


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One real redis-server for a whole test process. Do not stop it: `new_redis` makes those that may die."""
    server = _started()
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of an empty real Redis."""
    redis_server.flush()
    return redis_server.url


@pytest.fixture
def new_redis() -> Iterator[Callable[..., RedisServer]]:
    """Starts servers of the test's own, to be stopped, killed, restarted or given other options."""
    servers: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        servers.append(_started(*options))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def _started(*options: str) -> RedisServer:
    try:
        return RedisServer(*options).start()
    except RedisMissingError as missing:
        pytest.fail(str(missing), pytrace=False)
