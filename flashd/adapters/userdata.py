"""The boot payload as a machine receives it: `#cloud-config` YAML with the payload and the box programs as files.

Source: cloud-init documentation, "Write Files" and "Runcmd"; OpenStack Nova takes 65,535 bytes of base64.
"""

from __future__ import annotations

import base64
import gzip
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import yaml

from flashd.errors import PayloadTooLargeError
from flashd.wire.payload import Payload

MAX_USER_DATA_BYTES: Final = 45_000
MAX_PROGRAMS_BYTES: Final = 20_000  # compressed, all together; a test keeps them below it
SHIPPED: Final = "_bootstrap"  # where the wheel carries the source tree's `bootstrap/`

PAYLOAD_PATH: Final = "/opt/flash/payload.json"
START_COMMAND: Final = ("env", "PYTHONPATH=/opt/flash", "python3", "-m", "bootstrap.host")
_PROGRAMS_DIRECTORY: Final = "/opt/flash/bootstrap"
# The one program a worker may import lies in a directory of its own, so that nothing else comes onto the worker's path.
_LIBRARY: Final = {"flash_report.py": "/opt/flash/lib/flash_report.py"}


def render_user_data(payload: Payload) -> str:
    """The whole `user_data`. Deterministic: the same payload gives the same text.

    Raises PayloadTooLargeError above MAX_USER_DATA_BYTES. The result holds secrets: never log it.
    """
    text = _render(payload)
    if len(text) > MAX_USER_DATA_BYTES:
        raise PayloadTooLargeError(
            "too_large",
            f"the boot payload has {len(text)} bytes, {MAX_USER_DATA_BYTES} are possible: "
            "shorten worker.env, worker.pip, worker.command, models or the secrets",
        )
    return text


def fits(payload: Payload) -> bool:
    """Whether `render_user_data` takes this payload as it is."""
    return len(_render(payload)) <= MAX_USER_DATA_BYTES


def plan_spec(payload: Payload) -> Payload:
    """The payload itself, or, when its spec is too large to travel inside, one that reads the spec from the Hub.

    In the second case (`spec_in_hub`) the caller commits `encode_spec(spec)` as `<prefix>/job_spec.json` before launch.
    """
    return payload if payload.spec_in_hub or fits(payload) else replace(payload, spec=None, spec_in_hub=True)


def program_files() -> dict[str, bytes]:
    """The box programs, path on the machine -> source, in a fixed order."""
    return {
        _LIBRARY.get(entry.name, f"{_PROGRAMS_DIRECTORY}/{entry.name}"): entry.read_bytes()
        for entry in sorted(_bootstrap_directory().iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".py")
    }


def _render(payload: Payload) -> str:
    document = {
        "write_files": [_payload_file(payload), *_program_entries()],
        "runcmd": [list(START_COMMAND)],
    }
    return "#cloud-config\n" + yaml.safe_dump(document, sort_keys=False, width=2**20)


def _payload_file(payload: Payload) -> dict[str, str]:
    plain = payload.encode()
    packed = _gzip(plain)
    encoding, content = ("gz+b64", packed) if len(packed) < len(plain) else ("b64", plain)
    return _entry(PAYLOAD_PATH, "0600", encoding, content)


@cache
def _program_entries() -> tuple[dict[str, str], ...]:
    return tuple(_entry(path, "0644", "gz+b64", _gzip(source)) for path, source in program_files().items())


def _entry(path: str, permissions: str, encoding: str, content: bytes) -> dict[str, str]:
    return {
        "path": path,
        "permissions": permissions,
        "encoding": encoding,
        "content": base64.b64encode(content).decode("ascii"),
    }


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=9, mtime=0)


def _bootstrap_directory() -> Traversable:
    shipped = resources.files("flashd") / SHIPPED
    if shipped.is_dir():
        return shipped
    return Path(__file__).parents[2] / "bootstrap"  # the source tree, where nothing was built
