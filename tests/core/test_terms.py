"""A request becomes the terms that decisions need, and a run as its acceptance leaves it."""

from __future__ import annotations

from dataclasses import replace

from flashd.core.model import Refusals, State, Terms
from flashd.core.terms import accepted, terms_of
from flashd.wire.request_model import Gpu, Hub, Limits, Mode, RunRequest
from tests.core.kit import T0

PLAIN = RunRequest(run_id="my-run", hub=Hub(repo="me/runs"), gpu=Gpu(classes=("L40",)), canonical_json="{}", sha256="0")


def test_what_a_request_leaves_out_has_the_contracts_defaults() -> None:
    assert terms_of(PLAIN) == Terms(
        run_id="my-run",
        phase="sft",
        seed=0,
        mode="train",
        repo="me/runs",
        prefix="sft/my-run/seed0",
        max_wall_s=86_400.0,
        max_attempts=3,
        priority=0,
        gpu_classes=("L40",),
    )


def test_every_wish_and_limit_is_carried_over() -> None:
    gpu = Gpu(
        classes=("H100", "L40"),
        min_vram_gb=40,
        min_disk_gb=100,
        min_ram_gb=50,
        max_usd_per_hour=3,
        providers=("hyperstack",),
        regions=("US-1",),
        exclude_regions=("CANADA-1",),
        spot=True,
    )
    limits = Limits(max_wall_s=60, max_attempts=20, max_usd=5, deadline_s=900)
    terms = terms_of(
        replace(PLAIN, mode=Mode.PRELOAD, phase="rl", seed=7, gpu=gpu, limits=limits, priority=-3),
    )
    assert (terms.mode, terms.phase, terms.seed, terms.prefix) == ("preload", "rl", 7, "rl/my-run/seed7")
    assert (terms.max_wall_s, terms.max_attempts, terms.max_usd, terms.deadline_s) == (60.0, 20, 5, 900)
    assert (terms.gpu_classes, terms.min_vram_gb, terms.min_disk_gb, terms.min_ram_gb) == (("H100", "L40"), 40, 100, 50)
    assert (terms.max_usd_per_hour, terms.providers, terms.regions) == (3, ("hyperstack",), ("US-1",))
    assert (terms.exclude_regions, terms.spot, terms.priority) == (("CANADA-1",), True, -3)


def test_acceptance_is_the_first_event_of_a_queued_run_without_a_number() -> None:
    run = accepted(PLAIN, T0)
    assert (run.state, run.sequence, run.accepted_at) == (State.QUEUED, 1, T0)
    assert (run.attempt, run.last_number, run.attempts_used, run.attempts_left) == (None, None, 0, 3)
    assert (run.is_over, run.refusals) == (False, Refusals())
