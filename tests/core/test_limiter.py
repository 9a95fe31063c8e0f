"""The request budget in virtual time: never exceeded, never unfair to deletes."""

from __future__ import annotations

from bisect import bisect_left

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.adapters.limiter import WINDOW_S, Lane, Limiter
from tests.fakes.virtual import LoopClock, run_virtual

Sent = list[tuple[float, Lane]]


class Rush:
    """Calls through one limiter, with the moment at which each was let go."""

    def __init__(self, rpm: int, **options: int) -> None:
        self.clock = LoopClock()
        self.limiter = Limiter(self.clock, rpm, **options)
        self.sent: Sent = []

    async def call(self, lane: Lane, lasts_s: float = 0.0) -> None:
        async with self.limiter.slot(lane):
            self.sent.append((self.clock.monotonic(), lane))
            await anyio.sleep(lasts_s)

    async def repeat(self, lane: Lane, lasts_s: float = 0.0) -> None:
        while True:
            await self.call(lane, lasts_s)

    def of(self, *lanes: Lane) -> list[float]:
        return [at for at, lane in self.sent if lane in lanes]


def worst_window(times: list[float]) -> int:
    """The most calls in any window of 60 s, its end included (a microsecond is rounding)."""
    return max((index + 1 - bisect_left(times, at - WINDOW_S + 1e-6) for index, at in enumerate(times)), default=0)


@given(
    rpm=st.integers(1, 600),
    calls=st.lists(st.tuples(st.sampled_from(list(Lane)), st.floats(0, 200), st.floats(0, 3)), max_size=120),
    resets=st.lists(st.floats(0, 200), max_size=3),
    blocks=st.lists(st.tuples(st.floats(0, 200), st.floats(0, 90)), max_size=2),
)
def test_no_sliding_minute_holds_more_than_the_budget(
    rpm: int,
    calls: list[tuple[Lane, float, float]],
    resets: list[float],
    blocks: list[tuple[float, float]],
) -> None:
    async def main() -> list[float]:
        rush = Rush(rpm, max_in_flight=8)

        async def later(lane: Lane, at: float, lasts: float) -> None:
            await anyio.sleep(at)
            await rush.call(lane, lasts)

        async def meddle(at: float, block_s: float | None) -> None:
            await anyio.sleep(at)
            rush.limiter.reset() if block_s is None else rush.limiter.block(block_s)

        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(later, *call)
            for at in resets:
                group.start_soon(meddle, at, None)
            for at, seconds in blocks:
                group.start_soon(meddle, at, seconds)
        return rush.of(*Lane)

    times = run_virtual(main())
    assert len(times) == len(calls)
    assert worst_window(times) <= rpm


@pytest.mark.parametrize("rpm", [1, 2, 7, 60, 400, 500])
def test_a_saturated_account_stays_within_its_budget_and_uses_it(rpm: int) -> None:
    async def main() -> list[float]:
        rush = Rush(rpm)
        with anyio.move_on_after(600):
            async with anyio.create_task_group() as group:
                for _ in range(50):
                    group.start_soon(rush.repeat, Lane.LAUNCH)
        return rush.of(*Lane)

    times = run_virtual(main())
    assert worst_window(times) <= rpm
    assert len(times) >= 10 * (rpm - 1) * 0.9 - 2


def test_a_restart_keeps_the_minute_of_its_predecessor_within_the_budget() -> None:
    async def main() -> list[float]:
        sent: list[float] = []
        for _ in range(3):  # each life sends what it can for a while, then the next starts with a new limiter
            rush = Rush(400)
            with anyio.move_on_after(45):
                async with anyio.create_task_group() as group:
                    for _ in range(40):
                        group.start_soon(rush.repeat, Lane.DELETE)
            sent += rush.of(*Lane)
        return sent

    assert worst_window(run_virtual(main())) <= 400


