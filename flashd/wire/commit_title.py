"""Titles of the commits that boxes make: what happened is known without reading a file.

parse_commit_title(title) -> CommitTitle | None     None: somebody else's commit
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from flashd.wire.fields import RUN_ID_PATTERN
from flashd.wire.token_shapes import masked

MAX_TITLE_CHARACTERS = 1024
_RUN_ID = re.compile(RUN_ID_PATTERN)
_WHOLE = re.compile(r"[0-9]{1,15}")


class CommitEvent(StrEnum):
    """What a commit says."""

    BOOT = "boot"
    HEARTBEAT = "heartbeat"
    CHECKPOINT = "checkpoint"
    ARTIFACTS = "artifacts"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitTitle:
    """`flashd run=<run_id> seed=<seed> attempt=<n> event=<event> [stage=… step=… loss=… liveness=1]`.

    `step` and `loss` are None when absent or no finite number. `liveness` proves life, not progress.
    """

    run_id: str
    seed: int
    attempt: int
    event: CommitEvent
    stage: str | None = None
    step: int | None = None
    loss: float | None = None
    liveness: bool = False


def parse_commit_title(title: str) -> CommitTitle | None:
    """Read a title; of a multi-line message only the first line counts. Words that are not known are skipped."""
    first, _, _ = title[:MAX_TITLE_CHARACTERS].partition("\n")
    words = first.split()
    if not words or words[0] != "flashd":
        return None
    said: dict[str, str] = {}
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if equals:
            said.setdefault(name, value)
    seed, attempt = _whole(said.get("seed")), _whole(said.get("attempt"))
    run_id, event = said.get("run", ""), said.get("event", "")
    if seed is None or attempt is None or event not in set(CommitEvent) or not _RUN_ID.fullmatch(run_id):
        return None
    return CommitTitle(
        run_id=run_id,
        seed=seed,
        attempt=attempt,
        event=CommitEvent(event),
        stage=masked(said.get("stage", "")) or None,
        step=_whole(said.get("step")),
        loss=_finite(said.get("loss")),
        liveness=said.get("liveness") == "1",
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and _WHOLE.fullmatch(text) else None


def _finite(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None
