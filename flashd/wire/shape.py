"""From pydantic's errors to flashd's faults: which reason, which path, and words that repeat nothing of the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from flashd.wire.faults import MAX_FAULT_LINES, Fault, RejectReason, did_you_mean
from flashd.wire.fields import PATTERN_WORDS
from flashd.wire.request_model import SECTIONS, RequestBody, all_names, names_of

_REASONS = {
    "missing": RejectReason.MISSING_FIELD,
    "unexpected_keyword_argument": RejectReason.UNKNOWN_FIELD,
    "too_large": RejectReason.TOO_LARGE,
    "too_long": RejectReason.TOO_LARGE,
}
_WORDS = {
    "missing": "required",
    "dataclass_type": "must be an object",
    "dict_type": "must be an object",
    "tuple_type": "must be a list",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
}
_SAID_ELSEWHERE = {path.rsplit(".", 1)[-1]: path for path in reversed(list(all_names()))}
_NAMES: Mapping[tuple[str | int, ...], tuple[str, ...]] = {
    (): names_of(RequestBody),
    **{tuple(prefix.split(".")): names_of(model) for prefix, model in SECTIONS.items()},
}


def shape_faults(model: TypeAdapter[Any], document: dict[str, JsonValue]) -> list[Fault]:
    """Every fault of types, ranges and names; empty when the model takes the document."""
    try:
        model.validate_python(document)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        # Looking for similar names is slow: thousands of wrong names in one body must not hold up the loop.
        return [_fault(item, hint=index < MAX_FAULT_LINES) for index, item in enumerate(found)]
    return []


def words_of(found: ErrorDetails) -> str:
    """What is wrong, in few words: `must be greater than or equal to 60`."""
    if found["type"] in _WORDS:
        return _WORDS[found["type"]]
    pattern = found.get("ctx", {}).get("pattern")
    if pattern in PATTERN_WORDS:
        return f"must be {PATTERN_WORDS[pattern]}"
    message = found["msg"]
    for start in ("Input should", "String should", "Value should"):
        message = message.replace(start, "must")
    return message[:1].lower() + message[1:]


def unknown_field(path: tuple[str | int, ...]) -> str:
    """Names the field of another section with this very name, else the most similar one here."""
    name = str(path[-1])
    elsewhere = _SAID_ELSEWHERE.get(name)
    if elsewhere is not None and elsewhere != name:
        return f'unknown field; did you mean "{elsewhere}"?'
    return f"unknown field{did_you_mean(name, _NAMES.get(path[:-1], ()))}"


def _fault(found: ErrorDetails, *, hint: bool) -> Fault:
    path = tuple(part for part in found["loc"] if part != "[key]")
    reason = _REASONS.get(found["type"], RejectReason.BAD_VALUE)
    if path == ("run_id",) and reason is RejectReason.BAD_VALUE:
        reason = RejectReason.BAD_RUN_ID
    if reason is not RejectReason.UNKNOWN_FIELD:
        return Fault(reason, path, words_of(found))
    return Fault(reason, path, unknown_field(path) if hint else "unknown field")
