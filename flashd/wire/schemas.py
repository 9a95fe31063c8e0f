"""JSON Schemas (2020-12) and the AsyncAPI 3 document, generated from the types.

documents() -> {file name: JSON}; `python -m flashd.wire.schemas [DIRECTORY]` writes them, by default to `docs/schema`.
A schema says what a type can say; sizes in bytes, names of the catalogue and secrets are checked by the parsers only.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from flashd.wire.artifacts import Heartbeat, Marker, PreloadResult
from flashd.wire.asyncapi import asyncapi
from flashd.wire.command import CancelCommand
from flashd.wire.event_types import RUN_EVENTS, EventData, Progress, RequestRejected
from flashd.wire.request_model import RequestBody

Schema: TypeAlias = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
_INSTANT: Schema = {"type": "string", "format": "date-time"}
_NEEDED_TOGETHER: list[Schema] = [
    {
        "properties": {
            "gpu": {
                "anyOf": [
                    {"required": ["class"], "properties": {"class": {"not": {"type": "null"}}}},
                    {"required": ["min_vram_gb"], "properties": {"min_vram_gb": {"not": {"type": "null"}}}},
                ],
                "properties": {"class": {"not": {"type": "array", "maxItems": 0}}},
            }
        }
    },
    {
        "if": {"required": ["mode"], "properties": {"mode": {"const": "preload"}}},
        "then": {
            "required": ["cache", "models"],
            "properties": {
                "cache": {"type": "object"},
                "models": {"minItems": 1},
                "gpu": {
                    "required": ["regions"],
                    "properties": {"regions": {"type": "array", "minItems": 1, "maxItems": 1}},
                },
            },
        },
    },
]


def documents() -> dict[str, Schema]:
    """Every document by its file name."""
    found: dict[str, Schema] = {
        "request.json": {**_of(RequestBody, "request"), "allOf": _NEEDED_TOGETHER},
        "command.json": _of(CancelCommand, "command"),
        "marker.json": _of(Marker, "marker"),
        "heartbeat.json": _heartbeat(),
        "metrics.json": _titled({"type": "object"}, "metrics", "What a worker reports; flashd does not look inside."),
        "preload_result.json": _of(PreloadResult, "preload_result"),
    }
    for event in RUN_EVENTS:
        found[f"event.{event.NAME}.json"] = _event(event)
    found["event.request_rejected.json"] = _event(RequestRejected)
    return {**found, "asyncapi.json": asyncapi([event.NAME for event in RUN_EVENTS])}


def render(document: Schema) -> str:
    """The text of a file."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write(directory: Path) -> None:
    """Write all files. Files of types that are gone stay, and the tests complain of them."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, document in documents().items():
        (directory / name).write_text(render(document), encoding="utf-8")


def _of(model: type, name: str) -> Schema:
    schema = _bare(TypeAdapter(model).json_schema())
    return {"$schema": DIALECT, "$id": f"urn:flashd:schema:{name}:v1", "title": name, **schema}


def _titled(schema: Schema, name: str, description: str) -> Schema:
    return {
        "$schema": DIALECT,
        "$id": f"urn:flashd:schema:{name}:v1",
        "title": name,
        "description": description,
        **schema,
    }


def _heartbeat() -> Schema:
    """Workers of old write the attempt as text, empty when they do not know it."""
    schema = _of(Heartbeat, "heartbeat")
    schema["properties"]["attempt"]["anyOf"].append({"type": "string", "pattern": "^[0-9]{0,6}$"})
    return schema


def _event(event: type[EventData] | type[RequestRejected]) -> Schema:
    """The CloudEvent around one kind of data. Every field of the data is always sent, absent ones as null."""
    data = _bare(TypeAdapter(event).json_schema())
    definitions = data.pop("$defs", {})
    for part in (data, *definitions.values()):
        part["required"] = sorted(part["properties"])
    data["properties"]["cut"] = {
        "type": "array",
        "items": {"type": "string"},
        "description": "Names of fields that were cut to fit.",
    }
    rejected = event is RequestRejected
    numbered = not rejected and event is not Progress
    subject = "request" if rejected else "run"
    properties: Schema = {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "pattern": "^/flashd/[a-z0-9]{1,12}$"},
        "type": {"const": f"dev.flashd.{subject}.{event.NAME}.v1"},
        "subject": {"type": "string"},
        "time": _INSTANT,
        "datacontenttype": {"const": "application/json"},
        "traceparent": {"type": "string"},
        "data": data,
    }
    if numbered:
        properties["sequence"] = {"type": "integer", "minimum": 1}
    required = ["specversion", "id", "source", "type", "time", "data"]
    required += ["sequence"] if numbered else []
    required += [] if rejected else ["subject"]
    body: Schema = {"type": "object", "properties": properties, "required": required}
    if definitions:
        body["$defs"] = definitions
    name = "request_rejected" if rejected else event.NAME
    return _titled(body, f"event.{name}", str(event.__doc__))


def _bare(schema: Any) -> Any:
    """Without the titles that only repeat names in capitals."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _bare(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))}


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2] / "docs" / "schema")