def test_a_delete_waits_one_interval_behind_any_crowd_of_polls() -> None:
    async def main() -> list[float]:
        rush = Rush(400)
        waits: list[float] = []
        with anyio.move_on_after(300):
            async with anyio.create_task_group() as group:
                for lane in (Lane.CONFIRM, Lane.LIST, Lane.REST):
                    for _ in range(200):
                        group.start_soon(rush.repeat, lane, 0.2)
                for _ in range(40):
                    await anyio.sleep(7)
                    asked = rush.clock.monotonic()
                    await rush.call(Lane.DELETE)
                    waits.append(rush.clock.monotonic() - asked)
        return waits

    waits = run_virtual(main())
    assert len(waits) == 40
    assert max(waits) <= WINDOW_S / 380 + 0.01


def test_a_fifth_of_the_budget_is_kept_for_deletes_and_launches() -> None:
    async def main() -> Rush:
        rush = Rush(400)
        with anyio.move_on_after(600):
            async with anyio.create_task_group() as group:
                for lane in (Lane.CONFIRM, Lane.LIST, Lane.REST):
                    for _ in range(30):
                        group.start_soon(rush.repeat, lane)
        return rush

    rush = run_virtual(main())
    assert worst_window(rush.of(*Lane)) <= 320
    assert len(rush.of(Lane.CONFIRM)) > 3_000
    assert not rush.of(Lane.LIST, Lane.REST)  # strict priority: polls yield to confirmations


def test_waiting_calls_go_by_lane_and_then_by_arrival() -> None:
    async def main() -> Sent:
        rush = Rush(60, burst=1)
        async with anyio.create_task_group() as group:
            for lane in (Lane.REST, Lane.LIST, Lane.CONFIRM, Lane.LAUNCH, Lane.DELETE):
                for _ in range(2):
                    group.start_soon(rush.call, lane)
        return rush.sent

    assert [lane for _, lane in run_virtual(main())] == [lane for lane in Lane for _ in range(2)]


def test_calls_that_hang_in_low_lanes_leave_slots_for_a_delete() -> None:
    async def main() -> float:
        rush = Rush(600, max_in_flight=4)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(rush.call, Lane.LIST, 3_600.0)
            await anyio.sleep(30)
            asked = rush.clock.monotonic()
            await rush.call(Lane.DELETE)
            group.cancel_scope.cancel()
        return rush.of(Lane.DELETE)[0] - asked

    assert run_virtual(main()) < 1.0


def test_a_throttled_account_is_silent_until_the_window_is_over() -> None:
    async def main() -> list[float]:
        rush = Rush(400)
        await anyio.sleep(100)
        rush.limiter.block(60.0)
        rush.limiter.block(5.0)  # a shorter word from a late answer does not shorten it
        assert rush.limiter.blocked_for_s == 60.0
        async with anyio.create_task_group() as group:
            for lane in Lane:
                for _ in range(4):
                    group.start_soon(rush.call, lane)
        return rush.of(*Lane)

    times = run_virtual(main())
    assert times[0] >= 160.0
    assert times[1] - times[0] == pytest.approx(WINDOW_S / 380, rel=0.01)  # the burst is spent, nobody storms


def test_a_cancelled_wait_costs_no_token_and_no_turn() -> None:
    async def main() -> tuple[list[float], int]:
        rush = Rush(60, burst=1)
        await anyio.sleep(10)
        for _ in range(50):
            with anyio.move_on_after(0.01):
                async with anyio.create_task_group() as group:
                    rush.limiter.block(1.0)
                    group.start_soon(rush.call, Lane.DELETE)
        asked = rush.clock.monotonic()
        await rush.call(Lane.LIST)
        return [at - asked for at in rush.of(*Lane)], rush.limiter.waiting

    waits, waiting = run_virtual(main())
    assert len(waits) == 1
    assert waits[0] <= 2.3
    assert waiting == 0


def test_a_budget_that_allows_nothing_is_refused() -> None:
    async def main() -> None:
        Limiter(LoopClock(), 0)

    with pytest.raises(ValueError, match="requests_per_minute"):
        run_virtual(main())
