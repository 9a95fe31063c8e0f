"""The test bed itself: what conftest promises."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import redis

from tests import network_guard
from tests.redis_server import RedisServer


@pytest.mark.parametrize("round_", [1, 2])
def test_every_test_finds_an_empty_redis(redis_url: str, round_: int) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.dbsize() == 0
        client.set("left-behind", round_)


def test_a_killed_redis_has_its_data_again(new_redis: Callable[..., RedisServer]) -> None:
    server = new_redis()
    with redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
    server.kill()
    server.start()
    with redis.Redis.from_url(server.url) as client:
        assert client.get("key") == b"value"


def test_leaving_the_machine_is_stopped_and_noted() -> None:
    with socket.socket() as sock, pytest.raises(network_guard.LeftTheMachineError):
        sock.connect(("192.0.2.1", 80))
    with pytest.raises(network_guard.LeftTheMachineError):
        socket.getaddrinfo("example.invalid", 80)
    assert network_guard.drain() == ["192.0.2.1:80", "example.invalid:80"]


def test_this_machine_may_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        assert network_guard.drain() == []
