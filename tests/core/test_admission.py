"""Who is served first, and what holds everybody back."""

from __future__ import annotations

import pytest

from flashd.core.admission import RepoRoom, Room, held_back, order, repo_held_back
from flashd.core.model import Reason
from tests.core.kit import T0, a_run


def test_higher_priority_first_then_older_then_by_id() -> None:
    runs = [
        a_run(run_id="late", accepted_at=T0 + 1),
        a_run(run_id="b"),
        a_run(run_id="a"),
        a_run(run_id="urgent", priority=5, accepted_at=T0 + 9),
        a_run(run_id="idle", priority=-5),
    ]
    assert [run.terms.run_id for run in sorted(runs, key=order)] == ["urgent", "a", "b", "late", "idle"]


@pytest.mark.parametrize(
    ("machines", "usd", "price", "why"),
    [
        (0, 0.0, 1.0, None),
        (9, 9.0, 1.0, None),
        (10, 0.0, 1.0, Reason.MAX_MACHINES),
        (5, 9.5, 1.0, Reason.MAX_USD_PER_HOUR),
        (10, 10.0, 1.0, Reason.MAX_MACHINES),
        (5, 9.9 + 0.05, 0.05, None),  # a sum of floats must not cost a machine
    ],
)
def test_the_limits_of_the_namespace(machines: int, usd: float, price: float, why: Reason | None) -> None:
    assert held_back(Room(machines, usd, 10, 10.0), price) is why


@pytest.mark.parametrize(
    ("live", "budget", "why"),
    [(13, True, None), (14, True, Reason.HUB_BUDGET), (15, True, Reason.HUB_BUDGET), (0, False, Reason.HUB_BUDGET)],
)
def test_the_budgets_of_a_repository(live: int, budget: bool, why: Reason | None) -> None:
    assert repo_held_back(RepoRoom(live, 14, budget)) is why
