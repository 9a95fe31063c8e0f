"""The invariants, checked from outside: event streams and hashes against the truth of cloud, Hub and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from flashd.core.lifecycle import GRAPH
from flashd.core.model import State
from flashd.core.names import run_hash
from tests.simulation.checks_cost import cost_faults
from tests.simulation.checks_plays import play_faults
from tests.simulation.cloud_truth import TrueMachine
from tests.simulation.sim import NS, World

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
BROKEN_LINES = frozenset({"loop_failed", "run_coroutine_failed", "entry_not_settled", "run_unreadable"})
RELEASE_WAIT_S = 600.0


@dataclass(frozen=True, slots=True)
class Story:
    """All that is known of one run when the world is over."""

    run_id: str
    events: Sequence[dict[str, Any]]
    fields: dict[str, str]
    machines: Sequence[TrueMachine]
    max_attempts: int = 3
    names: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def at(self, index: int) -> float:
        """When the event became durable, by the store's own clock."""
        return int(self.ids[index].partition("-")[0]) / 1000.0

    def first(self, name: str, attempt: int) -> float | None:
        """When the event came for this attempt."""
        for index, event in enumerate(self.events):
            if self.names[index] == name and event["data"].get("attempt") == attempt:
                return self.at(index)
        return None

    def over_at(self, attempt: int) -> float | None:
        """When the daemon gave the attempt up: its own failure, or the end of the run."""
        for index, event in enumerate(self.events):
            name, number = self.names[index], event["data"].get("attempt")
            if name in TERMINAL or (name == "attempt_failed" and number is not None and number >= attempt):
                return self.at(index)
        return None


async def check(world: World, max_attempts: int = 3) -> list[str]:
    """Every violation found, each led by the id of its invariant. The world must have come to rest."""
    found = process_faults(world)
    everything = await world.entries()
    for run_id in sorted(world.sent):
        story = await tell(world, run_id, max_attempts)
        if [entry_id for entry_id, event in everything if event.get("subject") == run_id] != list(story.ids):
            found.append(f"I6 {run_id}: `events` and `events:{run_id}` differ")
        found += event_faults(story) + hash_faults(story) + machine_faults(story)
        found += cost_faults(world, story) + play_faults(world, story)
    return found + await _fleet_faults(world)


async def tell(world: World, run_id: str, max_attempts: int = 3) -> Story:
    """Read one run's story."""
    middle = f"-{run_hash(NS, run_id)}-a"
    entries = await world.entries(run_id)
    ids, events = tuple(entry_id for entry_id, _ in entries), [event for _, event in entries]
    names = tuple(event["type"].split(".")[3] for event in events)
    machines = [machine for machine in world.cloud.truth.of_run(middle) if machine.id not in world.planted]
    return Story(run_id, events, await world.fields(run_id), machines, max_attempts, names, ids)


def process_faults(world: World) -> list[str]:
    """A process that died of itself, and errors that nobody foresaw."""
    died = [f"{life.process} {life.ended}" for life in world.lives if life.ended.startswith("died")]
    return died + [f"{line.process}: {line}" for line in world.logs if line.event in BROKEN_LINES]


def event_faults(story: Story) -> list[str]:
    """I3, I5, I9."""
    run_id, names = story.run_id, story.names
    found = []
    ends = [name for name in names if name in TERMINAL]
    if len(ends) != 1:
        found.append(f"I3 {run_id}: {len(ends)} terminal events: {names}")
    if ends and names[names.index(ends[0]) + 1 :] != ("released",):
        found.append(f"I5 {run_id}: after the end came {names[names.index(ends[0]) + 1 :]}, not one `released`")
    sequences = [event["sequence"] for event in story.events]
    if sequences != list(range(1, len(sequences) + 1)):
        found.append(f"I9 {run_id}: sequence {sequences}")
    states = [event["data"]["state"] for event in story.events]
    if names[:1] != ("accepted",) or states[:1] != ["queued"]:
        found.append(f"I9 {run_id}: begins with {names[:1]} {states[:1]}")
    for before, after in pairwise(states):
        if State(after) not in GRAPH[State(before)]:
            found.append(f"I9 {run_id}: {before} -> {after} is no edge: {names}")
    return found


