"""One row per reason: whose fault, and whether another attempt follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flashd.core.ending import past
from flashd.core.model import Fault, Reason, Run
from flashd.core.retry import fault_of, may_retry, retry_delay_s
from flashd.core.verdicts import Failure
from tests.core.kit import POLICY, T0, attempt_of, booting


def ended(reason: Reason, times: int = 1, used: int = 1) -> Run:
    run = booting()
    last = past(attempt_of(run), Failure(reason, "x"), T0)
    return replace(run, attempt=None, history=(last,) * times, attempts_used=used)


@pytest.mark.parametrize(
    ("reason", "fault", "again"),
    [
        (Reason.JOB_FAILED, Fault.USER, False),
        (Reason.JOB_PREEMPTED, Fault.INFRASTRUCTURE, True),
        (Reason.STALLED, Fault.INFRASTRUCTURE, True),
        (Reason.NEVER_ACTIVE, Fault.INFRASTRUCTURE, True),
        (Reason.NO_SIGN_OF_LIFE, Fault.INFRASTRUCTURE, True),
        (Reason.LAUNCH_UNKNOWN, Fault.INFRASTRUCTURE, True),
        (Reason.LAUNCH_REFUSED, Fault.INFRASTRUCTURE, False),
        (Reason.ARTIFACTS_UNREADABLE, Fault.INFRASTRUCTURE, True),
        (Reason.DEADLINE, Fault.USER, False),
        (Reason.BUDGET, Fault.USER, False),
    ],
)
def test_each_reason_has_its_fault_and_its_retry(reason: Reason, fault: Fault, again: bool) -> None:
    assert fault_of(reason) is fault
    assert may_retry(ended(reason), reason) is again


def test_a_reason_that_only_waits_is_the_operators() -> None:
    assert fault_of(Reason.NO_CAPACITY) is Fault.OPERATOR


def test_no_attempts_left_is_the_end() -> None:
    assert not may_retry(ended(Reason.STALLED, used=3), Reason.STALLED)
    assert not may_retry(ended(Reason.ARTIFACTS_UNREADABLE, used=3), Reason.ARTIFACTS_UNREADABLE)


def test_unreadable_artifacts_are_tried_again_once() -> None:
    assert not may_retry(ended(Reason.ARTIFACTS_UNREADABLE, times=2, used=2), Reason.ARTIFACTS_UNREADABLE)


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"), [(1, 0.5, 30), (2, 0.5, 60), (3, 0.0, 84), (99, 0.5, 480), (0, 0.5, 30)]
)
def test_the_pause_doubles_with_jitter_and_has_a_ceiling(failures: int, chance: float, seconds: float) -> None:
    assert retry_delay_s(POLICY, failures, chance) == pytest.approx(seconds)
