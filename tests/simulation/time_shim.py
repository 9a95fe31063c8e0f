"""Virtual time inside third-party modules: stands in for their module global `time` while a simulation runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from tests.simulation.loop import VirtualLoop

PACKAGES = ("fakeredis", "redis")


class TimeShim:
    """The functions of `time` that those modules call."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        return self._loop.wall()

    def time_ns(self) -> int:
        return int(self._loop.wall() * 1e9)

    def monotonic(self) -> float:
        return self._loop.time()

    def perf_counter(self) -> float:
        return self._loop.time()

    def sleep(self, seconds: float) -> NoReturn:
        raise AssertionError(f"a blocking sleep of {seconds} s in the simulation")


@contextmanager
def virtual_time_in_libraries(loop: VirtualLoop) -> Iterator[None]:
    """TIME, stream ids, idle times and TTLs follow the loop, also inside Lua scripts."""
    shim = TimeShim(loop)
    functions = {time.time: shim.time, time.monotonic: shim.monotonic, time.perf_counter: shim.perf_counter}
    saved: list[tuple[object, str, object]] = []
    for name, module in sorted(sys.modules.items()):
        if module is None or name.partition(".")[0] not in PACKAGES:
            continue
        for attribute, value in list(vars(module).items()):
            if value is time:
                saved.append((module, attribute, value))
                setattr(module, attribute, shim)
            elif callable(value) and type(value).__name__ == "builtin_function_or_method" and value in functions:
                saved.append((module, attribute, value))
                setattr(module, attribute, functions[value])
    try:
        yield
    finally:
        for owner, attribute, value in saved:
            setattr(owner, attribute, value)
