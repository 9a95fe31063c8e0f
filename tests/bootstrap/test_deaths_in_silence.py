"""Ways to die of which no marker tells: what the daemon concludes, and that no stage costs more than its limit."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from flashd.core.machines import MachinePhase
from flashd.core.model import Claim, Evidence, MetricsState, Reason, Run, State
from tests.bootstrap.daemon_view import MISSING, Story, beat, conclusion
from tests.core.kit import POLICY, booting, with_attempt

BOOT = beat(150, "boot", liveness=True)
ALIVE = tuple(beat(150 + 300 * n, "pip", liveness=True) for n in range(100))
STEP = beat(600, "train", 3)
AFTER_STEP = tuple(beat(600 + 300 * n, "train", 3, liveness=n > 0) for n in range(100))
FOR_EVER = tuple(beat(150 + 300 * n, "train", n) for n in range(400))
DAY_S = 86_400.0
DAY_LIMIT_S = DAY_S + POLICY.provision_grace_s
DONE_AT_S = 2_000.0
SETTLE_S = POLICY.hub_settle_s + 15.0  # two fresh reads, and one look at the machine list


def done(metrics: MetricsState) -> Claim:
    return Claim(Evidence.DONE, True, "e" * 40, 0.0, metrics=metrics)


def marker(metrics: MetricsState) -> Claim:
    return Claim(Evidence.MARKER, True, "e" * 40, 0.0, metrics=metrics)


@dataclass(frozen=True)
class Death:
    """`limit_s`: what it may cost at most, in seconds after the create call."""

    story: Story
    reason: Reason | None
    again: bool
    limit_s: float


SILENT = {
    "the machine never becomes active": Death(
        Story(active_s=None), Reason.NEVER_ACTIVE, True, POLICY.load_timeout_s + SETTLE_S
    ),
    "cloud-init does not run": Death(Story(), Reason.NO_SIGN_OF_LIFE, True, 120 + 900 + SETTLE_S),
    "no network in the machine": Death(Story(active_s=30.0), Reason.NO_SIGN_OF_LIFE, True, 30 + 900 + SETTLE_S),
    "the host hangs after its boot commit": Death(Story(beats=(BOOT,)), Reason.STALLED, True, 3000 + SETTLE_S),
    "pip hangs, the box shows life": Death(Story(beats=ALIVE), Reason.STALLED, True, 3000 + SETTLE_S),
    "the worker loads for ever at step 0": Death(
        Story(beats=(*(beat(150 + 300 * n, f"load {n}", 0) for n in range(100)),)),
        Reason.STALLED,
        True,
        3000 + SETTLE_S,
    ),
    "the machine falls silent in training": Death(Story(beats=(BOOT, STEP)), Reason.STALLED, True, 2100 + SETTLE_S),
    "the worker hangs in training, the box shows life": Death(
        Story(beats=AFTER_STEP), Reason.STALLED, True, 2100 + SETTLE_S
    ),
    "the worker trains for ever and the box is deaf": Death(
        Story(beats=FOR_EVER), Reason.DEADLINE, False, DAY_LIMIT_S + SETTLE_S
    ),
    "the machine is deleted by somebody": Death(
        Story(beats=(STEP,), lost=(700, MISSING)), Reason.JOB_PREEMPTED, True, 700 + 30 + SETTLE_S
    ),
    "the machine is shut off": Death(
        Story(beats=(STEP,), lost=(700, MachinePhase.STOPPED)), Reason.JOB_PREEMPTED, True, 700 + SETTLE_S
    ),
    "the machine fails while it boots": Death(
        Story(active_s=None, lost=(200, MachinePhase.FAILED)), Reason.JOB_PREEMPTED, True, 200 + SETTLE_S
    ),
    "the machine is lost right after DONE": Death(
        Story(beats=(STEP,), claimed_s=2000, claim=done(MetricsState.PRESENT), lost=(2001, MachinePhase.STOPPED)),
        None,
        False,
        2001 + SETTLE_S,
    ),
    "the box dies between DONE and marker": Death(
        Story(beats=(STEP,), claimed_s=DONE_AT_S, claim=done(MetricsState.PRESENT)),
        None,
        False,
        DONE_AT_S + POLICY.done_grace_s + 15,
    ),
    "DONE without metrics and the box is dead": Death(
        Story(beats=(STEP,), claimed_s=DONE_AT_S, claim=done(MetricsState.ABSENT)),
        Reason.ARTIFACTS_UNREADABLE,
        True,
        DONE_AT_S + POLICY.done_grace_s + 15,
    ),
    "an ok marker without metrics": Death(
        Story(beats=(STEP,), claimed_s=DONE_AT_S, claim=marker(MetricsState.ABSENT)),
        Reason.ARTIFACTS_UNREADABLE,
        True,
        DONE_AT_S + 15,
    ),
    "an ok marker and metrics that cannot be read": Death(
        Story(beats=(STEP,), claimed_s=DONE_AT_S, claim=marker(MetricsState.UNREADABLE)),
        Reason.ARTIFACTS_UNREADABLE,
        True,
        DONE_AT_S + 15,
    ),
    "the Hub is away for the last minutes and the end lands late": Death(
        Story(beats=FOR_EVER[:20], hub_away=(5900, 7100), claimed_s=6000, claim=marker(MetricsState.PRESENT)),
        None,
        False,
        7100 + 15,
    ),
    "the Hub is away from the last step until long after the deadline": Death(
        Story(beats=FOR_EVER, hub_away=(50_000, 91_000)), Reason.DEADLINE, False, DAY_LIMIT_S + 60 + SETTLE_S
    ),
    "the machine dies while the Hub is away": Death(
        Story(beats=(STEP,), hub_away=(650, 50_000), lost=(700, MachinePhase.FAILED)),
        Reason.JOB_PREEMPTED,
        True,
        700 + 60 + SETTLE_S,
    ),
}


@pytest.mark.parametrize("death", SILENT.values(), ids=SILENT)
def test_what_the_daemon_concludes_without_a_marker(death: Death) -> None:
    verdict = conclusion(death.story, booting(max_wall_s=DAY_S))
    assert (verdict.reason, verdict.again) == (death.reason, death.again), verdict
    assert verdict.billed_s <= death.limit_s, verdict


def test_an_outage_of_the_hub_is_added_to_the_silence_and_kills_nobody() -> None:
    away = Story(beats=FOR_EVER, hub_away=(3_000, 20_000), claimed_s=21_000, claim=marker(MetricsState.PRESENT))
    assert conclusion(away, booting(max_wall_s=DAY_S)).state is State.SUCCEEDED


def test_money_that_runs_out_ends_the_run() -> None:
    run: Run = booting(max_wall_s=DAY_S, max_usd=1.0)
    assert run.attempt is not None and run.attempt.deadline_reason is Reason.BUDGET
    verdict = conclusion(Story(beats=FOR_EVER), run)
    assert (verdict.reason, verdict.again) == (Reason.BUDGET, False)
    assert verdict.billed_s / 3600 * run.attempt.place.usd_per_hour <= 1.0 + 0.02


def test_the_last_choice_of_places_gets_longer_for_its_setup() -> None:
    run = with_attempt(booting(max_wall_s=DAY_S), last_choice=True)
    assert 3000 < conclusion(Story(beats=ALIVE), run).billed_s <= 4500 + SETTLE_S
