"""The rules that end an attempt, in two ordered tuples: what the worker said, then what happened to the host.

A rule about the host says when it is due; one that is due counts only on artifacts read freshly for it (`lifecycle`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flashd.core.model import MISSING, Attempt, Claim, Evidence, MetricsState, Reason, Run
from flashd.core.observations import Tick

DEADLINE_EXIT_CODE = 124
UNREAD_GAP_MAX_S = 10.0  # what one unreadable answer adds at most: an outage between two answers is nobody's fault


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a run whose attempt has a machine."""

    run: Run
    attempt: Attempt
    tick: Tick


@dataclass(frozen=True, slots=True)
class Success:
    """The attempt succeeded: `evidence` at `commit`."""

    evidence: Evidence
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
    if claim is None or claim.ok or claim.evidence is not Evidence.MARKER:
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
    if claim.unread_s < look.tick.policy.metrics_wait_s or done_in_grace(look):
        return None
    text = f"metrics.json could not be read for {claim.unread_s:.0f} s of answers"
    return Failure(Reason.ARTIFACTS_UNREADABLE, text, claim.commit)


def done_in_grace(look: Look) -> bool:
    """A DONE without a marker waits for the marker, unless the host is dead, out of time or no longer wanted."""
    claim = look.attempt.claim
    if claim is None or claim.evidence is not Evidence.DONE:
        return False
    if host_is_dead(look.attempt) or look.run.cancel is not None:
        return False
    return look.tick.now < grace_ends_at(look, claim)


def grace_ends_at(look: Look, claim: Claim) -> float:
    return min(claim.seen_at + look.tick.policy.done_grace_s, look.attempt.deadline_at)


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
    what = "the machine is gone" if trouble.status == MISSING else f"the machine is {trouble.status}"
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


def merge_claim(known: Claim | None, read: Claim | None, now: float, *, fresh: bool) -> Claim | None:
    """A marker outranks DONE; a later read that does not show what was seen takes nothing back.

    `fresh`: the read looked for the claim; other reads may have been after a heartbeat only.
    """
    if known is None:
        return _first_seen(read, now) if read is not None else None
    if read is None or (known.evidence is Evidence.MARKER and read.evidence is Evidence.DONE):
        return _not_shown_again(known, now) if fresh else known
    if known.evidence != read.evidence or known.ok != read.ok:
        return _first_seen(read, now)
    if known.metrics is MetricsState.PRESENT and read.metrics is not MetricsState.PRESENT:
        return known
    still = known.metrics is MetricsState.UNREADABLE and read.metrics is MetricsState.UNREADABLE
    unread_s = known.unread_s + _unread_gap_s(known, now) if still else 0.0
    return replace(read, seen_at=known.seen_at, read_at=now, unread_s=unread_s)


def _first_seen(read: Claim, now: float) -> Claim:
    return replace(read, seen_at=now, read_at=now)


def _not_shown_again(known: Claim, now: float) -> Claim:
    """What was said stays said; metrics that were not read by then are as good as unreadable."""
    if known.metrics in (MetricsState.PRESENT, MetricsState.ABSENT):
        return known
    unread_s = known.unread_s + _unread_gap_s(known, now)
    return replace(known, metrics=MetricsState.UNREADABLE, read_at=now, unread_s=unread_s)


def _unread_gap_s(known: Claim, now: float) -> float:
    return min(max(0.0, now - known.read_at), UNREAD_GAP_MAX_S)
