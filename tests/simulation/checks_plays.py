"""I12 and I14 from the boxes' side: every end of an attempt must be what its box or its host really did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.sim import World
from tests.simulation.world_box import Ending

if TYPE_CHECKING:
    from tests.simulation.checker import Story

GOOD = frozenset({Ending.OK, Ending.NO_MARKER})
SLOW_BOOT_S = 850.0  # below it a machine counts as one that came up in time


def play_faults(world: World, story: Story) -> list[str]:
    """Compare what was said of each attempt with its play."""
    found = []
    for event, name in zip(story.events, story.names, strict=True):
        data = event["data"]
        number = data.get("attempt")
        if number is None or name not in ("attempt_failed", "succeeded", "failed"):
            continue
        reason = data.get("reason") or name
        if not _explained(world, story, number, reason):
            play = world.stage.play_of(story.run_id, number)
            found.append(f"I14 {story.run_id}: attempt {number} ended as {reason}, but its box did {play}")
    return found


def _explained(world: World, story: Story, number: int, reason: str) -> bool:
    play = world.stage.play_of(story.run_id, number)
    if play.ending is Ending.BY_HAND:
        return True  # the scenario says itself what must become of it
    machine = next((m for m in story.machines if m.name.endswith(f"-a{number}")), None)
    host_failed = machine is not None and (machine.died_at is not None or machine.deleting_at is None)
    match reason:
        case "succeeded":
            return play.ending in GOOD
        case "job_failed":
            return play.ending is Ending.FAILS
        case "job_preempted":
            return play.ending is Ending.RETRIABLE or host_failed
        case "stalled" | "no_sign_of_life":
            return play.ending in (Ending.SILENT, Ending.HANGS) or host_failed
        case "never_active":
            return (
                machine is None or machine.running_at is None or machine.running_at > machine.created_at + SLOW_BOOT_S
            )
        case _:
            return True
