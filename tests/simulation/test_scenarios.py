"""Acceptance scenarios by their numbers: one run's way, through the whole daemon in virtual time, with the real policy.

Every scenario ends with all invariants checked; see `kit.live_through`.
"""

from __future__ import annotations

import asyncio

from flashd.core.machines import MachinePhase
from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.sim import REPO, World
from tests.simulation.wire import Fault
from tests.simulation.world_box import METRICS_VALUE, Ending, Play


def test_scenario_01_a_run_succeeds_on_one_machine_with_one_create_and_one_delete() -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        names = ["accepted", "launching", "booting", "setup", "training", "succeeded", "released"]
        assert await world.names("r1") == names
        success = await event_named(world, "r1", "succeeded")
        assert success["metrics"]["eval_loss"] == METRICS_VALUE
        assert success["evidence"] == "marker"
        (machine,) = machines_of(world)
        assert len(world.cloud.launch_calls) == 1
        assert len(machine.delete_calls) == 1
        cost = (await event_named(world, "r1", "released"))["cost_usd"]
        assert 1.0 <= cost <= 1.05

    live_through(scenario)


def test_scenario_08_a_worker_error_fails_the_run_without_a_retry_and_keeps_its_text() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.FAILS, end_at_s=180.0, error="ValueError: no such column"))
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert (failure["reason"], failure["fault"]) == ("job_failed", "user")
        assert "no such column" in failure["detail"]
        (machine,) = machines_of(world)
        assert machine.gone_at is not None and machine.gone_at - machine.created_at < 400.0

    live_through(scenario)


def test_scenario_09_a_retriable_end_is_retried_only_after_the_machine_is_proved_gone() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.RETRIABLE, end_at_s=300.0), Play())
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert (ended["reason"], ended["attempts_left"]) == ("job_preempted", 2)
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 1
        first, second = machines_of(world)
        assert first.gone_at is not None and first.gone_at + 10.0 <= second.created_at

    live_through(scenario)


def test_scenario_11_files_of_an_earlier_attempt_do_not_touch_the_present_one() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.RETRIABLE, end_at_s=300.0), Play())
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "backoff")
        await world.until_state("r1", "training")
        # The first machine is gone; something writes its files once more beside the second attempt.
        home = world.hub.repos[REPO]
        old = {path: body for path, body in home.files[home.commits[-1].id].items() if "attempt0" in path}
        assert any(path.endswith("hyperstack_attempt0.json") for path in old)
        world.hub.push(REPO, "flashd run=r1 seed=0 attempt=0 event=end", {path: b" " + old[path] for path in old})
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 1
        assert len(machines_of(world)) == 2

    live_through(scenario)


def test_scenario_20_a_machine_in_error_after_two_hours_is_replaced_and_deleted() -> None:
    async def scenario(world: World) -> None:
        dying = Play(end_at_s=9000.0, dies_at_s=7200.0, dies_as=MachinePhase.FAILED)
        world.stage.play_of = plays(dying, Play(end_at_s=600.0))
        world.start()
        await world.submit("r1")
        await world.until_released("r1", within_s=12_000.0)
        ended = await event_named(world, "r1", "attempt_failed")
        assert ended["reason"] == "job_preempted"
        lost, second = machines_of(world)
        assert lost.died_at is not None and lost.deleting_at is not None
        assert lost.deleting_at - lost.died_at < 120.0
        assert second.place.region != lost.place.region

    live_through(scenario)


def test_scenario_44_a_cancel_deletes_the_machine_of_exactly_that_run() -> None:
    async def scenario(world: World) -> None:
        world.start()
        for run_id in ("a", "a-s1", "flash-a"):
            await world.submit(run_id)
        for run_id in ("a", "a-s1", "flash-a"):
            await world.until_state(run_id, "training")
        await world.cancel("a")
        await world.until_released("a")
        left = {machine.name for machine in world.cloud.truth.alive() if machine.deleting_at is None}
        assert left == {(await world.fields(run_id))["machine"] for run_id in ("a-s1", "flash-a")}
        await world.until_released("a-s1", "flash-a")
        assert (await world.fields("a"))["state"] == "cancelled"
        assert {(await world.fields(run_id))["state"] for run_id in ("a-s1", "flash-a")} == {"succeeded"}

    live_through(scenario)


