"""Acceptance scenarios by their numbers: what a worker says about its end, well, badly, late or not at all."""

from __future__ import annotations

import asyncio
import json

from flashd.core.machines import MachinePhase
from tests.simulation.hand import BY_HAND, hand_of
from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.sim import REPO, World
from tests.simulation.wire import Fault
from tests.simulation.world_box import Ending, Play

SHORT = Play(end_at_s=300.0)
NAN = float("nan")


async def begin(world: World, *by_attempt: Play, step: int = 3, **fields: object) -> None:
    """Start a daemon and one run; with the first box in the test's hand, until it trains."""
    world.stage.play_of = plays(*by_attempt)
    world.start()
    await world.submit("r1", **fields)
    if by_attempt[0].ending is Ending.BY_HAND and step:
        hand = await hand_of(world)
        hand.boot()
        hand.beat(step)
        await world.until_state("r1", "training")


def test_scenario_02_metrics_that_are_readable_only_later_are_waited_for() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.commit("end", hand.marker() | hand.done())
        world.hub.lag_s = 20.0  # the commit with the metrics is there, and readers do not see it yet
        hand.push("metrics", {"metrics.json": b'{"eval_loss": 0.5}'})
        await asyncio.sleep(30.0)
        world.hub.lag_s = 0.0
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["metrics"] == {"eval_loss": 0.5}
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_03_done_and_metrics_without_a_marker_count_after_the_grace() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.push("upload", {"metrics.json": b'{"eval_loss": 0.5}'})
        hand.push("upload", hand.done())
        done_at = world.now
        await world.until_state("r1", "succeeded", every_s=1.0)
        assert 180.0 <= world.now - done_at <= 240.0
        success = await event_named(world, "r1", "succeeded")
        assert (success["evidence"], success["metrics"]) == ("done", {"eval_loss": 0.5})
        await world.until_released("r1")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_04_an_ok_marker_beside_a_done_of_an_earlier_attempt_costs_until_now() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, BY_HAND)
        first = await hand_of(world)
        first.push("flashd run=r1 seed=0 attempt=0 event=artifacts", first.done())
        first.commit("end", first.marker(error="the disk is full", retriable=True))
        second = await hand_of(world, 1)
        second.beat(1)
        await asyncio.sleep(600.0)
        second.commit("end", second.marker() | {"metrics.json": b"{}"})
        await world.until_released("r1")
        success = await event_named(world, "r1", "succeeded")
        assert (success["attempt"], success["evidence"]) == (1, "marker")
        attempts = success["attempts"]
        assert attempts[1]["cost_usd"] >= 700.0 / 3600.0

    live_through(scenario)


def test_scenario_05_a_success_without_metrics_is_tried_again_and_is_no_job_failure() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, SHORT)
        (await hand_of(world)).end(metrics=None)
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert ended["reason"] == "artifacts_unreadable"
        assert "metrics.json" in ended["detail"]
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 1

    live_through(scenario)


def test_scenario_05_an_earlier_attempts_metrics_are_not_those_of_a_later_done() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, BY_HAND)
        first = await hand_of(world)
        first.push("upload", {"metrics.json": b'{"of": "attempt 0"}'})
        first.commit("end", first.marker(error="lost its GPU", retriable=True))
        second = await hand_of(world, 1)
        second.push("upload", second.done())
        await world.until_state("r1", "backoff")
        assert (await event_named(world, "r1", "attempt_failed"))["reason"] == "artifacts_unreadable"
        third = await hand_of(world, 2)
        third.end()
        await world.until_released("r1")

    live_through(scenario)


def test_scenario_06_metrics_that_are_no_json_object_end_the_run_at_the_second_time() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, BY_HAND)
        (await hand_of(world)).end(metrics=b"{oops")
        (await hand_of(world, 1)).end(metrics=b"[1]")
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert (failure["reason"], failure["fault"]) == ("artifacts_unreadable", "infrastructure")
        assert [attempt["reason"] for attempt in failure["attempts"]] == ["artifacts_unreadable"] * 2
        assert [len(machine.delete_calls) for machine in machines_of(world)] == [1, 1]
        await world.submit("r2")  # the loop is alive
        await world.until_state("r2", "booting")
        await world.cancel("r2")
        await world.until_released("r2")

    live_through(scenario)


