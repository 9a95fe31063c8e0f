"""The AsyncAPI 3 document: which stream carries which message. Written from the daemon's side: it receives requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

Document: TypeAlias = dict[str, Any]
_SCHEMA_FORMAT = "application/schema+json;version=draft-2020-12"


def asyncapi(event_names: Sequence[str]) -> Document:
    """One document for all streams; payloads refer to the JSON Schemas beside it.

    The Redis binding of AsyncAPI is empty, and `{…}` in an address would be a parameter, while the braces of a Redis
    key are literal: so addresses are null, and keys stand in `x-flashd-redis`.
    """
    transitions = [name for name in event_names if name != "progress"]
    messages = {"request": _message("request"), "command": _message("command")}
    messages |= {name: _message(f"event.{name}") for name in [*event_names, "request_rejected"]}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "flashd",
            "version": "1",
            "description": "Run requests in, events out, through Redis streams. <ns> is the configured namespace.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "requests": _channel("requests", "stream", ["request"], field="request", group="flashd"),
            "control": _channel("control", "stream", ["command"], field="command", group="flashd"),
            "events": _channel("events", "stream", [*transitions, "request_rejected"], field="event"),
            "eventsOfRun": _channel("events:<run_id>", "stream", transitions, field="event"),
            "progress": _channel("progress", "stream", ["progress"], field="event"),
        },
        "operations": {
            "takeRequest": _operation("receive", "requests"),
            "takeCommand": _operation("receive", "control"),
            "publishEvent": _operation("send", "events"),
            "publishEventOfRun": _operation("send", "eventsOfRun"),
            "publishProgress": _operation("send", "progress"),
        },
        "components": {"messages": messages},
    }


def _message(schema: str) -> Document:
    return {
        "name": schema,
        "contentType": "application/json",
        "payload": {"schemaFormat": _SCHEMA_FORMAT, "schema": {"$ref": f"./{schema}.json"}},
    }


def _channel(key: str, kind: str, messages: Sequence[str], **redis: str) -> Document:
    return {
        "address": None,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "x-flashd-redis": {"key": f"flashd:{{<ns>}}:{key}", "type": kind, **redis},
    }


def _operation(action: str, channel: str) -> Document:
    return {"action": action, "channel": {"$ref": f"#/channels/{channel}"}}
