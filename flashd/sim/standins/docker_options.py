"""Reading of docker's arguments: options, environments, volumes, and the templates of `--format`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .docker_store import DockerError


class Options:
    """Parsed options by name. The last of several values counts, where only one makes sense."""

    def __init__(self, found: dict[str, list[str]]) -> None:
        self._found = found

    def any(self, *names: str) -> bool:
        return any(name in self._found for name in names)

    def all(self, *names: str) -> list[str]:
        return [value for name in names for value in self._found.get(name, [])]

    def one(self, *names: str, default: str) -> str:
        return (self.all(*names) or [default])[-1]


def parse(
    arguments: list[str], flags: str = "", valued: str = "", command_follows: bool = False
) -> tuple[Options, list[str]]:
    """Options and the other words; with `command_follows` everything after the first other word is left alone.

    `flags` and `valued` name the known options, separated by spaces. Raises DockerError for an unknown one.
    """
    found: dict[str, list[str]] = {}
    words: list[str] = []
    rest = list(arguments)
    while rest:
        option = rest.pop(0)
        name, equals, value = option.partition("=")
        if option == "--" or (command_follows and not option.startswith("-")):
            return Options(found), words + ([] if option == "--" else [option]) + rest
        if not option.startswith("-"):
            words.append(option)
        elif name in flags.split():
            found.setdefault(name, []).append(value)
        elif name in valued.split():
            if not equals and not rest:
                raise DockerError(f"flag needs an argument: {name}", 125)
            found.setdefault(name, []).append(value if equals else rest.pop(0))
        else:
            raise DockerError(f"unknown flag: {option} (not part of this simulation)", 125)
    return Options(found), words


def environment(options: Options) -> dict[str, str]:
    lines: list[str] = []
    for path in options.all("--env-file"):
        try:
            text = Path(path).read_text()
        except OSError as error:
            raise DockerError(f"docker: open {path}: {error.strerror}", 125) from error
        lines += [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    lines += options.all("-e", "--env")
    found: dict[str, str] = {}
    for line in lines:
        key, equals, value = line.partition("=")
        if equals:
            found[key] = value
        elif key in os.environ:
            found[key] = os.environ[key]
    return found


def volume(text: str) -> list[str]:
    parts = text.split(":")
    if len(parts) not in (2, 3) or not parts[0].startswith("/") or not parts[1].startswith("/"):
        raise DockerError(f"docker: invalid volume {text!r}: SOURCE:TARGET[:ro] with absolute paths", 125)
    return [parts[0], parts[1], "ro" if "ro" in parts[2:] else "rw"]


def render(template: str, details: Mapping[str, object]) -> str:
    """A Go template, as far as it only names fields: `{{.State.Running}}`, `{{json .State}}`."""

    def field(match: re.Match[str]) -> str:
        value: object = details
        for name in filter(None, match[2].split(".")):
            if not isinstance(value, dict) or name not in value:
                raise DockerError(f"template parsing error: no field {name!r}")
            value = value[name]
        if match[1] or isinstance(value, (dict, list)):
            return json.dumps(value)
        return str(value).lower() if isinstance(value, bool) else str(value)

    text = re.sub(r"\{\{\s*(json\s+)?((?:\.\w+)+|\.)\s*\}\}", field, template)
    if "{{" in text:
        raise DockerError(f"template {template!r} is beyond this simulation")
    return text
