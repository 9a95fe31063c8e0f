"""Whether the worlds can catch anything: four bugs, planted one at a time, each within two hundred worlds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS
from tests.simulation.random_world import live

SEEDS = range(1, 201)

# What the first catch must be about: a mutant that only trips over something else has not been caught.
EXPECTED = {
    "blind re-POST": ("I2",),
    "forgotten delete": ("I1", "I4"),
    "launch without intent": ("I2",),
    "event apart from state": ("I3", "I5", "I6", "I9"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_planted_bug_is_caught(name: str) -> None:
    for seed in SEEDS:
        report = live(seed, compose=MUTANTS[name])
        caught = [fault for fault in report.faults if fault.startswith(EXPECTED[name])]
        if caught:
            return
    pytest.fail(f"{name} lived through {len(SEEDS)} worlds")
