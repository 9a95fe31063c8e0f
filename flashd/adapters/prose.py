"""Python source without what only people read, line for line: the box programs travel in a small space."""

from __future__ import annotations

import ast
import io
import tokenize
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class _Cut:
    """Characters to replace; lines count from 1, columns from 0, as the tokenizer does."""

    first_line: int
    first_column: int
    last_line: int
    last_column: int
    by: str


def without_prose(source: str) -> str:
    """The same program without comments, docstrings, types of signatures and most of its indentation.

    Every statement stays on its line. The source must be ASCII, so that columns are bytes.
    """
    lines = source.splitlines(keepends=True)
    for cut in sorted([*_comments(source), *_docstrings(source), *_types(source)], reverse=True):
        before = lines[cut.first_line - 1][: cut.first_column] + cut.by
        after = lines[cut.last_line - 1][cut.last_column :]
        blank_lines = "\n" * (cut.last_line - cut.first_line)
        lines[cut.first_line - 1 : cut.last_line] = [before.rstrip(" ") + blank_lines + after]
    return _less_indented("".join(lines))


def _less_indented(source: str) -> str:
    """One space a level instead of four; lines within a text of several lines stay as they are."""
    lines = source.splitlines(keepends=True)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [token for token in tokens if token.type == tokenize.STRING]
    kept = {line for token in texts for line in range(token.start[0], token.end[0])}
    for number, line in enumerate(lines):
        spaces = len(line) - len(line.lstrip(" "))
        if number not in kept:
            lines[number] = " " * (spaces // 4 + spaces % 4) + line[spaces:]
    return "".join(lines)


def _comments(source: str) -> list[_Cut]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [_Cut(*token.start, *token.end, "") for token in tokens if token.type == tokenize.COMMENT]


def _docstrings(source: str) -> list[_Cut]:
    cuts: list[_Cut] = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) or ast.get_docstring(node) is None:
            continue
        text = node.body[0]
        assert text.end_lineno is not None and text.end_col_offset is not None
        by = "" if len(node.body) > 1 or isinstance(node, ast.Module) else "..."
        cuts.append(_Cut(text.lineno, text.col_offset, text.end_lineno, text.end_col_offset, by))
    return cuts


def _types(source: str) -> list[_Cut]:
    """Annotations of arguments and results; those of class members stay, dataclasses read them."""
    cuts: list[_Cut] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.arg) and node.annotation is not None:
            start = (node.lineno, node.col_offset + len(node.arg))
            cuts.append(_Cut(*start, *_end(node.annotation), ""))
        if isinstance(node, ast.FunctionDef) and node.returns is not None:
            start = (node.returns.lineno, node.returns.col_offset - len(" -> "))
            cuts.append(_Cut(*start, *_end(node.returns), ""))
    return cuts


def _end(node: ast.expr) -> tuple[int, int]:
    assert node.end_lineno is not None and node.end_col_offset is not None
    return node.end_lineno, node.end_col_offset
