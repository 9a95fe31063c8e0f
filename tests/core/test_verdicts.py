"""One row for every way in which an attempt's end is recognised; the row's name is the incident."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.model import CancelRequest, Claim, Evidence, MetricsState, Reason, Run, Trouble
from flashd.core.verdicts import (
    Due,
    Failure,
    Look,
    Success,
    done_in_grace,
    host_dues,
    merge_claim,
    worker_said,
)
from tests.core.kit import T0, attempt_of, booting, claim, tick, training, with_attempt

SHA = "e" * 40
DONE = Claim(Evidence.DONE, True, SHA, T0 + 1000, metrics=MetricsState.PRESENT)


def look(run: Run, now: float = T0 + 1000, **changes: object) -> Look:
    return Look(run, attempt_of(run), tick(now, **changes))


def claiming(known: Claim, **changes: object) -> Run:
    return with_attempt(training(), claim=known, **changes)


def unreadable(seconds: float, evidence: Evidence = Evidence.MARKER) -> Claim:
    return claim(evidence=evidence, metrics=MetricsState.UNREADABLE, unread_s=seconds)


BOX_DEADLINE = claim(False, exit_code=124, error="124 s")

WORKER: list[tuple[str, Run, tuple[str, str] | str | None]] = [
    ("no word", training(), None),
    ("ok marker with metrics", claiming(claim()), "marker"),
    ("ok marker, metrics absent", claiming(claim(metrics=MetricsState.ABSENT)), ("artifacts_unreadable", "no object")),
    ("ok marker, metrics not read yet", claiming(claim(metrics=MetricsState.UNASKED)), None),
    ("F23: metrics unreadable for a moment", claiming(unreadable(59.9)), None),
    ("scenario 5: metrics unreadable for good", claiming(unreadable(60.0)), ("artifacts_unreadable", "for 60 s")),
    ("scenario 8: plain failure", claiming(claim(False, error="OOM")), ("job_failed", "OOM")),
    ("failure without a text", claiming(claim(False)), ("job_failed", "without an error text")),
    ("scenario 9: box says retriable", claiming(claim(False, retriable=True, error="pip")), ("job_preempted", "pip")),
    ("heartbeat said retriable", claiming(claim(False), retriable=True), ("job_preempted", "without")),
    ("deadline in the box", claiming(BOX_DEADLINE), ("deadline", "in the box")),
    (
        "money's deadline in the box",
        claiming(BOX_DEADLINE, deadline_reason=Reason.BUDGET),
        ("budget", "in the box"),
    ),
    ("exit 124 of a pre-empted box", claiming(replace(BOX_DEADLINE, retriable=True)), ("job_preempted", "124 s")),
    ("DONE in its grace", claiming(DONE), None),
    ("DONE in its grace, metrics absent", claiming(replace(DONE, metrics=MetricsState.ABSENT)), None),
    ("DONE in its grace, metrics unreadable", claiming(unreadable(999, Evidence.DONE)), None),
]


@pytest.mark.parametrize(("run", "verdict"), [row[1:] for row in WORKER], ids=[row[0] for row in WORKER])
def test_what_the_worker_said(run: Run, verdict: tuple[str, str] | str | None) -> None:
    outcome = worker_said(look(run))
    match outcome:
        case Success(evidence, commit):
            assert (evidence, commit) == (verdict, SHA)
        case Failure(reason, detail, commit):
            assert isinstance(verdict, tuple), detail
            assert (reason.value, commit) == (verdict[0], SHA)
            assert verdict[1] in detail
        case None:
            assert verdict is None


AFTER = T0 + 1180  # DONE was seen at T0 + 1000
CANCEL = CancelRequest("me", "", T0 + 1001)

GRACE: list[tuple[str, Run, float, bool]] = [
    ("just seen", claiming(DONE), T0 + 1000, True),
    ("F35: the marker may still come", claiming(DONE), AFTER - 0.1, True),
    ("over", claiming(DONE), AFTER, False),
    ("the host is dead", claiming(DONE, trouble=Trouble("ERROR", T0 + 990, confirmed=True)), T0 + 1001, False),
    ("the host is only in doubt", claiming(DONE, trouble=Trouble("ERROR", T0 + 990)), T0 + 1001, True),
    ("the deadline cuts it", claiming(DONE, deadline_at=T0 + 1005), T0 + 1005, False),
    ("scenario 57: a cancel ends it", replace(claiming(DONE), cancel=CANCEL), T0 + 1001, False),
    ("a marker needs none", claiming(claim()), T0 + 1000, False),
    ("no claim", training(), T0 + 1000, False),
]


@pytest.mark.parametrize(("run", "now", "in_grace"), [row[1:] for row in GRACE], ids=[row[0] for row in GRACE])
def test_done_without_a_marker_has_its_grace(run: Run, now: float, in_grace: bool) -> None:
    assert done_in_grace(look(run, now)) is in_grace
    said = worker_said(look(run, now))
    if run.attempt is not None and run.attempt.claim == DONE:
        assert said == (None if in_grace else Success(Evidence.DONE, SHA))


@pytest.mark.parametrize(
    ("metrics", "unread_s", "reason"),
    [
        (MetricsState.ABSENT, 0.0, Reason.ARTIFACTS_UNREADABLE),
        (MetricsState.UNREADABLE, 60.0, Reason.ARTIFACTS_UNREADABLE),
        (MetricsState.UNREADABLE, 10.0, None),
    ],
)
def test_done_after_its_grace_needs_metrics_as_a_marker_does(
    metrics: MetricsState, unread_s: float, reason: Reason | None
) -> None:
    outcome = worker_said(look(claiming(replace(DONE, metrics=metrics, unread_s=unread_s)), AFTER))
    assert (outcome.reason if isinstance(outcome, Failure) else None) is reason


# The host -------------------------------------------------------------------------------------------------------------

ACTIVE = with_attempt(booting(), active_at=T0 + 120)
SIGN = with_attempt(ACTIVE, first_sign_at=T0 + 200, stage="boot")
LOST = Trouble("ERROR", T0 + 500, confirmed=True)

HOST: list[tuple[str, Run, dict[str, object], dict[str, float]]] = [
    ("building", booting(), {}, {"never_active": 900, "stalled": 3000}),
    ("provider blind while building", booting(), {"cloud_blind": 70.0}, {"never_active": 970, "stalled": 3000}),
    ("Hub blind while building", booting(), {"hub_blind": 70.0}, {"never_active": 900, "stalled": 3070}),
    ("F30: active, no sign", ACTIVE, {}, {"no_sign_of_life": 1020, "stalled": 3000}),
    ("active, no sign, Hub blind", ACTIVE, {"hub_blind": 40.0}, {"no_sign_of_life": 1060, "stalled": 3040}),
    (
        "the Hub was blind before it was active",
        with_attempt(ACTIVE, active_blind_hub=40.0),
        {"hub_blind": 40.0},
        {"no_sign_of_life": 1020, "stalled": 3040},
    ),
    ("scenario 16: boot, then silence", SIGN, {}, {"stalled": 3000}),
    ("nothing else is left to try", with_attempt(SIGN, last_choice=True), {}, {"stalled": 4500}),
    ("sent again after a 429", with_attempt(SIGN, posted_at=T0 + 100), {}, {"stalled": 3100}),
    ("scenario 17: a step, then silence", training(), {}, {"stalled": 2100}),
    ("training, Hub blind", training(), {"hub_blind": 600.0}, {"stalled": 2700}),
    (
        "the Hub was blind before the step",
        with_attempt(training(), progress_blind_hub=600.0),
        {"hub_blind": 600.0},
        {"stalled": 2100},
    ),
    ("last choice in training", with_attempt(training(), last_choice=True), {}, {"stalled": 2100}),
    ("commit budget spent: silence says nothing", training(), {"silence_counts": False}, {}),
    ("commit budget spent while building", booting(), {"silence_counts": False}, {"never_active": 900}),
    ("host lost", with_attempt(training(), trouble=LOST), {}, {"job_preempted": 500, "stalled": 2100}),
    ("host in doubt", with_attempt(training(), trouble=replace(LOST, confirmed=False)), {}, {"stalled": 2100}),
]


@pytest.mark.parametrize(("run", "changes", "due"), [row[1:] for row in HOST], ids=[row[0] for row in HOST])
def test_when_each_rule_about_the_host_is_due(run: Run, changes: dict[str, object], due: dict[str, float]) -> None:
    dues = host_dues(look(run, T0 + 1000, **changes))
    assert dues[0] == Due(T0 + 6600, Reason.DEADLINE, "the wall limit or deadline_s is reached")
    assert {item.reason.value: item.at - T0 for item in dues[1:]} == due


def test_outages_do_not_move_the_deadline() -> None:
    blind = host_dues(look(training(), hub_blind=5000.0, cloud_blind=5000.0))
    assert blind[0].at == T0 + 6600


def test_the_deadline_names_the_money_when_it_is_the_money() -> None:
    run = training(max_usd=0.5)
    assert host_dues(look(run))[0] == Due(T0 + 1800, Reason.BUDGET, "the rest of max_usd is used up")


@pytest.mark.parametrize(
    ("status", "text"), [("missing", "the machine is gone"), ("SHUTOFF", "the machine is SHUTOFF")]
)
def test_a_lost_host_is_described(status: str, text: str) -> None:
    run = with_attempt(training(), trouble=Trouble(status, T0 + 700, confirmed=True))
    assert text in host_dues(look(run))[1].detail


# Claims ---------------------------------------------------------------------------------------------------------------

NOW = T0 + 1005
SEEN = claim(read_at=T0 + 1000)
WAITING = replace(SEEN, metrics=MetricsState.UNREADABLE, unread_s=20.0)
DONE_SEEN = replace(DONE, read_at=T0 + 1000)
FAILED = claim(False)
OTHER = "f" * 40


def again(known: Claim, **changes: object) -> Claim:
    return replace(known, seen_at=0.0, read_at=0.0, unread_s=0.0, **changes)  # type: ignore[arg-type]


CLAIMS: list[tuple[str, Claim | None, Claim | None, bool, Claim | None]] = [
    ("nothing", None, None, True, None),
    ("first sight", None, again(SEEN), False, replace(SEEN, seen_at=NOW, read_at=NOW)),
    ("a heartbeat's read says nothing of it", WAITING, None, False, WAITING),
    ("a marker outranks DONE", DONE_SEEN, again(FAILED), False, replace(FAILED, seen_at=NOW, read_at=NOW)),
    ("DONE does not outrank a marker", WAITING, again(DONE_SEEN), False, WAITING),
    ("another word", SEEN, again(FAILED), True, replace(FAILED, seen_at=NOW, read_at=NOW)),
    ("metrics come", WAITING, again(SEEN, commit=OTHER), True, replace(SEEN, commit=OTHER, read_at=NOW)),
    ("still unreadable: 5 s more", WAITING, again(WAITING), True, replace(WAITING, read_at=NOW, unread_s=25.0)),
    (
        "an outage between two answers counts 10 s",
        replace(WAITING, read_at=T0),
        again(WAITING),
        True,
        replace(WAITING, read_at=NOW, unread_s=30.0),
    ),
    ("the marker vanished", WAITING, None, True, replace(WAITING, read_at=NOW, unread_s=25.0)),
    (
        "the marker vanished before metrics were read",
        replace(SEEN, metrics=MetricsState.UNASKED),
        again(DONE_SEEN),
        True,
        replace(WAITING, read_at=NOW, unread_s=5.0),
    ),
    ("what was read stays read", DONE_SEEN, again(DONE_SEEN, metrics=MetricsState.UNREADABLE), True, DONE_SEEN),
    ("what was read stays read, DONE vanished", DONE_SEEN, None, True, DONE_SEEN),
    ("newer metrics", DONE_SEEN, again(DONE_SEEN, commit=OTHER), True, replace(DONE_SEEN, commit=OTHER, read_at=NOW)),
]


@pytest.mark.parametrize(
    ("known", "read", "fresh", "merged"), [row[1:] for row in CLAIMS], ids=[row[0] for row in CLAIMS]
)
def test_claims_are_merged(known: Claim | None, read: Claim | None, fresh: bool, merged: Claim | None) -> None:
    assert merge_claim(known, read, NOW, fresh=fresh) == merged