def test_scenario_07_fault_f21_numbers_that_are_not_finite_reach_subscribers_as_null() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.beat(7, loss=NAN, grad_norm=float("inf"), history=[[world.now, 7, NAN, 1e-4]])
        await asyncio.sleep(60.0)
        hand.end(metrics={"loss": NAN, "curve": [1.0, float("-inf")]})
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["metrics"] == {"loss": None, "curve": [1.0, None]}
        raw = await world.raw.xrange(world.keys.name("events"))
        raw += await world.raw.xrange(world.keys.name("progress"))
        assert any(b"history" in fields[b"event"] for _, fields in raw)
        for _, fields in raw:
            json.loads(fields[b"event"], parse_constant=refuse)
        json.loads((await world.fields("r1"))["metrics"], parse_constant=refuse)

    live_through(scenario)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_scenario_10_a_host_marker_without_a_time_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, SHORT, step=0)
        hand = await hand_of(world)
        mark = {"ok": False, "attempt": 0, "token": hand.payload["token"], "retriable": True, "error": "pull failed"}
        hand.commit("end", {"hyperstack_attempt0.json": json.dumps(mark).encode()})
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert (ended["reason"], ended["detail"]) == ("job_preempted", "pull failed")
        first, second = machines_of(world)
        assert first.gone_at is not None and first.gone_at < second.created_at

    live_through(scenario)


def test_scenario_12_fault_f22_a_flag_of_an_earlier_attempt_makes_no_failure_retriable() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, BY_HAND)
        first = await hand_of(world)
        first.beat(4, retriable=True, error="spot reclaim")
        first.commit("end", first.marker(error="spot reclaim", retriable=True))
        second = await hand_of(world, 1)
        await asyncio.sleep(30.0)
        second.commit("end", second.marker(error="pip: no such package"))
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert failure["reason"] == "job_failed"
        assert failure["detail"].startswith("pip: no such package")
        assert len(machines_of(world)) == 2

    live_through(scenario)


def test_scenario_13_fault_f20_sloppy_heartbeats_are_ignored_and_the_run_goes_on() -> None:
    bodies = (b"[1]", b'{"stage": "training", "step": NaN}', b"{" * 5_000_000, b'{"attempt": {}}', b"\xff\xfe", b"")

    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, step=0)
        hand = await hand_of(world)
        for body in bodies:
            hand.commit("heartbeat", {"heartbeat.json": body}, " stage=training step=x")
            hand.push("a worker's own upload", {"heartbeat.json": body + b" "})
            await asyncio.sleep(45.0)
        hand.beat(9)
        await world.until_state("r1", "training")
        hand.end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_19_fault_f25_a_success_just_before_the_stall_limit_is_seen_though_readers_lag() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        progress_at = world.now
        await asyncio.sleep(1500.0 - 30.0)
        world.hub.lag_s = 25.0
        (await hand_of(world)).end()
        await world.until_released("r1")
        assert world.now > progress_at + 1500.0
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 0
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_21_a_machine_that_vanishes_after_its_ok_marker_is_a_success() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.end()
        world.cloud.truth.remove(hand.machine)
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        (machine,) = machines_of(world)
        assert machine.deleting_at is None  # there was nothing left to delete

    live_through(scenario)


def test_scenario_30_fault_f26_the_clock_of_the_box_decides_nothing() -> None:
    """Rows 30 and 31: the box's clock is ten minutes slow, or an hour fast."""
    for skew_s in (-600.0, 3600.0):
        for with_marker in (True, False):

            async def scenario(world: World, skew_s: float = skew_s, with_marker: bool = with_marker) -> None:
                await begin(world, BY_HAND)
                hand = await hand_of(world)
                at = world.now + skew_s
                marker = hand.marker(ts=at) if with_marker else {}
                hand.commit("end", marker | hand.done(at) | {"metrics.json": b"{}"})
                await world.until_released("r1")
                success = await event_named(world, "r1", "succeeded")
                assert success["evidence"] == ("marker" if with_marker else "done")
                took_s = world.now - hand.machine.created_at
                assert 0.0 <= success["cost_usd"] <= (took_s + 60.0) / 3600.0
                (attempt,) = success["attempts"]
                assert attempt["started"] <= attempt["ended"]

            live_through(scenario)


def test_scenario_31_fault_f26_a_done_from_the_future_is_clamped() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.commit("end", {"DONE": b"inf", "metrics.json": b"{}"})
        await world.until_released("r1")
        success = await event_named(world, "r1", "succeeded")
        assert success["cost_usd"] <= (world.now - hand.machine.created_at + 60.0) / 3600.0

    live_through(scenario)


def test_fault_f23_metrics_that_cannot_be_read_three_times_are_read_again() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        world.hub.faults.scripted["read"].extend([None, Fault.BROKEN, None, Fault.BROKEN, None, Fault.BROKEN])
        (await hand_of(world)).end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_fault_f35_the_machine_works_on_between_done_and_marker() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.push("upload", hand.done() | {"metrics.json": b'{"a": 1}'})
        await asyncio.sleep(60.0)
        assert hand.machine.works and not hand.machine.delete_calls
        hand.commit("end", hand.marker())
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["evidence"] == "marker"

    live_through(scenario)


