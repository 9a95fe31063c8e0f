"""An SSH public key that nobody can use: some clouds insist on one, and flashd never logs in.

A real Ed25519 key pair is derived from random bytes and the private half is dropped. It needs no ssh-keygen and no
library. Source: RFC 8032 section 5.1.5 (public key from seed), RFC 8709 section 4 (key format).
"""

from __future__ import annotations

import base64
import hashlib
import struct

SEED_BYTES = 32
_P = 2**255 - 19
_D = -121665 * pow(121666, -1, _P) % _P
_TYPE = b"ssh-ed25519"
_BASE_Y = 4 * pow(5, -1, _P) % _P
_BASE_X = 15112221349535400772501151409588531511454012693041857206046113283949847762202

_Point = tuple[int, int, int, int]  # extended coordinates X, Y, Z, T with x = X/Z, y = Y/Z, x*y = T/Z
_BASE: _Point = (_BASE_X, _BASE_Y, 1, _BASE_X * _BASE_Y % _P)


def public_key(seed: bytes, comment: str) -> str:
    """The line that belongs into authorized_keys, for a seed of 32 random bytes that the caller forgets."""
    blob = b"".join(struct.pack(">I", len(part)) + part for part in (_TYPE, ed25519_public(seed)))
    return f"{_TYPE.decode()} {base64.b64encode(blob).decode()} {comment}"


def ed25519_public(seed: bytes) -> bytes:
    """The 32 bytes of the public key. Not constant in time, which only matters for keys that are kept."""
    if len(seed) != SEED_BYTES:
        raise ValueError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
    clamped = bytearray(hashlib.sha512(seed).digest()[:SEED_BYTES])
    clamped[0] &= 0b1111_1000
    clamped[31] = clamped[31] & 0b0111_1111 | 0b0100_0000
    x, y, z, _ = _multiplied(int.from_bytes(clamped, "little"))
    inverse = pow(z, -1, _P)
    sign = (x * inverse % _P) & 1
    return (y * inverse % _P | sign << 255).to_bytes(SEED_BYTES, "little")


def _multiplied(scalar: int) -> _Point:
    total: _Point = (0, 1, 1, 0)
    power = _BASE
    while scalar:
        if scalar & 1:
            total = _sum(total, power)
        power = _sum(power, power)
        scalar >>= 1
    return total


def _sum(first: _Point, second: _Point) -> _Point:
    a = (first[1] - first[0]) * (second[1] - second[0]) % _P
    b = (first[1] + first[0]) * (second[1] + second[0]) % _P
    c = 2 * first[3] * second[3] * _D % _P
    d = 2 * first[2] * second[2] % _P
    e, f, g, h = b - a, d - c, d + c, b + a
    return (e * f % _P, g * h % _P, f * g % _P, e * h % _P)
