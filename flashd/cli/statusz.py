"""What a running daemon says of itself at `http.listen`, as far as it can be reached from here."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping

from flashd.config import Settings

TIMEOUT_S = 1.0
MAX_BYTES = 1024 * 1024
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def statusz(settings: Settings) -> Mapping[str, object] | None:
    """`/statusz` of this namespace's daemon; None when none answers. Blocks for TIMEOUT_S seconds at most, twice."""
    host, _, port = settings.http.listen.rpartition(":")
    if not host:
        return None
    host = host.strip("[]")
    # Not urllib: a proxy of the environment has no business between us and this machine.
    connection = http.client.HTTPConnection(_ANY.get(host, host), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/statusz")
        document = json.loads(connection.getresponse().read(MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    ours = isinstance(document, dict) and document.get("namespace") == settings.namespace
    return document if ours else None


def alarms_of(document: Mapping[str, object] | None) -> list[dict[str, str]]:
    """The alarms that are up: `alarm` and `detail` each."""
    listed = document.get("alarms") if document is not None else None
    if not isinstance(listed, list):
        return []
    return [{key: str(one.get(key)) for key in ("alarm", "detail")} for one in listed if isinstance(one, dict)]
