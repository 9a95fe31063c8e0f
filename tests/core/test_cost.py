"""Money: whole minutes, each attempt at its own price, an upper bound of the bill."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.core.cost import attempt_cost, billed_usd, money_left, run_cost, seconds_for
from flashd.core.ending import past
from flashd.core.model import Reason
from flashd.core.verdicts import Failure
from tests.core.kit import T0, a_run, attempt_of, booting, gone, launching


@pytest.mark.parametrize(
    ("seconds", "usd"),
    [(0, 0.0), (-5, 0.0), (1, 0.02), (60, 0.02), (61, 0.04), (3600, 1.2), (3599.5, 1.2)],
)
def test_minutes_are_rounded_up(seconds: float, usd: float) -> None:
    assert billed_usd(1.2, seconds) == pytest.approx(usd)


@given(st.floats(0.01, 100), st.floats(0, 1e6))
def test_the_stamp_is_never_below_the_exact_price(price: float, seconds: float) -> None:
    exact = price * seconds / 3600
    assert exact - 1e-5 <= billed_usd(price, seconds) <= exact + price / 60 + 1e-5


@given(st.floats(0.01, 1000), st.floats(0.01, 100))
def test_what_money_buys_is_never_billed_above_it(usd: float, price: float) -> None:
    assert billed_usd(price, seconds_for(usd, price)) <= usd + 1e-6


def test_a_free_place_can_be_paid_for_ever() -> None:
    assert seconds_for(1.0, 0.0) == math.inf


def test_a_live_attempt_costs_up_to_now_and_is_provisional() -> None:
    cost = attempt_cost(attempt_of(booting()), {}, T0 + 3600)
    assert (cost.usd, cost.final) == (1.0, False)


def test_a_proof_of_absence_ends_the_count() -> None:
    run = booting()
    name = attempt_of(run).name
    cost = attempt_cost(attempt_of(run), gone(run, name, T0 + 1800), T0 + 9999)
    assert (cost.usd, cost.final) == (0.5, True)


def test_a_machine_that_never_existed_costs_nothing() -> None:
    run = launching()
    name = attempt_of(run).name
    assert attempt_cost(attempt_of(run), gone(run, name, T0 + 99, None), T0 + 9999).usd == 0.0
    never = past(attempt_of(run), Failure(Reason.LAUNCH_UNKNOWN, "x"), T0 + 120)
    assert attempt_cost(never, {}, T0 + 9999) == attempt_cost(never, {}, T0)
    assert attempt_cost(never, {}, T0).final


def test_a_run_costs_the_sum_of_its_attempts() -> None:
    run = booting()
    ended = past(attempt_of(run), Failure(Reason.STALLED, "x"), T0 + 3600)
    both = replace(run, history=(replace(ended, name="other"),))
    proofs = gone(run, "other", T0 + 3600)
    cost = run_cost(both, proofs, T0 + 1800)
    assert (cost.usd, cost.final) == (1.5, False)


def test_money_left_counts_what_is_spent() -> None:
    run = booting(max_usd=2.0)
    assert money_left(run, {}, T0 + 3600) == pytest.approx(1.0)
    assert money_left(a_run(), {}, T0) is None
