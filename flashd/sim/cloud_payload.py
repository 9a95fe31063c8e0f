"""Reading of JSON request bodies and query strings, with the refusals of a strict API."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping

from flashd.sim.cloud_types import NAME_MAX, Json, bad_request

KEY_TYPES = ("ssh-rsa", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521")


def text(body: Json, field: str, limit: int = 1 << 20) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not value:
        raise bad_request(f"{field}: a non-empty string is required")
    if len(value) > limit:
        raise bad_request(f"{field}: longer than maximum length {limit}")
    return value


def name_of(body: Json) -> str:
    return text(body, "name", NAME_MAX)


def optional_text(body: Json, field: str, limit: int = 1 << 20) -> str | None:
    return None if body.get(field) is None else text(body, field, limit)


def integer(body: Json, field: str, low: int, high: int) -> int:
    value = body.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise bad_request(f"{field}: an integer is required")
    if not low <= value <= high:
        raise bad_request(f"{field}: must be between {low} and {high}")
    return value


def flag(body: Json, field: str, default: bool) -> bool:
    value = body.get(field, default)
    if not isinstance(value, bool):
        raise bad_request(f"{field}: a boolean is required")
    return value


def strings(body: Json, field: str) -> list[str]:
    value = body.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise bad_request(f"{field}: a list of strings is required")
    return [str(item) for item in value]


def integers(body: Json, field: str) -> list[int]:
    value = body.get(field)
    if not isinstance(value, list) or not value:
        raise bad_request(f"{field}: a list of ids is required")
    found = [item for item in value if isinstance(item, int) and not isinstance(item, bool)]
    if len(found) != len(value):
        raise bad_request(f"{field}: ids are integers")
    return found


def objects(body: Json, field: str) -> list[Json]:
    value = body.get(field)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise bad_request(f"{field}: a list of objects is required")
    return [dict(item) for item in value]


def number_in(query: Mapping[str, str], field: str) -> int | None:
    """A positive integer of the query string; None when it was left out."""
    raw = query.get(field)
    if raw is None:
        return None
    if not raw.isdecimal() or int(raw) < 1:
        raise bad_request(f"{field}: a positive integer is required")
    return int(raw)


def flag_in(query: Mapping[str, str], field: str, default: bool) -> bool:
    return query.get(field, str(default)).lower() == "true"


def fingerprint(public_key: str) -> str:
    """MD5 fingerprint of an OpenSSH public key; refuses what no SSH server would take."""
    parts = public_key.split()
    if len(parts) < 2 or parts[0] not in KEY_TYPES:
        raise bad_request(f"public_key: must begin with one of {', '.join(KEY_TYPES)}")
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except binascii.Error as error:
        raise bad_request("public_key: not base64") from error
    kind = parts[0].encode()
    if blob[: 4 + len(kind)] != len(kind).to_bytes(4, "big") + kind or len(blob) < 8 + len(kind) + 32:
        raise bad_request("public_key: the key's content does not fit its type")
    digest = hashlib.md5(blob, usedforsecurity=False).hexdigest()
    return ":".join(digest[at : at + 2] for at in range(0, 32, 2))


def check_user_data(user_data: str, max_base64: int) -> None:
    if not user_data.startswith(("#cloud-config", "#!")):
        raise bad_request("user_data: invalid cloud-init script, it must begin with #cloud-config or #!")
    size = 4 * -(-len(user_data.encode()) // 3)
    if size > max_base64:
        raise bad_request(f"user_data: {size} bytes in base64, at most {max_base64}")
