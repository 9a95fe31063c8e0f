"""Loads the Lua scripts: a header comment in each names its keys, the shared library is put in front.

On disk they have no shebang, since an embedded fakeredis runs them too; a real server from 7.0 on gets one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

# These must work while Redis is out of memory, so that runs end and machines are recorded as what they are.
ALLOW_OOM = frozenset({"lead", "confirm", "finish", "cancel", "machine_gone", "mark", "released"})


@dataclass(frozen=True, slots=True)
class Script:
    """One script ready to send. `keys` are the short names of its KEYS, in order."""

    name: str
    keys: tuple[str, ...]
    body: str
    sha1: str


@cache
def script(name: str, shebang: bool) -> Script:
    """The script `<name>.lua`; with `shebang` for servers from 7.0 on, where it refuses at the door when out of memory
    (or, for those in ALLOW_OOM, does not)."""
    text = _read(f"{name}.lua")
    first = text.split("\n", 1)[0]
    if not first.startswith("-- keys: "):
        raise ValueError(f"{name}.lua must begin with `-- keys: ...`")
    keys = tuple(first.removeprefix("-- keys: ").split())
    table = "local K = {" + ", ".join(f"{key} = KEYS[{at}]" for at, key in enumerate(keys, 1)) + "}"
    flags = " flags=allow-oom" if name in ALLOW_OOM else ""
    head = f"#!lua{flags}\n" if shebang else ""
    body = f"{head}{table}\n{_read('_lib.lua')}\n{text}"
    return Script(name, keys, body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest())


def _read(file: str) -> str:
    return (resources.files("flashd.adapters") / "scripts" / file).read_text(encoding="utf-8")