def test_fault_f39_a_success_that_lands_after_the_stall_verdict_is_adopted() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        await world.until_state("r1", "backoff", every_s=1.0)
        await asyncio.sleep(2.0)
        hand.end()  # the machine is on its way out, and its box was only slow
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 0
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_fault_f39_a_late_success_of_a_worker_without_a_marker_is_adopted() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        await world.until_state("r1", "backoff", every_s=1.0)
        await asyncio.sleep(2.0)
        hand.push("upload", hand.done() | {"metrics.json": b'{"late": true}'})
        await world.until_released("r1")
        success = await event_named(world, "r1", "succeeded")
        assert (success["attempt"], success["evidence"], success["metrics"]) == (0, "done", {"late": True})
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_an_error_file_of_a_self_uploading_worker_is_read_into_the_detail() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        hand.push("upload", {"error_sft.txt": b"Traceback\nKeyError: 'prompt'\n"})
        await asyncio.sleep(20.0)
        hand.commit("end", hand.marker(error="worker exited with status 1"))
        await world.until_released("r1")
        detail = (await event_named(world, "r1", "failed"))["detail"]
        assert "worker exited with status 1" in detail and "KeyError: 'prompt'" in detail

    live_through(scenario)


def test_the_error_of_a_worker_whose_host_died_is_told() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, SHORT)
        hand = await hand_of(world)
        hand.push("upload", {"error_sft.txt": b"CUDA error: device lost\n"})
        world.cloud.truth.die(hand.machine, MachinePhase.FAILED)
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert ended["reason"] == "job_preempted"
        assert "CUDA error: device lost" in ended["detail"]

    live_through(scenario)


def test_a_history_that_was_squashed_meanwhile_keeps_no_verdict_from_being_given() -> None:
    async def scenario(world: World) -> None:
        world.hub.push(REPO, "initial commit", {"README.md": b"what came before the run"})
        await begin(world, BY_HAND, SHORT)
        hand = await hand_of(world)
        hand.push("upload", {"heartbeat.json": b'{"stage": "training", "step": 5}'} | hand.done())
        world.hub.squash(REPO)
        await asyncio.sleep(30.0)
        world.cloud.truth.die(hand.machine, MachinePhase.FAILED)
        await world.until_state("r1", "backoff", within_s=300.0)
        await world.until_released("r1")
        assert (await event_named(world, "r1", "attempt_failed"))["reason"] == "job_preempted"

    live_through(scenario)


def test_fault_f39_a_late_success_whose_metrics_cannot_be_read_at_once_is_waited_for() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND)
        hand = await hand_of(world)
        await world.until_state("r1", "backoff", every_s=1.0)
        hand.end()
        world.hub.faults.scripted["read"].extend([None, Fault.BROKEN])  # the marker is read, its metrics are not
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 0
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_fault_f39_a_done_of_the_next_attempt_makes_no_success_of_an_earlier_one() -> None:
    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, BY_HAND, SHORT)
        first = await hand_of(world)
        first.push("upload", {"metrics.json": b'{"of": "attempt 0"}'})
        world.cloud.truth.die(first.machine, MachinePhase.FAILED)
        second = await hand_of(world, 1)
        second.push("upload", second.done())
        world.cloud.truth.die(second.machine, MachinePhase.FAILED)
        await world.until_released("r1")
        assert (await event_named(world, "r1", "succeeded"))["attempt"] == 2

    live_through(scenario)


def test_scenario_63_a_host_that_cannot_pull_its_image_is_replaced_at_once() -> None:
    """What the box does before it gives up: tests/bootstrap."""

    async def scenario(world: World) -> None:
        await begin(world, BY_HAND, SHORT, step=0)
        hand = await hand_of(world)
        hand.boot()
        await asyncio.sleep(300.0)  # five tries
        hand.commit("end", hand.marker(error="docker pull: manifest unknown", retriable=True, exit_code=None))
        told_at = world.now
        await world.until_state("r1", "backoff", every_s=1.0)
        assert world.now - told_at <= 30.0
        await world.until_released("r1")
        ended = await event_named(world, "r1", "attempt_failed")
        assert (ended["reason"], ended["detail"]) == ("job_preempted", "docker pull: manifest unknown")
        first, second = machines_of(world)
        assert first.billed_usd(world.now) < 0.25 and first.place.region != second.place.region

    live_through(scenario)
