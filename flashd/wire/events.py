"""Events as values, and as the CloudEvents 1.0 JSON that subscribers read.

envelope(event, stamp) -> dict             structured CloudEvent, at most 16 KiB; what was cut is named in `data.cut`
stream_fields(cloud_event) -> dict         the stream entry: `event` and the flat copies
rfc3339(unix) -> str                       UTC with Z, to the millisecond
Events: Accepted Waiting Launching Booting Setup Training AttemptFailed Succeeded Failed Cancelled Released Progress,
RequestRejected; parts: Place, AttemptSummary, MachineSummary, Artifacts, MetricsRef. All keyword-only.
Every time in these types is Unix seconds; `envelope` writes RFC 3339.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from pydantic import JsonValue

from flashd.wire.event_cuts import fitted
from flashd.wire.event_types import (
    Accepted,
    Artifacts,
    AttemptFailed,
    AttemptSummary,
    Booting,
    Cancelled,
    EventData,
    Failed,
    Launching,
    MachineSummary,
    MetricsRef,
    Place,
    Progress,
    Released,
    RequestRejected,
    Setup,
    Succeeded,
    Training,
    Waiting,
)
from flashd.wire.strict_json import compact, sanitised

__all__ = [
    "Accepted",
    "Artifacts",
    "AttemptFailed",
    "AttemptSummary",
    "Booting",
    "Cancelled",
    "EventData",
    "Failed",
    "Launching",
    "MachineSummary",
    "MetricsRef",
    "Place",
    "Progress",
    "Released",
    "RequestRejected",
    "Setup",
    "Stamp",
    "Succeeded",
    "Training",
    "Waiting",
    "envelope",
    "rfc3339",
    "stream_fields",
    "type_of",
]

CloudEvent: TypeAlias = dict[str, JsonValue]
_INSTANTS = frozenset({"retry_at", "next_try", "started", "ended", "created", "gone"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_INSTANT = 253_402_300_799.0  # 9999-12-31T23:59:59Z, the end of what RFC 3339 can say


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What an event gets when it is stored. `sequence` is None for `progress` and rejected requests only."""

    id: str
    ns: str
    time: float
    sequence: int | None = None
    traceparent: str | None = None


def rfc3339(unix: float) -> str:
    """`2026-01-02T03:04:05.678Z`; no fraction when it is zero. `unix` is finite.

    Before 1970 and after 9999 it is the nearest time that can be said.
    """
    bounded = min(max(unix, 0.0), _LAST_INSTANT)
    moment = _EPOCH + timedelta(milliseconds=round(bounded * 1000))
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{moment.microsecond // 1000:03d}Z" if moment.microsecond else f"{text}Z"


def type_of(event: EventData | RequestRejected) -> str:
    """The CloudEvents type, `dev.flashd.run.<name>.v1`."""
    subject = "request" if isinstance(event, RequestRejected) else "run"
    return f"dev.flashd.{subject}.{event.NAME}.v1"


def envelope(event: EventData | RequestRejected, stamp: Stamp) -> CloudEvent:
    """The event as one JSON object, cut to its limits and strict: what is not finite is null.

    Raises ValueError when a transition has no sequence, or another event has one: that is a fault of flashd itself.
    """
    numbered = not isinstance(event, Progress | RequestRejected)
    if numbered != (stamp.sequence is not None):
        raise ValueError(f"{event.NAME}: sequence {stamp.sequence}")
    head: CloudEvent = {
        "specversion": "1.0",
        "id": stamp.id,
        "source": f"/flashd/{stamp.ns}",
        "type": type_of(event),
        "time": rfc3339(stamp.time),
        "datacontenttype": "application/json",
    }
    if event.run_id is not None:
        head["subject"] = event.run_id
    if stamp.sequence is not None:
        head["sequence"] = stamp.sequence
    if stamp.traceparent is not None:
        head["traceparent"] = stamp.traceparent
    data = sanitised(_plain(event))
    assert isinstance(data, dict)
    return {**head, "data": fitted(data, len(compact(head).encode()))}


def stream_fields(cloud_event: CloudEvent) -> dict[str, str]:
    """The fields of the stream entry: the event, and flat copies for readers that do not parse it."""
    flat = {"event": compact(cloud_event), "id": str(cloud_event["id"]), "type": str(cloud_event["type"])}
    data = cloud_event["data"]
    if isinstance(data, dict) and "state" in data:
        flat |= {"run_id": str(data["run_id"]), "state": str(data["state"])}
    if "sequence" in cloud_event:
        flat["sequence"] = str(cloud_event["sequence"])
    return flat


def _plain(value: object, name: str = "") -> JsonValue:
    """Dataclasses as objects; times by the names that hold them. Strings that are enums become plain text."""
    if dataclasses.is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name), item.name) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int | float) and name in _INSTANTS and not isinstance(value, bool):
        return rfc3339(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{name}: {type(value).__name__} cannot be sent")
