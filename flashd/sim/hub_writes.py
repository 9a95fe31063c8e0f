"""What the simulated Hub does for writers: preupload, commit, LFS storage, creating and squashing repositories."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import yaml
from aiohttp import web

from flashd.sim.hub import SimHub
from flashd.sim.hub_git import Blob, lfs_blob, regular_blob
from flashd.sim.hub_reads import Json, blob_response, is_true, repo_key
from flashd.sim.hub_repo import GITATTRIBUTES, Change, Commit, HubRefusal, Repo, RepoKind

LFS_SUFFIXES = tuple(line.split()[0].removeprefix("*") for line in GITATTRIBUTES.splitlines())
LFS_JSON = "application/vnd.git-lfs+json"


@dataclass(slots=True)
class CommitRequest:
    """The ndjson of a commit, parsed."""

    title: str
    description: str
    parent: str | None
    add: dict[str, Blob] = field(default_factory=dict)
    delete_files: list[str] = field(default_factory=list)
    delete_folders: list[str] = field(default_factory=list)


class HubWrites:
    """Handlers that change the Hub. Nothing is done before everything asked for has been checked."""

    def __init__(self, hub: SimHub) -> None:
        self._hub = hub

    def routes(self) -> list[web.RouteDef]:
        api = "/api/{kind:datasets|models}/{ns}/{name}"
        lfs = ".git/info/lfs/objects/"
        return [
            web.post(api + "/preupload/{rev}", self.preupload),
            web.post(api + "/commit/{rev}", self.commit),
            web.post(api + "/super-squash/{rev}", self.squash),
            web.post("/datasets/{ns}/{name}" + lfs + "batch", self.lfs_batch),
            web.post("/datasets/{ns}/{name}" + lfs + "verify", self.lfs_verify),
            web.put("/_lfs/{ns}/{name}/{oid}", self.lfs_put),
            web.get("/_lfs/{oid}", self.lfs_get),
            web.post("/api/repos/create", self.create),
            web.post("/api/validate-yaml", self.validate_yaml),
        ]

    async def preupload(self, request: web.Request) -> web.Response:
        repo = self._writable(request)
        _check_branch(request)
        asked = await read_json(request)
        files = asked.get("files")
        if not isinstance(files, list):
            raise HubRefusal(400, "files must be a list")
        head = repo.head
        answer = [self._upload_mode(head, as_object(item)) for item in files]
        return web.json_response({"files": answer, "commitOid": head.id})

    async def commit(self, request: web.Request) -> web.Response:
        repo = self._writable(request)
        _check_branch(request)
        if is_true(request.query.get("create_pr", "")):
            raise HubRefusal(501, "Pull requests are not part of this simulation")
        asked = parse_commit(await request.read(), lambda oid, size: self._hub.stored_lfs_blob(repo, oid, size))
        done = await self._commit(repo, asked, self._caller_name(request))
        url = f"{request.url.origin()}/{repo.kind}s/{repo.id}/commit/{done.id}"
        return web.json_response({"success": True, "commitOid": done.id, "commitUrl": url, "hookOutput": ""})

    async def _commit(self, repo: Repo, asked: CommitRequest, user: str) -> Commit:
        if repo.committing:
            raise HubRefusal(409, "Another commit operation is in progress, please retry later")
        repo.check_parent(asked.parent)
        self._hub.commit_quota.check(repo.id, self._hub.now())
        repo.committing = True
        try:
            if self._hub.settings.commit_latency_s > 0:
                await asyncio.sleep(self._hub.settings.commit_latency_s)
            change = Change(asked.add, asked.delete_files, asked.delete_folders)
            done = repo.commit(change, asked.title, user, self._hub.now(), asked.description)
        finally:
            repo.committing = False
        self._hub.commit_quota.note(repo.id, self._hub.now())
        return done

    async def squash(self, request: web.Request) -> web.Response:
        repo = self._writable(request)
        _check_branch(request)
        message = (await read_json(request)).get("message")
        done = repo.squash(str(message or "Super-squash"), self._caller_name(request), self._hub.now())
        return web.json_response({"commitId": done.id})

    async def lfs_batch(self, request: web.Request) -> web.Response:
        repo = self._writable(request)
        objects = (await read_json(request)).get("objects")
        if not isinstance(objects, list):
            raise HubRefusal(400, "objects must be a list")
        answer = [self._lfs_actions(request, repo, as_object(item)) for item in objects]
        return web.json_response({"transfer": "basic", "objects": answer}, content_type=LFS_JSON)

    async def lfs_put(self, request: web.Request) -> web.Response:
        oid = self._signed_oid(request)
        repo = self._hub.repos.get((RepoKind.DATASET, f"{request.match_info['ns']}/{request.match_info['name']}"))
        data = await request.read()
        if repo is None or hashlib.sha256(data).hexdigest() != oid:
            raise HubRefusal(400, "The bytes do not have the announced SHA-256")
        repo.lfs[oid] = data
        return web.Response(headers={"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    async def lfs_verify(self, request: web.Request) -> web.Response:
        repo = self._writable(request)
        asked = await read_json(request)
        data = repo.lfs.get(str(asked.get("oid")))
        if data is None or len(data) != asked.get("size"):
            raise HubRefusal(404, "The object was not uploaded")
        return web.json_response({})

    async def lfs_get(self, request: web.Request) -> web.Response:
        data = self._hub.lfs_object(self._signed_oid(request))
        if data is None:
            raise HubRefusal(404, "No such object")
        return blob_response(request, lfs_blob(data), request.query.get("commit", ""))

    async def create(self, request: web.Request) -> web.Response:
        caller = self._hub.caller(request.headers.get("Authorization"))
        asked = await read_json(request)
        kind = RepoKind(str(asked.get("type", "model"))) if asked.get("type") in (None, *RepoKind) else None
        name = asked.get("name")
        if kind is None or not isinstance(name, str) or not name or "/" in name:
            raise HubRefusal(400, "name or type is not valid here (datasets and models only)")
        repo_id = f"{asked.get('organization') or caller.user}/{name}"
        url = f"{request.url.origin()}/{'datasets/' if kind is RepoKind.DATASET else ''}{repo_id}"
        private = asked.get("private") is True or asked.get("visibility") == "private"
        try:
            self._hub.create(kind, repo_id, private, caller)
        except HubRefusal as refusal:
            if refusal.status != 409:
                raise
            headers = {"X-Error-Message": refusal.message}
            return web.json_response({"error": refusal.message, "url": url}, status=409, headers=headers)
        return web.json_response({"url": url, "name": repo_id, "id": repo_id})

    async def validate_yaml(self, request: web.Request) -> web.Response:
        """Checks what stands between the first two `---` lines of a README."""
        parts = str((await read_json(request)).get("content", "")).split("---\n", 2)
        errors: list[Json] = []
        if len(parts) == 3 and not parts[0].strip():
            try:
                yaml.safe_load(parts[1])
            except yaml.YAMLError as error:
                errors.append({"message": f"Invalid YAML: {error}"})
        return web.json_response({"errors": errors, "warnings": []}, status=400 if errors else 200)

    def _writable(self, request: web.Request) -> Repo:
        return self._hub.writable(*repo_key(request), self._hub.caller(request.headers.get("Authorization")))

    def _caller_name(self, request: web.Request) -> str:
        return self._hub.caller(request.headers.get("Authorization")).user

    def _signed_oid(self, request: web.Request) -> str:
        oid = request.match_info["oid"]
        if request.query.get("signature") != self._hub.lfs_signature(oid):
            raise HubRefusal(403, "The signature of this storage URL is not valid")
        return oid

    def _upload_mode(self, head: Commit, item: Json) -> Json:
        path, size = item.get("path"), item.get("size")
        if not isinstance(path, str) or not isinstance(size, int):
            raise HubRefusal(400, "every file needs a path and a size")
        sample = _decode(str(item.get("sample", "")))
        is_lfs = size >= self._hub.settings.lfs_from_bytes or path.endswith(LFS_SUFFIXES) or b"\0" in sample
        answer: Json = {"path": path, "uploadMode": "lfs" if is_lfs else "regular", "shouldIgnore": False}
        entry = head.files.get(path)
        if entry is not None:
            answer["oid"] = entry.blob.etag
        return answer

    def _lfs_actions(self, request: web.Request, repo: Repo, item: Json) -> Json:
        oid, size = item.get("oid"), item.get("size")
        if not isinstance(oid, str) or not isinstance(size, int):
            raise HubRefusal(400, "every object needs an oid and a size")
        if oid in repo.lfs:
            return {"oid": oid, "size": size}
        base = request.url.origin()
        put = f"{base}/_lfs/{repo.id}/{oid}?signature={self._hub.lfs_signature(oid)}"
        verify = f"{base}/datasets/{repo.id}.git/info/lfs/objects/verify"
        return {
            "oid": oid,
            "size": size,
            "authenticated": True,
            "actions": {"upload": {"href": put}, "verify": {"href": verify}},
        }


def parse_commit(body: bytes, stored: Callable[[str, int | None], Blob]) -> CommitRequest:
    """Parse the ndjson; `stored` gives the blob of an LFS object or refuses. Raises HubRefusal 400."""
    lines = _lines(body)
    key, value = next(lines, ("", {}))
    if key != "header" or not isinstance(value.get("summary"), str):
        raise HubRefusal(400, "The first line of a commit must be a header with a summary")
    parent = value.get("parentCommit")
    asked = CommitRequest(str(value["summary"]), str(value.get("description") or ""), str(parent) if parent else None)
    for key, value in lines:
        path = value.get("path")
        if not isinstance(path, str):
            raise HubRefusal(400, f"A {key} line without a path")
        match key:
            case "file":
                asked.add[path] = regular_blob(_content(value))
            case "lfsFile":
                size = value.get("size")
                asked.add[path] = stored(str(value.get("oid")), size if isinstance(size, int) else None)
            case "deletedFile":
                asked.delete_files.append(path)
            case "deletedFolder":
                asked.delete_folders.append(path)
            case _:
                raise HubRefusal(400, f"Unknown key in a commit: {key!r}")
    return asked


async def read_json(request: web.Request) -> Json:
    try:
        return as_object(json.loads(await request.read()))
    except ValueError as error:
        raise HubRefusal(400, f"The body is not JSON: {error}") from error


def as_object(value: object) -> Json:
    if not isinstance(value, dict):
        raise HubRefusal(400, "A JSON object was expected")
    return value


def _lines(body: bytes) -> Iterator[tuple[str, Json]]:
    for number, line in enumerate(body.splitlines(), 1):
        if not line.strip():
            continue
        try:
            item = as_object(json.loads(line))
        except ValueError as error:
            raise HubRefusal(400, f"Line {number} is not JSON: {error}") from error
        yield str(item.get("key")), as_object(item.get("value"))


def _content(value: Json) -> bytes:
    content = str(value.get("content", ""))
    return _decode(content) if value.get("encoding") == "base64" else content.encode()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise HubRefusal(400, f"Not base64: {error}") from error


def _check_branch(request: web.Request) -> None:
    branch = request.match_info["rev"]
    if branch not in ("main", "refs/heads/main"):
        raise HubRefusal(404, f"Invalid rev id: {branch}", "RevisionNotFound")
