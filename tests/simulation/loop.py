"""An asyncio loop in virtual time: no selector, no threads, a seeded order of task steps, processes that can be killed.

A process is a context variable's value. asyncio keeps the context in every handle, so dropping the handles of a dead
process stops it between two steps as SIGKILL does: no `finally` runs.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
import warnings
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn

WORLD = "world"
PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("simulated_process", default=WORLD)
EPOCH = 1_800_000_000.0
KEPT_TASKS = 5_000  # finished tasks are forgotten whenever so many have been kept
CLOSE_TRIES = 5

_STEP_TYPES = frozenset({"TaskStepMethWrapper", "TaskWakeupMethWrapper"})
_STEP_NAMES = frozenset({"task_wakeup", "_Task__step", "_Task__wakeup"})


class DeadlockError(AssertionError):
    """Everything waits for something that never comes."""


class TooLongError(AssertionError):
    """The simulation took more steps than it may."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Time jumps to the next timer when nothing is ready. It starts at 0; `wall` adds an arbitrary day."""

    def __init__(self, seed: int, max_steps: int = 0) -> None:
        super().__init__()
        self.steps = 0
        self.dead: set[str] = set()
        self.crash_chance = 0.0  # before each step of a process
        self.on_crash: Callable[[str], None] = lambda _process: None
        self._virtual_now = 0.0
        self._order = random.Random(f"order {seed}")
        self._chance = random.Random(f"crashes {seed}")
        self._max_steps = max_steps
        self._frozen: dict[str, list[events.Handle]] = {}
        self._kept: list[asyncio.Task[Any]] = []
        self._keep_at = KEPT_TASKS
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._virtual_now

    def wall(self) -> float:
        """Unix seconds of the simulated world."""
        return EPOCH + self._virtual_now

    def kill(self, process: str) -> None:
        """No step and no callback of the process runs from now on."""
        self.dead.add(process)

    def freeze(self, process: str, seconds: float) -> None:
        """The process stands still, as on a paused host; its clocks go on. What came meanwhile runs afterwards."""
        if process not in self._frozen:
            self._frozen[process] = []
            self.in_world(seconds, lambda: self._thaw(process))

    def spawn(self, process: str, main: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `main`, and all that it starts, as a process."""
        context = contextvars.Context()
        context.run(PROCESS.set, process)
        return self.create_task(main, context=context)

    def in_world(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` later as part of the world, whoever asks for it: no crash stops it."""
        self.call_later(delay_s, act, context=contextvars.Context())

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> NoReturn:  # type: ignore[override]
        raise AssertionError(f"a thread was asked for in the simulation: {func!r}")

    def bury(self) -> None:
        """Close what the dead left behind, after the loop has stopped, so that nothing of it runs by itself later."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # tasks that died before their first step
            self._close_kept()
        self._kept.clear()

    def _close_kept(self) -> None:
        for task in self._kept:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                for _ in range(CLOSE_TRIES):
                    with suppress(BaseException):
                        task.get_coro().close()
                        break

    # What asyncio needs of a loop -------------------------------------------------------------------------------------

    def _write_to_self(self) -> None:
        """Nobody waits in a selector."""

    def _make_task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        # A strong reference: a task of a dead process must not be collected, which would run its `finally` blocks.
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self._kept.append(task)
        if len(self._kept) > self._keep_at:
            self._kept = [kept for kept in self._kept if not kept.done()]
            self._keep_at = 2 * len(self._kept) + KEPT_TASKS
        return task

    def _run_once(self) -> None:
        ready: deque[events.Handle] = self._ready  # type: ignore[attr-defined]
        timers: list[events.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise DeadlockError("every task waits and no timer is set")
            self._virtual_now = max(self._virtual_now, timers[0].when())
        while timers and timers[0].when() <= self._virtual_now:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            if not timer._cancelled:
                ready.append(timer)
        turn = self._in_order([handle for handle in ready if self._lives(handle) and not self._put_by(handle)])
        ready.clear()
        for handle in turn:
            self._step(handle)

    def _in_order(self, turn: list[events.Handle]) -> list[events.Handle]:
        """Task steps change places among themselves; plain callbacks stay, since asyncio promises their order."""
        places = [place for place, handle in enumerate(turn) if _is_step(handle)]
        if len(places) > 1:
            steps = [turn[place] for place in places]
            self._order.shuffle(steps)
            for place, handle in zip(places, steps, strict=True):
                turn[place] = handle
        return turn

    def _step(self, handle: events.Handle) -> None:
        if not self._lives(handle):
            return
        process = _process_of(handle)
        if process != WORLD and self.crash_chance and _is_step(handle) and self._chance.random() < self.crash_chance:
            self.on_crash(process)
            if process in self.dead:
                return
        self.steps += _is_step(handle)
        if self._max_steps and self.steps > self._max_steps:
            raise TooLongError(f"{self.steps} steps at {self._virtual_now:.0f} s of virtual time")
        handle._run()

    def _lives(self, handle: events.Handle) -> bool:
        # Handles of the dead must not even take part in the order: how many there are depends on the collector.
        return not handle._cancelled and _process_of(handle) not in self.dead

    def _put_by(self, handle: events.Handle) -> bool:
        """Keep a frozen process's handle for later."""
        if not self._frozen or (kept := self._frozen.get(_process_of(handle))) is None:
            return False
        kept.append(handle)
        return True

    def _thaw(self, process: str) -> None:
        ready: deque[events.Handle] = self._ready  # type: ignore[attr-defined]
        ready.extend(self._frozen.pop(process))

    def _timer_handle_cancelled(self, handle: Any) -> None:
        """Cancelled timers leave when their time comes."""


def _process_of(handle: events.Handle) -> str:
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]
    return context.get(PROCESS, WORLD)


def _is_step(handle: events.Handle) -> bool:
    callback: object = handle._callback  # type: ignore[attr-defined]
    return type(callback).__name__ in _STEP_TYPES or getattr(callback, "__name__", "") in _STEP_NAMES


class SimulatedClock:
    """The injected Clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.wall()

    def monotonic(self) -> float:
        return self._loop.time()
