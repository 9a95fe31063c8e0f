"""Reads `user_data` as cloud-init does, as far as flashd's payloads need it, and refuses what cloud-init would ignore.

Source: cloud-init documentation, "Write Files" and "Runcmd"; "User data scripts" for text that begins with `#!`.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import shlex
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import yaml

HEADER = "#cloud-config"
KNOWN_KEYS = ("write_files", "runcmd")
FILE_KEYS = ("path", "content", "encoding", "permissions", "owner", "append", "defer")
DEFAULT_MODE = 0o644
_BASE64, _GZIP = frozenset({"b64", "base64"}), frozenset({"gz", "gzip"})
_BOTH = frozenset({"gz+b64", "gz+base64", "gzip+b64", "gzip+base64"})
_PLAIN = frozenset({"", "text/plain"})


class CloudConfigError(ValueError):
    """The payload is not what a machine could execute; the text says where and why."""


@dataclass(frozen=True, slots=True)
class BootFile:
    path: str
    content: bytes
    mode: int
    append: bool = False


@dataclass(frozen=True, slots=True)
class BootPlan:
    """What happens once, at the first boot: files in order, then one shell script."""

    files: tuple[BootFile, ...]
    script: str


def parse_user_data(user_data: str) -> BootPlan:
    """Raises CloudConfigError."""
    if user_data.startswith("#!"):
        return BootPlan((), user_data)
    if user_data.partition("\n")[0].strip() != HEADER:
        raise CloudConfigError(f"user_data must begin with {HEADER} or #!")
    try:
        document: object = yaml.safe_load(user_data)
    except yaml.YAMLError as error:
        raise CloudConfigError(f"user_data is not YAML: {error}") from error
    if not isinstance(document, dict):
        raise CloudConfigError("user_data: a mapping is expected")
    unknown = sorted(str(key) for key in document if key not in KNOWN_KEYS)
    if unknown:
        raise CloudConfigError(f"user_data: unknown keys {', '.join(unknown)}; known are {', '.join(KNOWN_KEYS)}")
    files = tuple(_file(item, f"write_files[{at}]") for at, item in enumerate(_list(document, "write_files")))
    lines = [_line(item, f"runcmd[{at}]") for at, item in enumerate(_list(document, "runcmd"))]
    return BootPlan(files, "\n".join(["#!/bin/sh", *lines, ""]))


def _file(item: object, where: str) -> BootFile:
    if not isinstance(item, dict):
        raise CloudConfigError(f"{where}: a mapping is expected")
    unknown = sorted(str(key) for key in item if key not in FILE_KEYS)
    if unknown:
        raise CloudConfigError(f"{where}: unknown keys {', '.join(unknown)}; known are {', '.join(FILE_KEYS)}")
    path = item.get("path")
    if not isinstance(path, str) or not path.startswith("/") or ".." in path.split("/"):
        raise CloudConfigError(f"{where}.path: an absolute path is required, not {path!r}")
    if item.get("owner") not in (None, "root", "root:root"):
        raise CloudConfigError(f"{where}.owner: only root exists when this is written")
    return BootFile(path, _content(item, where), _mode(item, where), item.get("append") is True)


def _content(item: Mapping[object, object], where: str) -> bytes:
    content, encoding = item.get("content", ""), str(item.get("encoding") or "").lower()
    if not isinstance(content, str | bytes):
        raise CloudConfigError(f"{where}.content: text is expected, not {type(content).__name__}")
    data = content.encode() if isinstance(content, str) else content
    if encoding not in _BASE64 | _GZIP | _BOTH | _PLAIN:
        raise CloudConfigError(f"{where}.encoding: {encoding!r} is not known")
    try:
        if encoding in _BASE64 | _BOTH:
            data = base64.b64decode(b"".join(data.split()), validate=True)
        return gzip.decompress(data) if encoding in _GZIP | _BOTH else data
    except (binascii.Error, OSError, EOFError, zlib.error) as error:
        raise CloudConfigError(f"{where}.content: not {encoding}: {error}") from error


def _mode(item: Mapping[object, object], where: str) -> int:
    value = item.get("permissions")
    if value is None:
        return DEFAULT_MODE
    try:
        # YAML 1.1 reads an unquoted 0600 as octal already; as text it is octal by convention.
        mode = value if isinstance(value, int) and not isinstance(value, bool) else int(str(value), 8)
    except ValueError as error:
        raise CloudConfigError(f"{where}.permissions: {value!r} is not octal") from error
    if not 0 <= mode <= 0o7777:
        raise CloudConfigError(f"{where}.permissions: {value!r} is out of range")
    return mode


def _line(item: object, where: str) -> str:
    """A string is shell as it stands, a list is one command with its words protected."""
    if isinstance(item, str):
        return item
    if isinstance(item, list) and item and all(isinstance(word, str | int | float) for word in item):
        return shlex.join(str(word) for word in item)
    raise CloudConfigError(f"{where}: a string or a list of words is expected")


def _list(document: Mapping[object, object], key: str) -> list[object]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise CloudConfigError(f"{key}: a list is expected")
    return value
