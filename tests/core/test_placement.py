"""The walk over offers: what fits, which comes first, and why a place is not taken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.model import Reason, Refusals, Run
from flashd.core.observations import MustWait, NoMoneyLeft, NowherePossible
from flashd.core.placement import Chosen, Market, Pause, fits, place
from flashd.core.places import Offer, PlaceRefusal, RefusalKind
from tests.core.kit import H100, L40, T0, a_run, offer, terms

LAMBDA = replace(L40, provider="lambda", region="us-east-1", usd_per_hour=1.5)
BOTH = Market((offer(L40), offer(H100, vram_gb=80)), next_look_at=T0 + 30)


def chosen(run: Run, market: Market, money_usd: float | None = None) -> Chosen:
    answer = place(run, market, money_usd, T0)
    assert isinstance(answer, Chosen), answer
    return answer


def waits(run: Run, market: Market, money_usd: float | None = None) -> MustWait:
    answer = place(run, market, money_usd, T0)
    assert isinstance(answer, MustWait), answer
    return answer


@pytest.mark.parametrize(
    ("changes", "it_fits"),
    [
        ({}, True),
        ({"gpu_classes": ("L40", "H100")}, True),
        ({"gpu_classes": ("H100",)}, False),
        ({"providers": ("hyperstack",)}, True),
        ({"providers": ("lambda",)}, False),
        ({"regions": ("NORWAY-1",)}, True),
        ({"regions": ("US-1",)}, False),
        ({"exclude_regions": ("NORWAY-1",)}, False),
        ({"min_vram_gb": 48.0}, True),
        ({"min_vram_gb": 49.0}, False),
        ({"min_disk_gb": 501.0}, False),
        ({"min_ram_gb": 59.0}, False),
    ],
)
def test_each_wish_narrows_the_walk(changes: dict[str, object], it_fits: bool) -> None:
    assert fits(terms(**changes), offer()) is it_fits


def test_spot_machines_only_for_those_who_want_them() -> None:
    assert not fits(terms(), offer(spot=True))
    assert fits(terms(spot=True), offer(spot=True))
    assert fits(terms(spot=True), offer())


def test_the_cheapest_place_comes_first_then_the_smaller_gpu() -> None:
    assert chosen(a_run(), BOTH).offer.place == L40
    small, large = offer(L40), offer(replace(H100, usd_per_hour=1.0), vram_gb=80)
    assert chosen(a_run(), Market((large, small))).offer is small


def test_regions_and_providers_that_lost_an_attempt_come_last_the_newest_very_last() -> None:
    run = a_run(avoid=("hyperstack/NORWAY-1",))
    assert chosen(run, BOTH).offer.place == H100
    assert chosen(a_run(avoid=("hyperstack/US-1", "hyperstack/NORWAY-1")), BOTH).offer.place == H100
    third = Market((*BOTH.offers, offer(LAMBDA)))
    assert chosen(a_run(avoid=("hyperstack/OTHER",)), third).offer.place == LAMBDA


def test_the_best_place_is_waited_for_while_others_launch_there() -> None:
    busy = chosen(a_run(), replace(BOTH, busy=frozenset({L40.key})))
    assert (busy.offer.place, busy.busy, busy.last_choice) == (L40, True, False)
    assert not chosen(a_run(), replace(BOTH, busy=frozenset({H100.key}))).busy


def test_the_last_choice_is_the_only_place_left_that_takes_the_run() -> None:
    assert not chosen(a_run(), BOTH).last_choice
    assert chosen(a_run(refusals=Refusals(itself=(L40.key,))), BOTH).last_choice
    assert chosen(a_run(), Market((offer(L40), offer(H100, available=False)))).last_choice


@pytest.mark.parametrize(
    ("case", "run", "market", "reason", "kind", "next_try_at"),
    [
        (
            "no stock",
            a_run(),
            Market((offer(available=False),), next_look_at=T0 + 9),
            "no_capacity",
            "no_stock",
            T0 + 9,
        ),
        ("cools for all", a_run(), Market((offer(),), cooling={L40.key: T0 + 5}), "cooldown", "cooldown", T0 + 5),
        (
            "cools for this run, the longer of both",
            a_run(refusals=Refusals(cooling=((L40.key, T0 + 50),))),
            Market((offer(),), cooling={L40.key: T0 + 5}),
            "cooldown",
            "cooldown",
            T0 + 50,
        ),
        ("too dear by the hour", a_run(max_usd_per_hour=0.9), Market((offer(),)), "no_capacity", "too_dear", None),
        (
            "provider paused",
            a_run(),
            Market((offer(),), pauses={"hyperstack": Pause(Reason.NO_CREDIT, "no credit", T0 + 60)}),
            "no_credit",
            "paused",
            T0 + 60,
        ),
    ],
)
def test_a_place_that_cannot_take_the_run_says_why(
    case: str, run: Run, market: Market, reason: str, kind: str, next_try_at: float | None
) -> None:
    answer = waits(run, market)
    assert (answer.reason.value, [item.kind.value for item in answer.places]) == (reason, [kind]), case
    assert answer.next_try_at == next_try_at


def test_a_cooldown_that_is_over_holds_nothing_back() -> None:
    run = a_run(refusals=Refusals(cooling=((L40.key, T0),)))
    assert chosen(run, Market((offer(),), cooling={L40.key: T0 - 1})).offer.place == L40


def test_a_pause_is_the_reason_only_when_every_open_place_is_paused() -> None:
    pauses = {"lambda": Pause(Reason.AUTH, "401")}
    both = Market((offer(available=False), offer(LAMBDA)), pauses=pauses)
    assert waits(a_run(), both).reason is Reason.NO_CAPACITY
    assert waits(a_run(refusals=Refusals(itself=(L40.key,))), both).reason is Reason.AUTH


def test_a_provider_whose_offers_were_never_read_is_the_reason_when_nothing_else_fits() -> None:
    market = Market(pauses={"hyperstack": Pause(Reason.PROVIDER_UNREACHABLE, "timeout", T0 + 15)})
    assert waits(a_run(), market).reason is Reason.PROVIDER_UNREACHABLE
    assert waits(a_run(providers=("lambda",)), market).reason is Reason.NO_CAPACITY
    known = Market((offer(available=False),), pauses={"hyperstack": Pause(Reason.AUTH, "401")})
    assert waits(a_run(gpu_classes=("H100",)), known).reason is Reason.NO_CAPACITY


def test_nothing_fits_is_no_capacity_and_says_so() -> None:
    answer = waits(a_run(gpu_classes=("H200 SXM",)), BOTH)
    assert (answer.reason, answer.places, answer.next_try_at) == (Reason.NO_CAPACITY, (), T0 + 30)
    assert answer.detail == "no place fits this request now"


def test_unusable_places_are_shown_to_those_whom_they_would_fit() -> None:
    blocked = PlaceRefusal("hyperstack", "CANADA-1", "", RefusalKind.UNUSABLE, "blocked region")
    no_image = PlaceRefusal("hyperstack", "US-1", "H100", RefusalKind.UNUSABLE, "no image")
    elsewhere = PlaceRefusal("lambda", "x", "L40", RefusalKind.UNUSABLE, "no key")
    market = Market(unusable=(blocked, no_image, elsewhere))
    assert waits(a_run(), market).places == (blocked, no_image, elsewhere)
    assert waits(a_run(gpu_classes=("L40",)), market).places == (blocked, elsewhere)
    assert waits(a_run(regions=("US-1",)), market).places == (no_image,)
    assert waits(a_run(providers=("lambda",)), market).places == (elsewhere,)


def test_at_most_32_places_are_told() -> None:
    offers = tuple(offer(replace(L40, region=f"R{n}"), available=False) for n in range(40))
    assert len(waits(a_run(), Market(offers)).places) == 32


def test_refused_at_every_place_that_fits_is_the_end() -> None:
    run = a_run(refusals=Refusals(itself=(L40.key, H100.key)))
    assert place(run, BOTH, None, T0) == NowherePossible("refused at every place that fits (2)")


def test_refused_everywhere_waits_while_a_providers_offers_are_unknown() -> None:
    run = a_run(refusals=Refusals(itself=(L40.key, H100.key)))
    market = replace(BOTH, pauses={"lambda": Pause(Reason.PROVIDER_UNREACHABLE, "timeout", T0 + 15)})
    answer = waits(run, market)
    assert answer.reason is Reason.PROVIDER_UNREACHABLE
    assert {item.kind for item in answer.places} == {RefusalKind.REFUSED}
    only_here = replace(run, terms=replace(run.terms, providers=("hyperstack",)))
    assert isinstance(place(only_here, market, None, T0), NowherePossible)


@pytest.mark.parametrize(
    ("money_usd", "taken"), [(None, L40), (10.0, L40), (0.625, L40), (0.25, L40), (0.24, None), (0.0, None)]
)
def test_money_must_buy_900_seconds(money_usd: float | None, taken: object) -> None:
    answer = place(a_run(), BOTH, money_usd, T0)
    assert isinstance(answer, NoMoneyLeft) if taken is None else isinstance(answer, Chosen)


def test_money_counts_whether_or_not_there_is_stock() -> None:
    market = Market((offer(available=False),))
    answer = place(a_run(), market, 0.1, T0)
    assert answer == NoMoneyLeft("$0.10 of max_usd are left: less than 900 s at $1.00/h")


def test_a_place_that_money_does_not_buy_is_passed_over_and_told() -> None:
    market = Market((offer(available=False), offer(H100)), next_look_at=T0 + 30)
    answer = waits(a_run(), market, 0.3)
    assert [item.kind for item in answer.places] == [RefusalKind.NO_STOCK, RefusalKind.TOO_DEAR]
    assert answer.reason is Reason.NO_CAPACITY


def test_scenario_35_a_fresh_reading_finds_another_place() -> None:
    run = a_run(refusals=Refusals(cooling=((L40.key, T0 + 100), (H100.key, T0 + 100))))
    assert waits(run, BOTH).reason is Reason.COOLDOWN
    fresh: tuple[Offer, ...] = (*BOTH.offers, offer(LAMBDA))
    assert chosen(run, Market(fresh)).offer.place == LAMBDA
