"""The rules that end an attempt, in two ordered tuples: what the worker said, then what happened to the host.

A rule about the host says when it is due; one that is due counts only on artifacts read freshly for it (`lifecycle`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flashd.core.model import Attempt, Claim, MetricsState, Reason, Run
from flashd.core.observations import Tick

DEADLINE_EXIT_CODE = 124


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a run whose attempt has a machine."""

    run: Run
    attempt: Attempt
    tick: Tick


@dataclass(frozen=True, slots=True)
class Success:
    """The attempt succeeded: `evidence` at `commit`."""

    evidence: str
    commit: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The attempt ended otherwise."""

    reason: Reason
    detail: str
    commit: str = ""


Outcome = Success | Failure


@dataclass(frozen=True, slots=True)
class Due:
    """A rule about the host and the time at which it fires."""

    at: float
    reason: Reason
    detail: str
    silence: bool = False  # about what was not heard: suspended while silence is no evidence


# What the worker said -------------------------------------------------------------------------------------------------


def failed_by_marker(look: Look) -> Outcome | None:
    claim = look.attempt.claim
    if claim is None or claim.ok or claim.evidence != "marker":
        return None
    text = claim.error or "the worker ended without an error text"
    if claim.exit_code == DEADLINE_EXIT_CODE and not claim.retriable:
        return Failure(look.attempt.deadline_reason, f"stopped in the box at its deadline: {text}", claim.commit)
    if claim.retriable or look.attempt.retriable:
        return Failure(Reason.JOB_PREEMPTED, text, claim.commit)
    return Failure(Reason.JOB_FAILED, text, claim.commit)


def succeeded(look: Look) -> Outcome | None:
    claim = look.attempt.claim
    if claim is None or not claim.ok or claim.metrics is not MetricsState.PRESENT or done_in_grace(look):
        return None
    return Success(claim.evidence, claim.commit)


def metrics_proved_absent(look: Look) -> Outcome | None:
    claim = look.attempt.claim
    if claim is None or not claim.ok or claim.metrics is not MetricsState.ABSENT or done_in_grace(look):
        return None
    return Failure(
        Reason.ARTIFACTS_UNREADABLE, f"{claim.evidence} claims success, but metrics.json is no object", claim.commit
    )


def metrics_stay_unreadable(look: Look) -> Outcome | None:
    claim = look.attempt.claim
    if claim is None or not claim.ok or claim.metrics is not MetricsState.UNREADABLE:
        return None
    waited_s = look.tick.now - claim.seen_at - (look.tick.hub_blind - claim.seen_blind_hub)
    if waited_s < look.tick.policy.metrics_wait_s or done_in_grace(look):
        return None
    return Failure(
        Reason.ARTIFACTS_UNREADABLE, f"metrics.json could not be read for {waited_s:.0f} s of answers", claim.commit
    )


def done_in_grace(look: Look) -> bool:
    """A DONE without a marker waits for the marker, unless the host is known to be dead."""
    claim = look.attempt.claim
    if claim is None or claim.evidence != "done" or host_is_dead(look.attempt):
        return False
    return look.tick.now < claim.seen_at + look.tick.policy.done_grace_s


WORKER_SAID: tuple[Callable[[Look], Outcome | None], ...] = (
    failed_by_marker,
    succeeded,
    metrics_proved_absent,
    metrics_stay_unreadable,
)


def worker_said(look: Look) -> Outcome | None:
    """The first verdict from the worker's own words."""
    for rule in WORKER_SAID:
        if (outcome := rule(look)) is not None:
            return outcome
    return None


# What happened to the host --------------------------------------------------------------------------------------------


def host_is_dead(attempt: Attempt) -> bool:
    return attempt.trouble is not None and attempt.trouble.confirmed


