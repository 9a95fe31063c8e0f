"""Credentials: `$CREDENTIALS_DIRECTORY/<name>`, else the file that the configuration names, else the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flashd.errors import ConfigError

MAX_CREDENTIAL_BYTES = 8 * 1024
_CLEAN = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A text that shows itself to nobody by accident: `str`, `repr` and format say `***`. An empty one is false."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself, for the one place that sends it."""
        return self._text

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return "Secret(***)"

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True)
class CredentialSource:
    """`name` is that of the file in `$CREDENTIALS_DIRECTORY`, `file_key` names another file, `variable` comes last."""

    name: str
    file_key: tuple[str, ...]
    variable: str


HF_TOKEN = CredentialSource("hf_token", ("hub", "token_file"), "FLASHD_HUB__TOKEN")
HF_BOX_TOKEN = CredentialSource("hf_box_token", ("hub", "box_token_file"), "FLASHD_HUB__BOX_TOKEN")
HYPERSTACK_API_KEY = CredentialSource(
    "hyperstack_api_key", ("providers", "hyperstack", "api_key_file"), "FLASHD_PROVIDERS__HYPERSTACK__API_KEY"
)
REDIS_URL = CredentialSource("redis_url", ("redis", "url_file"), "FLASHD_REDIS__URL")
SOURCES = (HF_TOKEN, HF_BOX_TOKEN, HYPERSTACK_API_KEY, REDIS_URL)
ALL_CREDENTIALS = frozenset(source.name for source in SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What the daemon proves itself with. Empty where a caller did not ask for it and it was not there."""

    hf_token: Secret
    hf_box_token: Secret
    hyperstack_api_key: Secret
    redis_url: Secret

    def at_hand(self) -> tuple[Secret, ...]:
        """All that are not empty."""
        every = (self.hf_token, self.hf_box_token, self.hyperstack_api_key, self.redis_url)
        return tuple(secret for secret in every if secret)


def find_credential(source: CredentialSource, file: str, env: Mapping[str, str]) -> Secret | None:
    """The first that is there; None when none is.

    Raises ConfigError with one phrase when one is there and cannot be used: the next one might be another account's.
    """
    directory = env.get("CREDENTIALS_DIRECTORY", "")
    places: list[Callable[[], str | None]] = []
    if directory:
        # systemd hands a credential over blank when nobody installed its file.
        places.append(lambda: _unless_blank(_read(Path(directory) / source.name)))
    if file:
        places.append(lambda: _read(Path(file)))
    places.append(lambda: env.get(source.variable))
    for place in places:
        text = place()
        if text is not None:
            return Secret(_checked(text))
    return None


def _read(path: Path) -> str | None:
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError((f"{path} cannot be read ({error.strerror})",)) from error
    if len(raw) > MAX_CREDENTIAL_BYTES:
        raise ConfigError((f"{path} has {len(raw)} bytes, that is no credential",))
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ConfigError((f"{path} is not text",)) from error


def _unless_blank(text: str | None) -> str | None:
    return text if text and text.strip() else None


def _checked(text: str) -> str:
    """Anything else than one printable word would end up in a header or an address."""
    stripped = text.strip()
    if not stripped:
        raise ConfigError(("the credential is empty",))
    if not _CLEAN.fullmatch(stripped):
        raise ConfigError(("the credential holds spaces, control characters or letters beyond ASCII",))
    return stripped
