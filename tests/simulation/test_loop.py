"""The simulator's own loop: what the worlds rest on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import anyio
import fakeredis
import pytest
from fakeredis.aioredis import FakeRedis

from tests.simulation.loop import EPOCH, DeadlockError, VirtualLoop
from tests.simulation.time_shim import virtual_time_in_libraries


def run(loop: VirtualLoop, main: Coroutine[Any, Any, Any]) -> Any:
    try:
        return loop.run_until_complete(main)
    finally:
        loop.bury()
        loop.close()


def test_an_hour_of_waiting_takes_no_time() -> None:
    async def main() -> float:
        with anyio.move_on_after(3600):
            await anyio.sleep_forever()
        return asyncio.get_running_loop().time()

    assert run(VirtualLoop(1), main()) == 3600.0


def test_a_wait_that_nothing_ends_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError):
        run(VirtualLoop(1), main())


def test_a_thread_is_refused() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().run_in_executor(None, print)

    with pytest.raises(AssertionError, match="thread"):
        run(VirtualLoop(1), main())


def test_the_order_of_steps_is_the_seeds() -> None:
    async def main() -> tuple[int, ...]:
        order: list[int] = []

        async def note(number: int) -> None:
            await anyio.sleep(1)
            order.append(number)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(note, number)
        return tuple(order)

    seen = {run(VirtualLoop(seed), main()) for seed in range(5)}
    assert len(seen) > 1
    assert run(VirtualLoop(3), main()) == run(VirtualLoop(3), main())


def test_a_killed_process_runs_no_finally_and_its_children_stop_too() -> None:
    said: list[str] = []

    async def child() -> None:
        try:
            while True:
                await anyio.sleep(1)
                said.append("child")
        finally:
            said.append("finally")

    async def process() -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(child)
        finally:
            said.append("finally")

    loop = VirtualLoop(1)

    async def main() -> None:
        loop.spawn("p", process())
        await asyncio.sleep(3.5)
        loop.kill("p")
        await asyncio.sleep(10)
        assert said == ["child"] * 3

    run(loop, main())


def test_a_crash_may_come_before_any_step() -> None:
    reached: set[int] = set()

    async def process() -> None:
        for number in range(10):
            reached.add(number)
            await anyio.sleep(1)

    ends = set()
    for seed in range(40):
        reached.clear()
        loop = VirtualLoop(seed)
        loop.crash_chance, loop.on_crash = 0.1, loop.kill

        async def main(loop: VirtualLoop) -> None:
            loop.spawn("p", process())
            await asyncio.sleep(20)

        run(loop, main(loop))
        ends.add(len(reached))
    assert len(ends) > 5


def test_fakeredis_follows_virtual_time_inside_scripts_too() -> None:
    loop = VirtualLoop(1)

    async def main() -> None:
        client = FakeRedis(server=fakeredis.FakeServer(), protocol=2)
        before = await client.time()
        await client.set("key", "1", ex=100)
        await asyncio.sleep(99)
        assert await client.get("key") == b"1"
        await asyncio.sleep(2)
        assert await client.get("key") is None
        told = await client.eval("return redis.call('TIME')[1]", 0)
        assert (before[0], int(told)) == (int(EPOCH), int(EPOCH) + 101)
        with contextlib.suppress(TimeoutError):
            assert await client.xread({"nothing": "$"}, block=5000) in ([], {}, None)
        assert loop.time() == pytest.approx(106.0, abs=1.0)

    with virtual_time_in_libraries(loop):
        run(loop, main())
