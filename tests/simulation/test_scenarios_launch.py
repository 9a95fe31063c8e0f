"""Acceptance scenarios by their numbers: what a create call can come to, and whose machines are whose."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flashd.core.names import machine_name
from flashd.providers.base import LaunchOrder
from tests.simulation.cloud_truth import Habits
from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.sim import NS, Options, World
from tests.simulation.wire import Fault
from tests.simulation.world_box import Play
from tests.simulation.world_cloud import OFFERS, offer

SHORT = Play(end_at_s=600.0)


def test_scenario_34_no_stock_in_one_region_sends_the_run_to_the_next() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.NO_STOCK)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert [region for _, _, region in world.cloud.launch_calls] == ["NORWAY-1", "US-1"]
        assert len(machines_of(world)) == 1
        assert await world.names("r1") == [
            "accepted", "launching", "launching", "booting", "setup", "training", "succeeded", "released",
        ]  # fmt: skip
        assert (await world.fields("r1"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_37_a_lost_answer_whose_machine_shows_after_a_minute_is_found_and_used() -> None:
    async def scenario(world: World) -> None:
        world.cloud.truth.habits = replace(Habits(), list_lag_s=(60.0, 60.0))
        world.cloud.faults.scripted["launch"].append(Fault.LOST)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1
        assert len(world.cloud.launch_calls) == 1

    live_through(scenario)


def test_scenario_38_a_lost_create_that_made_nothing_is_given_up_after_the_settling_time() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.BROKEN)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert (ended["reason"], ended["attempts_left"]) == ("launch_unknown", 3)
        (machine,) = machines_of(world)
        first_call, second_call = (at for at, _, _ in world.cloud.launch_calls)
        assert machine.name.endswith("-a1")
        assert second_call - first_call >= 120.0

    live_through(scenario)


def test_scenario_39_a_throttled_create_is_sent_again_unchanged_after_one_look_up() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.THROTTLED)
        looked_up: list[str] = []
        world.wire.lines = looked_up
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "booting")
        (first_at, first_name, first_region), (second_at, second_name, second_region) = world.cloud.launch_calls
        assert (first_name, first_region) == (second_name, second_region)
        assert second_at - first_at >= 20.0
        assert sum(f"find {first_name}" in line for line in looked_up) == 1
        await world.until_released("r1")
        assert [name.endswith("-a0") for name in (machine.name for machine in machines_of(world))] == [True]

    live_through(scenario)


def test_scenario_40_a_taken_name_that_is_our_own_phantom_is_adopted() -> None:
    async def scenario(world: World) -> None:
        # The create is throttled by what stands before the cloud, yet it arrives: the second call meets its machine.
        world.cloud.truth.habits = replace(Habits(), list_lag_s=(45.0, 45.0))
        world.cloud.faults.scripted["launch"].append(Fault.THROTTLED)

        def arrive_all_the_same(order: LaunchOrder) -> None:
            if len(world.cloud.launch_calls) == 1:
                world.cloud.truth.make(order.name, order.place, order.labels, order.user_data)

        world.cloud.on_launch = arrive_all_the_same
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        (machine,) = machines_of(world)
        assert len(world.cloud.launch_calls) == 2
        assert (await event_named(world, "r1", "booting"))["machine_id"] == machine.id

    live_through(scenario)


def test_scenario_40_a_taken_name_of_an_older_machine_is_released_and_the_next_number_taken() -> None:
    async def scenario(world: World) -> None:
        older = world.plant_orphan(machine_name(NS, "r1", 0))
        await asyncio.sleep(300.0)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert not older.is_alive and older.delete_calls
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 1
        assert (await world.fields("r1"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_41_a_refused_key_pauses_the_provider_and_is_not_called_no_stock() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.standing["launch"] = Fault.UNAUTHORISED
        world.start()
        await world.submit("r1")
        await asyncio.sleep(900.0)
        assert (await event_named(world, "r1", "waiting"))["reason"] == "auth"
        assert machines_of(world) == []
        assert len(world.cloud.launch_calls) <= 16  # a refused key is tried once a minute
        del world.cloud.faults.standing["launch"]
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert (await world.fields("r1"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_42_an_answer_without_an_id_is_looked_up_by_name() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.NO_ID)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == len(world.cloud.launch_calls) == 1

    live_through(scenario)


def test_scenario_51_an_orphan_of_ours_is_deleted_at_its_second_sighting() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        orphan = world.plant_orphan(machine_name(NS, "r1", 5))
        await asyncio.sleep(110.0)
        assert not orphan.delete_calls  # younger than the grace
        await world.until(world.is_at_rest, 1200.0)
        assert len(orphan.delete_calls) == 1

    live_through(scenario)


def test_scenario_52_machines_of_others_are_never_touched() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.plant("flash-x", "a person's")
        world.plant(machine_name("other", "r1", 0), "another deployment's")
        world.plant("flash-sim-nobody-aaaaaaaaaa-a0", "of our pattern, and of no run that is remembered")
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        await asyncio.sleep(3600.0)
        assert len(world.cloud.truth.alive()) == 3

    live_through(scenario)


def test_scenario_53_orphans_are_found_among_fifty_seven_machines() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        for number in range(54):
            world.plant(f"someone-{number}", "a person's")
        orphans = [world.plant_orphan(machine_name(NS, "r1", number)) for number in (7, 8, 9)]
        await world.until(world.is_at_rest, 3600.0)
        assert all(orphan.delete_calls for orphan in orphans)
        assert len(world.cloud.truth.alive()) == 54

    live_through(scenario)


def test_a_dear_place_is_taken_when_the_cheap_ones_are_sold_out() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.truth.stock = {item.place.key: 0 for item in world.cloud.offers}
        world.start()
        await world.submit("r1")
        await asyncio.sleep(300.0)
        assert (await event_named(world, "r1", "waiting"))["reason"] == "no_capacity"
        world.cloud.truth.stock[world.cloud.offers[-1].place.key] = 1
        await world.until_released("r1")
        assert (await event_named(world, "r1", "booting"))["machine"] == machines_of(world)[0].name
        assert machines_of(world)[0].place.usd_per_hour == 3.0

    live_through(scenario, replace(Options(), offers=(*OFFERS, offer("US-2", 3.0))))
