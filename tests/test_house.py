"""House rules that no linter checks: sizes, and links that lead somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from flashd.cli.verbs import GROUPS

ROOT = Path(__file__).parents[1]
PRODUCT = ("flashd", "bootstrap")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

COMMON_OPTIONS = "--config --json --help"

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), path.read_text()


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands_of(page: Path) -> str:
    """What stands in code blocks, and inline code, a line each."""
    code = re.findall(r"```\w*\n(.*?)```|`([^`\n]+)`", page.read_text(), re.DOTALL)
    return "\n".join(block or inline for block, inline in code)


def test_no_file_is_longer_than_can_be_read_in_one_go() -> None:
    long = {name: lines for name, text in sources(*PRODUCT) if (lines := len(text.splitlines())) > MAX_FILE_LINES}
    assert long == {}


def test_no_function_is_longer_than_a_screen() -> None:
    functions = (
        (f"{name}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for name, text in sources(*PRODUCT)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, Function)
    )
    assert {name: lines for name, lines in functions if lines > MAX_FUNCTION_LINES} == {}


def test_every_module_says_what_lives_in_it() -> None:
    silent = [name for name, text in sources(*PRODUCT, "tests") if text and not ast.get_docstring(ast.parse(text))]
    assert silent == []


def test_every_command_of_a_page_exists() -> None:
    options = {verb.name: str(verb.arguments) for _, group in GROUPS for verb in group}
    used = re.compile(r"(?:^|/|&& )flashd ([a-z][a-z-]*)([^`#\n>]*)", re.MULTILINE)
    unknown = [
        f"{page.relative_to(ROOT)}: flashd {verb}{rest}"
        for page in pages()
        for verb, rest in used.findall(commands_of(page))
        for option in ["", *re.findall(r"--[a-z-]+", rest)]
        if verb not in options or option not in options[verb] + COMMON_OPTIONS
    ]
    assert unknown == []


def test_every_link_of_a_page_leads_to_a_file() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages()
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []
