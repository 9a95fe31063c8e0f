"""The keys of the configuration, derived from the types: what exists, what is allowed, where it belongs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from flashd.config_model import (
    ABSOLUTE_PATTERN,
    FILE_PATTERN,
    LISTEN_PATTERN,
    REDIS_PATTERN,
    URL_PATTERN,
    ConfigFile,
)
from flashd.wire.fields import PATTERN_WORDS

Path = tuple[str, ...]
_WORDS = {
    **PATTERN_WORDS,
    ABSOLUTE_PATTERN: "an absolute path",
    FILE_PATTERN: 'an absolute path, or "" for none',
    LISTEN_PATTERN: 'host:port, or "" = off',
    REDIS_PATTERN: "redis://host:port/db, rediss://… or unix:///path",
    URL_PATTERN: "an http or https address without user and password",
}
_UNITS = {"_s": "seconds", "_days": "days"}
_TYPES = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key. `allowed` is a phrase: `a number, 0.1 or more`."""

    path: Path
    kind: str  # JSON Schema's type
    allowed: str
    comment: str
    default: object  # None when required

    @property
    def dotted(self) -> str:
        """`policy.lease_ttl_s`."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the file, with its keys in order."""

    path: Path
    comment: str
    keys: tuple[Key, ...]
    subsections: tuple[str, ...]


def _sections(model: type[Any], path: Path) -> Iterator[Section]:
    properties = TypeAdapter(model).json_schema()["properties"]
    hints = get_type_hints(model)
    inner = [item.name for item in fields(model) if is_dataclass(hints[item.name])]
    sample = model(**({"namespace": "prod"} if model is ConfigFile else {}))
    keys = tuple(
        _key((*path, item.name), properties[item.name], getattr(sample, item.name))
        for item in fields(model)
        if item.name not in inner
    )
    yield Section(path, str(model.__doc__), keys, tuple(inner))
    for name in inner:
        yield from _sections(hints[name], (*path, name))


def _key(path: Path, schema: Mapping[str, Any], default: object) -> Key:
    return Key(path, schema["type"], _allowed(schema, path[-1]), schema.get("description", ""), default)


def _allowed(schema: Mapping[str, Any], name: str) -> str:
    if "pattern" in schema:
        return str(_WORDS.get(schema["pattern"], schema.get("description", "")))
    if schema["type"] == "array":
        return "a list of texts"
    words = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), _TYPES[schema["type"]])
    if "minimum" in schema:
        words += f", {schema['minimum']:g} or more"
    if "exclusiveMinimum" in schema:
        words += f", more than {schema['exclusiveMinimum']:g}"
    return words


SECTIONS: dict[Path, Section] = {section.path: section for section in _sections(ConfigFile, ())}
KEYS: dict[Path, Key] = {key.path: key for section in SECTIONS.values() for key in section.keys}


def names_in(path: Path) -> tuple[str, ...]:
    """Keys and subsections of a section; empty when there is no such section."""
    section = SECTIONS.get(path)
    return () if section is None else (*(key.path[-1] for key in section.keys), *section.subsections)
