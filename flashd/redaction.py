"""Keeps secrets out of whatever is written for people: known values in every usual encoding, and telling names."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence, Set
from itertools import islice
from pathlib import PurePath
from typing import TypeAlias
from urllib.parse import quote, quote_plus, urlsplit

from flashd.wire.token_shapes import masked

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

REPLACEMENT = "***"
# Shorter values occur by chance inside other words, and their base64 even more so.
MIN_SECRET_LENGTH = 4
MIN_ENCODED_LENGTH = 8
MAX_DEPTH = 8
MAX_ITEMS = 200

_NAMES = frozenset({"authorization", "proxy_authorization", "cookie", "set_cookie", "api_key", "user_data"})
_NAME_ENDINGS = ("token", "password", "secret", "api_key", "private_key", "credential")
# Secrets that nobody announced and that are no tokens of a known shape: PEM blocks, printed request headers.
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?<=bearer )[^\s'\",)}\]]+"
    r"|(?P<name>\b(?:api[_-]?key|authorization)\b['\"]?\s*[:=]\s*['\"]?)(?!bearer )[^\s'\",)}\]]+",
    re.DOTALL | re.IGNORECASE,
)


class Redactor:
    """Replaces announced secrets. An announced value is never forgotten: a rotated key may still stand in an error."""

    def __init__(self) -> None:
        self._secrets: set[str] = set()
        self._forms: tuple[str, ...] = ()

    def add(self, secret: str) -> None:
        """Announce a live secret. Of a URL only the password counts, so that its host stays readable."""
        if "://" in secret:
            secret = _password_of(secret)
        secret = secret.strip()
        if len(secret) < MIN_SECRET_LENGTH or secret in self._secrets:
            return
        self._secrets.add(secret)
        # The longest first: a form may be contained in another one.
        forms = {*self._forms, *_encodings(secret)}
        self._forms = tuple(sorted(forms, key=lambda form: (-len(form), form)))

    def text(self, text: str) -> str:
        """`text` without the announced secrets and without anything that looks like one."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, REPLACEMENT)
        return masked(_SHAPES.sub(lambda shape: (shape["name"] or "") + REPLACEMENT, text))

    def plain(self, value: object, depth: int = 0) -> Plain:
        """Any value as JSON-like data without secrets; what has no such form becomes its text."""
        match value:
            case None | bool() | int() | float():
                return value
            case str():
                return self.text(str(value))
            case bytes() | bytearray():
                return self.text(bytes(value).decode("utf-8", errors="backslashreplace"))
            case _ if depth >= MAX_DEPTH:
                return "..."
            case Mapping():
                return self._mapping(value, depth)
            case Set():
                return [self.plain(item, depth + 1) for item in islice(sorted(value, key=repr), MAX_ITEMS)]
            case Sequence():
                return [self.plain(item, depth + 1) for item in islice(value, MAX_ITEMS)]
            case _:
                return self.text(_describe(value))

    def _mapping(self, value: Mapping[object, object], depth: int) -> dict[str, Plain]:
        plain: dict[str, Plain] = {}
        for key, item in islice(value.items(), MAX_ITEMS):
            name = self.text(key if isinstance(key, str) else _describe(key))
            told = is_telling(name) and not isinstance(item, int | float | None) and item
            plain[name] = REPLACEMENT if told else self.plain(item, depth + 1)
        return plain


def is_telling(name: str) -> bool:
    """Whether a field of this name holds a secret, whatever its value looks like."""
    folded = name.lower().replace("-", "_")
    return folded in _NAMES or folded.endswith(_NAME_ENDINGS)


def _describe(value: object) -> str:
    """An exception's repr may hold request headers (aiohttp's does), its text does not."""
    try:
        match value:
            case BaseException():
                return f"{type(value).__name__}: {value}"
            case PurePath():
                return str(value)
            case _:
                return repr(value)
    except Exception as broken:  # a foreign __str__ or __repr__ must not cost us the log line
        return f"<unprintable {type(value).__name__}: {type(broken).__name__}>"


def _password_of(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return url


def _encodings(secret: str) -> set[str]:
    forms = {secret, quote(secret, safe=""), quote(secret), quote_plus(secret), json.dumps(secret)[1:-1]}
    forms.add(repr(secret)[1:-1])
    if len(secret) >= MIN_ENCODED_LENGTH:
        raw = secret.encode()
        forms.add(raw.hex())
        for shift in range(3):
            forms |= {_base64_inside(raw, shift), _base64_inside(raw, shift, urlsafe=True)}
    return forms


def _base64_inside(raw: bytes, shift: int, *, urlsafe: bool = False) -> str:
    """The characters that stand for `raw` in any base64 text in which it begins `shift` bytes after a multiple of 3."""
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    encoded = encode(bytes(shift) + raw).decode().rstrip("=")
    bits_before, bits_until = 8 * shift, 8 * (shift + len(raw))
    return encoded[-(-bits_before // 6) : bits_until // 6]
