"""Which artifacts are this attempt's: the marker by its token, the rest by token or by order in the repository."""

from __future__ import annotations

from flashd.core.model import Attempt, Claim, Evidence, MetricsState, PastAttempt
from flashd.core.observations import Beat
from flashd.wire.artifacts import Heartbeat, Marker
from flashd.wire.commit_title import CommitEvent, CommitTitle

LATE_METRICS_WAIT_S = 300.0  # how long metrics that cannot be read hold up the attempt after a late success


def marker_is_of(marker: Marker, attempt: Attempt | PastAttempt) -> bool:
    """A marker of another attempt or token says nothing about this one."""
    return marker.attempt == attempt.number and marker.token == attempt.token


def marker_claim(marker: Marker, commit: str, now: float) -> Claim:
    """What a marker of this attempt claims."""
    return Claim(
        evidence=Evidence.MARKER,
        ok=marker.ok,
        commit=commit,
        seen_at=now,
        retriable=marker.retriable,
        error=marker.error or "",
        exit_code=marker.exit_code,
    )


def with_told(text: str, told: str) -> str:
    """A failure's text and, below it, what the worker wrote about it in a file of its own."""
    return text if not told or told in text else f"{text}\n{told}".strip()


def done_counts(title: CommitTitle | None, attempt: Attempt | PastAttempt) -> bool:
    """Whether a DONE that changed after the intent's head counts: never when its commit names another attempt."""
    return title is None or title.attempt == attempt.number


def worth_waiting_for(past: PastAttempt, metrics: MetricsState, now: float) -> bool:
    """Whether a late success is worth another read: one unanswered read is no reason to train a second time."""
    return metrics is MetricsState.UNREADABLE and now < past.ended_at + LATE_METRICS_WAIT_S


def heartbeat_is_of(beat: Heartbeat, attempt: Attempt, *, after_intent: bool) -> bool:
    """By its token; without one, if it was committed after the intent's head and names no other attempt."""
    if beat.token:
        return beat.token == attempt.token
    return after_intent and (beat.attempt is None or beat.attempt == attempt.number)


def beat_of_title(title: CommitTitle, at: float) -> Beat | None:
    """The sign of life in a box's commit: only a heartbeat without `liveness` is progress; an end is none."""
    if title.event is CommitEvent.END:
        return None
    if title.event is CommitEvent.HEARTBEAT:
        return Beat(title.stage or "", title.step, title.liveness, at)
    return Beat(title.stage or ("boot" if title.event is CommitEvent.BOOT else ""), None, True, at)


def beat_of_heartbeat(beat: Heartbeat, at: float) -> Beat:
    """The sign of life in a heartbeat file."""
    key = f"{beat.stage}|{beat.step}|{beat.ts}"
    return Beat(beat.stage or "", beat.step, beat.liveness, at, beat.retriable, key)
