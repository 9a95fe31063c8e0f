"""The configuration's text and environment as one document, with the place of each key, and every fault in it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from flashd.config_credentials import SOURCES
from flashd.config_keys import KEYS, SECTIONS, Path, names_in
from flashd.config_model import INLINE_SECRETS
from flashd.config_positions import Position, position_of, positions
from flashd.wire.faults import did_you_mean

ENV_PREFIX = "FLASHD_"
# Names of the environment that are no keys: the file's own path, and credentials.
ENV_OTHERS = frozenset({"FLASHD_CONFIG", *(source.variable for source in SOURCES)})
_AT = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_URL_PASSWORD = re.compile(r"^[a-z]+://[^/]*@")
Document: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Source:
    """A document under construction: what was read, where from, and what is wrong with it so far."""

    file: str
    document: Document = field(default_factory=dict)
    places: dict[Path, Position] = field(default_factory=dict)
    variables: dict[Path, str] = field(default_factory=dict)
    faults: list[tuple[Position, str]] = field(default_factory=list)
    broken: bool = False  # no TOML at all: what is missing in the document says nothing

    def fault(self, path: Path, wrong: str, allowed: str) -> None:
        """Note what is wrong with a key, at its line, or with the variable that set it."""
        text = f"{'.'.join(path) or 'file'}: {wrong}; {allowed}"
        if path in self.variables:
            self.faults.append((Position(0, 0), f"environment:{self.variables[path]}: {text}"))
            return
        at = position_of(path, self.places)
        self.faults.append((at, f"{self.file}:{at.line}:{at.column}: {text}"))

    def said(self, path: Path) -> object:
        """The value that file or environment give for a key; None when they do not."""
        value: object = self.document
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def lines(self) -> tuple[str, ...]:
        """All faults, those of the environment first, then down the file."""
        return tuple(dict.fromkeys(line for _, line in sorted(self.faults, key=lambda f: (f[0].line, f[0].column))))


def read_source(text: str, file: str, env: Mapping[str, str]) -> Source:
    """Parse the text, lay the environment over it, and check every name. A syntax error leaves an empty document."""
    source = Source(file)
    try:
        source.document = tomllib.loads(text)
        source.places = positions(text)
    except tomllib.TOMLDecodeError as error:
        _syntax_fault(source, str(error), text)
    except RecursionError:
        source.broken = True
        source.fault((), "nested too deeply", "tables of keys are allowed")
    _check_names(source, source.document, ())
    _overlay(source, env)
    return source


def _syntax_fault(source: Source, message: str, text: str) -> None:
    at = _AT.search(message)
    end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
    line, column = (int(at[1]), int(at[2])) if at is not None and at[1] else end
    what = _AT.sub("", message)
    source.broken = True
    source.faults.append(
        (Position(line, column), f"{source.file}:{line}:{column}: syntax: {what}; the file must be TOML 1.0")
    )


def _check_names(source: Source, table: Document, path: Path) -> None:
    """Unknown names, secrets in the file, and values where tables belong (and the reverse)."""
    for name, value in list(table.items()):
        here = (*path, name)
        if here in INLINE_SECRETS:
            source.fault(
                here,
                "a secret in the configuration file",
                f"put it into a file and name that in {INLINE_SECRETS[here]}",
            )
            del table[name]
        elif here in SECTIONS:
            if isinstance(value, dict):
                _check_names(source, value, here)
            else:
                source.fault(here, "must be a table", f"[{'.'.join(here)}] with {', '.join(names_in(here))}")
                del table[name]
        elif here not in KEYS:
            source.fault(here, f"unknown key{_hint(name, path)}", f"known here: {', '.join(names_in(path))}")
            del table[name]
    url = table.get("url") if path == ("redis",) else None
    if isinstance(url, str) and _URL_PASSWORD.match(url):
        source.fault(
            (*path, "url"),
            "a password in the configuration file",
            "put the URL into a file and name that in redis.url_file",
        )
        del table["url"]


def _hint(name: str, path: Path) -> str:
    """A key of this very name in another section, else the most similar name here."""
    elsewhere = [key.dotted for key in KEYS.values() if key.path[-1] == name]
    return f'; did you mean "{elsewhere[0]}"?' if elsewhere else did_you_mean(name, names_in(path))


def _overlay(source: Source, env: Mapping[str, str]) -> None:
    known = {_variable(path): path for path in KEYS if _variable(path) not in ENV_OTHERS}
    for variable in sorted(env):
        if not variable.startswith(ENV_PREFIX):
            continue
        path = known.get(variable)
        if path is not None:
            source.variables[path] = variable
            _put(source.document, path, _typed(env[variable], KEYS[path].kind))
        elif variable not in ENV_OTHERS:
            text = f"environment:{variable}: unknown name{did_you_mean(variable, [*known, *ENV_OTHERS])}"
            source.faults.append(
                (Position(0, 0), f"{text}; {ENV_PREFIX}SECTION__KEY with a section and key of the file is allowed")
            )


def _variable(path: Path) -> str:
    return ENV_PREFIX + "__".join(part.upper() for part in path)


def _put(document: Document, path: Path, value: object) -> None:
    for part in path[:-1]:
        document = document.setdefault(part, {})
    document[path[-1]] = value


def _typed(text: str, kind: str) -> object:
    """A variable's text as the key's type; what cannot be read stays text, and the check of types refuses it."""
    if kind == "string":
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return [part.strip() for part in text.split(",") if part.strip()] if kind == "array" else text
