"""I4: what a run was told to cost lies between the cloud's own bill and the contract's bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.cloud_truth import TrueMachine
from tests.simulation.sim import World

if TYPE_CHECKING:
    from tests.simulation.checker import Story

RELEASE_CHECK_S = 10.0
POLL_S = 15.75  # with its jitter
CALLS_S = 6.0  # latency of the few calls between a fact and its record
FAR_AWAY_S = 180.0  # a machine that vanished is only believed on artifacts read freshly, twice


def cost_faults(world: World, story: Story) -> list[str]:
    """Machines of an abandoned name are outside the bound."""
    if not story.names or story.names[-1] != "released":
        return []
    cost = float(story.events[-1]["data"]["cost_usd"])
    proofs = {machine["name"]: machine for machine in story.events[-1]["data"]["machines"]}
    bill, bound = 0.0, 0.0
    for machine in story.machines:
        if machine.name not in proofs or (machine.running_at is None and machine.gone_at is None):
            continue
        bill += machine.billed_usd(world.now)
        bound += machine.place.usd_per_hour / 3600.0 * _slack_s(world, story, machine)
    if cost + 1e-6 < bill:
        return [f"I4 {story.run_id}: cost {cost:.4f} is below the bill {bill:.4f}"]
    if cost > bill + bound + 1e-6:
        return [f"I4 {story.run_id}: cost {cost:.4f} is above the bound {bill + bound:.4f} (bill {bill:.4f})"]
    return []


def _slack_s(world: World, story: Story, machine: TrueMachine) -> float:
    number = int(machine.name.rpartition("-a")[2])
    intent_at = story.first("launching", number) or machine.created_at
    gone_at = machine.gone_at if machine.gone_at is not None else world.now
    deleting_at = machine.deleting_at if machine.deleting_at is not None else gone_at
    running_at = machine.running_at if machine.running_at is not None else deleting_at
    slack = 60.0 + (running_at - intent_at) + (gone_at - deleting_at) + 2 * RELEASE_CHECK_S + POLL_S + CALLS_S
    if machine.deleting_at is None:
        slack += FAR_AWAY_S
    return slack + blind_s(world, intent_at, world.now)


def blind_s(world: World, start: float, end: float) -> float:
    """Seconds in which the provider gave no answer or no daemon led, between two times."""
    gaps: list[tuple[float, float]] = []
    answers = world.cloud.answered_at
    for failed in world.cloud.failed_at:
        after = next((at for at in answers if at > failed), end)
        gaps.append((failed - 30.0, after + 30.0))
    away_since: float | None = None
    for at, leads in world.leading:
        if not leads and away_since is None:
            away_since = at
        elif leads and away_since is not None:
            gaps.append((away_since, at + 30.0))
            away_since = None
    total, reached = 0.0, start
    for low, high in sorted(gaps):
        low, high = max(low, reached), min(high, end)
        if high > low:
            total += high - low
            reached = high
    return total
