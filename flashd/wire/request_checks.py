"""What single fields cannot tell: fields that need each other, sizes of parts, secrets, and names looked up elsewhere.

Every check takes a document of any shape; what has the wrong type is left to the check of types.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from pydantic import JsonValue

from flashd.wire.faults import Fault, RejectReason, did_you_mean
from flashd.wire.fields import MAX_PLACE_NAMES, SECRET_NAME_PATTERN
from flashd.wire.request_model import Worker
from flashd.wire.strict_json import compact, strings_in
from flashd.wire.token_shapes import token_kind

MAX_SPEC_BYTES = 128 * 1024
MAX_BOOT_BYTES = 6 * 1024
MAX_SECRET_FAULTS = 20
_SECRET_NAME = re.compile(SECRET_NAME_PATTERN)
Document = Mapping[str, JsonValue]


def extra_faults(
    document: dict[str, JsonValue], gpus: Mapping[str, str], secrets: Collection[str], default_image: str
) -> list[Fault]:
    """`gpus`: folded name -> the catalogue's spelling."""
    return [
        *_gpu_choice(document),
        *_preload(document),
        *_sizes(document, default_image),
        *_inline_secrets(document),
        *_unknown_secrets(document, secrets),
        *_unknown_gpus(document, gpus),
    ]


def fold_gpu(name: str) -> str:
    """The form in which GPU names are compared: `RTX A6000`, `rtx-a6000` and `RTX_A6000` are one."""
    return "".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _section(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _gpu_choice(document: Document) -> Iterator[Fault]:
    gpu = _section(document, "gpu")
    if gpu.get("class") is None and gpu.get("min_vram_gb") is None:
        if isinstance(document.get("gpu", {}), dict) and "gpu" in document:
            yield Fault(RejectReason.MISSING_FIELD, ("gpu", "class"), "required unless gpu.min_vram_gb is given")
    elif gpu.get("class") == []:
        yield Fault(RejectReason.BAD_VALUE, ("gpu", "class"), "must name at least one class")


def _preload(document: Document) -> Iterator[Fault]:
    if document.get("mode") != "preload":
        return
    regions = _section(document, "gpu").get("regions")
    if regions is None:
        yield Fault(RejectReason.MISSING_FIELD, ("gpu", "regions"), "mode preload needs exactly one region")
    elif isinstance(regions, list) and len(regions) != 1:
        yield Fault(RejectReason.BAD_VALUE, ("gpu", "regions"), "mode preload needs exactly one region")
    if document.get("cache") is None:
        yield Fault(RejectReason.MISSING_FIELD, ("cache", "volume"), "mode preload needs a volume to warm")
    if document.get("models", []) in ([], None):
        yield Fault(RejectReason.MISSING_FIELD, ("models",), "mode preload needs at least one model")


def _sizes(document: Document, default_image: str) -> Iterator[Fault]:
    spec = _bytes_of(document.get("spec"))
    if spec > MAX_SPEC_BYTES:
        yield Fault(RejectReason.TOO_LARGE, ("spec",), f"{spec} bytes as compact JSON; at most {MAX_SPEC_BYTES}")
    worker = _section(document, "worker")
    parts: dict[str, JsonValue] = {
        "worker.env": worker.get("env", {}),
        "worker.pip": worker.get("pip", []),
        "worker.command": worker.get("command", list(Worker().command)),
        "worker.image": worker.get("image") or default_image,
        "models": document.get("models", []),
        "hub.code": _section(document, "hub").get("code"),
    }
    total = sum(_bytes_of(part) for part in parts.values())
    if total > MAX_BOOT_BYTES:
        largest = max(parts, key=lambda name: _bytes_of(parts[name]))
        yield Fault(
            RejectReason.TOO_LARGE,
            tuple(largest.split(".")),
            f"{', '.join(parts)} together have {total} bytes as compact JSON; at most {MAX_BOOT_BYTES}",
        )


def _bytes_of(value: JsonValue) -> int:
    return len(compact(value).encode())


def _inline_secrets(document: dict[str, JsonValue]) -> Iterator[Fault]:
    """Looks everywhere and not only in `spec` and `worker.env`: labels go into events, commands into process lists."""
    found = 0
    for path, text in strings_in(document):
        kind = token_kind(text)
        if kind is not None:
            found += 1
            hint = f"a {kind} in plain text; put it into the secrets directory and name it in worker.secrets"
            yield Fault(RejectReason.INLINE_SECRET, path, hint)
        if found >= MAX_SECRET_FAULTS:
            return


def _unknown_secrets(document: Document, known: Collection[str]) -> Iterator[Fault]:
    names = _section(document, "worker").get("secrets")
    for index, name in enumerate(names if isinstance(names, list) else []):
        if isinstance(name, str) and _SECRET_NAME.fullmatch(name) and name not in known:
            hint = "no such secret in the daemon's secrets directory"
            yield Fault(RejectReason.UNKNOWN_SECRET, ("worker", "secrets", index), hint)
        env = _section(document, "worker").get("env")
        if isinstance(name, str) and isinstance(env, dict) and name in env:
            yield Fault(
                RejectReason.BAD_VALUE, ("worker", "env", name), "also named in worker.secrets; keep one of them"
            )


def _unknown_gpus(document: Document, gpus: Mapping[str, str]) -> Iterator[Fault]:
    said = _section(document, "gpu").get("class")
    names = said if isinstance(said, list) else [said]
    for index, name in enumerate(names[:MAX_PLACE_NAMES]):
        if isinstance(name, str) and 0 < len(name) <= 64 and fold_gpu(name) not in gpus:
            path: tuple[str | int, ...] = ("gpu", "class", index) if isinstance(said, list) else ("gpu", "class")
            hint = did_you_mean(name, gpus.values())
            yield Fault(RejectReason.UNKNOWN_GPU, path, f"no such GPU class in the catalogue{hint}")
