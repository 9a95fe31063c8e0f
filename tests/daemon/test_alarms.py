"""Alarms through the whole daemon in virtual time: each goes up, is logged, counted and shown, and ends by itself."""

from __future__ import annotations

import asyncio

from flashd.core.names import machine_name
from flashd.daemon.alarms import INCIDENT_KEEP_S, Alarms
from tests.operations.seen import Seen, seen
from tests.simulation.sim import NS, World, simulate
from tests.simulation.wire import Fault

SEED = 11
WATCHDOG_LOOK_S = 2.0


def logged(world: World, alarm: str) -> list[str]:
    """Levels of the lines that raised it."""
    return [line.level for line in world.logs if line.event == "alarm_raised" and line.facts["alarm"] == alarm]


async def until_up(world: World, view: Seen, alarm: str, within_s: float) -> None:
    async def up() -> bool:
        return alarm in view.alarms

    await world.until(up, within_s)
    assert view.value("flashd_alarm", alarm=alarm) == 1.0
    assert logged(world, alarm) == ["error"]
    assert alarm in view.health.status_line()


async def until_down(world: World, view: Seen, alarm: str, within_s: float) -> None:
    async def down() -> bool:
        return alarm not in view.alarms

    await world.until(down, within_s)
    assert view.value("flashd_alarm", alarm=alarm) is None


async def fed_throughout(world: World, view: Seen, seconds: float) -> int:
    """How many looks of the watchdog found the daemon stuck."""
    stuck = 0
    end = world.loop.time() + seconds
    while world.loop.time() < end:
        stuck += not view.health.is_moving()
        await asyncio.sleep(WATCHDOG_LOOK_S)
    return stuck


async def ready(world: World) -> Seen:
    world.start()
    view = seen(world)

    async def is_ready() -> bool:
        return view.health.reason() == ""

    await world.until(is_ready, 120.0, every_s=1.0)
    return view


def test_a_delete_that_does_nothing_is_an_alarm_after_ten_minutes_with_its_dollars() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        await world.submit("r1")
        await world.until_state("r1", "training")
        world.cloud.faults.standing["delete"] = Fault.LIE
        await world.cancel("r1")
        await world.until_state("r1", "cancelled")
        await asyncio.sleep(500.0)
        assert "release_overdue" not in view.alarms
        await until_up(world, view, "release_overdue", 300.0)
        assert "$0." in view.alarms["release_overdue"]
        assert (view.value("flashd_machine_delete_oldest_pending_seconds") or 0.0) >= 590.0
        del world.cloud.faults.standing["delete"]
        await world.until_released("r1")
        await until_down(world, view, "release_overdue", 60.0)

    simulate(SEED, scenario)


def test_an_hour_of_provider_outage_is_an_alarm_and_no_reason_to_restart() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        world.cloud.faults.standing["list"] = Fault.BROKEN
        assert await fed_throughout(world, view, 3600.0) == 0
        assert view.health.reason() == "observer_stalled: hyperstack: provider_unreachable"
        await until_up(world, view, "provider_unreachable_hyperstack", 10.0)
        del world.cloud.faults.standing["list"]
        await until_down(world, view, "provider_unreachable_hyperstack", 60.0)
        assert view.health.reason() == ""

    simulate(SEED, scenario)


def test_a_refused_key_is_an_alarm_at_once_and_is_tried_again_by_itself() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        world.cloud.faults.standing["list"] = Fault.UNAUTHORISED
        await until_up(world, view, "provider_key_refused_hyperstack", 30.0)
        assert view.health.reason() == "" or "auth" in view.health.reason()
        del world.cloud.faults.standing["list"]
        await until_down(world, view, "provider_key_refused_hyperstack", 75.0)

    simulate(SEED, scenario)


def test_a_reload_tries_a_refused_key_at_once() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        world.cloud.faults.standing["list"] = Fault.UNAUTHORISED
        await until_up(world, view, "provider_key_refused_hyperstack", 30.0)
        del world.cloud.faults.standing["list"]
        assert await view.reloader.reload()
        await until_down(world, view, "provider_key_refused_hyperstack", 10.0)

    simulate(SEED, scenario)


def test_a_hub_that_does_not_know_our_token_is_an_alarm() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        world.hub.faults.standing["commits"] = Fault.UNAUTHORISED
        await world.submit("r1")
        await until_up(world, view, "hub_token_refused", 120.0)
        del world.hub.faults.standing["commits"]
        await until_down(world, view, "hub_token_refused", 120.0)
        await world.until_released("r1")

    simulate(SEED, scenario)


def test_more_orphans_than_may_be_deleted_are_an_alarm_and_none_is_touched() -> None:
    async def scenario(world: World) -> None:
        view = await ready(world)
        await world.submit("r1")
        await world.until_released("r1")
        for number in range(50, 71):
            world.plant(machine_name(NS, "r1", number), "an orphan too many")
        await until_up(world, view, "too_many_orphans_hyperstack", 1200.0)
        assert view.value("flashd_machines", provider="hyperstack", owned="orphan") == 21.0
        assert len(world.cloud.truth.alive()) == 21

    simulate(SEED, scenario)


def test_what_the_leader_said_goes_when_it_does_not_lead_any_more() -> None:
    alarms = Alarms()
    alarms.set("release_overdue", "two machines")
    alarms.set("redis_down", "no answer")
    alarms.end_term()
    assert alarms.up == {"redis_down": "no answer"}


def test_an_incident_ends_when_it_has_not_happened_again_for_a_while() -> None:
    alarms = Alarms()
    alarms.incident("loop_failed_intake", "once", now=0.0)
    alarms.incident("loop_failed_intake", "twice", now=100.0)
    alarms.set("hub_forbidden", "until it is mended")
    alarms.lapse(INCIDENT_KEEP_S + 99.0)
    assert set(alarms.up) == {"loop_failed_intake", "hub_forbidden"}
    alarms.lapse(INCIDENT_KEEP_S + 100.0)
    assert set(alarms.up) == {"hub_forbidden"}


def test_an_alarm_is_raised_once_however_often_its_text_changes() -> None:
    raised: list[tuple[str, str]] = []
    cleared: list[str] = []
    alarms = Alarms(on_raise=lambda name, text: raised.append((name, text)), on_clear=cleared.append)
    for text in ("$1", "$2", None, None):
        alarms.set("release_overdue", text)
    assert (raised, cleared) == ([("release_overdue", "$1")], ["release_overdue"])
