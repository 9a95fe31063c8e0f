"""Names: of machines, of artifacts. One function each; launch, release and sweep share them."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

SLUG_MAX = 12
HASH_LENGTH = 10
ATTEMPT_MAX = 99_999

_OUTSIDE = re.compile(r"[^a-z0-9]+")


def run_hash(ns: str, run_id: str) -> str:
    """The ten characters that stand for a run in its machines' names."""
    digest = hashlib.sha256(f"{ns}/{run_id}".encode()).digest()
    return base64.b32encode(digest).decode().lower()[:HASH_LENGTH]


def slug(run_id: str) -> str:
    """The readable part of a machine name; may be empty."""
    return _OUTSIDE.sub("-", run_id.lower()).strip("-")[:SLUG_MAX].strip("-")


def fleet_prefix(ns: str) -> str:
    """What the names of all machines of a namespace begin with."""
    return f"flash-{ns}-"


def machine_name(ns: str, run_id: str, number: int) -> str:
    """The name of a run's machine number `number`, at most 50 characters."""
    if not 0 <= number <= ATTEMPT_MAX:
        raise ValueError(f"attempt {number} is outside 0 to {ATTEMPT_MAX}")
    middle = slug(run_id)
    return f"{fleet_prefix(ns)}{middle + '-' if middle else ''}{run_hash(ns, run_id)}-a{number}"


@dataclass(frozen=True, slots=True)
class ParsedName:
    """A name of our pattern taken apart; whether it is a run's is known only by recomputing it."""

    hash: str
    number: int


def parse_machine_name(ns: str, name: str) -> ParsedName | None:
    """Hash and number of a machine name of this namespace, None for any other name."""
    prefix = fleet_prefix(ns)
    if not name.startswith(prefix):
        return None
    match = re.fullmatch(r"(?:[a-z0-9][a-z0-9-]{0,11}-)?([a-z2-7]{10})-a(0|[1-9][0-9]{0,4})", name[len(prefix) :])
    return ParsedName(match.group(1), int(match.group(2))) if match else None


def launch_label(token: str) -> str:
    """The value of the `launch=` label that ties a machine to its intent."""
    return hashlib.sha256(token.encode()).hexdigest()[:8]


def artifact_prefix(phase: str, run_id: str, seed: int) -> str:
    """Where a run's artifacts lie in its repository."""
    return f"{phase}/{run_id}/seed{seed}"


def marker_path(prefix: str, provider: str, number: int) -> str:
    """The attempt's marker, the authority on its end."""
    return f"{prefix}/{provider}_attempt{number}.json"
