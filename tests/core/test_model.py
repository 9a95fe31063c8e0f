"""What a run says of itself."""

from __future__ import annotations

from dataclasses import replace

from flashd.core.model import TERMINAL, State
from tests.core.kit import T0, a_run, attempt_of, launching, training


def test_the_number_shown_is_that_of_the_newest_intent() -> None:
    assert a_run().last_number is None
    assert launching().last_number == 0
    assert replace(launching(), attempt=None).last_number == 0
    assert replace(training(), next_number=8, attempt=None).last_number == 7


def test_attempts_left_never_falls_below_none() -> None:
    assert [a_run(max_attempts=2, attempts_used=used).attempts_left for used in (0, 1, 2, 3)] == [2, 1, 0, 0]


def test_three_states_are_the_end() -> None:
    assert {state for state in State if a_run(state=state).is_over} == TERMINAL


def test_the_last_create_call_is_the_one_that_counts() -> None:
    assert attempt_of(launching()).called_at == T0
    assert replace(attempt_of(launching()), posted_at=T0 + 40).called_at == T0 + 40
