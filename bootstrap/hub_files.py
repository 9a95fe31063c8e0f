"""Folders from and to the Hub through `huggingface_hub` (0.30 or newer), as a child process that can be killed.

`python3 box.zip hub_files fetch|push|preload` reads one JSON object from the environment variable FLASH_HUB_FILES.
Exit status: 0 done, 2 not there, 3 no usable library, 4 the Hub will never do it, 5 done before, 1 anything else.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bootstrap.job import PACE

ABSENT, NO_LIBRARY, REFUSED, ALREADY = 2, 3, 4, 5
NEVER = {"push": (400, 413, 422), "preload": (401, 403, 404)}  # answers that no repetition changes
IGNORED_WEIGHTS = ["*.pth", "*.gguf", "original/*", "*.onnx", "*.msgpack", "*.h5"]  # the same weights once more
CONNECT_S, READ_S = 10.0, 60.0 * PACE
PARALLEL = 8
FULL_SHA = re.compile(r"[0-9a-f]{40}")
CHECKPOINT_NAME = re.compile(r"a(\d+)-(\d+)")


class NotThere(Exception):
    """The Hub proved that there is nothing under this path."""


class Incomplete(Exception):
    """What lies on the Hub, or here, is not what was sent."""


def bound_every_call() -> None:
    """Give every HTTP call of the library a timeout; by default commit, tree and info wait for ever.

    A default of the client would not do: several calls pass `timeout=None` themselves (huggingface_hub 2.4.0).
    """
    import huggingface_hub
    from huggingface_hub.utils import _http

    library: Any = huggingface_hub
    if hasattr(library, "set_client_factory"):  # 1.0 and newer
        make_client: Any = _http.default_client_factory

        def client() -> Any:
            made = make_client()  # the library's own, with its request hook
            hooks = made.event_hooks
            made.event_hooks = {**hooks, "request": [*hooks.get("request", []), _limit]}
            return made

        library.set_client_factory(client)
    else:
        make_session: Any = vars(_http)["_default_backend_factory"]

        def session() -> Any:
            made = make_session()
            plain = made.request
            made.request = lambda *args, timeout=None, **more: plain(
                *args, timeout=timeout or (CONNECT_S, READ_S), **more
            )
            return made

        library.configure_http_backend(session)


def _limit(request: Any) -> None:
    limits = {"connect": CONNECT_S, "read": READ_S, "write": READ_S, "pool": CONNECT_S}
    asked = request.extensions.get("timeout") or {}
    request.extensions = {
        **request.extensions,
        "timeout": {name: asked.get(name) or limit for name, limit in limits.items()},
    }


def fetch(job: dict[str, Any]) -> dict[str, Any]:
    """The folder `path` of `repo` at `revision` into `into`, replacing it. Only that folder is listed and read.

    With `newest` true, `path` holds checkpoints `a<attempt>-<step>` and the furthest of them is taken.
    """
    api = _api()
    revision = job["revision"]
    if not FULL_SHA.fullmatch(revision):
        revision = api.repo_info(job["repo"], repo_type="dataset", revision=revision).sha
    path = _newest(api, job["repo"], revision, job["path"]) if job.get("newest") else job["path"]
    files = _listing(api, job["repo"], revision, path)
    if not files:
        raise NotThere(f"no files under {path!r} in dataset {job['repo']} at {revision}")
    into = Path(job["into"])
    scratch = into.with_name(into.name + ".fetching")
    shutil.rmtree(scratch, ignore_errors=True)

    def one(name: str) -> None:
        got = api.hf_hub_download(job["repo"], name, repo_type="dataset", revision=revision, local_dir=scratch)
        if Path(got).stat().st_size != files[name]:
            raise Incomplete(f"{name} has {Path(got).stat().st_size} bytes here, {files[name]} on the Hub")

    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(one, files))
    shutil.rmtree(into, ignore_errors=True)
    into.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(scratch / ".cache", ignore_errors=True)  # the library's own records
    (scratch / path).replace(into)
    shutil.rmtree(scratch, ignore_errors=True)
    return {"path": path, "revision": revision, "files": len(files)}


def push(job: dict[str, Any]) -> dict[str, Any]:
    """The local folder `folder` to `path` in one commit, then a look whether all of it is there.

    `extra`: small files (path -> text) in the same commit. `prune` true: the siblings of `path` go in the same commit.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api = _api()
    folder = Path(job["folder"])
    local = {f"{job['path']}/{file.relative_to(folder).as_posix()}": file for file in _regular_files(folder)}
    operations: list[Any] = [CommitOperationAdd(name, file) for name, file in sorted(local.items())]
    operations += [CommitOperationAdd(name, text.encode()) for name, text in job.get("extra", {}).items()]
    if job.get("prune"):
        operations += [CommitOperationDelete(f"{name}/", is_folder=True) for name in _siblings(api, job)]
    sizes = {name: file.stat().st_size for name, file in local.items()}
    done = api.create_commit(job["repo"], operations, commit_message=job["title"], repo_type="dataset")
    there = _listing(api, job["repo"], done.oid, job["path"])
    wrong = [name for name, size in sizes.items() if there.get(name) != size]
    if wrong:
        raise Incomplete(f"{len(wrong)} files are not on the Hub as they are here, e.g. {wrong[0]}")
    return {"commit": done.oid, "files": len(local)}


