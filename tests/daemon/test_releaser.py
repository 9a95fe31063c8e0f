"""The releaser: every machine is deleted until it is proved gone, under its own account, and then the run is told."""

from __future__ import annotations

import itertools
from dataclasses import replace

import anyio
import pytest

from flashd.core.cost import billed_usd
from flashd.core.ledger import RowState
from flashd.core.model import Run
from flashd.daemon.kept import KeptRun
from flashd.daemon.releaser import Releaser
from flashd.errors import AuthError, FencedError, RateLimitedError, UnavailableError
from tests.daemon.bench import NS, PRICE, Bench, KnownRun, with_bench

RUNS_S, REMEMBER_S = 7 * 86_400.0, 90 * 86_400.0


class Releasing:
    """A bench with a running releaser and observer."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.gone: list[tuple[str, str]] = []
        self.active: dict[str, KnownRun] = {}
        self.costs: list[float] = []
        self.late: list[float] = []
        self.releaser = Releaser(
            bench.desk,
            lambda run_id, name: self.gone.append((run_id, name)),
            runs_s=RUNS_S,
            remember_s=REMEMBER_S,
            active=self._active,
        )
        self.releaser.on_released.append(lambda _run, usd: self.costs.append(usd))
        self.releaser.on_late_cost.append(self.late.append)
        bench.observe()
        bench.group.start_soon(self.releaser.serve)

    def _active(self, run_id: str) -> Run | None:
        known = self.active.get(run_id)
        return known.run if known is not None else None

    def note(self, known: KnownRun) -> None:
        self.active.pop(known.id, None)
        self.releaser.note_ended(KeptRun(known.run, known.request, known.journal.version))

    async def end(self, known: KnownRun) -> None:
        await self.bench.cancelled(known)
        self.note(known)

    async def released(self, run_id: str = "r1", within_s: float = 600.0) -> dict[str, object]:
        """The data of the run's `released` event."""
        with anyio.fail_after(within_s):
            while True:
                name, data = (await self.bench.events(run_id))[-1]
                if name == "released":
                    return data
                await anyio.sleep(1.0)


def row_states(bench: Bench) -> dict[str, str]:
    return {name: row.state.value for name, row in bench.desk.ledger.rows.items()}


def test_a_run_that_ends_is_released_with_its_machine_proved_gone_and_its_final_cost() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        started_at = bench.now()
        await anyio.sleep(1000)
        await releasing.end(known)
        data = await releasing.released()
        assert bench.cloud.alive() == []
        assert await bench.store.ledger() == {}
        assert [one["name"] for one in data["machines"]] == [known.run.attempt.name]  # type: ignore[attr-defined,union-attr]
        proofs = await bench.store.gone("r1")
        (proof,) = proofs.values()
        assert data["cost_usd"] == billed_usd(PRICE, proof.gone_at - started_at) == releasing.costs[0]
        bound_s = 20 + 2 * bench.desk.policy.release_check_s + 15 + 5
        assert proof.gone_at - (started_at + 1000) <= bound_s
        fields = await bench.store.fields("r1")
        assert (fields["released"], fields["state"], float(fields["cost_usd"])) == ("1", "cancelled", data["cost_usd"])
        assert releasing.gone == [("r1", proof.name)]
        assert bench.cloud.count("delete") == 1
        gets = [at for at, kind, _ in bench.cloud.calls if kind == "get"]
        assert gets[-1] - gets[-2] >= bench.desk.policy.release_check_s
        assert await bench.store.unreleased() == ()

    with_bench(scenario)


def test_a_run_without_any_machine_is_released_at_once_for_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        await releasing.end(await bench.accepted())
        data = await releasing.released(within_s=3.0)
        assert (data["machines"], data["cost_usd"]) == ([], 0)
        assert bench.cloud.count("delete") == 0

    with_bench(scenario)


