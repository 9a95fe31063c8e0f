"""The demo's story: three runs, one accident ordered by us, one error of a worker's own, and the world's ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flashd.sim.demo_daemon import DaemonEndedError
from flashd.sim.harness import REPO, Event, House, name_of, upload_worker

LIMIT_S = 120.0  # a slow computer needs longer than the usual half minute
POLL_S = 0.1
DEAD_S = 1.0  # how long nobody is there after --crash
FIRST, LOST, FAULTY = "demo-1", "demo-2", "demo-3"
CLASSES = {FIRST: "RTX A6000", LOST: "L40", FAULTY: "A100 PCIe"}

Say = Callable[[str], None]
Show = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. The numbers of machines and `billed_usd` are the world's own, `cost_usd` is what flashd stamped."""

    runs: tuple[Mapping[str, Any], ...]
    launched: int
    deleted: int
    leaked: int
    billed_usd: float
    cost_usd: float
    seconds: float
    faults: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def ledger_line(self) -> str:
        return f"machines launched {self.launched}, deleted {self.deleted}, leaked {self.leaked}"


@dataclass(slots=True)
class _Story:
    house: House
    say: Say
    show: Show
    seen: list[Event] = field(default_factory=list)

    def had(self, name: str, run_id: str) -> bool:
        return any(name_of(event) == name and event.get("subject") == run_id for event in self.seen)


def request_of(run_id: str, **spec: object) -> dict[str, Any]:
    """A run request for the demo's worker; `spec` is what `flashd/sim/worker/train.py` reads."""
    return {
        "run_id": run_id,
        "gpu": {"class": CLASSES.get(run_id, "RTX A6000")},
        "hub": {"repo": REPO},
        "worker": {"command": ["python", "train.py"]},
        "spec": spec,
    }


def requests() -> list[dict[str, Any]]:
    return [
        request_of(FIRST, steps=30, seconds_per_step=0.1),
        request_of(LOST, steps=60, seconds_per_step=0.2, checkpoint_every=15),  # long enough to be hit between two
        request_of(FAULTY, steps=30, seconds_per_step=0.1, fail_at_step=8),
    ]


async def play(house: House, *, crash: bool, say: Say, show: Show) -> Outcome:
    """Start the daemon, submit the three runs, follow them to `released`, then ask the world."""
    started = time.monotonic()
    upload_worker(house.hub)
    story = _Story(house, say, show)
    late = ""
    await house.daemon.start()
    try:
        async with asyncio.TaskGroup() as group:
            extras = [group.create_task(_follow(story)), group.create_task(_lose_a_machine(story))]
            if crash:
                extras.append(group.create_task(_crash(story)))
            for request in requests():
                await house.submit(request)
            await house.until_released([FIRST, LOST, FAULTY], LIMIT_S)
            await asyncio.sleep(POLL_S)  # the last events are still to be shown
            for task in extras:
                task.cancel()
    except* (TimeoutError, DaemonEndedError) as trouble:
        late = str(trouble.exceptions[0])
    return await _outcome(house, time.monotonic() - started, late)


async def _follow(story: _Story) -> None:
    async for event in story.house.events():
        story.seen.append(event)
        story.show(event)


async def _lose_a_machine(story: _Story) -> None:
    """The machine of the second run dies once a checkpoint of it is on the Hub."""
    mark = f"flashd run={LOST} "
    titles = story.house.hub.titles
    await _until(lambda: any(mark in title and "event=checkpoint" in title for title in titles(REPO)))
    machine = story.house.machines_of(LOST)[0]
    story.house.strike(machine, "die")
    story.say(f"the world: {machine.name} breaks down, as ordered by this demo")


async def _crash(story: _Story) -> None:
    """kill -9 while all three runs have machines and at least one of them trains."""
    runs = (FIRST, LOST, FAULTY)
    await _until(lambda: all(story.had("booting", run) for run in runs))
    await _until(lambda: any(story.had("training", run) for run in runs))
    daemon = story.house.daemon
    alive = len(story.house.living())
    await daemon.kill()
    story.say(f"the world: SIGKILL for the daemon while {alive} machines are alive")
    await asyncio.sleep(DEAD_S)
    await daemon.start()
    story.say("the world: the daemon is started again")


async def _until(fact: Callable[[], bool]) -> None:
    """Other processes make it true, so there is nothing to be woken by."""
    while not fact():  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)


async def _outcome(house: House, seconds: float, late: str) -> Outcome:
    runs = [await _run(house, run_id) for run_id in (FIRST, LOST, FAULTY)]
    truth = house.cloud.summary()
    launched, deleted, alive = (int(str(truth[name])) for name in ("launched", "deleted", "alive"))
    faults = ([late] if late else []) + _faults_of(runs)
    if (launched, deleted, alive) != (4, 4, 0):
        faults.append(f"machines launched {launched}, deleted {deleted}, alive {alive}; 4, 4 and 0 were expected")
    costs = [run["cost_usd"] for run in runs]
    return Outcome(
        runs=tuple(runs),
        launched=launched,
        deleted=deleted,
        leaked=alive,
        billed_usd=round(float(str(truth["billed_usd"])), 4),
        cost_usd=round(sum(cost or 0.0 for cost in costs), 4),
        seconds=round(seconds, 1),
        faults=tuple(faults),
    )


async def _run(house: House, run_id: str) -> dict[str, Any]:
    kept = await house.fields(run_id)
    metrics = house.hub.read(REPO, f"sft/{run_id}/seed0/metrics.json")
    return {
        "run_id": run_id,
        "state": kept.get("state") or None,
        "reason": kept.get("reason") or None,
        "detail": kept.get("detail") or None,
        "released": kept.get("released") == "1",
        "machines": [machine.name for machine in house.machines_of(run_id)],
        "cost_usd": float(kept["cost_usd"]) if kept.get("cost_usd") else None,
        "metrics": json.loads(metrics) if metrics else None,
    }


def _faults_of(runs: list[dict[str, Any]]) -> list[str]:
    """What is not as the story wants it."""
    first, lost, faulty = runs
    expected = ((first, "succeeded", 1), (lost, "succeeded", 2), (faulty, "failed", 1))
    found = [
        f"{run['run_id']} is {run['state']} ({run['reason']}: {run['detail']}); {state} was expected"
        for run, state, _ in expected
        if run["state"] != state
    ]
    found += [
        f"{run['run_id']} had {len(run['machines'])} machines; {count} were expected"
        for run, _, count in expected
        if len(run["machines"]) != count
    ]
    if faulty["state"] == "failed" and faulty["reason"] != "job_failed":
        found.append(f"{FAULTY} failed with {faulty['reason']}; job_failed was expected")
    if lost["state"] == "succeeded" and not (lost["metrics"] or {}).get("resumed_from"):
        found.append(f"{LOST} did not resume from its checkpoint")
    return found
