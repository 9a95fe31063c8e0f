"""One crash before and one after every effect of a run: whatever was half done is made good by the next process."""

from __future__ import annotations

import pytest

from tests.simulation.kit import live_through, machines_of
from tests.simulation.sim import Options, World
from tests.simulation.world_box import Ending, Play

WRITES = ("accept", "intent", "confirm", "transition", "finish", "machine_gone", "mark", "released")
EFFECTS = ("launch", "delete", "ensure_repo", *(f"redis {name}" for name in WRITES))
AWAY_S = 5.0


async def two_attempts(world: World) -> None:
    """The first machine's box asks for another one, the second succeeds."""
    boxes: list[int] = []

    def play_of(_run_id: str, attempt: int) -> Play:
        if attempt not in boxes:
            boxes.append(attempt)
        return Play(Ending.RETRIABLE, end_at_s=100.0) if attempt == boxes[0] else Play(end_at_s=300.0)

    world.stage.play_of = play_of
    world.start()
    await world.submit("r1")
    await world.until_released("r1")
    assert (await world.fields("r1"))["state"] == "succeeded"
    assert len(machines_of(world)) == 2
    assert (await world.fields("r1"))["attempts_used"] == "2"


def effects() -> list[tuple[int, str]]:
    """The points of a quiet world at which something is at stake."""
    quiet = live_through(two_attempts)
    points = list(enumerate(quiet.wire.reached, 1))
    return [(number, what) for number, what in points if what.partition(" ")[2].startswith(EFFECTS)]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("owns_directory", [True, False], ids=["same host", "another host"])
def test_a_crash_around_any_effect_is_made_good(owns_directory: bool) -> None:
    points = effects()
    assert {"before launch", "after launch", "before delete", "after delete"} <= {
        " ".join(what.split()[:2]) for _, what in points
    }
    for number, what in points:

        async def crashed(world: World, number: int = number) -> None:
            world.wire.crash_at = number
            await two_attempts(world)
            assert len(world.crashes) == 1

        options = Options(restart_after_s=(AWAY_S, AWAY_S), owns_directory=owns_directory)
        try:
            live_through(crashed, options)
        except AssertionError as error:
            pytest.fail(f"crash point {number}, {what}: {error}")
