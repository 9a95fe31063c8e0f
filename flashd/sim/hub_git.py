"""Git object ids, computed as git computes them.

The Hub's client compares the ids that a server reports with ids that it computes itself, and skips files that are
already there; an invented id would switch that off. Nothing here stores anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes in a repository: as git keeps them, or behind an LFS pointer when `sha256` is set."""

    data: bytes
    oid: str
    sha256: str | None = None
    pointer_size: int = 0

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def etag(self) -> str:
        """What the Hub sends as ETag: the blob id, or the SHA-256 of an LFS file."""
        return self.sha256 or self.oid


def regular_blob(data: bytes) -> Blob:
    return Blob(data, object_id("blob", data))


def lfs_blob(data: bytes) -> Blob:
    """The blob of an LFS file: git itself only holds the pointer text, whose id this is."""
    digest = hashlib.sha256(data).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(data)}\n".encode()
    return Blob(data, object_id("blob", pointer), digest, len(pointer))


def object_id(kind: str, body: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(body)}\0".encode() + body).hexdigest()


def tree_ids(blobs: Mapping[str, str]) -> dict[str, str]:
    """Tree id of every folder, the root under the empty name; `blobs` is path -> blob id."""
    children: dict[str, dict[str, tuple[str, str]]] = {"": {}}
    for path, oid in blobs.items():
        folder, _, name = path.rpartition("/")
        children.setdefault(folder, {})[name] = ("100644", oid)
        while folder:
            parent, _, base = folder.rpartition("/")
            children.setdefault(parent, {})[base] = ("40000", "")
            folder = parent
    ids: dict[str, str] = {}
    for folder in sorted(children, key=lambda name: (name != "", name.count("/")), reverse=True):
        entries = {
            name: (mode, oid or ids[f"{folder}/{name}" if folder else name])
            for name, (mode, oid) in children[folder].items()
        }
        # Git sorts a folder as if its name ended in a slash.
        ordered = sorted(entries.items(), key=lambda item: item[0] + ("/" if item[1][0] == "40000" else ""))
        body = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(oid) for name, (mode, oid) in ordered)
        ids[folder] = object_id("tree", body)
    return ids


def commit_id(tree: str, parent: str | None, user: str, unix_s: int, message: str) -> str:
    parents = f"parent {parent}\n" if parent else ""
    who = f"{user} <{user}@users.noreply.example> {unix_s} +0000"
    return object_id("commit", f"tree {tree}\n{parents}author {who}\ncommitter {who}\n\n{message}\n".encode())
