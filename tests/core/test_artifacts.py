"""Whose an artifact is: by token where it has one, else by order in the repository."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.artifacts import (
    LATE_METRICS_WAIT_S,
    beat_of_heartbeat,
    beat_of_title,
    done_counts,
    heartbeat_is_of,
    marker_claim,
    marker_is_of,
    with_told,
    worth_waiting_for,
)
from flashd.core.ending import past
from flashd.core.model import Claim, Evidence, MetricsState, Reason
from flashd.core.observations import Beat
from flashd.core.verdicts import Failure
from flashd.wire.artifacts import Heartbeat, Marker
from flashd.wire.commit_title import CommitEvent, CommitTitle
from tests.core.kit import T0, TOKEN, attempt_of, booting

ATTEMPT = attempt_of(booting())
TITLE = CommitTitle(run_id="r1", seed=0, attempt=0, event=CommitEvent.HEARTBEAT)


@pytest.mark.parametrize(
    ("number", "token", "ours"), [(0, TOKEN, True), (1, TOKEN, False), (0, "other", False), (1, "other", False)]
)
def test_scenario_11_a_marker_of_another_attempt_or_token_is_not_ours(number: int, token: str, ours: bool) -> None:
    marker = Marker(ok=True, attempt=number, token=token)
    assert marker_is_of(marker, ATTEMPT) is ours
    assert marker_is_of(marker, past(ATTEMPT, Failure(Reason.STALLED, "x"), T0)) is ours


def test_a_marker_claims_what_it_says() -> None:
    said = Marker(ok=False, attempt=0, token=TOKEN, retriable=True, error="pip", exit_code=3)
    assert marker_claim(said, "c" * 40, T0) == Claim(Evidence.MARKER, False, "c" * 40, T0, True, "pip", 3)
    assert marker_claim(Marker(ok=True, attempt=0, token=TOKEN), "c" * 40, T0).error == ""


def test_a_done_whose_commit_names_another_attempt_never_counts() -> None:
    assert done_counts(None, ATTEMPT)
    assert done_counts(TITLE, ATTEMPT)
    assert not done_counts(replace(TITLE, attempt=1), ATTEMPT)


@pytest.mark.parametrize(
    ("text", "told", "whole"),
    [
        ("exit 1", "", "exit 1"),
        ("exit 1", "KeyError", "exit 1\nKeyError"),
        ("exit 1: KeyError", "KeyError", "exit 1: KeyError"),
        ("", "KeyError", "KeyError"),
    ],
)
def test_a_failure_tells_what_the_worker_wrote_about_it_once(text: str, told: str, whole: str) -> None:
    assert with_told(text, told) == whole


@pytest.mark.parametrize(
    ("metrics", "after_s", "waits"),
    [
        (MetricsState.UNREADABLE, 10.0, True),
        (MetricsState.UNREADABLE, LATE_METRICS_WAIT_S, False),
        (MetricsState.ABSENT, 10.0, False),
        (MetricsState.PRESENT, 10.0, False),
    ],
)
def test_metrics_of_a_late_success_are_waited_for_a_while(metrics: MetricsState, after_s: float, waits: bool) -> None:
    ended = past(ATTEMPT, Failure(Reason.STALLED, "x"), T0)
    assert worth_waiting_for(ended, metrics, T0 + after_s) is waits


@pytest.mark.parametrize(
    ("beat", "after_intent", "ours"),
    [
        (Heartbeat(token=TOKEN, attempt=0), False, True),
        (Heartbeat(token="other", attempt=0), True, False),
        (Heartbeat(), True, True),
        (Heartbeat(), False, False),
        (Heartbeat(attempt=0), True, True),
        (Heartbeat(attempt=0, token=""), True, True),
        (Heartbeat(attempt=1), True, False),  # scenario 12: what another attempt left
    ],
)
def test_whose_a_heartbeat_is(beat: Heartbeat, after_intent: bool, ours: bool) -> None:
    assert heartbeat_is_of(beat, ATTEMPT, after_intent=after_intent) is ours


@pytest.mark.parametrize(
    ("title", "beat"),
    [
        (replace(TITLE, stage="train", step=5), Beat("train", 5, False, T0)),
        (replace(TITLE, stage="load", liveness=True), Beat("load", None, True, T0)),
        (TITLE, Beat("", None, False, T0)),
        (replace(TITLE, event=CommitEvent.BOOT), Beat("boot", None, True, T0)),
        (replace(TITLE, event=CommitEvent.CHECKPOINT, step=5), Beat("", None, True, T0)),
        (replace(TITLE, event=CommitEvent.ARTIFACTS, stage="save"), Beat("save", None, True, T0)),
        (replace(TITLE, event=CommitEvent.END), None),
    ],
)
def test_what_a_commit_title_says(title: CommitTitle, beat: Beat | None) -> None:
    assert beat_of_title(title, T0) == beat


def test_a_heartbeat_file_is_known_again_by_stage_step_and_time() -> None:
    file = Heartbeat(stage="train", step=5, ts=T0, retriable=True)
    beat = beat_of_heartbeat(file, T0 + 1)
    assert (beat.stage, beat.step, beat.liveness, beat.at, beat.retriable) == ("train", 5, False, T0 + 1, True)
    assert beat_of_heartbeat(file, T0 + 99).key == beat.key
    others = [replace(file, stage="x"), replace(file, step=6), replace(file, ts=T0 + 1)]
    assert all(beat_of_heartbeat(other, T0).key != beat.key for other in others)
    assert beat_of_heartbeat(Heartbeat(liveness=True), T0).stage == ""
