"""Faults of what was sent: reasons in the contract's order, one line each, the nearest known name for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from flashd.wire.strict_json import cut_text, json_path

MAX_FAULT_LINES = 200
_LONGEST_COMPARED = 64


class RejectReason(StrEnum):
    """Why a request is not taken, in the order in which one is picked when there are several."""

    BAD_JSON = "bad_json"
    TOO_LARGE = "too_large"
    MISSING_FIELD = "missing_field"
    UNKNOWN_FIELD = "unknown_field"
    BAD_VALUE = "bad_value"
    BAD_RUN_ID = "bad_run_id"
    CONFLICT = "conflict"
    INLINE_SECRET = "inline_secret"
    UNKNOWN_SECRET = "unknown_secret"
    UNKNOWN_GPU = "unknown_gpu"
    POISON = "poison"


_ORDER = {reason: index for index, reason in enumerate(RejectReason)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    reason: RejectReason
    path: tuple[str | int, ...]
    text: str

    @property
    def line(self) -> str:
        """`<reason>: <json path>: <what is wrong>`, always one line."""
        return f"{self.reason}: {json_path(self.path)}: {cut_text(' '.join(self.text.split()), 400)}"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A request or command that is not taken. `run_id` only when it is readable and well formed.

    `may_hold_secret`: the body must not be copied anywhere.
    """

    reason: RejectReason
    detail_lines: tuple[str, ...]
    run_id: str | None
    may_hold_secret: bool

    @property
    def detail(self) -> str:
        """Every fault, one line each."""
        return "\n".join(self.detail_lines)


def rejection(faults: Collection[Fault], run_id: str | None, *, may_hold_secret: bool) -> Rejection:
    """All faults of one body (at least one), sorted by reason, else as they were found."""
    ordered = sorted(faults, key=lambda fault: _ORDER[fault.reason])
    lines = [fault.line for fault in ordered[:MAX_FAULT_LINES]]
    if len(ordered) > MAX_FAULT_LINES:
        lines.append(f"{ordered[-1].reason}: $: {len(ordered) - MAX_FAULT_LINES} more faults are not listed")
    return Rejection(ordered[0].reason, tuple(lines), run_id, may_hold_secret)


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.0) -> str | None:
    """The known name most like `name`, letter case aside; None when nothing reaches `cutoff` (0 to 1)."""
    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name[:_LONGEST_COMPARED].casefold(), list(folded), n=1, cutoff=cutoff)
    return folded[close[0]] if close else None


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`; did you mean "x"?`, or the nearest name when none is close, or nothing when none is known."""
    close = nearest(name, known, cutoff=0.6)
    if close is not None:
        return f'; did you mean "{close}"?'
    far = nearest(name, known)
    return "" if far is None else f'; the nearest known is "{far}"'