def test_an_idle_releaser_asks_the_provider_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        releasing.active["r1"] = known
        await anyio.sleep(3600)
        assert {kind for _, kind, _ in bench.cloud.calls} == {"list"}
        assert releasing.releaser.last_pass_at is not None
        assert bench.now() - releasing.releaser.last_pass_at < 20
        assert row_states(bench)[known.run.attempt.name] == "live"  # type: ignore[union-attr]

    with_bench(scenario)


def test_f1_a_delete_that_fails_for_an_hour_is_never_forgotten_and_alarms_with_the_dollars() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        releasing.active["r1"] = known
        bench.cloud.errors["delete"] = UnavailableError("gateway", 503)
        await bench.lost_attempt(known)
        await bench.request_again(known)
        await bench.made(known)
        await anyio.sleep(3600)
        assert len(bench.cloud.alive()) == 2
        text = bench.desk.alarms.up["release_overdue"]
        assert "$1.2" in text
        assert "-a0" in text
        assert releasing.releaser.oldest_pending_s() > 3590
        del bench.cloud.errors["delete"]
        await anyio.sleep(180)
        assert bench.cloud.alive() == [known.run.attempt.name]  # type: ignore[union-attr]
        assert [name for _, name in releasing.gone] == [known.run.history[0].name]
        await anyio.sleep(30)
        assert "release_overdue" not in bench.desk.alarms.up

    with_bench(scenario)


def test_f7_a_conflict_is_no_proof_and_the_delete_is_sent_again() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        bench.cloud.conflicts = 3
        await releasing.end(known)
        await releasing.released()
        assert bench.cloud.alive() == []
        sent = [at for at, kind, _ in bench.cloud.calls if kind == "delete"]
        assert len(sent) == 4
        assert all(30 <= later - earlier <= 76 for earlier, later in itertools.pairwise(sent))

    with_bench(scenario)


def test_f8_a_machine_that_is_gone_already_needs_one_delete() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        await bench.made(known)
        assert known.run.attempt is not None
        bench.cloud._machines.clear()
        await releasing.end(known)
        await releasing.released(within_s=30)
        # The first look is for the name, since no list has shown yet whose id it is; the other two prove it gone.
        assert (bench.cloud.count("delete"), bench.cloud.count("get")) == (1, 3)

    with_bench(scenario)


def test_a_delete_that_is_accepted_and_forgotten_is_sent_until_it_works() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        bench.cloud.lies = 5
        await releasing.end(known)
        await releasing.released()
        assert bench.cloud.alive() == []

    with_bench(scenario)


def test_a_list_that_lacks_the_machine_proves_nothing_while_a_get_still_shows_it() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        bench.cloud.unlisted.add(known.run.attempt.name)  # type: ignore[union-attr]
        bench.cloud.deleting_s = 300.0
        await releasing.end(known)
        await anyio.sleep(290)
        assert releasing.gone == []
        await releasing.released()

    with_bench(scenario)


def test_f55_one_hanging_delete_delays_no_other() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        runs = [await bench.live(f"r{number}") for number in range(50)]
        bench.cloud.hanging.add("1")
        for known in runs:
            await releasing.end(known)
        await anyio.sleep(90)
        assert len(bench.cloud.alive()) == 1
        assert len(releasing.gone) == 49

    with_bench(scenario)


@pytest.mark.parametrize(
    "error", [AuthError("revoked", 401), RateLimitedError("slow down", 20.0), UnavailableError("down", 503)]
)
def test_an_outage_of_the_provider_is_never_proof_of_absence(error: Exception) -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        for kind in ("get", "delete", "list", "find"):
            bench.cloud.errors[kind] = error  # type: ignore[assignment]
        await releasing.end(known)
        await anyio.sleep(1800)
        assert releasing.gone == []
        assert bench.cloud.count("delete") < 60, "and it is not hammered"
        bench.cloud.errors.clear()
        await releasing.released()

    with_bench(scenario)


