"""A repository of the simulated Hub: commits, the files at each of them, and what a change may do.

Pure state, no HTTP. Source of the behaviour: huggingface_hub 2.4.0 and the Hub's documentation, as gathered in the
project's notes on the Hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from flashd.sim.hub_git import Blob, commit_id, regular_blob, tree_ids

MAX_REGULAR_BYTES = 10_000_000
MIN_SHORT_SHA = 7
GITATTRIBUTES = "".join(
    f"{pattern} filter=lfs diff=lfs merge=lfs -text\n"
    for pattern in ("*.bin", "*.pt", "*.safetensors", "*.tar", "*.zip")
)


class HubRefusal(Exception):
    """An answer other than 2xx: the status, the Hub's error code (may be empty) and the text for people."""

    def __init__(self, status: int, message: str, code: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.message = message
        self.code = code
        self.headers = dict(headers or {})


class RepoKind(StrEnum):
    DATASET = "dataset"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file at some commit, with the commit that last changed its bytes."""

    blob: Blob
    commit: str


@dataclass(frozen=True, slots=True)
class Change:
    """What one commit does, checked as a whole before anything is done. Deletions happen first."""

    add: Mapping[str, Blob] = field(default_factory=dict)
    delete_files: Sequence[str] = ()
    delete_folders: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Commit:
    id: str
    parent: str | None
    title: str
    description: str
    user: str
    time: float
    files: Mapping[str, Entry]
    changed: tuple[str, ...]

    @property
    def date(self) -> str:
        """RFC 3339 in whole seconds, as git keeps it: two commits may share it, their order is not in it."""
        return datetime.fromtimestamp(int(self.time), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")

    def trees(self) -> dict[str, str]:
        return tree_ids({path: entry.blob.oid for path, entry in self.files.items()})


class Repo:
    """One repository with the single branch `main`, oldest commit first."""

    def __init__(self, repo_id: str, kind: RepoKind, private: bool, now: float) -> None:
        self.id = repo_id
        self.kind = kind
        self.private = private
        self.created_at = now
        self.commits: list[Commit] = []
        self.lfs: dict[str, bytes] = {}
        self.committing = False
        self._index: dict[str, int] = {}
        first = Change({".gitattributes": regular_blob(GITATTRIBUTES.encode())})
        self.commit(first, title="initial commit", user=repo_id.partition("/")[0], now=now)

    @property
    def head(self) -> Commit:
        return self.commits[-1]

    def visible_head(self, now: float, lag_s: float) -> Commit:
        """The head as a cache would tell it that is up to `lag_s` seconds behind."""
        for commit in reversed(self.commits):
            if commit.time + lag_s <= now:
                return commit
        return self.commits[0]

    def resolve(self, revision: str, head: Commit) -> Commit:
        if revision in ("main", "refs/heads/main", "HEAD"):
            return head
        index = self._index.get(revision)
        if index is not None:
            return self.commits[index]
        if len(revision) >= MIN_SHORT_SHA:
            matches = [commit for commit in self.commits if commit.id.startswith(revision)]
            if len(matches) == 1:
                return matches[0]
        raise HubRefusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def history(self, commit: Commit) -> list[Commit]:
        """The commit and everything before it, newest first."""
        return self.commits[self._index[commit.id] :: -1]

    def check_parent(self, parent: str | None) -> None:
        if parent is not None and not (parent and self.head.id.startswith(parent)):
            raise HubRefusal(412, "A commit has happened since. Please refresh and try again.")

    def commit(self, change: Change, title: str, user: str, now: float, description: str = "") -> Commit:
        """Apply the change as a whole, or raise HubRefusal and leave everything as it was."""
        before: Mapping[str, Entry] = self.commits[-1].files if self.commits else {}
        blobs = apply(change, {path: entry.blob for path, entry in before.items()})
        parent = self.commits[-1].id if self.commits else None
        message = f"{title}\n\n{description}" if description else title
        tree = tree_ids({path: blob.oid for path, blob in blobs.items()})[""]
        new_id = commit_id(tree, parent, user, int(now), message)
        files = {path: _entry(before.get(path), blob, new_id) for path, blob in blobs.items()}
        changed = sorted({path for path in {*before, *files} if before.get(path) != files.get(path)})
        done = Commit(new_id, parent, title, description, user, now, files, tuple(changed))
        self._index[new_id] = len(self.commits)
        self.commits.append(done)
        return done

    def squash(self, title: str, user: str, now: float) -> Commit:
        """Replace the whole history by one commit; the earlier ids are gone, also for those who hold one."""
        blobs = {path: entry.blob for path, entry in self.head.files.items()}
        self.commits.clear()
        self._index.clear()
        return self.commit(Change(blobs), title, user, now)


def apply(change: Change, blobs: dict[str, Blob]) -> dict[str, Blob]:
    for path in change.delete_files:
        if path not in blobs:
            raise HubRefusal(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        del blobs[path]
    for folder in change.delete_folders:
        inside = [path for path in blobs if path.startswith(folder.rstrip("/") + "/")]
        if not inside:
            raise HubRefusal(404, f"A folder with this name doesn't exist: {folder}", "EntryNotFound")
        for path in inside:
            del blobs[path]
    for path, blob in change.add.items():
        _check_path(path)
        if blob.sha256 is None and blob.size > MAX_REGULAR_BYTES:
            raise HubRefusal(400, f"{path} has {blob.size} bytes; files above {MAX_REGULAR_BYTES} must be LFS files")
        blobs[path] = blob
    _check_no_file_is_a_folder(blobs)
    return blobs


def _check_path(path: str) -> None:
    parts = path.split("/")
    if not path or any(part in ("", ".", "..", ".git") for part in parts) or "\0" in path:
        raise HubRefusal(400, f"Invalid path in a commit: {path!r}")


def _check_no_file_is_a_folder(blobs: Mapping[str, Blob]) -> None:
    folders = {path[:at] for path in blobs for at, sign in enumerate(path) if sign == "/"}
    clashes = sorted(folders & blobs.keys())
    if clashes:
        raise HubRefusal(400, f"{clashes[0]} would be a file and a folder at once")


def _entry(before: Entry | None, blob: Blob, commit: str) -> Entry:
    if before is not None and before.blob.oid == blob.oid:
        return before
    return Entry(blob, commit)