def test_scenario_45_the_longest_id_and_the_largest_seed_get_a_short_owned_name() -> None:
    async def scenario(world: World) -> None:
        run_id = "L" + "-x.Y_" * 25 + "zz"
        assert len(run_id) == 128
        world.start()
        await world.submit(run_id, seed=2147483647)
        await world.until_state(run_id, "training")
        (machine,) = machines_of(world)
        assert len(machine.name) <= 50
        await world.until_released(run_id)
        # The same name without a ledger row is still known as this run's: an orphan, which the sweep removes.
        orphan = world.plant_orphan(machine.name)
        await world.until(world.is_at_rest, 3600.0)
        assert orphan.delete_calls

    live_through(scenario)


def test_scenario_47_a_stop_and_a_start_ten_minutes_later_go_on_with_the_same_attempt() -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "training")
        before = await world.fields("r1")
        await world.stop()
        (machine,) = machines_of(world)
        assert machine.is_alive and not machine.delete_calls
        await asyncio.sleep(600.0)
        world.start()
        await world.until_released("r1")
        after = await world.fields("r1")
        assert [after[name] for name in ("attempt", "attempts_used", "machine_id")] == [
            before[name] for name in ("attempt", "attempts_used", "machine_id")
        ]
        assert after["state"] == "succeeded"
        assert machines_of(world) == [machine]

    live_through(scenario)


def test_scenario_56_a_cancel_during_the_create_call_leaves_no_machine() -> None:
    async def scenario(world: World) -> None:
        world.cloud.faults.scripted["launch"].append(Fault.LOST)
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "launching")
        await asyncio.sleep(1.0)
        assert len(world.cloud.launch_calls) == 1  # the answer will never come
        await world.cancel("r1")
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "cancelled"
        (machine,) = machines_of(world)
        assert not machine.is_alive

    live_through(scenario)


def test_scenario_57_a_cancel_while_the_marker_lands_gives_one_end() -> None:
    for cancel_at_s in (-40.0, -20.0, -10.0, -1.0, 0.0, 1.0, 10.0, 20.0):

        async def scenario(world: World, cancel_at_s: float = cancel_at_s) -> None:
            world.stage.play_of = plays(Play(end_at_s=900.0))
            world.start()
            await world.submit("r1")
            await world.until_state("r1", "booting", "setup")
            (machine,) = machines_of(world)

            async def running() -> bool:
                return machine.running_at is not None

            await world.until(running, 600.0, 1.0)
            await asyncio.sleep(900.0 + cancel_at_s)
            await world.cancel("r1")
            await world.until_released("r1")
            # Half a minute before its end a run cannot be saved, a good while after it cannot be lost.
            state = (await world.fields("r1"))["state"]
            assert state in ("succeeded", "cancelled")
            assert state == "cancelled" or cancel_at_s > -20.0
            assert state == "succeeded" or cancel_at_s < 20.0

        live_through(scenario)


def test_scenario_58_a_finished_request_that_is_delivered_again_starts_nothing() -> None:
    async def scenario(world: World) -> None:
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        before = await world.events("r1")
        await world.submit("r1")
        await asyncio.sleep(600.0)
        assert await world.events("r1") == before
        assert len(machines_of(world)) == 1
        assert await world.raw.xlen(world.keys.name("requests")) == 0

    live_through(scenario)


def test_scenario_59_a_consumer_that_dies_after_its_claim_leaves_the_request_to_the_next() -> None:
    async def scenario(world: World) -> None:
        await world.submit("r1")
        # A consumer of the group takes the entry and dies before it accepts it.
        await world.raw.xgroup_create(world.keys.name("requests"), "flashd", id="0", mkstream=True)
        taken = await world.raw.xreadgroup("flashd", "dead", {world.keys.name("requests"): ">"}, count=1)
        assert taken
        await asyncio.sleep(5.0)
        world.start()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1

    live_through(scenario)