def test_under_another_accounts_key_nothing_is_proved_and_the_provider_is_paused() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        bench.cloud.account_id = "somebody-else"
        bench.cloud._machines.clear()  # under that key there is nothing to be seen
        await releasing.end(known)
        await anyio.sleep(600)
        assert releasing.gone == []
        assert "another_account_hyperstack" in bench.desk.alarms.up
        assert bench.desk.clouds["hyperstack"].pause is not None
        assert bench.cloud.count("delete") == 0
        bench.cloud.account_id = "acc"
        await releasing.released()
        await anyio.sleep(30)
        assert "another_account_hyperstack" not in bench.desk.alarms.up

    with_bench(scenario)


@pytest.mark.parametrize("held", ["safe_mode", "lease"])
def test_in_safe_mode_and_without_the_lease_nothing_is_deleted(held: str) -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        if held == "safe_mode":
            bench.desk.safe_mode = "Redis has lost events"
        else:
            bench.desk.lease.drop()
        await releasing.end(known)
        await anyio.sleep(900)
        assert bench.cloud.count("delete") == 0
        bench.desk.safe_mode = ""
        bench.desk.lease.extend(bench.clock.monotonic(), 1e9)
        await releasing.released()

    with_bench(scenario)


def test_a_live_row_of_an_earlier_attempt_is_handed_over_and_the_present_one_is_not() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.live()
        forgotten = bench.desk.ledger.rows[known.run.attempt.name]  # type: ignore[union-attr]
        await bench.lost_attempt(known)
        await bench.request_again(known)
        await bench.made(known)
        await bench.store.mark(RowState.DELETING, forgotten)  # as if the step that gave it up had left it live
        bench.desk.ledger.load(await bench.store.ledger())
        releasing = Releasing(bench)
        releasing.active["r1"] = known
        await anyio.sleep(120)
        assert bench.cloud.alive() == [known.run.attempt.name]  # type: ignore[union-attr]

    with_bench(scenario)


def test_an_unknown_launch_of_an_ended_run_is_found_by_name_and_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        name = known.run.attempt.name  # type: ignore[union-attr]
        bench.cloud.put(name)
        bench.cloud.unlisted.add(name)
        await releasing.end(known)
        await anyio.sleep(60)
        bench.cloud.unlisted.clear()
        data = await releasing.released()
        assert bench.cloud.alive() == []
        assert data["cost_usd"] > 0  # type: ignore[operator]

    with_bench(scenario)


def test_an_unknown_launch_that_never_appears_is_abandoned_and_costs_nothing() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        await releasing.end(known)
        ended_at = bench.now()
        data = await releasing.released()
        assert bench.now() - ended_at >= bench.desk.policy.launch_settle_s
        assert (data["cost_usd"], data["machines"]) == (0, [])
        assert list(row_states(bench).values()) == ["abandoned"]
        await anyio.sleep(23 * 3600)
        assert list(row_states(bench).values()) == ["abandoned"]
        await anyio.sleep(2 * 3600)
        assert await bench.store.ledger() == {} == row_states(bench)

    with_bench(scenario)


def test_a_look_up_that_gets_no_answer_does_not_settle_a_launch() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        bench.cloud.errors["find"] = UnavailableError("down", 503)
        await releasing.end(known)
        await anyio.sleep(3600)
        assert list(row_states(bench).values()) == ["requested"]
        bench.cloud.errors.clear()
        await releasing.released()

    with_bench(scenario)


def test_a_requested_row_of_an_active_run_is_its_runners() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        releasing.active["r1"] = known
        bench.cloud.put(known.run.attempt.name)  # type: ignore[union-attr]
        await anyio.sleep(3600)
        assert len(bench.cloud.alive()) == 1
        assert bench.cloud.count("find") == 0

    with_bench(scenario)


