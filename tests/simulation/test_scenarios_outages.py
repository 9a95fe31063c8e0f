"""Acceptance scenarios by their numbers: cloud, Hub, Redis or daemon away, keys refused, clocks stepped, time over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import flashd.adapters.clock as real_clock
from flashd.adapters.clock import SystemClock
from flashd.config import Settings
from flashd.core.names import machine_name
from flashd.daemon.composition import Outside, Secrets, compose
from flashd.daemon.supervisor import Daemon
from tests.simulation.hand import BY_HAND, hand_of
from tests.simulation.kit import event_named, live_through, machines_of, plays
from tests.simulation.loop import VirtualLoop
from tests.simulation.sim import NS, Options, World
from tests.simulation.time_shim import TimeShim
from tests.simulation.wire import Fault
from tests.simulation.world_box import Ending, Play, read_payload

SHORT = Play(end_at_s=300.0)
CALLS = ("account", "stock", "launch", "find", "get", "list", "delete", "credit")


def alarms(world: World) -> set[str]:
    """The alarms of the one daemon that runs."""
    (life,) = world.living()
    return set(life.daemon.desk.alarms.up)


def ail(world: World, fault: Fault | None) -> None:
    """Every call to the cloud meets the fault from now on; None = the cloud is well again."""
    world.cloud.faults.standing = dict.fromkeys(CALLS, fault) if fault is not None else {}


async def training(world: World, *later: Play, run_id: str = "r1", **fields: object) -> None:
    """A daemon and a run whose first box is in the test's hand and trains."""
    world.stage.play_of = plays(BY_HAND, *later)
    world.start()
    await world.submit(run_id, **fields)
    (await hand_of(world, run_id=run_id)).beat(1)
    await world.until_state(run_id, "training")


def test_scenario_25_fault_f17_a_cloud_without_answers_for_two_hours_ends_nothing() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        hand = await hand_of(world)
        ail(world, Fault.BROKEN)
        ends_at = world.now + 7200.0
        for step in range(2, 6):
            await asyncio.sleep(900.0)
            hand.beat(step)
        hand.end()
        ended_at = world.now
        await world.until_state("r1", "succeeded", every_s=1.0)
        assert world.now - ended_at <= 60.0
        assert "provider_unreachable_hyperstack" in alarms(world)
        await asyncio.sleep(ends_at - world.now)
        assert hand.machine.deleting_at is None
        assert (await world.fields("r1"))["released"] == "0"
        ail(world, None)
        await world.until_released("r1", within_s=600.0)
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_26_a_revoked_key_kills_nothing_launches_nothing_and_is_alarmed() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        hand = await hand_of(world)
        ail(world, Fault.UNAUTHORISED)
        await world.submit("r2")
        await asyncio.sleep(300.0)
        assert "provider_key_refused_hyperstack" in alarms(world)
        assert (await event_named(world, "r2", "waiting"))["reason"] == "auth"
        hand.end()
        await world.until_state("r1", "succeeded", within_s=90.0)
        await asyncio.sleep(1200.0)
        assert [row["state"] for row in (await world.ledger()).values()] == ["deleting"]
        assert len(machines_of(world)) == 1 and hand.machine.deleting_at is None
        ail(world, None)
        await world.until_released("r1", within_s=300.0)
        await world.until_state("r2", "booting")
        (await hand_of(world, run_id="r2")).end()
        await world.until_released("r2")
        assert (await world.fields("r2"))["attempts_used"] == "1"

    live_through(scenario)


def test_scenario_27_fault_f24_a_refused_hub_token_is_alarmed_and_no_silence() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        world.hub.faults.standing["hub"] = Fault.UNAUTHORISED
        await asyncio.sleep(3600.0)  # the box says nothing for longer than the stall limit, and nobody could hear it
        assert (await world.fields("r1"))["state"] == "training"
        assert "hub_token_refused" in alarms(world)
        del world.hub.faults.standing["hub"]
        await asyncio.sleep(90.0)
        (await hand_of(world)).end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_28_a_throttled_hub_is_left_alone_for_as_long_as_it_says() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        hand = await hand_of(world)
        reads = world.wire.lines = []
        world.hub.faults.scripted["commits"].append(Fault.THROTTLED)
        await asyncio.sleep(120.0)
        times = [float(line.split()[0]) for line in reads if " commits " in line]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert max(gaps) >= 30.0  # what the Hub asked for; two reads are 15 s apart otherwise
        hand.end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"

    live_through(scenario)


