"""Reading and writing JSON that strangers wrote or will read: bounded depth, no NaN, no lone surrogates.

`read_json` answers `Parsed` or `Unreadable`; `compact` is the one way flashd writes JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pydantic import JsonValue

from flashd.wire.token_shapes import masked

MAX_DEPTH = 100
MAX_INT_DIGITS = 4300  # what Python's int() takes; longer digits would raise out of the parser
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


class Reading(StrEnum):
    """STRICT refuses what cannot be carried unchanged. LENIENT makes it null and lets the last duplicate key win."""

    STRICT = "strict"
    LENIENT = "lenient"


@dataclass(frozen=True, slots=True)
class Parsed:
    """A JSON value, at most `MAX_DEPTH` deep; finite numbers and encodable text only when read STRICT."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why the bytes are no JSON that flashd takes. `text` holds nothing of the input but key names and positions."""

    text: str


class _Refused(ValueError):
    """Raised inside the parser's hooks only."""


def read_json(raw: bytes | str, reading: Reading) -> Parsed | Unreadable:
    """Parse once; every way in which bytes can be wrong is an `Unreadable`."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return Unreadable(f"not UTF-8 (byte {error.start})")
    try:
        value = _strict(text) if reading is Reading.STRICT else _lenient(text)
    except json.JSONDecodeError as error:
        return Unreadable(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})")
    except _Refused as error:
        return Unreadable(str(error))
    except RecursionError:
        return Unreadable(f"nested deeper than {MAX_DEPTH}")
    if _deeper_than(value, MAX_DEPTH):
        return Unreadable(f"nested deeper than {MAX_DEPTH}")
    if reading is Reading.STRICT and not _encodable(value):
        return Unreadable("a lone surrogate: this text cannot be written as UTF-8")
    return Parsed(value)


def compact(value: JsonValue, *, sort_keys: bool = False) -> str:
    """JSON without spaces, not escaped beyond need. Raises ValueError for a number that is not finite."""
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sanitised(value: JsonValue) -> JsonValue:
    """The same value as strict JSON: null for what is not finite, no lone surrogates. Recurses: at most `MAX_DEPTH`."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return clean_text(value)
        case list():
            return [sanitised(item) for item in value]
        case dict():
            return {clean_text(key): sanitised(item) for key, item in value.items()}
        case _:
            return value


def clean_text(text: str) -> str:
    """Text that can be written as UTF-8."""
    return text.encode("utf-8", "replace").decode("utf-8")


def cut_text(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, the end marked by `…` when something was cut off."""
    data = clean_text(text).encode()
    if len(data) <= limit:
        return data.decode()
    return data[: max(0, limit - 3)].decode("utf-8", "ignore") + "…"


def json_path(location: tuple[str | int, ...]) -> str:
    """`$.gpu.class[0]`; a key that is no plain word is quoted and cut, one that looks like a secret is masked."""
    return "$" + "".join(_step(part) for part in location)


def strings_in(value: JsonValue) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every string in a value, keys included, with its path, in document order."""
    stack: list[tuple[tuple[str | int, ...], JsonValue]] = [((), value)]
    while stack:
        path, item = stack.pop()
        match item:
            case str():
                yield path, item
            case list():
                stack.extend(((*path, index), item[index]) for index in reversed(range(len(item))))
            case dict():
                for key in item:
                    yield (*path, key), key
                stack.extend(((*path, key), item[key]) for key in reversed(item))
            case _:
                pass


def _strict(text: str) -> JsonValue:
    value: JsonValue = json.loads(
        text,
        object_pairs_hook=_unique,
        parse_constant=_no_constant,
        parse_float=_finite,
        parse_int=_bounded,
    )
    return value


def _lenient(text: str) -> JsonValue:
    value: JsonValue = json.loads(
        text.removeprefix("\ufeff"),
        parse_constant=lambda _: None,
        parse_int=lambda digits: int(digits) if len(digits) <= MAX_INT_DIGITS else None,
    )
    return value


def _unique(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _Refused(f"duplicate key {_quoted(key)}")
        seen.add(key)
    return found


def _no_constant(name: str) -> JsonValue:
    raise _Refused(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _Refused("a number beyond the range of a double")
    return number


def _bounded(digits: str) -> int:
    if len(digits) > MAX_INT_DIGITS:
        raise _Refused(f"a number of more than {MAX_INT_DIGITS} digits")
    return int(digits)


def _deeper_than(value: JsonValue, limit: int) -> bool:
    level: list[JsonValue] = [value]
    for _ in range(limit + 1):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _children(value: JsonValue) -> list[JsonValue]:
    match value:
        case list():
            return value
        case dict():
            return list(value.values())
        case _:
            return []


def _encodable(value: JsonValue) -> bool:
    try:
        compact(value).encode()
    except UnicodeEncodeError:
        return False
    return True


def _step(part: str | int) -> str:
    if isinstance(part, int):
        return f"[{part}]"
    return f".{part}" if _PLAIN_KEY.fullmatch(part) and masked(part) == part else f"[{_quoted(part)}]"


def _quoted(key: str) -> str:
    shown = clean_text(masked(key))
    return json.dumps(shown if len(shown) <= 64 else shown[:63] + "…", ensure_ascii=True)
