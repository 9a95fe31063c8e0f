"""The Hub's client: pinned three-valued reads, the commit list, small commits. Plain requests, nothing on disk.

Source of paths and bodies: what huggingface_hub 2.4.0 sends, and https://huggingface.co/docs/hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from types import TracebackType
from urllib.parse import quote

from flashd.adapters.clock import Clock
from flashd.adapters.hub import Absent, CommitPage, Present, Quota, ReadAnswer, TooLarge
from flashd.adapters.hub_answers import (
    Answer,
    CommitAnswer,
    PathRow,
    PreuploadAnswer,
    RevisionAnswer,
    checked_sha,
    commit_page,
    decode,
    error_of,
)
from flashd.adapters.hub_session import COMMIT_TIMEOUT_S, Ask, HubSession
from flashd.errors import HubError, HubForbiddenError, HubRepoMissingError, HubUnavailableError

PATHS_MAX = 500  # in one paths-info request; what the official client uses for its own batches
SAMPLE_BYTES = 512
JSON = "application/json"
PROBE = "flashd-write-probe.txt"  # asked about in a preupload, never committed


class HttpHub:
    """`flashd.adapters.hub.Hub` over HTTP. `on_request(kind, code)` counts every request; code 0 = no answer."""

    def __init__(
        self, endpoint: str, token: Callable[[], str], clock: Clock, on_request: Callable[[str, int], None]
    ) -> None:
        self._session = HubSession(endpoint, token, clock, on_request)
        self._clock = clock

    async def __aenter__(self) -> HttpHub:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections; harmless when repeated."""
        await self._session.close()

    def quota(self) -> Quota | None:
        return self._session.quota

    async def commits(self, repo: str, cursor: str | None = None) -> CommitPage:
        ask = Ask("commits", "GET", f"{_api(repo)}/commits/main", query=cursor or "", fine=(200, 404))
        answer = await self._session.send(ask)
        if answer.status == 404:
            if answer.error_code == "RevisionNotFound":  # the repository is there, without a single commit
                return CommitPage((), None)
            raise error_of(answer, self._clock.now(), writes=False)
        return commit_page(answer)

    async def oids(self, repo: str, sha: str, paths: tuple[str, ...]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for start in range(0, len(paths), PATHS_MAX):
            form = (*(("paths", path) for path in paths[start : start + PATHS_MAX]), ("expand", "false"))
            answer = await self._session.send(Ask("paths-info", "POST", f"{_api(repo)}/paths-info/{sha}", form=form))
            found |= {row.path: row.oid for row in decode(answer, list[PathRow]) if row.type == "file"}
        return found

    async def read(self, repo: str, sha: str, path: str, max_bytes: int) -> ReadAnswer:
        where = f"/datasets/{quote(repo)}/resolve/{sha}/{quote(path)}"
        answer = await self._session.send(Ask("resolve", "GET", where, max_bytes=max_bytes, fine=(200, 404)))
        pinned = answer.headers.get("x-repo-commit", sha)
        if pinned != sha:
            raise HubUnavailableError(f"asked for {path} at {sha}, answered for {pinned[:60]}", answer.status)
        if answer.status == 404:
            if answer.error_code == "EntryNotFound":
                return Absent()
            raise error_of(answer, self._clock.now(), writes=False)
        return TooLarge(_size(answer)) if answer.cut else Present(answer.body)

    async def resolve(self, repo: str, revision: str) -> str | None:
        ask = Ask("revision", "GET", f"{_api(repo)}/revision/{quote(revision, safe='')}", fine=(200, 404))
        answer = await self._session.send(ask)
        if answer.status == 200:
            return checked_sha(decode(answer, RevisionAnswer).sha)
        if answer.error_code == "RevisionNotFound":
            return None
        raise error_of(answer, self._clock.now(), writes=False)

    async def ensure_repo(self, repo: str) -> None:
        owner, _, name = repo.partition("/")
        order = {"name": name, "organization": owner, "type": "dataset", "private": True}
        create = Ask("create", "POST", "/api/repos/create", body=_json(order), content_type=JSON, fine=(200, 201, 409))
        try:
            if (await self._session.send(create)).status != 409:
                return
        except HubForbiddenError as refusal:
            # Some tokens may write to a repository but create none, not even one that exists.
            try:
                await self._preupload(repo, {PROBE: b"-"})
            except HubRepoMissingError:
                raise refusal from None
            return
        await self._preupload(repo, {PROBE: b"-"})

    async def commit(self, repo: str, title: str, files: Mapping[str, bytes]) -> str:
        stored = await self._preupload(repo, files)
        if all(stored.get(path) == _blob_id(body) for path, body in files.items()):
            head = (await self.commits(repo)).commits
            if head:
                return head[0].id  # everything is there already: a repeat must not cost a commit of the quota
        lines: list[Mapping[str, object]] = [{"key": "header", "value": {"summary": title, "description": ""}}]
        for path, body in files.items():
            value = {"path": path, "encoding": "base64", "content": base64.b64encode(body).decode()}
            lines.append({"key": "file", "value": value})
        ask = Ask(
            "commit",
            "POST",
            f"{_api(repo)}/commit/main",
            body="\n".join(json.dumps(line) for line in lines).encode(),
            content_type="application/x-ndjson",
            timeout_s=COMMIT_TIMEOUT_S,
            writes=True,
        )
        return checked_sha(decode(await self._session.send(ask), CommitAnswer).commit_oid)

    async def _preupload(self, repo: str, files: Mapping[str, bytes]) -> Mapping[str, str | None]:
        """What the Hub has under these paths. Raises HubError for files that it wants through LFS or not at all."""
        rows = [
            {"path": path, "size": len(body), "sample": base64.b64encode(body[:SAMPLE_BYTES]).decode()}
            for path, body in files.items()
        ]
        where = f"{_api(repo)}/preupload/main"
        ask = Ask("preupload", "POST", where, body=_json({"files": rows}), content_type=JSON, writes=True)
        answer = decode(await self._session.send(ask), PreuploadAnswer)
        for row in answer.files:
            if row.upload_mode != "regular" or row.should_ignore:
                raise HubError(f"{repo} does not take {row.path} as a plain file (upload mode {row.upload_mode})")
        return {row.path: row.oid for row in answer.files}


def _api(repo: str) -> str:
    return f"/api/datasets/{quote(repo)}"


def _json(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode()


def _size(answer: Answer) -> int:
    for name in ("x-linked-size", "content-length"):
        told = answer.headers.get(name, "")
        if told.isascii() and told.isdecimal():
            return int(told[:18])
    return len(answer.body) + 1


def _blob_id(body: bytes) -> str:
    """The id that git gives to this content."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()
