"""The public run hash with its types. What cannot be read is None: a hand-made hash must not stop a listing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TypeVar

from flashd.wire.events import rfc3339
from flashd.wire.request_model import Limits

T = TypeVar("T", int, float)
Fields = Mapping[str, str]
WHOLE = frozenset({"sequence", "attempt", "attempts_used", "step"})
TIMES = frozenset({"accepted_at", "updated_at", "finished_at", "heartbeat_at", "cancel_requested_at"})
MONEY = frozenset({"usd_per_hour", "cost_usd"})
DOCUMENTS = frozenset({"request", "metrics"})


def number(fields: Fields, name: str) -> float | None:
    """A field as a finite number."""
    try:
        value = float(fields.get(name, ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def document(fields: Fields, name: str) -> object:
    """A field as JSON."""
    try:
        return json.loads(fields.get(name, ""))
    except ValueError:
        return None


def typed(run_id: str, fields: Fields) -> dict[str, object]:
    """For JSON: unset is null, times are RFC 3339."""
    return {"run_id": run_id, **{name: _value(fields, name) for name in fields}}


def _value(fields: Fields, name: str) -> object:
    if name in DOCUMENTS:
        return document(fields, name)
    if name in WHOLE or name in MONEY or name in TIMES:
        found = number(fields, name)
        if found is None:
            return None
        return int(found) if name in WHOLE else found if name in MONEY else rfc3339(found)
    return fields[name] == "1" if name == "released" else fields[name] or None


def max_attempts(fields: Fields) -> int:
    """How many attempts the request allows."""
    request = document(fields, "request")
    limits = request.get("limits") if isinstance(request, dict) else None
    said = limits.get("max_attempts") if isinstance(limits, dict) else None
    return said if isinstance(said, int) else Limits().max_attempts
