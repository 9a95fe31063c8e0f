"""Addresses that look right and are not: the client would have taken them for something else without a word."""

from __future__ import annotations

import re

import pytest

from flashd.config_model import LISTEN_PATTERN, REDIS_PATTERN


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379/0",
        "redis://h",
        "redis://h/15",
        "rediss://user:p%40ss@h:65535/1?ssl_cert_reqs=none",
        "redis://:pw@[::1]:6379/0",
        "unix:///run/redis.sock",
        "unix:///run/redis.sock?db=3",
        "unix://user:pw@/run/redis.sock",
    ],
)
def test_an_address_of_redis_is_taken(url: str) -> None:
    assert re.match(REDIS_PATTERN, url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/abc",
        "redis://h:99999/0",
        "redis://h:x/0",
        "redis://h/0/1",
        "redis://h/1 2",
        "http://h/0",
        "unix://h",
        "",
    ],
)
def test_an_address_that_the_client_would_misread_is_refused(url: str) -> None:
    assert not re.match(REDIS_PATTERN, url)


@pytest.mark.parametrize(
    ("listen", "fits"), [("127.0.0.1:65535", True), ("[::1]:0", True), ("", True), ("h:65536", False)]
)
def test_a_port_beyond_the_last_one_is_refused(listen: str, fits: bool) -> None:
    assert bool(re.match(LISTEN_PATTERN, listen)) is fits