def test_f2_a_machine_that_appears_under_an_abandoned_name_goes_at_first_sight() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.requested()
        name = known.run.attempt.name  # type: ignore[union-attr]
        await releasing.end(known)
        await releasing.released()
        await anyio.sleep(3600)
        bench.cloud.put(name)
        await anyio.sleep(20)
        assert row_states(bench) == {name: "deleting"}
        assert name in bench.desk.alarms.up.get("abandoned_machine", name)
        await anyio.sleep(60)
        assert (bench.cloud.alive(), row_states(bench)) == ([], {})
        assert releasing.late
        assert releasing.late[0] > PRICE, "the hour since the intent is in it: an upper bound"
        assert [name for name, _ in await bench.events("r1")].count("released") == 1

    with_bench(scenario)


def test_a_run_is_not_released_while_an_abandoned_names_machine_is_being_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.requested()
        name = known.run.attempt.name  # type: ignore[union-attr]
        row = bench.desk.ledger.rows[name]
        marked = await bench.store.mark(RowState.REQUESTED, replace(row, state=RowState.ABANDONED))
        bench.desk.ledger.apply({name: marked.row})
        bench.cloud.put(name)
        releasing = Releasing(bench)
        releasing.active["r1"] = known
        await anyio.sleep(5)
        assert row_states(bench) == {name: "deleting"}
        await releasing.end(known)
        data = await releasing.released()
        assert len(data["machines"]) == 1  # type: ignore[arg-type]
        assert data["cost_usd"] > 0  # type: ignore[operator]

    with_bench(scenario)


def test_a_machine_whose_run_redis_does_not_know_any_more_is_deleted() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.live()
        await bench.store.link.command("DEL", f"flashd:{{{NS}}}:run:r1", f"flashd:{{{NS}}}:core:r1")
        releasing = Releasing(bench)
        await anyio.sleep(180)
        assert bench.cloud.alive() == []
        assert releasing.gone == [("r1", known.run.attempt.name)]  # type: ignore[union-attr]

    with_bench(scenario)


def test_a_run_whose_coroutine_is_being_started_again_keeps_its_machine() -> None:
    async def scenario(bench: Bench) -> None:
        await bench.live()
        Releasing(bench)
        await anyio.sleep(3600)
        assert len(bench.cloud.alive()) == 1

    with_bench(scenario)


def test_an_ended_run_that_nobody_noted_is_found_by_its_row() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.requested()
        await bench.cancelled(known)
        releasing = Releasing(bench)
        await releasing.released()

    with_bench(scenario)


def test_noting_an_end_twice_releases_once() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        await releasing.end(known)
        releasing.note(known)
        await releasing.released()
        releasing.note(known)
        await anyio.sleep(120)
        assert [name for name, _ in await bench.events("r1")].count("released") == 1

    with_bench(scenario)


def test_a_mirror_that_missed_a_write_is_corrected_by_the_refusal_of_released() -> None:
    async def scenario(bench: Bench) -> None:
        releasing = Releasing(bench)
        known = await bench.live()
        await bench.cancelled(known)
        bench.desk.ledger.load({})
        releasing.note(known)
        await releasing.released()
        assert bench.cloud.alive() == []

    with_bench(scenario)


def test_a_releaser_that_is_fenced_off_says_so() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.live()
        await bench.cancelled(known)
        releaser = Releaser(bench.desk, lambda _run, _name: None, runs_s=RUNS_S, remember_s=REMEMBER_S)
        await bench.store.link.command("HSET", f"flashd:{{{NS}}}:lease", "owner", "another")
        bench.observe()
        with anyio.fail_after(600), pytest.raises(FencedError):
            await releaser.serve()
        assert bench.desk.ledger.on_change == []

    with_bench(scenario)


def test_a_takeover_gives_an_unknown_launch_its_settling_time_again() -> None:
    async def scenario(bench: Bench) -> None:
        known = await bench.requested()
        await bench.cancelled(known)
        await anyio.sleep(3600)
        releasing = Releasing(bench)
        releasing.note(known)
        await anyio.sleep(bench.desk.policy.launch_settle_s - 5)
        assert list(row_states(bench).values()) == ["requested"]
        await releasing.released()

    with_bench(scenario)
