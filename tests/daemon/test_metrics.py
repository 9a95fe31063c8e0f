"""/metrics of the whole daemon: every name of the contract, well formed, no series per run or machine."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.operations.seen import Seen, samples, seen
from tests.simulation.sim import World, simulate
from tests.simulation.world_box import Ending, Play

SEED = 12
# Name and labels as the contract has them; `ns`, `version` and `loop` are additions.
CONTRACT: dict[str, set[str]] = {
    "flashd_ready": set(),
    "flashd_alarm": {"alarm"},
    "flashd_queue_requests": set(),
    "flashd_queue_oldest_request_age_seconds": set(),
    "flashd_runs_active": {"state"},
    "flashd_runs_finished_total": {"outcome", "reason"},
    "flashd_machines": {"provider", "owned"},
    "flashd_machine_launches_total": {"provider", "result"},
    "flashd_machine_delete_oldest_pending_seconds": set(),
    "flashd_spend_usd_per_hour": set(),
    "flashd_cost_usd_total": set(),
    "flashd_provider_requests_total": {"provider", "lane", "code"},
    "flashd_hub_requests_total": {"kind", "code"},
    "flashd_sweep_last_success_timestamp_seconds": set(),
    "flashd_event_loop_lag_seconds": set(),
}


def labels_of(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, labels in samples(text):
        found.setdefault(name, set()).update(label for label, _ in labels)
    return found


def exercised(view: Seen) -> None:
    """Requests are counted by the real clients, which the simulation does not have."""
    view.metrics.provider_request("hyperstack", "list", 200)
    view.metrics.hub_request("commits", 0)
    view.daemon.desk.alarms.set("hub_forbidden", "for the sake of a sample")


@pytest.fixture(scope="module")
def text() -> str:
    """What a daemon shows after a success and a failure."""
    texts: list[str] = []

    async def scenario(world: World) -> None:
        world.stage.play_of = lambda run_id, attempt: Play(Ending.FAILS) if run_id == "r2" else Play()
        world.start()
        view = seen(world)
        await world.submit("r1")
        await world.submit("r2")
        await world.until_state("r1", "training")
        assert (view.value("flashd_runs_active", state="training") or 0) >= 1
        assert (view.value("flashd_spend_usd_per_hour") or 0) > 0
        assert view.value("flashd_leader", ns="sim") == 1.0
        await world.until_released("r1", "r2")
        exercised(view)
        texts.append(view.text)

    simulate(SEED, scenario)
    return texts[0]


def test_every_name_of_the_contract_is_there_with_its_labels(text: str) -> None:
    found = labels_of(text)
    assert {name: found.get(name) for name in CONTRACT} == CONTRACT


def test_what_happened_is_counted(text: str) -> None:
    found = samples(text)
    ended = {
        dict(labels)["reason"]: value for (name, labels), value in found.items() if name.endswith("finished_total")
    }
    assert (ended[""], ended["job_failed"]) == (1.0, 1.0)
    made = frozenset({("provider", "hyperstack"), ("result", "made")})
    assert found["flashd_machine_launches_total", made] == 2.0
    assert found["flashd_cost_usd_total", frozenset()] > 0
    assert found["flashd_spend_usd_per_hour", frozenset()] == 0
    assert found["flashd_sweep_last_success_timestamp_seconds", frozenset()] > 1_800_000_000


def test_counters_begin_at_zero_so_that_the_first_event_is_an_increase(text: str) -> None:
    found = samples(text)
    unknown = frozenset({("provider", "hyperstack"), ("result", "unknown")})
    assert found["flashd_machine_launches_total", unknown] == 0.0
    assert found["flashd_machines", frozenset({("provider", "hyperstack"), ("owned", "orphan")})] == 0.0


@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool on PATH: apt-get install prometheus")
def test_promtool_has_nothing_to_say(text: str) -> None:
    verdict = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (verdict.returncode, verdict.stdout, verdict.stderr) == (0, "", "")


def test_a_daemon_that_does_not_lead_shows_every_name_too() -> None:
    async def scenario(world: World) -> None:
        world.start()
        view = seen(world)
        exercised(view)
        assert set(labels_of(view.text)) >= set(CONTRACT)
        assert view.value("flashd_ready") == 0.0
        assert view.value("flashd_leader", ns="sim") == 0.0

    simulate(SEED, scenario)


def test_a_thousand_runs_add_no_series() -> None:
    async def scenario(world: World) -> None:
        world.start()
        view = seen(world)
        await world.submit("first", limits={"max_wall_s": 3600})
        await world.until_state("first", "training")
        before = set(samples(view.text))
        for number in range(1000):
            await world.submit(f"run-{number}", priority=-100, gpu={"class": "H200 SXM", "max_usd_per_hour": 0.01})

        async def all_known() -> bool:
            return len(view.daemon.rooms.keeper.runners) == 1001 if view.daemon.rooms else False

        await world.until(all_known, 600.0)
        assert (view.value("flashd_runs_active", state="queued") or 0.0) == 1000.0
        assert set(samples(view.text)) - before == set()

    simulate(SEED, scenario)