def hash_faults(story: Story) -> list[str]:
    """I6 and the attempts' part of I7."""
    run_id, fields = story.run_id, story.fields
    if not story.events:
        return [f"I3 {run_id}: never accepted"]
    last = story.events[-1]
    found = []
    released = "1" if story.names[-1] == "released" else "0"
    told = (last["data"]["state"], str(last["sequence"]), released, story.ids[-1])
    kept = tuple(fields.get(name) for name in ("state", "sequence", "released", "last_event_id"))
    if told != kept:
        found.append(f"I6 {run_id}: last event {told}, hash {kept}")
    if int(fields.get("attempts_used") or 0) > story.max_attempts:
        found.append(f"I7 {run_id}: {fields['attempts_used']} attempts of {story.max_attempts}")
    numbers = [event["data"]["attempt"] for event, name in zip(story.events, story.names, strict=True)
               if name == "launching"]  # fmt: skip
    if len(set(numbers)) != len(numbers):
        found.append(f"I2 {run_id}: an attempt's number was used twice: {numbers}")
    return found


def machine_faults(story: Story) -> list[str]:
    """I1, I2: intents before machines, one machine at a time, the next only after the last is gone or given up on."""
    found = []
    machines = sorted(story.machines, key=lambda machine: machine.created_at)
    released_at = story.at(len(story.names) - 1) if story.names[-1:] == ("released",) else float("inf")
    for machine in machines:
        intent_at = story.first("launching", number_of(machine))
        if intent_at is None or intent_at > machine.created_at:
            found.append(f"I2 {story.run_id}: {machine.name} was made without a recorded intent")
        gone_at = machine.gone_at if machine.gone_at is not None else released_at + 1.0
        if gone_at > released_at and not _given_up(story, machine, machine.created_at):
            found.append(f"I1 {story.run_id}: {machine.name} was there when the run was told to be released")
    # The extra of an unknown launch is allowed until it is found: its maker or the sweep deletes it.
    known = [machine for machine in machines if not _never_seen(story, number_of(machine))]
    for earlier, later in pairwise(known):
        over_at = story.over_at(number_of(earlier))
        gone_at = earlier.gone_at if earlier.gone_at is not None else float("inf")
        asked_at = min(earlier.delete_calls, default=float("inf"))
        if min(gone_at, asked_at, over_at or float("inf")) > later.created_at:
            found.append(f"I2 {story.run_id}: {later.name} was made while {earlier.name} was still in use")
        elif gone_at > later.created_at and not _given_up(story, earlier, later.created_at):
            found.append(f"I2 {story.run_id}: {later.name} was made before {earlier.name} was gone")
    return found


def _never_seen(story: Story, number: int) -> bool:
    return any(
        name == "attempt_failed" and event["data"]["attempt"] == number and event["data"]["reason"] == "launch_unknown"
        for event, name in zip(story.events, story.names, strict=True)
    )


def _given_up(story: Story, machine: TrueMachine, at: float) -> bool:
    """A launch that was never seen, or a machine whose proof of absence was waited for long enough."""
    number = number_of(machine)
    failed_at = story.first("attempt_failed", number)
    waited = failed_at is not None and at - failed_at >= RELEASE_WAIT_S - 1.0
    return waited or _never_seen(story, number)


async def _fleet_faults(world: World) -> list[str]:
    """I1 and I8."""
    found = []
    for machine in world.cloud.truth.machines.values():
        foreign = machine.name in world.foreign
        if machine.is_alive and not foreign:
            found.append(f"I1 {machine.name} ({machine.id}) is alive at the end")
        if foreign and (machine.delete_calls or not machine.is_alive):
            found.append(f"I8 foreign machine {machine.name} was touched")
    rows = await world.ledger()
    found += [f"I1 ledger row {name} is left: {row}" for name, row in rows.items() if row["state"] != "abandoned"]
    return found


def number_of(machine: TrueMachine) -> int:
    """The attempt's number in a machine's name."""
    return int(machine.name.rpartition("-a")[2])
