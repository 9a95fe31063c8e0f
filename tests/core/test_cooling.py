"""A place's health: whom a refusal cools, when a cool-down ends, how many launches may be under way."""

from __future__ import annotations

from flashd.core.cooling import WIDTH_MAX, PlaceHealth, made, out_of_stock, refused, restocked, sold_out, took_others

NOW = 1_800_000_000.0
FRESH = PlaceHealth()


def test_want_of_stock_cools_for_everybody_and_halves_the_width() -> None:
    health = out_of_stock(PlaceHealth(width=8), NOW, 180)
    assert (health.cooling_until, health.for_stock, health.width) == (NOW + 180, True, 4)
    assert out_of_stock(FRESH, NOW, 180).width == 1


def test_one_run_that_is_refused_for_itself_cools_nobody() -> None:
    health = refused(refused(FRESH, "r1", NOW, 180), "r1", NOW + 5, 180)
    assert health.cooling_until == 0.0


def test_a_second_run_refused_there_cools_the_place_for_all() -> None:
    health = refused(refused(FRESH, "r1", NOW, 180), "r2", NOW + 5, 180)
    assert (health.cooling_until, health.for_stock) == (NOW + 185, False)


def test_a_refusal_long_ago_is_no_second_opinion() -> None:
    assert refused(refused(FRESH, "r1", NOW, 180), "r2", NOW + 7200, 180).cooling_until == 0.0


def test_each_machine_doubles_the_width_up_to_its_limit() -> None:
    health = FRESH
    for number in range(10):
        health = made(health, f"r{number}", NOW)
    assert health.width == WIDTH_MAX
    assert len(health.took) == 8


def test_a_machine_ends_a_cool_down_and_clears_the_refusals() -> None:
    health = made(refused(refused(FRESH, "r1", NOW, 180), "r2", NOW, 180), "r3", NOW + 1)
    assert (health.cooling_until, health.refused) == (0.0, ())


def test_a_newer_stock_read_ends_a_cool_down_for_want_of_stock_with_one_probe() -> None:
    health = restocked(out_of_stock(FRESH, NOW, 180), NOW + 1)
    assert (health.cooling_until, health.width) == (0.0, 1)


def test_a_place_that_was_shown_empty_is_probed_again() -> None:
    assert sold_out(PlaceHealth(width=32)) == FRESH


def test_a_stock_read_that_began_before_the_refusal_ends_nothing() -> None:
    cool = out_of_stock(FRESH, NOW, 180)
    assert restocked(cool, NOW - 1) == cool


def test_a_stock_read_ends_no_cool_down_of_refusals() -> None:
    cool = refused(refused(FRESH, "r1", NOW, 180), "r2", NOW, 180)
    assert restocked(cool, NOW + 1) == cool


def test_a_place_that_took_only_this_run_is_no_witness_against_it() -> None:
    assert not took_others(made(FRESH, "r1", NOW), "r1")
    assert took_others(made(FRESH, "r2", NOW), "r1")
