"""Where each key of a TOML text stands. `tomllib` tells positions for syntax errors only; this reads valid TOML."""

from __future__ import annotations

import re
from dataclasses import dataclass

Path = tuple[str, ...]
_KEY_PART = re.compile(r"""\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*""")
_TOKEN = re.compile(r'"""|\'\'\'|"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*|[\[\]{}]', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Position:
    """Both count from 1."""

    line: int
    column: int


def positions(text: str) -> dict[Path, Position]:
    """The first position of every table and key that starts a line; a key of an inline table has its table's."""
    found: dict[Path, Position] = {}
    table: Path = ()
    inside = _Value()
    for number, line in enumerate(text.split("\n"), 1):
        if inside.open:
            inside.feed(line)
            continue
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        column = len(line) - len(line.lstrip()) + 1
        if stripped.startswith("["):
            table, _ = _dotted(line, line.index("[") + (2 if stripped.startswith("[[") else 1))
            _note(found, table, Position(number, column))
            continue
        key, end = _dotted(line, 0)
        _note(found, (*table, *key), Position(number, column))
        inside = _Value()
        inside.feed(line[end:])
    return found


def position_of(path: Path, found: dict[Path, Position]) -> Position:
    """That of the key, else of the nearest table around it, else the first line."""
    for length in range(len(path), 0, -1):
        if path[:length] in found:
            return found[path[:length]]
    return Position(1, 1)


def _note(found: dict[Path, Position], path: Path, position: Position) -> None:
    for length in range(1, len(path) + 1):
        found.setdefault(path[:length], position)


def _dotted(line: str, start: int) -> tuple[Path, int]:
    parts: list[str] = []
    while match := _KEY_PART.match(line, start):
        parts.append(next(part for part in match.groups() if part is not None))
        start = match.end()
        if not line.startswith(".", start):
            break
        start += 1
    return tuple(parts), start


class _Value:
    """Follows a value over lines: it is open inside brackets and inside a multi-line string."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""

    @property
    def open(self) -> bool:
        return self._depth > 0 or bool(self._quote)

    def feed(self, line: str) -> None:
        position = 0
        while True:
            if self._quote:
                end = _closing(line, self._quote, position)
                if end < 0:
                    return
                self._quote, position = "", end
            token = _TOKEN.search(line, position)
            if token is None or token[0].startswith("#"):
                return
            position = token.end()
            if token[0] in ('"""', "'''"):
                self._quote = token[0]
            elif token[0] in "[{":
                self._depth += 1
            elif token[0] in "]}":
                self._depth -= 1


def _closing(line: str, quote: str, start: int) -> int:
    """Index after the closing quotes, or -1. A backslash hides a quote in the basic form only."""
    while (found := line.find(quote, start)) >= 0:
        before = line[:found]
        hidden = quote == '"""' and (len(before) - len(before.rstrip("\\"))) % 2 == 1
        if not hidden:
            return found + 3
        start = found + 1
    return -1
