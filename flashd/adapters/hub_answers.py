"""What the Hub's answers mean: errors by status and X-Error-Code (never by text), rate headers, links, dates, rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from flashd.adapters.hub import Commit, CommitPage
from flashd.errors import (
    HubAuthError,
    HubError,
    HubForbiddenError,
    HubRepoMissingError,
    HubThrottledError,
    HubUnavailableError,
)
from flashd.wire.token_shapes import masked

TITLE_MAX = 500
TEXT_MAX = 300
THROTTLE_DEFAULT_S = 60.0
COMMIT_QUOTA_WAIT_S = 600.0  # the quota is hourly and rolls; the Hub's own words are "in about 1 hour"

_SHA = re.compile(r"[0-9a-f]{40}")
_LEFT = re.compile(r'"([^"]+)"\s*;\s*r=(\d+)\s*;\s*t=(\d+)')
_POLICY = re.compile(r'"([^"]+)"\s*;\s*q=(\d+)')
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer; headers by lower-case name. `cut`: the body is longer than was read."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False

    @property
    def error_code(self) -> str:
        return self.headers.get("x-error-code", "")


@dataclass(frozen=True, slots=True)
class Window:
    """One bucket's request window: `left` requests, a new window in `reset_s`. `limit` None = not told."""

    bucket: str
    left: int
    reset_s: float
    limit: int | None


class CommitRow(msgspec.Struct):
    id: str
    title: str
    date: str


class PathRow(msgspec.Struct):
    type: str
    path: str
    oid: str = ""


class PreuploadRow(msgspec.Struct, rename="camel"):
    path: str
    upload_mode: str
    should_ignore: bool = False
    oid: str | None = None


class PreuploadAnswer(msgspec.Struct):
    files: list[PreuploadRow]


class CommitAnswer(msgspec.Struct, rename="camel"):
    commit_oid: str


class RevisionAnswer(msgspec.Struct):
    sha: str


T = TypeVar("T")


def decode(answer: Answer, what: type[T]) -> T:
    """The body as a typed value. Raises HubUnavailableError: an answer that cannot be read is no answer."""
    if answer.cut:
        raise HubUnavailableError(f"an answer of more than {len(answer.body)} bytes", answer.status)
    try:
        return msgspec.json.decode(answer.body, type=what)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise HubUnavailableError(f"an answer that is not what the Hub's API gives: {error}", answer.status) from error


def commit_page(answer: Answer) -> CommitPage:
    """Source: Hub API `commits/{revision}`: newest first, the older ones behind a Link header."""
    rows = decode(answer, list[CommitRow])
    return CommitPage(tuple(_commit(row) for row in rows), next_query(answer))


def checked_sha(text: str) -> str:
    if _SHA.fullmatch(text) is None:
        raise HubUnavailableError(f"a commit id that is none: {text[:60]!r}")
    return text


def next_query(answer: Answer) -> str | None:
    """The query of the next page. Only that is taken from the link: its host may be another than we were told."""
    found = _NEXT.search(answer.headers.get("link", ""))
    return urlsplit(found[1]).query if found else None


def window(answer: Answer) -> Window | None:
    """Source: Hub documentation, "Rate limits": `RateLimit: "api";r=<left>;t=<s>`, the limit is in RateLimit-Policy."""
    found = _LEFT.search(answer.headers.get("ratelimit", ""))
    if found is None:
        return None
    policy = {bucket: int(limit) for bucket, limit in _POLICY.findall(answer.headers.get("ratelimit-policy", ""))}
    return Window(found[1], int(found[2]), float(found[3]), policy.get(found[1]))


def error_of(answer: Answer, now: float, *, writes: bool) -> HubError:
    """The error that a refusal stands for. `writes`: the request was part of a commit."""
    text = _words(answer)
    match answer.status, answer.error_code:
        case ((401 | 404), "RepoNotFound"):
            return HubRepoMissingError(text, answer.status)
        case 401, _:
            return HubAuthError(text, answer.status)
        case 403, _:
            return HubForbiddenError(text, answer.status)
        case 429, _:
            return _throttled(answer, text, now, writes)
        case ((408 | 409 | 412), _):
            return HubUnavailableError(text, answer.status)  # busy with another commit, or the head moved
        case status, _ if status in (400, 413, 422):
            return HubError(text, status)
        case status, _:
            return HubUnavailableError(text, status)


def _throttled(answer: Answer, text: str, now: float, writes: bool) -> HubThrottledError:
    """With requests left in the window it is the hourly commit quota, whose wait the window's header does not know.

    Source: a public report of such a 429 with 949 of 1,000 requests left (braindecode issue 947).
    """
    seen = window(answer)
    asked_s = retry_after_s(answer, now)
    if seen is not None and seen.left == 0:
        return HubThrottledError(text, max(seen.reset_s + 1.0, asked_s or 0.0), commit_quota=False)
    if writes:
        return HubThrottledError(text, asked_s or COMMIT_QUOTA_WAIT_S, commit_quota=True)
    return HubThrottledError(text, asked_s or THROTTLE_DEFAULT_S, commit_quota=False)


def retry_after_s(answer: Answer, now: float) -> float | None:
    """Retry-After in seconds, given as such or as an HTTP date; None when absent or unreadable."""
    raw = answer.headers.get("retry-after", "").strip()
    if raw.isascii() and raw.isdecimal():
        return float(raw[:9])
    try:
        moment = parsedate_to_datetime(raw)
    except ValueError:
        return None
    return max(0.0, (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now)


def _commit(row: CommitRow) -> Commit:
    try:
        moment = datetime.fromisoformat(row.date)
    except ValueError as error:
        raise HubUnavailableError(f"a commit date that is none: {row.date[:60]!r}") from error
    at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return Commit(checked_sha(row.id), row.title[:TITLE_MAX], at)


def _words(answer: Answer) -> str:
    """The Hub's own words, for people; nothing is decided on them."""
    told = answer.headers.get("x-error-message") or answer.body.decode(errors="replace")
    code = f"{answer.error_code}: " if answer.error_code else ""
    return masked(code + " ".join(told.split()))[:TEXT_MAX] or "no explanation"
