"""The sweep on the observer's own lists: orphans go, everything else stays, and doubt deletes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from flashd.core.ledger import RowState
from flashd.core.names import machine_name
from flashd.core.orphans import Ownership
from flashd.daemon.desk import Cloud
from flashd.daemon.observer import FleetObserver
from flashd.daemon.sweeper import Sweeper, SweepSettings
from flashd.errors import UnavailableError
from tests.daemon.bench import NS, Bench, with_bench
from tests.fakes.memory_cloud import MemoryCloud

SETTINGS = SweepSettings(300.0, 30.0, 120.0, 20, dry_run=False)
OLD_S = 3600.0


class Sweeping:
    """A bench with a running observer and sweeper; run `r1` is remembered."""

    def __init__(self, bench: Bench, settings: SweepSettings) -> None:
        self.bench = bench
        self.cloud = bench.cloud
        self.sweeper = Sweeper(bench.desk, bench.desk.clouds["hyperstack"], settings)
        bench.observe()
        bench.group.start_soon(self.sweeper.serve)

    def orphan(self, number: int = 0, age_s: float = OLD_S) -> str:
        """A machine of `r1` that no row knows."""
        name = machine_name(NS, "r1", number)
        self.cloud.put(name, created_at=self.bench.now() - age_s)
        return name

    @property
    def deleted(self) -> list[str]:
        return [what for _, kind, what in self.cloud.calls if kind == "delete"]


def swept(
    scenario: Callable[[Sweeping], Awaitable[None]], settings: SweepSettings = SETTINGS, *, remembered: bool = True
) -> None:
    async def prepared(bench: Bench) -> None:
        if remembered:
            await bench.accepted("r1")
        await scenario(Sweeping(bench, settings))

    with_bench(prepared)


def test_51_an_orphan_past_the_grace_is_deleted_at_the_second_sighting() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        await anyio.sleep(20)
        assert sweeping.deleted == []
        await anyio.sleep(100)
        assert sweeping.cloud.alive() == []
        assert sweeping.deleted == ["1"]
        assert sweeping.sweeper.last_success_at is not None

    swept(scenario)


def test_the_first_ten_passes_are_fast_and_a_slow_one_finds_what_comes_later() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        await anyio.sleep(1800)
        sweeping.orphan()
        await anyio.sleep(200)
        assert sweeping.deleted == []
        await anyio.sleep(600)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_a_delete_that_is_refused_or_forgotten_is_repeated_by_later_passes() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        sweeping.cloud.lies = 2
        sweeping.cloud.errors["delete"] = UnavailableError("down", 503)
        await anyio.sleep(150)
        assert len(sweeping.cloud.alive()) == 1
        sweeping.cloud.errors.clear()
        await anyio.sleep(900)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_52_foreign_and_unknown_machines_are_never_touched_and_unknown_ones_alarm() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        for name in ("flash-x", "web", machine_name("prod", "r1", 0), "flash-t-debug", machine_name(NS, "r9", 0)):
            sweeping.cloud.put(name, created_at=sweeping.bench.now() - OLD_S)
        await anyio.sleep(3600)
        assert len(sweeping.cloud.alive()) == 5
        assert sweeping.deleted == []
        text = sweeping.bench.desk.alarms.up["unknown_machines_hyperstack"]
        assert "flash-t-debug" in text
        assert machine_name(NS, "r9", 0) in text
        assert sweeping.sweeper.counts() == {"unknown": 2}
        report = sweeping.sweeper.report()
        assert report is not None
        assert {machine.name for machine, _ in report.machines} == {"flash-t-debug", machine_name(NS, "r9", 0)}

    swept(scenario)


def test_f11_two_daemons_on_one_account_leave_each_others_machines_alone() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        other = Bench(sweeping.bench.group, ns="prod")
        await other.lead()
        await other.accepted("r1")
        ours, theirs = sweeping.orphan(), machine_name("prod", "r1", 0)
        sweeping.cloud.put(theirs, created_at=sweeping.bench.now() - OLD_S)
        shared = FleetObserver(sweeping.cloud, "prod", other.clock, other.desk.random, 15.0)
        sweeper = Sweeper(other.desk, Cloud(sweeping.cloud, shared), SETTINGS)
        other.group.start_soon(shared.run)
        await anyio.sleep(120)
        assert sweeping.cloud.alive() == [theirs]
        assert ours not in sweeping.cloud.alive()
        other.group.start_soon(sweeper.serve)
        await anyio.sleep(180)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_a_machine_with_a_row_is_owned_whatever_the_rows_state() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.live("r1")
        requested = await bench.requested("r2")
        bench.cloud.put(requested.run.attempt.name)  # type: ignore[union-attr]
        sweeping = Sweeping(bench, SETTINGS)
        await anyio.sleep(7200)
        assert sweeping.deleted == []
        assert sweeping.sweeper.counts() == {"owned": 2}
        row = bench.desk.ledger.rows[known.run.attempt.name]  # type: ignore[union-attr]
        await bench.store.mark(RowState.LIVE, row.deleting(bench.now()))
        await anyio.sleep(1200)
        assert sweeping.deleted == [], "that one is the releaser's"

    with_bench(scenario)


def test_a_second_machine_under_an_owned_name_is_an_orphan() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.live("r1")
        name = known.run.attempt.name  # type: ignore[union-attr]
        extra = bench.cloud.put(name, created_at=bench.now() - OLD_S)
        sweeping = Sweeping(bench, SETTINGS)
        await anyio.sleep(300)
        assert sweeping.deleted == [extra.id]
        assert bench.cloud.alive() == [name]

    with_bench(scenario)


def test_55_while_redis_does_not_answer_nothing_is_deleted() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        server = sweeping.bench.store.link.commands.connection_pool.connection_kwargs["server"]
        server.connected = False
        await anyio.sleep(3600)
        assert sweeping.deleted == []
        assert sweeping.sweeper.last_success_at is None
        server.connected = True
        await anyio.sleep(180)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_two_sightings_with_an_unreadable_ledger_between_them_are_not_in_a_row() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        await anyio.sleep(20)
        seen_at = sweeping.sweeper.last_success_at
        assert seen_at is not None
        server = sweeping.bench.store.link.commands.connection_pool.connection_kwargs["server"]
        server.connected = False
        await anyio.sleep(60)
        server.connected = True
        while sweeping.sweeper.last_success_at == seen_at:  # noqa: ASYNC110
            await anyio.sleep(0.5)
        assert sweeping.deleted == []
        await anyio.sleep(120)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_f54_one_unreadable_row_stops_every_deletion() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        command = sweeping.bench.store.link.command
        await command("HSET", f"flashd:{{{NS}}}:machines", "flash-t-someone", '{"state":"live"')
        await anyio.sleep(3600)
        assert sweeping.deleted == []
        await command("HDEL", f"flashd:{{{NS}}}:machines", "flash-t-someone")
        await anyio.sleep(180)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_54_without_a_complete_list_nothing_is_deleted() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        await anyio.sleep(10)
        sweeping.cloud.errors["list"] = UnavailableError("page 2 is no JSON")
        await anyio.sleep(3600)
        assert sweeping.deleted == []
        sweeping.cloud.errors.clear()
        await anyio.sleep(180)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_f12_a_launch_between_the_list_and_the_ledger_read_is_kept() -> None:
    async def scenario(bench: Bench) -> None:
        """Every few seconds a machine is launched; no pass may take one for an orphan."""
        sweeping = Sweeping(bench, SETTINGS)
        for number in range(100):
            await bench.live(f"r{number}")
            await anyio.sleep(7.3)
        assert sweeping.deleted == []
        assert len(bench.cloud.alive()) == 100

    with_bench(scenario)


def test_above_max_deletes_nothing_goes_and_an_alarm_is_up() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        for number in range(21):
            sweeping.orphan(number)
        await anyio.sleep(1200)
        assert sweeping.deleted == []
        assert "21 orphans" in sweeping.bench.desk.alarms.up["too_many_orphans_hyperstack"]
        await sweeping.cloud.delete("1")
        sweeping.cloud.calls.clear()
        await anyio.sleep(900)
        assert sweeping.cloud.alive() == []
        assert len(sweeping.deleted) == 20
        await anyio.sleep(600)
        assert sweeping.bench.desk.alarms.up == {}

    swept(scenario)


def test_53_all_of_fifty_seven_machines_are_seen() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        for number in range(57):
            sweeping.orphan(number)
        await anyio.sleep(120)
        assert sweeping.cloud.alive() == []

    swept(scenario, SweepSettings(300.0, 30.0, 120.0, 57, dry_run=False))


def test_a_dry_run_plans_the_same_and_deletes_nothing() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        name = sweeping.orphan()
        await anyio.sleep(1800)
        report = sweeping.sweeper.report()
        assert report is not None
        assert (report.deletes, report.dry_run) == ((name,), True)
        assert [whose for _, whose in report.machines] == [Ownership.ORPHAN]
        assert sweeping.deleted == []

    swept(scenario, SweepSettings(300.0, 30.0, 120.0, 20, dry_run=True))


@pytest.mark.parametrize("held", ["safe_mode", "lease"])
def test_in_safe_mode_and_without_the_lease_orphans_stay(held: str) -> None:
    async def scenario(sweeping: Sweeping) -> None:
        desk = sweeping.bench.desk
        sweeping.orphan()
        if held == "safe_mode":
            desk.safe_mode = "Redis has lost events"
        else:
            desk.lease.drop()
        await anyio.sleep(1800)
        assert sweeping.deleted == []
        desk.safe_mode = ""
        desk.lease.extend(sweeping.bench.clock.monotonic(), 1e9)
        await anyio.sleep(600)
        assert sweeping.cloud.alive() == []

    swept(scenario)


def test_when_no_run_is_remembered_nothing_is_an_orphan() -> None:
    async def scenario(sweeping: Sweeping) -> None:
        sweeping.orphan()
        await anyio.sleep(3600)
        assert sweeping.deleted == []
        assert isinstance(sweeping.cloud, MemoryCloud)

    swept(scenario, remembered=False)
