"""Acceptance scenarios by their numbers: machines that do not come up, fall silent, stop or vanish."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from flashd.core.machines import MachinePhase
from tests.simulation.checker import tell
from tests.simulation.cloud_truth import Habits
from tests.simulation.hand import BY_HAND, hand_of
from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.sim import World
from tests.simulation.wire import Fault
from tests.simulation.world_box import Ending, Play

SHORT = Play(end_at_s=300.0)
NOTICED_S = 90.0  # from a limit to the verdict: a poll, two fresh reads 20 s apart, latencies


async def lasted_s(world: World, reason: str, attempt: int = 0) -> float:
    """Seconds from the attempt's intent to its end, which must have that reason."""
    ended = await event_named(world, "r1", "attempt_failed")
    assert (ended["reason"], ended["attempt"]) == (reason, attempt)
    story = await tell(world, "r1")
    began, failed = story.first("launching", attempt), story.first("attempt_failed", attempt)
    assert began is not None and failed is not None
    return failed - began


def test_scenario_14_fault_f07_a_machine_that_never_builds_is_replaced_elsewhere_and_deleted_in_spite_of_409() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(SHORT)
        world.cloud.truth.habits = replace(Habits(), stuck_pending=1.0)
        world.cloud.faults.scripted["delete"].extend([Fault.CONFLICT, Fault.CONFLICT])
        world.start()
        await world.submit("r1")
        await world.until_state("r1", "booting", every_s=1.0)
        world.cloud.truth.habits = Habits()
        await world.until_released("r1")
        assert 900.0 <= await lasted_s(world, "never_active") <= 900.0 + NOTICED_S
        first, second = machines_of(world)
        assert len(first.delete_calls) == 3 and not first.is_alive
        assert first.place.region != second.place.region

    live_through(scenario)


def test_scenario_15_fault_f30_a_box_that_never_reports_is_given_up_at_the_first_sign_limit() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(Play(Ending.SILENT), SHORT)
        world.start()
        await world.submit("r1")
        await world.until_released("r1")
        assert 1020.0 <= await lasted_s(world, "no_sign_of_life") <= 1020.0 + NOTICED_S
        assert (await event_named(world, "r1", "released"))["cost_usd"] < 0.5

    live_through(scenario)


def test_scenario_16_a_box_that_only_booted_is_given_up_at_the_setup_limit() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND, SHORT)
        world.start()
        await world.submit("r1")
        (await hand_of(world)).boot()
        await world.until_released("r1")
        assert 3000.0 <= await lasted_s(world, "stalled") <= 3000.0 + NOTICED_S
        assert "boot" in (await event_named(world, "r1", "attempt_failed"))["detail"]

    live_through(scenario)


def test_scenario_17_a_box_that_falls_silent_in_training_is_given_up_at_the_stall_limit() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND, SHORT)
        world.start()
        await world.submit("r1")
        (await hand_of(world)).beat(1)
        beaten_at = world.now
        await world.until_state("r1", "backoff", every_s=1.0)
        assert 1500.0 <= world.now - beaten_at <= 1500.0 + NOTICED_S
        await lasted_s(world, "stalled")
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 1

    live_through(scenario)


def test_scenario_18_fault_f29_signs_of_life_without_a_step_are_no_progress() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND, SHORT)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        while (await world.fields("r1"))["state"] in ("booting", "setup"):
            hand.beat(liveness=True)
            await asyncio.sleep(200.0)
        assert 3000.0 <= await lasted_s(world, "stalled") <= 3000.0 + NOTICED_S
        await world.until_released("r1")

    live_through(scenario)


def test_fault_f28_setup_stages_keep_the_setup_window_until_the_first_step() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        for stage in ("boot", "sft_cached_model", "model_prefetched"):
            hand.commit("heartbeat", {}, f" stage={stage} step=0")
            await asyncio.sleep(60.0)
        await asyncio.sleep(2400.0)  # the model loads for longer than the window of training
        assert (await world.fields("r1"))["state"] == "setup"
        hand.beat(1)
        await world.until_state("r1", "training")
        hand.end()
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_22_fault_f18_a_young_sign_of_life_vetoes_a_machine_that_is_said_to_be_missing() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        hand.beat(2)
        await world.until_state("r1", "training")
        world.cloud.faults.scripted["list"].extend([Fault.DROPPED] * 3)
        world.cloud.faults.scripted["get"].extend([Fault.DROPPED] * 3)
        for step in range(3, 8):
            hand.beat(step)
            await asyncio.sleep(12.0)
        await asyncio.sleep(120.0)
        assert world.cloud.faults.injected["get dropped"] > 0
        assert not hand.machine.delete_calls
        assert (await world.fields("r1"))["state"] == "training"
        hand.end()
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_22_a_machine_that_one_list_does_not_show_is_asked_for_and_goes_on() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        hand.beat(2)
        await world.until_state("r1", "training")
        world.cloud.faults.scripted["list"].extend([Fault.DROPPED] * 4)
        await asyncio.sleep(180.0)
        assert not hand.machine.delete_calls
        hand.end()
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_23_fault_f31_a_machine_that_was_shut_off_is_replaced_and_deleted() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND, SHORT)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        hand.beat(1)
        await world.until_state("r1", "training")
        world.cloud.truth.die(hand.machine, MachinePhase.STOPPED)
        stopped_at = world.now
        await world.until_state("r1", "backoff", every_s=1.0)
        assert world.now - stopped_at <= NOTICED_S
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert ended["reason"] == "job_preempted" and "STOPPED" in ended["detail"]
        assert hand.machine.delete_calls and not hand.machine.is_alive

    live_through(scenario)


def test_scenario_24_fault_f19_answers_that_cannot_be_used_change_nothing() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        hand.beat(1)
        await world.until_state("r1", "training")
        # Once no JSON, once a body that ends in the middle; then lists without the machine and a GET without an answer.
        world.cloud.faults.scripted["list"].extend([Fault.BROKEN, Fault.LOST, Fault.DROPPED, Fault.DROPPED])
        world.cloud.faults.scripted["get"].extend([Fault.BROKEN, Fault.LOST])
        await asyncio.sleep(240.0)
        assert world.cloud.faults.injected["get broken"] == 1
        assert not hand.machine.delete_calls
        hand.end()
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_fault_f08_a_delete_that_is_answered_404_is_done_with_one_call() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        await world.submit("r1")
        hand = await hand_of(world)
        sent: list[str] = []
        world.wire.lines = sent
        hand.end()
        world.cloud.truth.remove(hand.machine)
        await world.until_released("r1")
        assert sum(f"delete {hand.machine.id}" in line for line in sent) == 1

    live_through(scenario)


def test_fault_f55_one_machine_that_cannot_be_deleted_holds_up_no_other() -> None:
    async def scenario(world: World) -> None:
        world.stage.play_of = plays(BY_HAND)
        world.start()
        for number in range(6):
            await world.submit(f"r{number}")
        hands = [await hand_of(world, run_id=f"r{number}") for number in range(6)]
        world.cloud.faults.scripted["delete"].append(Fault.LOST)
        stuck = world.cloud.truth
        stuck.habits = replace(Habits(), deleting_s=(900.0, 900.0))
        hands[0].end()
        await world.until_state("r0", "succeeded")
        await asyncio.sleep(30.0)
        stuck.habits = Habits()
        for hand in hands[1:]:
            hand.end()
        ended_at = world.now
        await world.until_released(*(f"r{number}" for number in range(1, 6)))
        assert world.now - ended_at <= 120.0
        assert hands[0].machine.is_alive
        await world.until_released("r0")

    live_through(scenario)