def lost_host(look: Look) -> Due | None:
    trouble = look.attempt.trouble
    if trouble is None or not trouble.confirmed:
        return None
    what = "the machine is gone" if trouble.status == "missing" else f"the machine is {trouble.status}"
    return Due(trouble.since, Reason.JOB_PREEMPTED, f"{what} without our doing")


def out_of_time(look: Look) -> Due | None:
    attempt = look.attempt
    if attempt.deadline_reason is Reason.BUDGET:
        return Due(attempt.deadline_at, Reason.BUDGET, "the rest of max_usd is used up")
    return Due(attempt.deadline_at, Reason.DEADLINE, "the wall limit or deadline_s is reached")


def never_active(look: Look) -> Due | None:
    attempt, policy = look.attempt, look.tick.policy
    if attempt.active_at is not None:
        return None
    blind_s = look.tick.cloud_blind - attempt.created_blind_cloud
    return Due(
        attempt.called_at + policy.load_timeout_s + blind_s,
        Reason.NEVER_ACTIVE,
        f"not active {policy.load_timeout_s:.0f} s after the create call",
    )


def no_sign_of_life(look: Look) -> Due | None:
    attempt, policy = look.attempt, look.tick.policy
    if attempt.active_at is None or attempt.first_sign_at is not None:
        return None
    blind_s = look.tick.hub_blind - attempt.active_blind_hub
    return Due(
        attempt.active_at + policy.first_sign_timeout_s + blind_s,
        Reason.NO_SIGN_OF_LIFE,
        f"no commit {policy.first_sign_timeout_s:.0f} s after the machine became active",
        silence=True,
    )


def setup_stalled(look: Look) -> Due | None:
    attempt, policy = look.attempt, look.tick.policy
    if attempt.training_at is not None:
        return None
    limit_s = policy.setup_grace_s * (policy.last_choice_factor if attempt.last_choice else 1.0)
    blind_s = look.tick.hub_blind - attempt.created_blind_hub
    return Due(
        attempt.called_at + limit_s + blind_s,
        Reason.STALLED,
        f"no training step {limit_s:.0f} s after the create call; last stage: {attempt.stage or 'none'}",
        silence=True,
    )


def training_stalled(look: Look) -> Due | None:
    attempt, policy = look.attempt, look.tick.policy
    if attempt.training_at is None or attempt.progress_at is None:
        return None
    blind_s = look.tick.hub_blind - attempt.progress_blind_hub
    return Due(
        attempt.progress_at + policy.stall_after_s + blind_s,
        Reason.STALLED,
        f"no progress for {policy.stall_after_s:.0f} s; last step: {attempt.step}",
        silence=True,
    )


HOST_RULES: tuple[Callable[[Look], Due | None], ...] = (
    out_of_time,
    lost_host,
    never_active,
    no_sign_of_life,
    setup_stalled,
    training_stalled,
)


def host_dues(look: Look) -> tuple[Due, ...]:
    """Every rule about the host that can fire, in order of precedence; silence only where it is evidence."""
    dues = (rule(look) for rule in HOST_RULES)
    return tuple(due for due in dues if due is not None and (look.tick.silence_counts or not due.silence))


# Reading a claim ------------------------------------------------------------------------------------------------------


def merge_claim(known: Claim | None, read: Claim | None) -> Claim | None:
    """A marker outranks DONE; a later read that does not show what was seen changes nothing; first sight keeps."""
    if read is None:
        return known
    if known is None or (known.evidence == "done" and read.evidence == "marker"):
        return read
    if known.evidence == "marker" and read.evidence == "done":
        return known
    if known.ok != read.ok:
        return read
    metrics = known.metrics if read.metrics is MetricsState.UNASKED else read.metrics
    return Claim(
        evidence=read.evidence,
        ok=read.ok,
        commit=read.commit,
        seen_at=known.seen_at,
        retriable=read.retriable,
        error=read.error,
        exit_code=read.exit_code,
        metrics=metrics,
        seen_blind_hub=known.seen_blind_hub,
    )