def preload(job: dict[str, Any]) -> dict[str, Any]:
    """The model `model`, whole, into the cache directory `into`; files of another size than the Hub's are replaced."""
    api, model = _api(), job["model"]
    revision = api.repo_info(model).sha
    sizes = _listing(api, model, revision, "", "model")
    wanted = {name: sizes[name] for name in sizes if not any(fnmatch(name, one) for one in IGNORED_WEIGHTS)}
    home = Path(job["into"], f"models--{model.replace('/', '--')}")
    folder, head = home / "snapshots" / revision, home / "refs/main"
    wrong = _wrong(folder, wanted)
    if not wrong and head.is_file() and head.read_text() == revision:
        return {"already": True}
    for name in wrong:
        (folder / name).resolve().unlink(missing_ok=True)  # else it would be taken for the file by its name
    api.snapshot_download(model, cache_dir=job["into"], ignore_patterns=IGNORED_WEIGHTS)
    wrong = _wrong(folder, wanted)
    if wrong:
        raise Incomplete(f"{len(wrong)} files of {model} are not here as they are on the Hub, e.g. {wrong[0]}")
    return {"files": len(wanted)}


def _wrong(folder: Path, sizes: dict[str, int]) -> list[str]:
    return [
        name for name, size in sizes.items() if not (folder / name).is_file() or (folder / name).stat().st_size != size
    ]


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(endpoint=os.environ["HF_ENDPOINT"], token=os.environ["HF_TOKEN"])


def _listing(api: Any, repo: str, revision: str, path: str, kind: str = "dataset") -> dict[str, int]:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        tree = api.list_repo_tree(repo, path or None, recursive=True, revision=revision, repo_type=kind)
        return {entry.path: entry.size for entry in tree if hasattr(entry, "size")}
    except EntryNotFoundError:
        return {}


def _checkpoints(api: Any, repo: str, revision: str, path: str) -> dict[tuple[int, int], str]:
    from huggingface_hub.errors import EntryNotFoundError

    try:
        names = [entry.path for entry in api.list_repo_tree(repo, path, revision=revision, repo_type="dataset")]
    except EntryNotFoundError:
        return {}
    found = [(CHECKPOINT_NAME.fullmatch(name.rpartition("/")[2]), name) for name in names]
    return {(int(match[2]), int(match[1])): name for match, name in found if match}


def _newest(api: Any, repo: str, revision: str, path: str) -> str:
    checkpoints = _checkpoints(api, repo, revision, path)
    if not checkpoints:
        raise NotThere(f"no checkpoint under {path!r}")
    return checkpoints[max(checkpoints)]


def _siblings(api: Any, job: dict[str, Any]) -> list[str]:
    parent = job["path"].rpartition("/")[0]
    return sorted(set(_checkpoints(api, job["repo"], "main", parent).values()) - {job["path"]})


def _regular_files(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.rglob("*")) if file.is_file()]


def main() -> int:
    try:
        bound_every_call()
    except ImportError as error:
        print(f"huggingface_hub cannot be used: {error}")
        return NO_LIBRARY
    try:
        job = json.loads(os.environ["FLASH_HUB_FILES"])
        answer = {"fetch": fetch, "push": push, "preload": preload}[sys.argv[1]](job)
    except NotThere as error:
        print(error)
        return ABSENT
    except Exception as error:  # the top of this process: whatever it was, the box tries again or says so
        print(f"{type(error).__name__}: {' '.join(str(error).split())}")
        status = getattr(getattr(error, "response", None), "status_code", 0)
        bad_name = type(error) is ValueError  # not its subclasses: an unreadable answer is one of those
        never = NEVER.get(sys.argv[1])
        return REFUSED if never and (status in never or bad_name) else 1
    print(json.dumps(answer), flush=True)
    return ALREADY if answer.get("already") else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # library threads may hang at exit
