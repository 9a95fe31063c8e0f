"""The boot payload as a machine receives it: `#cloud-config` YAML with the payload and the box programs as files.

Source: cloud-init documentation, "Write Files" and "Runcmd"; OpenStack Nova takes 65,535 bytes of base64.
"""

from __future__ import annotations

import base64
import gzip
import io
import zipfile
from dataclasses import replace
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

import yaml

from flashd.adapters.prose import without_prose
from flashd.errors import PayloadTooLargeError
from flashd.wire.payload import Payload

MAX_USER_DATA_BYTES: Final = 45_000
MAX_PROGRAMS_BYTES: Final = 20_000  # compressed, all together; a test keeps them below it
SHIPPED: Final = "_bootstrap"  # where the wheel carries the source tree's `bootstrap/`

PAYLOAD_PATH: Final = "/opt/flash/payload.json"
PROGRAMS_PATH: Final = "/opt/flash/box.zip"
START_COMMAND: Final = ("python3", PROGRAMS_PATH, "host")
# `__main__` is the archive's entry; what a worker may import lies apart, so that nothing else comes onto its path.
_PLACES: Final = {"__main__.py": "__main__.py", "flash_report.py": "lib/flash_report.py"}


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


def program_sources() -> dict[str, str]:
    """The box programs as they are written: place in the archive -> source, in a fixed order."""
    return {
        _PLACES.get(entry.name, f"bootstrap/{entry.name}"): entry.read_text(encoding="utf-8")
        for entry in sorted(_bootstrap_directory().iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".py")
    }


@cache
def programs_archive() -> bytes:
    """The box programs as they travel: one zip file that python runs, uncompressed so that gzip sees it as a whole.

    Comments and docstrings stay at home; line numbers in a traceback are those of the source.
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as bundle:
        for place, source in program_sources().items():
            bundle.writestr(zipfile.ZipInfo(place), without_prose(source))  # ZipInfo's fixed date: same bytes each time
    return archive.getvalue()


def compressed_programs_bytes() -> int:
    """What the programs take of the user_data, before base64; at most MAX_PROGRAMS_BYTES."""
    return len(_gzip(programs_archive()))


def _render(payload: Payload) -> str:
    # The programs never change and are most of the text; laying them out anew would hold up the loop at every launch.
    return "#cloud-config\n" + _yaml({"write_files": [_payload_file(payload)]}) + _programs_and_start()


@cache
def _programs_and_start() -> str:
    """The rest of the document: one more item of `write_files`, then `runcmd`."""
    return _yaml([_programs_file()]) + _yaml({"runcmd": [list(START_COMMAND)]})


def _yaml(part: object) -> str:
    return yaml.safe_dump(part, sort_keys=False, width=2**20)


def _payload_file(payload: Payload) -> dict[str, str]:
    plain = payload.encode()
    packed = _gzip(plain)
    encoding, content = ("gz+b64", packed) if len(packed) < len(plain) else ("b64", plain)
    return _entry(PAYLOAD_PATH, "0600", encoding, content)


@cache
def _programs_file() -> dict[str, str]:
    return _entry(PROGRAMS_PATH, "0644", "gz+b64", _gzip(programs_archive()))


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
