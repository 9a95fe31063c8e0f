"""`flashd demo`: the whole of flashd on this machine, with no account and no money."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio

from flashd.cli.exits import Exit
from flashd.cli.follow import facts_of, name_of
from flashd.cli.output import say, show, show_json
from flashd.sim.box_launch import BoxIsolationError, check_isolation
from flashd.sim.demo import Outcome, play, request_of
from flashd.sim.harness import Event, House, Stage, rehearsal
from flashd.sim.redis_private import RedisStartError

OWN_RUN = "mine-1"


def demo(options: argparse.Namespace) -> int:
    """0 = everything ended as it must; 1 = it did not, and the directory with the logs stays."""
    talk = say if options.json else _show_now
    directory = Path(tempfile.mkdtemp(prefix="flashd-demo-"))
    status = int(Exit.FAILED)
    try:
        status = asyncio.run(_stoppable(options, directory, talk))
    except (BoxIsolationError, RedisStartError) as error:
        say(f"the demo cannot run here: {error}")
    finally:
        if status == Exit.FAILED and (directory / "daemon.log").exists():
            say(f"logs are in {directory}: daemon.log, redis/redis.log, boxes/*/console.log")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return status


async def _stoppable(options: argparse.Namespace, directory: Path, talk: Callable[[str], None]) -> int:
    """Ctrl-C and SIGTERM end the demo in order: every child and every simulated machine ends with it."""
    task = asyncio.create_task(_demo(options, directory, talk))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        say("interrupted; everything that the demo started has ended")
        return Exit.INTERRUPTED


async def _demo(options: argparse.Namespace, directory: Path, talk: Callable[[str], None]) -> int:
    await check_isolation()
    started = time.monotonic()

    def told(text: str) -> None:
        talk(f"{time.monotonic() - started:5.1f} s  {text}")

    async with rehearsal(Stage(directory)) as house:
        _introduce(house, talk)
        status = None
        with _until_signal():
            outcome = await play(house, crash=options.crash, say=told, show=lambda event: told(_line(event)))
            _report(outcome, options.json, talk)
            status = Exit.OK if outcome.ok else Exit.FAILED
        if status is not None and options.keep:
            with _until_signal():
                await _keep(house, talk, told)
    if status is None:
        say("interrupted; everything that the demo started has ended")
        return Exit.INTERRUPTED
    return status


@contextlib.contextmanager
def _until_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, and only the block, so that what follows can end everything in order.

    A task is cancelled once, and a timeout inside the Redis client may take that for its own; a scope repeats it.
    """
    scope = anyio.CancelScope()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, scope.cancel)
    with scope:
        yield


def _introduce(house: House, talk: Callable[[str], None]) -> None:
    at = house.at
    talk("flashd demo: the cloud and the Hub are simulated on this machine. No account is used, no money is spent.")
    talk("")
    if not house.server.real:
        talk("  redis-server is not on PATH, so Redis is an embedded stand-in: state is lost on exit.")
    talk(f"  Redis   {at.redis}")
    talk(f"  cloud   {at.cloud}   (its truth: {house.cloud_url}/_sim/summary)")
    talk(f"  Hub     {at.hub}")
    talk(f"  health  {house.health}/statusz")
    talk(f"  log     {house.daemon.log}")
    talk(f"  config  {house.daemon.config}   (flashd status --config {house.daemon.config})")
    talk("")
    talk("A run of your own, while the demo runs (--keep leaves it running):")
    talk(f"  {house.xadd_line(request_of(OWN_RUN, steps=20))}")
    talk("")


def _show_now(text: str) -> None:
    """A line is seen when it happens, in a pipe too."""
    show(text)
    sys.stdout.flush()


def _line(event: Event) -> str:
    return f"{event.get('subject') or '-':<7} {name_of(event):<14} {facts_of(event)}".rstrip()


def _report(outcome: Outcome, as_json: bool, talk: Callable[[str], None]) -> None:
    if as_json:
        show_json({**dataclasses.asdict(outcome), "ok": outcome.ok})
        return
    talk("")
    for run in outcome.runs:
        end = f"{run['state']}" + (f" ({run['reason']})" if run["reason"] else "")
        talk(f"  {run['run_id']}  {end:<22} machines {len(run['machines'])}  ${run['cost_usd'] or 0:.4f}")
    talk("")
    talk(outcome.ledger_line)
    talk(f"simulated dollars: billed by the cloud ${outcome.billed_usd:.4f}, stamped by flashd ${outcome.cost_usd:.4f}")
    talk(f"money spent: $0.00; {outcome.seconds:.0f} s")
    for fault in outcome.faults:
        say(f"not as it must be: {fault}")


async def _keep(house: House, talk: Callable[[str], None], told: Callable[[str], None]) -> None:
    """Serve the user's own requests until Ctrl-C, which is how this is meant to end."""
    talk("")
    talk("The world goes on for your own requests; Ctrl-C ends it.")
    known = len(await house.all_events())
    async for event in house.events():
        known -= 1
        if known < 0:
            told(_line(event))
