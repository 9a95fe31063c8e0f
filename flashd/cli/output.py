"""Data on stdout, talk on stderr, JSON as one document. Texts of boxes and clouds cannot steer the terminal."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass

from flashd.cli.exits import Exit

WIDTH = 80
GAP = "  "
NARROWEST = 8
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def say(text: str) -> None:
    """Talk: stderr."""
    print(_CONTROL.sub("?", text), file=sys.stderr, flush=True)


def show(text: str) -> None:
    """Data: stdout."""
    print(_CONTROL.sub("?", text))


def show_json(document: object) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, ensure_ascii=False, indent=2))


def fail(options: argparse.Namespace, status: Exit, text: str, **facts: object) -> Exit:
    """Say why, with --json also as the document `{"error", "exit", ...}`; answers the status."""
    say(text)
    if options.json:
        show_json({"error": text, "exit": int(status), **facts})
    return status


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table, and lines that belong under it."""

    cells: tuple[str, ...]
    notes: tuple[str, ...] = ()


def table(headers: tuple[str, ...], rows: list[Row]) -> str:
    """Left-aligned columns within WIDTH; a first cell that has no room gets a line of its own, whole."""
    lines = [headers, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    room = WIDTH - sum(widths[1:]) - len(GAP) * (len(headers) - 1)
    widths[0] = max(NARROWEST, min(widths[0], room))
    shown = [_line(headers, widths)]
    for row in rows:
        cells = row.cells
        if len(cells[0]) > widths[0]:
            shown.append(cells[0])
            cells = ("", *cells[1:])
        shown += [_line(cells, widths), *(cut(f"{GAP}{note}") for note in row.notes)]
    return "\n".join(shown)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def cut(text: str, width: int = WIDTH) -> str:
    """On one line of at most `width` characters."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= width else f"{line[: width - 1]}…"


def age(seconds: float) -> str:
    """`42 s`, `17 m`, `3.2 h`, `4.5 d`."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} m"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} d"
