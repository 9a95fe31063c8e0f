"""Small files to and from the run's dataset repository with the standard library alone.

The end of an attempt depends on nothing else: not on Xet, not on a `huggingface_hub` that a worker's pip list replaced.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import http.client
import json
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from bootstrap.job import PACE

TIMEOUT_S = 60.0 * PACE  # of one socket operation; the Hub itself gives a commit about 60 s
MAX_READ_BYTES = 4_000_000
CLOCK_TOLERANCE_S = 5.0
REFUSED_CONTENT = (400, 413, 422)
SLOW_RETRY = (400, 401, 403, 404, 413, 422)  # time rarely heals these, but a token may come back
MAX_PAUSE_S, MAX_SLOW_PAUSE_S = 30.0, 300.0
MAX_RETRY_AFTER_S = 120.0 * PACE  # an hour's quota frees bit by bit, and the machine costs money meanwhile


class HubFailure(Exception):
    """The Hub did not do it. `status` 0 = no usable answer, so it may have been done; `retry_after_s` as it asked."""

    def __init__(self, text: str, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(text if not status else f"HTTP {status}: {text}")
        self.status = status
        self.retry_after_s = retry_after_s


class HubChannel:
    """One dataset repository under the box's token."""

    def __init__(self, endpoint: str, repo: str, token: str) -> None:
        self._endpoint = endpoint
        self._repo = repo
        self._token = token
        self._clock_offset = 0.0
        self._opener = urllib.request.build_opener(_SafeRedirects)

    def now(self) -> float:
        """Unix seconds by the Hub's clock: the deadline was set elsewhere, and a rented machine's clock may be off."""
        return time.time() + self._clock_offset

    def commit(self, title: str, files: Mapping[str, bytes]) -> None:
        """One commit of small files to `main`. Repeating the same bytes changes nothing.

        Source: the Hub's commit endpoint as huggingface_hub uses it (ndjson, regular files inline).
        """
        lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": title, "description": ""}}]
        for path, body in files.items():
            content = base64.b64encode(body).decode("ascii")
            lines.append({"key": "file", "value": {"path": path, "content": content, "encoding": "base64"}})
        self._api("commit/main", "\n".join(map(json.dumps, lines)).encode(), "application/x-ndjson")

    def read(self, path: str) -> bytes | None:
        """The file at the head of `main`; None when the Hub says that it is absent."""
        url = f"{self._endpoint}/datasets/{self._repo}/resolve/main/{urllib.parse.quote(path)}"
        try:
            return self._request(url, None, {})
        except HubFailure as failure:
            if failure.status == 404:
                return None
            raise

    def oids(self, paths: list[str]) -> dict[str, str]:
        """Blob ids of those of `paths` that exist at the head of `main`."""
        form = urllib.parse.urlencode([*(("paths", path) for path in paths), ("expand", "false")]).encode()
        answer = self._api("paths-info/main", form, "application/x-www-form-urlencoded")
        try:
            return {entry["path"]: entry["oid"] for entry in json.loads(answer)}
        except (ValueError, TypeError, KeyError) as error:
            raise HubFailure(f"unusable paths-info answer: {error}") from error

    def _api(self, call: str, body: bytes, content_type: str) -> bytes:
        url = f"{self._endpoint}/api/datasets/{self._repo}/{call}"
        return self._request(url, body, {"Content-Type": content_type})

    def _request(self, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        headers = headers | {"Authorization": f"Bearer {self._token}", "User-Agent": "flashd-box/1"}
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                self._note_clock(answer.headers.get("Date"))
                return _read_whole(answer)
        except urllib.error.HTTPError as error:
            with contextlib.closing(error):
                raise _failure(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise HubFailure(f"{type(error).__name__}: {error}") from error

    def _note_clock(self, date: str | None) -> None:
        try:
            offset = email.utils.parsedate_to_datetime(date or "").timestamp() - time.time()
        except (TypeError, ValueError, IndexError):
            return
        self._clock_offset = offset if abs(offset) > CLOCK_TOLERANCE_S else 0.0


class EndCommit:
    """A prepared end (`title`, `marker`, `files`: path -> text) on its way to the Hub.

    The bytes are the same at every try, and before each repetition the marker is looked for, so that a commit that was
    applied but answered with an error is not made twice. Whatever the error, trying goes on: the result is paid for.
    """

    def __init__(self, channel: HubChannel, end: dict[str, Any]) -> None:
        self._channel, self._end, self._tries = channel, end, 0
        self._files = {path: text.encode("utf-8", "replace") for path, text in end["files"].items()}

    def once(self) -> float | None:
        """One try. Seconds to wait before the next, None when the end is there."""
        marker = self._end["marker"]
        try:
            if not self._tries or self._channel.read(marker) != self._files[marker]:
                self._channel.commit(self._end["title"], self._files)
            return None
        except HubFailure as failure:
            print(f"flashd: end not committed: {failure}", flush=True)
            if failure.status in REFUSED_CONTENT and self._tries:
                self._files = {path: body for path, body in self._files.items() if not path.endswith(".txt")}
            self._tries += 1
            return _pause(failure, self._tries)


def publish_end(channel: HubChannel, end: dict[str, Any], until: float) -> bool:
    """Commit a prepared end until it is there or `until` has passed."""
    commit = EndCommit(channel, end)
    while (pause := commit.once()) is not None:
        left = until - channel.now()
        if left <= 0:
            return False
        time.sleep(min(pause, left))
    return True


def _pause(failure: HubFailure, tries: int) -> float:
    if failure.retry_after_s:
        return min(failure.retry_after_s, MAX_RETRY_AFTER_S)
    longest = MAX_SLOW_PAUSE_S if failure.status in SLOW_RETRY else MAX_PAUSE_S
    return float(min(longest, 2.0 ** min(tries, 10)) * random.uniform(0.5, 1.0) * PACE)


def _failure(error: urllib.error.HTTPError) -> HubFailure:
    code = error.headers.get("X-Error-Code") or ""
    text = error.headers.get("X-Error-Message") or ""
    with contextlib.suppress(OSError, http.client.HTTPException):
        text = text or error.read(500).decode("utf-8", "replace")
    status = error.code
    if status == 404 and code != "EntryNotFound":
        status = 403  # the repository or its branch cannot be seen: nothing is known about the file
    try:
        retry_after_s = max(0.0, float(error.headers.get("Retry-After") or 0))
    except ValueError:
        retry_after_s = 0.0
    return HubFailure(f"{code} {text}".strip()[:500], status, retry_after_s)


def _read_whole(answer: http.client.HTTPResponse) -> bytes:
    give_up_at = time.monotonic() + 2 * TIMEOUT_S  # a server that trickles would outlive every socket timeout
    chunks: list[bytes] = []
    while chunk := answer.read(65_536):
        chunks.append(chunk)
        if time.monotonic() > give_up_at or sum(map(len, chunks)) > MAX_READ_BYTES:
            raise HubFailure("the answer is too slow or too large")
    return b"".join(chunks)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects as usual, but the token goes to no other host."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        following = super().redirect_request(req, fp, code, msg, headers, newurl)
        if following is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            following.remove_header("Authorization")
        return following
