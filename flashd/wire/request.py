"""A run request from bytes to a value, or every fault in it at once.

parse_request(raw, *, catalogue, secrets, default_image) -> RunRequest | Rejection     never raises
restore_request(canonical_json, *, catalogue, default_image) -> RunRequest             what `run:<id>` stores
content_hash(document) -> str                                                          the contract's recipe
Types: RunRequest, Gpu, Code, Hub, Worker, Cache, Limits, Mode (request_model); Rejection, RejectReason (faults).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import fields, replace

from pydantic import JsonValue, TypeAdapter

from flashd.errors import RequestError
from flashd.wire.faults import Fault, Rejection, RejectReason, rejection
from flashd.wire.fields import RUN_ID_PATTERN
from flashd.wire.request_checks import extra_faults, fold_gpu
from flashd.wire.request_model import (
    Cache,
    Code,
    Gpu,
    Hub,
    Limits,
    Mode,
    RequestBody,
    RunRequest,
    Worker,
)
from flashd.wire.shape import shape_faults
from flashd.wire.strict_json import Parsed, Reading, Unreadable, compact, read_json
from flashd.wire.token_shapes import may_hold_secret, token_kind

__all__ = [
    "Cache",
    "Code",
    "Gpu",
    "Hub",
    "Limits",
    "Mode",
    "RejectReason",
    "Rejection",
    "RunRequest",
    "Worker",
    "canonical",
    "content_hash",
    "fold_gpu",
    "parse_request",
    "restore_request",
]

MAX_REQUEST_BYTES = 256 * 1024
MAX_READ_BYTES = 4 * MAX_REQUEST_BYTES  # beyond it the body is not even parsed for its run id
_BODY: TypeAdapter[RequestBody] = TypeAdapter(RequestBody)
_RUN_ID = re.compile(RUN_ID_PATTERN)


def parse_request(
    raw: bytes | str, *, catalogue: Collection[str], secrets: Collection[str], default_image: str
) -> RunRequest | Rejection:
    """Check everything and answer the request, or a `Rejection` with all faults.

    `catalogue`: every GPU name and alias that is known, matched without regard to case, spaces, `-` and `_`;
    a mapping gives the class of each, and then `gpu.classes` holds classes.
    `secrets`: the names that can be resolved now.
    """
    size = len(raw) if isinstance(raw, bytes) else len(raw.encode("utf-8", "surrogatepass"))
    faults = _size_fault(size)
    if size > MAX_READ_BYTES:
        return rejection(faults, None, may_hold_secret=True)
    parsed = read_json(raw, Reading.STRICT)
    if isinstance(parsed, Unreadable) or not isinstance(parsed.value, dict):
        return _unreadable(raw, parsed, faults)
    document = parsed.value
    faults += shape_faults(_BODY, without_nulls(document))
    faults += extra_faults(document, _gpu_names(catalogue), secrets, default_image)
    if not faults:
        return _built(document, catalogue, default_image)
    return rejection(faults, _run_id_of(document), may_hold_secret=_hides_secret(document))


def restore_request(canonical_json: str, *, catalogue: Collection[str], default_image: str) -> RunRequest:
    """Read back what was accepted earlier. What the catalogue and the secrets have lost since is no fault here.

    Raises RequestError when the text is not a request of this version.
    """
    parsed = read_json(canonical_json, Reading.STRICT)
    if isinstance(parsed, Unreadable) or not isinstance(parsed.value, dict):
        text = parsed.text if isinstance(parsed, Unreadable) else "not an object"
        raise RequestError(RejectReason.BAD_JSON, f"stored request: {text}")
    faults = shape_faults(_BODY, without_nulls(parsed.value))
    if faults:
        found = rejection(faults, None, may_hold_secret=False)
        raise RequestError(found.reason, f"stored request: {found.detail}")
    return _built(parsed.value, catalogue, default_image)


def canonical(document: dict[str, JsonValue]) -> str:
    """The request as sent: keys sorted, no spaces."""
    return compact(document, sort_keys=True)


def content_hash(document: dict[str, JsonValue]) -> str:
    """Hex SHA-256 of the request as sent, without `traceparent`: what tells a repeat from a conflict."""
    said = {key: value for key, value in document.items() if key != "traceparent"}
    return hashlib.sha256(canonical(said).encode()).hexdigest()


def without_nulls(document: dict[str, JsonValue]) -> dict[str, JsonValue]:
    """The document without nulls that stand for `not said` where the default is another field's or the config's."""
    changed = dict(document)
    for section, name in (("hub", "code"), ("worker", "image")):
        value = changed.get(section)
        if isinstance(value, dict) and name in value and value[name] is None:
            changed[section] = {key: item for key, item in value.items() if key != name}
    return changed


def _size_fault(size: int) -> list[Fault]:
    if size <= MAX_REQUEST_BYTES:
        return []
    return [Fault(RejectReason.TOO_LARGE, (), f"the request has {size} bytes; at most {MAX_REQUEST_BYTES}")]


def _unreadable(raw: bytes | str, parsed: Parsed | Unreadable, faults: list[Fault]) -> Rejection:
    what = parsed.text if isinstance(parsed, Unreadable) else "must be an object"
    text = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw
    return rejection([Fault(RejectReason.BAD_JSON, (), what), *faults], None, may_hold_secret=may_hold_secret(text))


def _gpu_names(catalogue: Collection[str]) -> dict[str, str]:
    classes = catalogue if isinstance(catalogue, Mapping) else {name: name for name in catalogue}
    return {fold_gpu(name): classes[name] for name in sorted(classes)}


def _run_id_of(document: dict[str, JsonValue]) -> str | None:
    value = document.get("run_id")
    readable = isinstance(value, str) and _RUN_ID.fullmatch(value) and token_kind(value) is None
    return str(value) if readable else None


def _hides_secret(document: dict[str, JsonValue]) -> bool:
    return may_hold_secret(compact(document))


def _built(document: dict[str, JsonValue], catalogue: Collection[str], default_image: str) -> RunRequest:
    body = _BODY.validate_python(without_nulls(document))
    names = _gpu_names(catalogue)
    said = {item.name: getattr(body, item.name) for item in fields(body)}
    classes = tuple(names.get(fold_gpu(name), name) for name in body.gpu.classes)
    code = replace(body.hub.code, repo=body.hub.code.repo or body.hub.repo)
    said["gpu"] = replace(body.gpu, classes=tuple(dict.fromkeys(classes)))
    said["hub"] = replace(body.hub, code=code)
    said["worker"] = replace(body.worker, image=body.worker.image or default_image)
    return RunRequest(**said, canonical_json=canonical(document), sha256=content_hash(document))
