"""After an attempt: again, or not. One row per reason; budget, back-off, and whose fault it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from flashd.core.model import Fault, Reason, Run
from flashd.core.policy import Policy

BACKOFF_FACTOR_MAX = 16.0
JITTER = 0.3


class Again(StrEnum):
    """Whether an attempt that ended for a reason is followed by another."""

    NO = "no"
    ONCE = "once"
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Rule:
    fault: Fault
    again: Again


RULES: dict[Reason, Rule] = {
    Reason.JOB_FAILED: Rule(Fault.USER, Again.NO),
    Reason.JOB_PREEMPTED: Rule(Fault.INFRASTRUCTURE, Again.YES),
    Reason.STALLED: Rule(Fault.INFRASTRUCTURE, Again.YES),
    Reason.NEVER_ACTIVE: Rule(Fault.INFRASTRUCTURE, Again.YES),
    Reason.NO_SIGN_OF_LIFE: Rule(Fault.INFRASTRUCTURE, Again.YES),
    Reason.LAUNCH_UNKNOWN: Rule(Fault.INFRASTRUCTURE, Again.YES),
    Reason.LAUNCH_REFUSED: Rule(Fault.INFRASTRUCTURE, Again.NO),
    Reason.ARTIFACTS_UNREADABLE: Rule(Fault.INFRASTRUCTURE, Again.ONCE),
    Reason.DEADLINE: Rule(Fault.USER, Again.NO),
    Reason.BUDGET: Rule(Fault.USER, Again.NO),
}


def fault_of(reason: Reason) -> Fault:
    """Whose fault an end for this reason is; reasons that only wait are the operator's."""
    rule = RULES.get(reason)
    return rule.fault if rule else Fault.OPERATOR


def may_retry(run: Run, reason: Reason) -> bool:
    """Whether another attempt follows. `run` already counts the attempt that just ended in its history."""
    match RULES[reason].again:
        case Again.NO:
            return False
        case Again.ONCE:
            if sum(1 for past in run.history if past.reason is reason) > 1:
                return False
            return run.attempts_left > 0
        case Again.YES:
            return run.attempts_left > 0
        case _ as never:
            assert_never(never)


def retry_delay_s(policy: Policy, failures: int, chance: float) -> float:
    """Back-off before the next attempt: doubles with each failure, at most 16-fold, +-30 % by `chance` in [0, 1)."""
    factor = min(2.0 ** max(0, failures - 1), BACKOFF_FACTOR_MAX)
    return policy.retry_backoff_s * factor * (1.0 - JITTER + 2.0 * JITTER * chance)