@contextmanager
def stepped_wall(loop: VirtualLoop) -> Iterator[list[float]]:
    """The daemon's real clock on the loop's time; the list's sum is how far the wall clock was stepped."""
    steps: list[float] = []
    shim = TimeShim(loop)

    class Stepped(TimeShim):
        def time(self) -> float:
            return shim.time() + sum(steps)

    module = vars(real_clock)
    before, module["time"] = module["time"], Stepped(loop)
    try:
        yield steps
    finally:
        module["time"] = before


def with_real_clock(settings: Settings, outside: Outside) -> Daemon:
    return compose(settings, replace(outside, clock=SystemClock()))


def test_scenario_29_fault_f27_a_stepped_wall_clock_changes_no_verdict() -> None:
    for step_s in (3600.0, -3600.0):

        async def scenario(world: World, step_s: float = step_s) -> None:
            with stepped_wall(world.loop) as steps:
                await training(world)
                hand = await hand_of(world)
                steps.append(step_s)
                await asyncio.sleep(900.0)
                steps.append(-2 * step_s)
                await asyncio.sleep(300.0)
                assert (await world.fields("r1"))["state"] == "training"
                hand.end()
                await world.until_released("r1")
                assert len(machines_of(world)) == 1

        live_through(scenario, Options(compose=with_real_clock))


def test_scenario_32_an_attempt_that_outlives_its_wall_limit_ends_the_run() -> None:
    async def scenario(world: World) -> None:
        await training(world, limits={"max_wall_s": 60})
        (machine,) = machines_of(world)
        hand = await hand_of(world)
        while (await world.fields("r1"))["state"] == "training":
            hand.beat(int(world.loop.time()))
            await asyncio.sleep(300.0)
        assert machine.deleting_at is not None
        assert 3060.0 <= machine.deleting_at - machine.created_at <= 3160.0
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert (failure["reason"], failure["fault"]) == ("deadline", "user")
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_32_nothing_is_launched_again_beyond_the_runs_own_deadline() -> None:
    async def scenario(world: World) -> None:
        await training(world, limits={"deadline_s": 1200})
        sent_at = world.sent["r1"]
        await world.until_state("r1", "failed", every_s=1.0)
        assert 1200.0 <= world.now - sent_at <= 1300.0
        await world.until_released("r1")
        failure = await event_named(world, "r1", "failed")
        assert failure["reason"] == "deadline"
        assert len(machines_of(world)) == 1

    live_through(scenario)


def test_scenario_33_an_ok_marker_at_the_deadline_is_a_success() -> None:
    async def scenario(world: World) -> None:
        await training(world, limits={"deadline_s": 1200})
        hand = await hand_of(world)
        await asyncio.sleep(world.sent["r1"] + 1190.0 - world.now)
        world.hub.lag_s = 25.0
        hand.end()
        await world.until_released("r1")
        assert world.now - world.sent["r1"] > 1200.0
        assert (await world.fields("r1"))["state"] == "succeeded"

    live_through(scenario)


def test_scenario_48_after_an_absence_past_the_deadline_the_ok_marker_counts_and_its_time() -> None:
    async def scenario(world: World) -> None:
        await training(world, limits={"deadline_s": 1200})
        hand = await hand_of(world)
        await asyncio.sleep(300.0)
        await world.stop()
        hand.end()
        await asyncio.sleep(3600.0)
        world.start()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"
        assert len(machines_of(world)) == 1
        # The machine stood there until somebody could delete it, and that was billed.
        assert (await event_named(world, "r1", "released"))["cost_usd"] >= 1.0

    live_through(scenario)


def secrets_of(vault: dict[str, str]) -> Options:
    """Daemons whose secrets directory holds what `vault` holds at the moment."""

    def composed(settings: Settings, outside: Outside) -> Daemon:
        told = Secrets(lambda: "hf_box", vault.get, lambda: frozenset(vault))
        return compose(settings, replace(outside, secrets=told))

    return Options(compose=composed)


