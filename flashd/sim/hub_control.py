"""`/_sim/`: faults, settings and the whole truth of the simulated Hub, for those who cannot call it directly."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from aiohttp import web

from flashd.sim.hub import Role, SimHub, Token
from flashd.sim.hub_faults import Effect, Fault
from flashd.sim.hub_reads import Json
from flashd.sim.hub_repo import HubRefusal, Repo, RepoKind
from flashd.sim.hub_writes import as_object, read_json

_NUMBER_OR_NULL = (int, float, type(None))
_RULE_TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("effect", "method", "kind", "path", "body"), (str,)),
    **dict.fromkeys(("nth", "status"), (int,)),
    **dict.fromkeys(("until", "seconds"), _NUMBER_OR_NULL),
    **dict.fromkeys(("json", "headers"), (dict,)),
    "times": (int, type(None)),
    "probability": (int, float),
}


class HubControl:
    """Handlers of the control surface. They need no token, are not counted and never meet a fault."""

    def __init__(self, hub: SimHub) -> None:
        self._hub = hub

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/_sim/faults", self.faults),
            web.post("/_sim/faults", self.add_fault),
            web.delete("/_sim/faults", self.clear_faults),
            web.delete("/_sim/faults/{number:[0-9]+}", self.remove_fault),
            web.post("/_sim/down", self.down),
            web.post("/_sim/up", self.up),
            web.get("/_sim/settings", self.settings),
            web.patch("/_sim/settings", self.change_settings),
            web.post("/_sim/tokens", self.add_token),
            web.post("/_sim/repos", self.add_repo),
            web.post("/_sim/commit", self.commit),
            web.get("/_sim/requests", self.requests),
            web.get("/_sim/truth", self.truth),
        ]

    async def faults(self, _: web.Request) -> web.Response:
        rules = self._hub.faults.rules().items()
        return web.json_response([{"id": number, **dataclasses.asdict(rule)} for number, rule in rules])

    async def add_fault(self, request: web.Request) -> web.Response:
        return web.json_response({"id": self._hub.faults.add(parse_fault(await read_json(request)))}, status=201)

    async def clear_faults(self, _: web.Request) -> web.Response:
        self._hub.faults.clear()
        return web.json_response({})

    async def remove_fault(self, request: web.Request) -> web.Response:
        self._hub.faults.remove(int(request.match_info["number"]))
        return web.json_response({})

    async def down(self, request: web.Request) -> web.Response:
        """Body: `{}` for resets, `{"status": 503}` for answers."""
        status = (await read_json(request)).get("status")
        self._hub.down(status if isinstance(status, int) else None)
        return web.json_response({})

    async def up(self, _: web.Request) -> web.Response:
        self._hub.up()
        return web.json_response({})

    async def settings(self, _: web.Request) -> web.Response:
        return web.json_response(dataclasses.asdict(self._hub.settings))

    async def change_settings(self, request: web.Request) -> web.Response:
        known = dataclasses.asdict(self._hub.settings)
        asked = await read_json(request)
        for key, value in asked.items():
            kinds = (int,) if isinstance(known.get(key), int) else (int, float)
            if key not in known or isinstance(value, bool) or not isinstance(value, kinds) or value < 0:
                raise HubRefusal(400, f"{key}: known are {', '.join(known)}, and values are numbers from 0")
        for key, value in asked.items():
            setattr(self._hub.settings, key, value)
        return await self.settings(request)

    async def add_token(self, request: web.Request) -> web.Response:
        """Body: `{"token", "user", "role": "read" or "write", "repos": [patterns], "may_create"}`."""
        asked = await read_json(request)
        secret, user, repos = asked.get("token"), asked.get("user"), asked.get("repos", ["*"])
        role = asked.get("role", Role.WRITE)
        if not isinstance(secret, str) or not isinstance(user, str) or not isinstance(repos, list):
            raise HubRefusal(400, "token and user must be strings, repos a list")
        if role not in tuple(Role):
            raise HubRefusal(400, f"role must be one of {', '.join(Role)}")
        may_create = asked.get("may_create", True) is True
        self._hub.add_token(secret, Token(user, Role(str(role)), tuple(map(str, repos)), may_create))
        return web.json_response({}, status=201)

    async def add_repo(self, request: web.Request) -> web.Response:
        """Body: `{"repo": "owner/name", "private", "kind": "dataset" or "model"}`."""
        asked = await read_json(request)
        repo_id, kind = asked.get("repo"), str(asked.get("kind", RepoKind.DATASET))
        if not isinstance(repo_id, str) or repo_id.count("/") != 1 or kind not in tuple(RepoKind):
            raise HubRefusal(400, "repo must be owner/name and kind dataset or model")
        repo = self._hub.add_repo(repo_id, private=asked.get("private", True) is True, kind=RepoKind(kind))
        return web.json_response({"head": repo.head.id}, status=201)

    async def commit(self, request: web.Request) -> web.Response:
        """Body: `{"repo", "title", "files": {path: text}, "delete": [paths]}`; past tokens and quotas."""
        asked = await read_json(request)
        repo_id, files = str(asked.get("repo")), as_object(asked.get("files", {}))
        if (RepoKind.DATASET, repo_id) not in self._hub.repos:
            raise HubRefusal(404, f"No dataset repository {repo_id}")
        delete = asked.get("delete", [])
        paths = [str(path) for path in delete] if isinstance(delete, list) else []
        texts = {path: str(text) for path, text in files.items()}
        done = self._hub.commit(repo_id, texts, str(asked.get("title", "simulated commit")), paths)
        return web.json_response({"commit": done.id}, status=201)

    async def requests(self, _: web.Request) -> web.Response:
        """Counts by kind and status; status 0 = the client got no answer."""
        counts: dict[str, dict[str, int]] = {}
        for (kind, status), count in sorted(self._hub.requests.items()):
            counts.setdefault(kind, {})[str(status)] = count
        now = self._hub.now()
        hours = {repo.id: self._hub.commit_quota.last_hour(repo.id, now) for repo in self._hub.repos.values()}
        return web.json_response({"requests": counts, "commits_last_hour": hours})

    async def truth(self, request: web.Request) -> web.Response:
        """Every repository with all commits and the files at its true head; `?repo=` one, `?content=1` with texts."""
        only, content = request.query.get("repo"), request.query.get("content") == "1"
        repos = [repo for repo in self._hub.repos.values() if only in (None, repo.id)]
        return web.json_response({"now": self._hub.now(), "repos": [repo_truth(repo, content) for repo in repos]})


def parse_fault(asked: Mapping[str, object]) -> Fault:
    """A rule from JSON; the keys are the fields of `Fault`. Raises HubRefusal 400."""
    unknown = sorted(set(asked) - _RULE_TYPES.keys())
    if unknown or asked.get("effect") not in tuple(Effect):
        raise HubRefusal(400, f"effect must be one of {', '.join(Effect)}; unknown keys: {unknown}")
    for name, value in asked.items():
        kinds = _RULE_TYPES[name]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise HubRefusal(400, f"{name} must be of type {' or '.join(kind.__name__ for kind in kinds)}")
    try:
        return Fault(**{**asked, "effect": Effect(str(asked["effect"]))})  # type: ignore[arg-type]
    except (TypeError, ValueError, re.error) as error:
        raise HubRefusal(400, f"Not a usable rule: {error}") from error


def repo_truth(repo: Repo, content: bool) -> Json:
    files: dict[str, Json] = {}
    for path, entry in sorted(repo.head.files.items()):
        files[path] = {"size": entry.blob.size, "oid": entry.blob.oid, "commit": entry.commit, "lfs": entry.blob.sha256}
        if content and entry.blob.sha256 is None:
            files[path]["text"] = entry.blob.data.decode(errors="replace")
    return {
        "repo": repo.id,
        "kind": repo.kind,
        "private": repo.private,
        "head": repo.head.id,
        "files": files,
        "commits": [
            {
                "id": one.id,
                "parent": one.parent,
                "title": one.title,
                "user": one.user,
                "time": one.time,
                "changed": list(one.changed),
            }
            for one in repo.commits
        ],
    }
