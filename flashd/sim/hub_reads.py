"""What the simulated Hub answers to readers: files, trees, commits, refs, information about a repository."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from aiohttp import web

from flashd.sim.hub import SimHub
from flashd.sim.hub_git import Blob
from flashd.sim.hub_repo import Commit, Entry, HubRefusal, Repo, RepoKind

MAX_PATHS = 1_000
Json = dict[str, object]


class HubReads:
    """Handlers without effect on the Hub. Those that name `main` see it as late as `read_lag_s` says."""

    def __init__(self, hub: SimHub) -> None:
        self._hub = hub

    def routes(self) -> list[web.RouteDef]:
        api = "/api/{kind:datasets|models}/{ns}/{name}"
        cache = "/api/resolve-cache/{kind:datasets|models}/{ns}/{name}/{rev}/{path:.+}"
        return [
            web.get("/datasets/{ns}/{name}/resolve/{rev}/{path:.+}", self.resolve),
            web.get("/{ns}/{name}/resolve/{rev}/{path:.+}", self.resolve),
            web.get(cache, self.resolve_cache),
            web.get(api, self.info),
            web.get(api + "/revision/{rev}", self.info),
            web.get(api + "/refs", self.refs),
            web.get(api + "/commits/{rev}", self.commits),
            web.get(api + "/tree/{rev}", self.tree),
            web.get(api + "/tree/{rev}/{path:.+}", self.tree),
            web.post(api + "/paths-info/{rev}", self.paths_info),
            web.get("/api/whoami-v2", self.whoami),
            web.get("/api/agent-harnesses", self.agent_harnesses),
        ]

    async def resolve(self, request: web.Request) -> web.Response:
        """Three shapes: 302 to the storage for LFS, the bytes for private repositories, 307 to a pinned copy else."""
        repo, commit = self._at(request)
        path = request.match_info["path"]
        entry = _entry(commit, path)
        blob = entry.blob
        headers = {"X-Repo-Commit": commit.id, "ETag": f'"{blob.etag}"'}
        if blob.sha256 is not None:
            headers |= {"X-Linked-Etag": f'"{blob.sha256}"', "X-Linked-Size": str(blob.size)}
            signature = self._hub.lfs_signature(blob.sha256)
            # Same origin, so the client follows it and reads X-Repo-Commit from the target: it must be repeated there.
            target = f"{request.url.origin()}/_lfs/{blob.sha256}?signature={signature}&commit={commit.id}"
            return web.Response(status=302, headers=headers | {"Location": target})
        if repo.private:
            return blob_response(request, blob, commit.id)
        target = f"/api/resolve-cache/{repo.kind}s/{repo.id}/{commit.id}/{quote(path)}"
        return web.Response(status=307, headers=headers | {"Location": target})

    async def resolve_cache(self, request: web.Request) -> web.Response:
        _, commit = self._at(request)
        return blob_response(request, _entry(commit, request.match_info["path"]).blob, commit.id)

    async def info(self, request: web.Request) -> web.Response:
        repo, commit = self._at(request)
        with_blobs = is_true(request.query.get("blobs", ""))
        oldest = repo.commits[0]
        return web.json_response(
            {
                "_id": oldest.id[:24],
                "id": repo.id,
                "author": repo.id.partition("/")[0],
                "sha": commit.id,
                "createdAt": oldest.date,
                "lastModified": commit.date,
                "private": repo.private,
                "gated": False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [_sibling(path, entry.blob, with_blobs) for path, entry in sorted(commit.files.items())],
            }
        )

    async def refs(self, request: web.Request) -> web.Response:
        _, commit = self._at(request)
        main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit.id}
        return web.json_response({"branches": [main], "tags": [], "converts": [], "pullRequests": []})

    async def commits(self, request: web.Request) -> web.Response:
        repo, commit = self._at(request)
        size = _number(request, "limit", self._hub.settings.commits_page, self._hub.settings.commits_page)
        page = _number(request, "p", 0, None)
        history = repo.history(commit)
        items: list[Json] = [
            {
                "id": one.id,
                "title": one.title,
                "message": one.description,
                "authors": [{"user": one.user}],
                "date": one.date,
            }
            for one in history[page * size : (page + 1) * size]
        ]
        more = len(history) > (page + 1) * size
        return _page(request, items, {"p": str(page + 1)} if more else None)

    async def tree(self, request: web.Request) -> web.Response:
        repo, commit = self._at(request)
        folder = request.match_info.get("path", "").strip("/")
        recursive, expand = (is_true(request.query.get(key, "")) for key in ("recursive", "expand"))
        trees = commit.trees()
        if folder and folder not in trees:
            raise HubRefusal(
                404, f"{folder} does not exist on this revision", "EntryNotFound", {"X-Repo-Commit": commit.id}
            )
        start = f"{folder}/" if folder else ""
        paths = [path for path in (*commit.files, *trees) if path.startswith(start) and path not in ("", folder)]
        if not recursive:
            paths = [path for path in paths if "/" not in path[len(start) :]]
        paths.sort()
        settings = self._hub.settings
        largest = settings.tree_page_expanded if expand else settings.tree_page
        size = _number(request, "limit", largest, largest)
        after = request.query.get("cursor", "")
        rest = [path for path in paths if path > after] if after else paths
        page = rest[:size]
        items = [self._tree_item(repo, commit, trees, path, expand) for path in page]
        return _page(request, items, {"cursor": page[-1]} if len(rest) > size else None)

    async def paths_info(self, request: web.Request) -> web.Response:
        repo, commit = self._at(request)
        paths, expand = await _paths_asked(request)
        if len(paths) > MAX_PATHS:
            raise HubRefusal(413, "too many parameters")
        trees = commit.trees()
        known = [path for path in (raw.strip("/") for raw in paths) if path in commit.files or (path and path in trees)]
        return web.json_response([self._tree_item(repo, commit, trees, path, expand) for path in known])

    async def whoami(self, request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization")
        if authorization is None:
            raise HubRefusal(401, "Invalid username or password.")
        caller = self._hub.caller(authorization)
        token = {"displayName": caller.user, "role": caller.role}
        return web.json_response(
            {
                "type": "user",
                "name": caller.user,
                "fullname": caller.user,
                "orgs": [],
                "auth": {"type": "access_token", "accessToken": token},
            }
        )

    async def agent_harnesses(self, _: web.Request) -> web.Response:
        """Asked by each client process that has no fresh copy, for its user agent header; none are known here."""
        return web.json_response({"standardEnvVars": [], "harnesses": {}})

    def _at(self, request: web.Request) -> tuple[Repo, Commit]:
        repo = self._hub.visible(*repo_key(request), self._hub.caller(request.headers.get("Authorization")))
        return repo, repo.resolve(request.match_info.get("rev", "main"), self._hub.read_head(repo))

    def _tree_item(self, repo: Repo, commit: Commit, trees: Mapping[str, str], path: str, expand: bool) -> Json:
        entry = commit.files.get(path)
        item: Json = (
            {"type": "directory", "oid": trees[path], "size": 0, "path": path}
            if entry is None
            else {"type": "file", "oid": entry.blob.oid, "size": entry.blob.size, "path": path}
        )
        if entry is not None and entry.blob.sha256 is not None:
            item["lfs"] = {
                "oid": entry.blob.sha256,
                "size": entry.blob.size,
                "pointerSize": entry.blob.pointer_size,
            }
        if expand:
            last = _last_change(repo, commit, path)
            item["lastCommit"] = {"id": last.id, "title": last.title, "date": last.date}
        return item


def repo_key(request: web.Request) -> tuple[RepoKind, str]:
    """Which repository a URL means; the pages of models have no prefix, those of datasets do."""
    in_path = request.match_info.get("kind") or ("datasets" if request.path.startswith("/datasets/") else "models")
    return RepoKind(in_path.removesuffix("s")), f"{request.match_info['ns']}/{request.match_info['name']}"


def blob_response(request: web.Request, blob: Blob, commit: str) -> web.Response:
    """The bytes, or the part that a resumed download asks for, or 304."""
    etag = f'"{blob.etag}"'
    headers = {"X-Repo-Commit": commit, "ETag": etag, "Accept-Ranges": "bytes"}
    if request.headers.get("If-None-Match") == etag:
        return web.Response(status=304, headers=headers)
    kind = "text/plain" if b"\0" not in blob.data[:512] else "application/octet-stream"
    wanted = request.http_range
    if wanted.start is None and wanted.stop is None:
        # The size is stated for an empty file too, which the server would leave out in an answer to HEAD.
        headers["Content-Length"] = str(blob.size)
        return web.Response(body=blob.data, headers=headers, content_type=kind)
    part = blob.data[wanted]
    if not part:
        return web.Response(status=416, headers=headers | {"Content-Range": f"bytes */{blob.size}"})
    first = wanted.indices(blob.size)[0]
    headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{blob.size}"
    return web.Response(status=206, body=part, headers=headers, content_type=kind)


def is_true(text: str) -> bool:
    return text.lower() in ("true", "1")


def _entry(commit: Commit, path: str) -> Entry:
    entry = commit.files.get(path)
    if entry is None:
        raise HubRefusal(404, "Entry not found", "EntryNotFound", {"X-Repo-Commit": commit.id})
    return entry


def _last_change(repo: Repo, commit: Commit, path: str) -> Commit:
    for one in repo.history(commit):
        if any(changed == path or changed.startswith(f"{path}/") for changed in one.changed):
            return one
    return commit


def _sibling(path: str, blob: Blob, with_blobs: bool) -> Json:
    item: Json = {"rfilename": path}
    if with_blobs:
        item |= {"size": blob.size, "blobId": blob.oid}
        if blob.sha256 is not None:
            item["lfs"] = {"size": blob.size, "sha256": blob.sha256, "pointerSize": blob.pointer_size}
    return item


def _page(request: web.Request, items: list[Json], next_query: Mapping[str, str] | None) -> web.Response:
    headers = {}
    if next_query is not None:
        headers["Link"] = f'<{request.url.update_query(next_query)}>; rel="next"'
    return web.json_response(items, headers=headers)


def _number(request: web.Request, key: str, default: int, largest: int | None) -> int:
    raw = request.query.get(key)
    if raw is None:
        return default
    if not raw.isdecimal():
        raise HubRefusal(400, f"{key} must be a number, not {raw!r}")
    return int(raw) if largest is None else max(1, min(int(raw), largest))


async def _paths_asked(request: web.Request) -> tuple[list[str], bool]:
    if request.content_type != "application/json":
        form = await request.post()
        return [str(path) for path in form.getall("paths", [])], is_true(str(form.get("expand", "")))
    try:
        asked: object = json.loads(await request.read())
    except ValueError as error:
        raise HubRefusal(400, f"The body is not JSON: {error}") from error
    paths = asked.get("paths") if isinstance(asked, dict) else None
    if not isinstance(asked, dict) or not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise HubRefusal(400, "paths must be a list of strings")
    return paths, asked.get("expand") is True
