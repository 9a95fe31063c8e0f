"""Seeded worlds of twenty runs, with faults everywhere and crashes at any await: no invariant is broken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.random_world import live, replay_line

# `make simulate` lives through 200; every test run through the first of them.
SEEDS = range(1, 1 + int(os.environ.get("FLASHD_WORLDS", "40")))
CHUNK = 5


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, CHUNK))
def test_worlds_break_no_invariant(first: int) -> None:
    reports = [live(seed) for seed in range(first, first + CHUNK)]
    broken = [report for report in reports if report.faults]
    assert not broken, "\n".join(replay_line(report) for report in broken)


@pytest.mark.slow
def test_a_seed_gives_the_same_world_in_every_process() -> None:
    traces = set()
    for hash_seed in ("1", "2"):
        answer = subprocess.run(
            [sys.executable, "-m", "tests.simulation.random_world", "7", "8"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        traces.add(next(line.split()[3] for line in answer.stdout.splitlines() if line.startswith("seed ")))
    assert traces == {live(7, 8).trace}
