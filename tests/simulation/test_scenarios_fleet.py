"""Acceptance scenarios by their numbers: places, crashes around a launch, large specs, limits, and a hundred runs."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from datetime import datetime
from functools import cache

import pytest

from flashd.providers.base import LaunchOrder
from tests.simulation.fleets import hundred, live_short
from tests.simulation.hand import BY_HAND, hand_of
from tests.simulation.kit import SEED, event_named, live_through, machines_of, plays
from tests.simulation.sim import Options, World, simulate
from tests.simulation.wire import Fault
from tests.simulation.world_box import Ending, Play, read_payload
from tests.simulation.world_cloud import OFFERS, offer

SHORT = Play(end_at_s=300.0)
RETRIABLE = Play(Ending.RETRIABLE, end_at_s=60.0, error="lost its GPU")


def test_scenario_35_a_place_that_comes_into_stock_is_used_when_all_others_have_refused() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        first, second, third = (item.place.key for item in world.cloud.offers)
        stock = world.cloud.truth.stock = {first: 1, second: 1, third: 0}

        def sell_before(order: LaunchOrder) -> None:
            if order.place.key != third:
                stock[order.place.key] = 0
            stock[third] = 1

        world.cloud.on_launch = sell_before
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "booting", within_s=60.0, every_s=1.0)
        assert [region for _, _, region in world.cloud.launch_calls] == ["NORWAY-1", "US-1", "CANADA-2"]
        await world.until_released("r1")

    live_through(scenario)


def test_scenario_36_a_run_that_every_place_refuses_waits_for_capacity_without_a_machine() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.faults.standing["launch"] = Fault.NO_STOCK
        world.start()
        await world.submit("r1")
        await asyncio.sleep(1800.0)
        waiting = await event_named(world, "r1", "waiting")
        assert waiting["reason"] in ("no_capacity", "cooldown")
        assert {place["region"] for place in waiting["places"]} == {"NORWAY-1", "US-1", "CANADA-2"}
        assert machines_of(world) == []
        assert len(world.cloud.launch_calls) <= 3 * 1800 / 30  # each place is tried again, never in a loop
        del world.cloud.faults.standing["launch"]
        await world.until_released("r1")
        assert (await world.fields("r1"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_43_of_two_runs_launched_together_the_ambiguous_one_leaves_the_other_alone() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.faults.scripted["launch"].extend([Fault.BROKEN, None])
        world.start()
        await world.submit("job", seed=1)
        await world.submit("job-2", seed=2)
        await world.until_released("job", "job-2")
        assert {(await world.fields(run_id))["state"] for run_id in ("job", "job-2")} == {"succeeded"}
        assert len(machines_of(world)) == 2
        assert all(len(machine.delete_calls) == 1 for machine in machines_of(world))

    live_through(scenario)


async def one_short_run(world: World) -> None:
    world.stage.play_of = plays(Play(end_at_s=60.0))
    world.start()
    await asyncio.sleep(2.0)
    await world.submit("r1")
    await world.until_released("r1")
    assert (await world.fields("r1"))["state"] == "succeeded"


@cache
def quiet_points() -> tuple[str, ...]:
    """What each crash point of a world without a crash is about, in order."""
    return tuple(simulate(SEED, one_short_run).wire.reached)


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("effect", ["redis accept", "redis intent", "launch", "redis confirm"])
def test_scenario_46_fault_f03_a_kill_around_a_launch_leaves_no_machine_without_owner(effect: str, point: str) -> None:
    """The same around every other effect, the slow way: `test_crash_points`."""
    numbers = [number for number, what in enumerate(quiet_points(), 1) if what.startswith(f"{point} {effect}")]

    async def scenario(world: World) -> None:
        world.wire.crash_at = numbers[0]
        await one_short_run(world)
        assert len(world.crashes) == 1
        assert len([machine for machine in machines_of(world) if machine.running_at is not None]) == 1

    live_through(scenario, Options(restart_after_s=(5.0, 5.0)))


def test_scenario_60_fault_f44_a_large_spec_is_spilled_and_the_payload_stays_below_its_limit() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        for run_id, kib in (("small", 1), ("large", 127), ("huge", 129)):
            text = "".join(chr(97 + world.chance.randrange(26)) for _ in range(kib * 1024 - 10))
            await world.submit(run_id, spec={"t": text})
        await world.until_released("small", "large")
        del world.sent["huge"]
        payloads = {run["run_id"]: run for run in (read_payload(machine.user_data) for machine in machines_of(world))}
        assert payloads.keys() == {"small", "large"}
        assert all(len(machine.user_data) <= 45_000 for machine in machines_of(world))
        assert payloads["large"]["spec_in_hub"] and "spec" not in payloads["large"]
        assert "t" in payloads["small"]["spec"]
        home = world.hub.repos["team/runs"]
        assert "sft/large/seed0/job_spec.json" in home.files[home.commits[-1].id]
        ((_, rejected),) = await world.raw.xrange(world.keys.name("rejected"))
        assert (rejected[b"run_id"], rejected[b"reason"]) == (b"huge", b"too_large")

    live_through(scenario)


def test_scenario_61_a_spec_that_cannot_be_uploaded_holds_up_the_launch() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.hub.faults.standing["commit"] = Fault.BROKEN
        world.start()
        text = "".join(chr(97 + world.chance.randrange(26)) for _ in range(100 * 1024))
        await world.submit("r1", spec=text)
        await asyncio.sleep(600.0)
        assert machines_of(world) == [] and world.cloud.launch_calls == []
        assert (await event_named(world, "r1", "waiting"))["reason"] == "hub_unreachable"
        del world.hub.faults.standing["commit"]
        await world.until_released("r1")
        assert (await world.fields("r1"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_68_a_run_that_has_used_its_attempts_names_the_cause_of_each() -> None:
    async def scenario(world: World) -> None:
        boxes = (replace(RETRIABLE, error="first cause"), replace(RETRIABLE, error="second cause"), BY_HAND)
        world.stage.play_of = plays(*boxes)
        world.start()
        await world.submit("r1")
        third = await hand_of(world, 2)
        third.commit("end", third.marker(error="third cause", retriable=True))
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert (failure["reason"], failure["fault"]) == ("job_preempted", "infrastructure")
        for cause in ("first cause", "second cause", "third cause"):
            assert cause in failure["detail"]
        assert [attempt["reason"] for attempt in failure["attempts"]] == ["job_preempted"] * 3
        released = await event_named(world, "r1", "released")
        billed = sum(machine.billed_usd(world.now) for machine in machines_of(world))
        assert released["cost_usd"] >= billed
        assert len(released["machines"]) == 3

    live_through(scenario)


def test_a_run_that_runs_out_of_time_between_attempts_names_the_cause_of_each() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(RETRIABLE)
        world.start()
        await world.submit("r1", limits={"deadline_s": 400})
        await world.until_state("r1", "backoff")
        world.cloud.faults.standing["stock"] = Fault.BROKEN
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert failure["reason"] == "deadline"
        assert "lost its GPU" in failure["detail"]

    live_through(scenario)


def test_scenario_69_the_spend_cap_ends_a_run_after_a_last_look() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1", limits={"max_usd": 0.5})
        hand = await hand_of(world)
        while (await world.fields("r1"))["state"] not in ("failed", "succeeded"):
            hand.beat(int(world.loop.time()))
            await asyncio.sleep(60.0)
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert (failure["reason"], failure["fault"]) == ("budget", "user")
        deleting_s = (hand.machine.gone_at or 0.0) - (hand.machine.deleting_at or 0.0)
        released = await event_named(world, "r1", "released")
        assert released["cost_usd"] <= 0.5 + (60.0 + deleting_s + 2 * 10.0 + 15.75 + 30.0) / 3600.0

    live_through(scenario)


def test_scenario_69_a_success_at_the_spend_cap_is_not_thrown_away() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1", limits={"max_usd": 0.5})
        hand = await hand_of(world)
        for step, at_s in ((1, 900.0), (2, 1790.0)):
            await asyncio.sleep(hand.machine.created_at + at_s - world.now)
            hand.beat(step)
        world.hub.lag_s = 15.0
        hand.end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"

    live_through(scenario)


def test_fault_f13_attempts_that_die_late_stay_within_the_runs_limits() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.RETRIABLE, end_at_s=1200.0))
        world.start()
        await world.submit("r1", limits={"max_usd": 0.7, "max_attempts": 20})
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert failure["reason"] == "budget"
        assert sum(machine.billed_usd(world.now) for machine in machines_of(world)) <= 0.75

    live_through(scenario, max_attempts=20)


def test_fault_f14_a_restart_between_attempts_keeps_number_and_budget() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(RETRIABLE, RETRIABLE, SHORT)
        world.start()
        await world.submit("r1", limits={"max_attempts": 2})
        await world.until_state("r1", "backoff")
        await world.stop()
        world.start()
        await world.until_released("r1")
        assert [machine.name[-3:] for machine in machines_of(world)] == ["-a0", "-a1"]
        assert (await world.fields("r1"))["state"] == "failed"

    live_through(scenario)


def unix(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def test_fault_f15_every_attempt_is_paid_at_its_own_price() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(replace(RETRIABLE, end_at_s=1080.0), Play(end_at_s=480.0))
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        first, second = (await event_named(world, "r1", "released"))["machines"]
        hours = [(unix(one["gone"]) - unix(one["created"])) / 3600.0 for one in (first, second)]
        prices = [machine.place.usd_per_hour for machine in machines_of(world)]
        assert prices == [1.0, 1.1]
        expected = sum(price * hour for price, hour in zip(prices, hours, strict=True))
        cost = (await event_named(world, "r1", "released"))["cost_usd"]
        assert expected <= cost <= expected + sum(prices) / 60.0

    live_through(scenario)


def test_fault_f57_a_price_that_changes_does_not_change_what_runs_already() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "booting")
        world.cloud.offers = tuple(offer(item.place.region, 9.0) for item in OFFERS)
        await world.until_released("r1")
        assert (await event_named(world, "r1", "launching"))["usd_per_hour"] == 1.0
        assert (await event_named(world, "r1", "released"))["cost_usd"] < 0.2

    live_through(scenario)


def requests(lines: list[str], *kinds: str) -> int:
    return sum(line.split()[2] in kinds for line in lines)


def test_scenario_66_fault_f41_a_hundred_runs_take_few_requests_and_no_threads() -> None:
    async def scenario(world: World) -> None:
        await hundred(world)
        lines = world.wire.lines = []
        await asyncio.sleep(300.0)
        world.wire.lines = None
        cloud = requests(lines, "list", "get", "find", "account", "stock", "credit")
        hub = requests(lines, "commits", "oids", "read")
        assert cloud <= 5 * 10
        assert hub / (100 * 5) <= 0.35
        assert threading.active_count() < 10
        assert len(world.living()) == 1

    live_short(scenario)


def test_scenario_67_an_outage_of_the_cloud_kills_none_of_a_hundred_runs() -> None:
    async def scenario(world: World) -> None:
        await hundred(world)
        for call in ("list", "get", "find", "account", "stock", "delete"):
            world.cloud.faults.standing[call] = Fault.BROKEN
        await asyncio.sleep(900.0)
        world.cloud.faults.standing.clear()
        await asyncio.sleep(60.0)
        assert not any(machine.delete_calls for machine in machines_of(world))
        assert len(machines_of(world)) == 100
        states = [(await world.fields(f"r{number}"))["state"] for number in range(100)]
        assert set(states) == {"training"}

    live_short(scenario)


def test_runs_that_come_together_all_get_the_cheapest_place_without_a_word_about_waiting() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.start()
        runs = [f"r{number:02}" for number in range(12)]
        for run_id in runs:
            await world.submit(run_id)
        await world.until_released(*runs)
        assert {machine.place.region for machine in machines_of(world)} == {"NORWAY-1"}
        assert all([(await world.names(run_id))[:3] == ["accepted", "launching", "booting"] for run_id in runs])
        first, *_, last = sorted(machine.created_at for machine in machines_of(world))
        assert last - first <= 15.0  # one, two, four and more at a time

    live_through(scenario)


def test_a_run_goes_elsewhere_when_a_launch_at_the_best_place_gets_no_answer() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.faults.scripted["launch"].append(Fault.BROKEN)  # nothing is heard of it for 30 s
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "launching", every_s=0.5)
        await world.submit("r2")
        await world.until_state("r2", "booting", within_s=45.0, every_s=1.0)
        await world.until_released("r1", "r2")

    live_through(scenario)
