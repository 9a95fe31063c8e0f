"""Pauses that grow, with a ceiling and a spread."""

from __future__ import annotations

from random import Random

from flashd.adapters.backoff import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [round(backoff.next_s(), 6) for _ in range(count)]


def test_pauses_double_up_to_the_ceiling_and_start_anew_after_a_reset() -> None:
    backoff = Backoff(Random(1), 2.0, 12.0, spread=(1.0, 1.0))
    assert pauses(backoff, 5) == [2.0, 4.0, 8.0, 12.0, 12.0]
    backoff.reset()
    assert pauses(backoff, 2) == [2.0, 4.0]


def test_each_pause_is_spread() -> None:
    backoff = Backoff(Random(1), 4.0, 4.0, spread=(0.5, 1.0))
    drawn = pauses(backoff, 200)
    assert 2.0 <= min(drawn) < 2.2
    assert 3.8 < max(drawn) <= 4.0
