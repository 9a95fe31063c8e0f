"""Silence counts only while somebody is looking, over restarts too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.core.blindness import Sight

SLACK = 90.0


def test_regular_looks_are_not_blind() -> None:
    sight = Sight(0.0)
    for at in range(15, 3_000, 15):
        sight = sight.seen(float(at), SLACK)
    assert sight.blind_at(3_000.0, SLACK) == 0.0


def test_an_outage_is_blind_beyond_the_usual_pause_while_it_lasts_and_afterwards() -> None:
    sight = Sight(1_000.0)
    assert sight.blind_at(4_090.0, SLACK) == 3_000.0
    assert sight.seen(4_090.0, SLACK).blind_at(4_100.0, SLACK) == 3_000.0


def test_a_look_without_meaning_makes_the_whole_gap_blind() -> None:
    sight = Sight(1_000.0).unseen(1_015.0).unseen(1_030.0)
    assert sight == Sight(1_030.0, 30.0)


def test_an_answer_from_the_past_changes_nothing() -> None:
    assert Sight(1_000.0, 5.0).seen(990.0, SLACK) == Sight(1_000.0, 5.0)
    assert Sight(1_000.0, 5.0).unseen(990.0) == Sight(1_000.0, 5.0)


def test_silence_leaves_out_the_blind_time_since_the_anchor_only() -> None:
    sight = Sight(1_000.0).seen(2_090.0, SLACK)  # an outage before the anchor
    anchor, blind = 2_100.0, sight.blind_at(2_100.0, SLACK)
    sight = sight.seen(2_105.0, SLACK)
    now = 2_105.0 + SLACK + 5_000.0  # and one after it
    assert now - anchor - (sight.blind_at(now, SLACK) - blind) == pytest.approx(5.0 + SLACK)


def test_time_in_which_no_daemon_ran_is_an_outage_like_any_other() -> None:
    before = Sight(1_000.0, 7.0)
    blind = before.blind_at(1_000.0, SLACK)
    after = Sight.from_json(before.to_json()).seen(8_200.0, SLACK)
    assert 8_200.0 - 1_000.0 - (after.blind_at(8_200.0, SLACK) - blind) == SLACK


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"known_until": 1}',
        '{"known_until": "1", "blind_total": 0}',
        '{"known_until": true, "blind_total": 0}',
        '{"known_until": 1, "blind_total": -1}',
        '{"known_until": NaN, "blind_total": 0}',
        '{"known_until": Infinity, "blind_total": 0}',
    ],
)
def test_what_was_not_written_by_us_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Sight.from_json(text)


@given(st.lists(st.tuples(st.floats(0, 10_000), st.booleans()), max_size=30))
def test_blind_time_never_shrinks_and_never_exceeds_the_time_that_passed(steps: list[tuple[float, bool]]) -> None:
    now, last, sight = 0.0, 0.0, Sight(0.0)
    for gap, evident in steps:
        now += gap
        blind = sight.blind_at(now, SLACK)
        assert last - 1e-6 <= blind <= now + 1e-6
        sight = sight.seen(now, SLACK) if evident else sight.unseen(now)
        last = sight.blind_at(now, SLACK)
        assert blind - 1e-6 <= last <= now + 1e-6
        assert Sight.from_json(sight.to_json()) == sight