def test_scenario_49_fault_f37_a_retry_after_a_restart_has_the_runs_secrets() -> None:
    vault = {"WANDB_API_KEY": "the first value"}

    async def scenario(world: World) -> None:
        await training(world, Play(Ending.OK, end_at_s=300.0), worker={"secrets": ["WANDB_API_KEY"]})
        hand = await hand_of(world)
        assert hand.payload["env"]["WANDB_API_KEY"] == "the first value"
        await world.stop()
        del vault["WANDB_API_KEY"]
        hand.commit("end", hand.marker(error="lost its GPU", retriable=True))
        world.start()
        await world.until_state("r1", "backoff")
        await asyncio.sleep(300.0)
        assert len(machines_of(world)) == 1  # never without it
        assert "WANDB_API_KEY" in (await world.fields("r1"))["detail"]
        vault["WANDB_API_KEY"] = "the second value"
        await world.until_released("r1")
        (second,) = machines_of(world, 1)
        assert read_payload(second.user_data)["env"]["WANDB_API_KEY"] == "the second value"
        everything = str(await world.events()) + str(await world.fields("r1")) + "".join(map(str, world.logs))
        assert "the first value" not in everything and "the second value" not in everything

    live_through(scenario, secrets_of(vault))


def test_scenario_50_fault_f01_a_delete_that_fails_for_an_hour_is_tried_on_and_its_zombie_completes_nothing() -> None:
    async def scenario(world: World) -> None:
        await training(world, BY_HAND)
        zombie = await hand_of(world)
        world.cloud.faults.standing["delete"] = Fault.BROKEN
        fails_from = world.now
        zombie.commit("end", zombie.marker(error="lost its GPU", retriable=True))
        second = await hand_of(world, 1)
        assert "release_overdue" in alarms(world)
        second.beat(1)
        zombie.commit("end", {"DONE": b"1.0", "metrics.json": b'{"of": "the zombie"}'})
        zombie.push("flashd run=r1 seed=0 attempt=0 event=end", {"DONE": b"2.0"})
        while world.now < fails_from + 3600.0:
            await asyncio.sleep(600.0)
            second.beat(int(world.loop.time()))
        assert (await world.fields("r1"))["state"] == "training"
        assert zombie.machine.works
        del world.cloud.faults.standing["delete"]

        async def gone() -> bool:
            return (await world.ledger()).keys() == {second.machine.name}

        await world.until(gone, 360.0)
        assert not zombie.machine.is_alive
        second.end()
        await world.until_released("r1")
        success = await event_named(world, "r1", "succeeded")
        assert success["attempt"] == 1 and "of" not in success["metrics"]

    live_through(scenario)


def test_scenario_54_a_list_that_ends_in_the_middle_deletes_nothing() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        hand = await hand_of(world)
        world.cloud.faults.standing["list"] = Fault.BROKEN  # its second page is malformed
        orphan = world.plant_orphan(machine_name(NS, "r1", 7))
        await asyncio.sleep(600.0)
        assert not orphan.delete_calls and not hand.machine.delete_calls
        world.cloud.faults.standing["list"] = Fault.DROPPED  # machines vanish from it while it is read
        world.cloud.truth.habits.list_lag_s = (0.0, 0.0)
        for _ in range(4):
            hand.beat(3)
            await asyncio.sleep(15.0)
        assert not hand.machine.delete_calls
        del world.cloud.faults.standing["list"]
        await asyncio.sleep(600.0)
        assert orphan.delete_calls and not hand.machine.delete_calls
        hand.end()
        await world.until_released("r1")

    live_through(scenario)


def test_scenario_55_without_redis_the_sweep_deletes_nothing() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        hand = await hand_of(world)
        await asyncio.sleep(20.0)
        orphan = world.plant_orphan(machine_name(NS, "r1", 7))
        world.redis.faults.standing["redis"] = Fault.BROKEN
        await asyncio.sleep(900.0)
        assert not orphan.delete_calls and not hand.machine.delete_calls
        del world.redis.faults.standing["redis"]
        await asyncio.sleep(900.0)
        assert orphan.delete_calls and not hand.machine.delete_calls
        hand.end()
        await world.until_released("r1")
        assert (await world.fields("r1"))["state"] == "succeeded"

    live_through(scenario)


def test_scenario_70_the_end_is_still_readable_for_a_subscriber_who_was_away() -> None:
    async def scenario(world: World) -> None:
        await training(world)
        await world.raw.xgroup_create(world.keys.name("events"), "billing", id="$")
        (await hand_of(world)).end()
        await world.until_released("r1")
        await world.stop()
        await asyncio.sleep(86_400.0)
        read = await world.raw.xreadgroup("billing", "me", {world.keys.name("events"): ">"})
        ((_, entries),) = read
        states = [fields[b"type"].decode().split(".")[3] for _, fields in entries]
        assert states == ["succeeded", "released"]

    live_through(scenario)
