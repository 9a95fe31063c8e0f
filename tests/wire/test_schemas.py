"""The committed schemas are those of the types, and take and refuse what the parsers do."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from flashd.wire import events as ev
from flashd.wire.request import RunRequest
from flashd.wire.schemas import documents, render
from tests.wire.test_events import STAMP, samples
from tests.wire.test_request import parse, request

DIRECTORY = Path(__file__).parents[2] / "docs" / "schema"
DOCUMENTS = documents()


def accepts(name: str, document: object) -> bool:
    return bool(jsonschema.Draft202012Validator(DOCUMENTS[name]).is_valid(document))


def test_the_committed_files_are_the_generated_ones() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in DIRECTORY.glob("*.json")}
    assert committed == {name: render(document) for name, document in DOCUMENTS.items()}, (
        "run `python -m flashd.wire.schemas`"
    )


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != "asyncapi.json"])
def test_each_schema_is_a_valid_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(DOCUMENTS[name])


@pytest.mark.parametrize("event", samples(), ids=lambda event: event.NAME)
def test_the_schema_of_an_event_takes_it_and_no_other(event: ev.EventData | ev.RequestRejected) -> None:
    numbered = not isinstance(event, ev.Progress | ev.RequestRejected)
    sent = ev.envelope(event, STAMP if numbered else dataclasses.replace(STAMP, sequence=None))
    name = "event.request_rejected.json" if isinstance(event, ev.RequestRejected) else f"event.{event.NAME}.json"
    jsonschema.Draft202012Validator(DOCUMENTS[name]).validate(sent)
    takers = [other for other in DOCUMENTS if other.startswith("event.") and accepts(other, sent)]
    assert takers == [name]
    data = sent["data"]
    assert isinstance(data, dict)
    assert not accepts(name, {**sent, "data": {key: value for key, value in data.items() if key != "run_id"}})


REQUESTS: list[dict[str, Any]] = [
    request(),
    request(gpu={"min_vram_gb": 24, "class": None}),
    request(spec=[1, None], labels={"a": "b"}, cache=None, limits={"max_usd": None, "max_wall_s": 60}),
    request(mode="preload", gpu={"class": ["L40"], "regions": ["A"]}, cache={"volume": "v"}, models=["a/b"]),
    request(mode="preload"),
    request(gpu={}),
    request(gpu={"class": []}),
    request(sped=1),
    request(seed=-1),
    request(seed="1"),
    request(run_id="a b"),
    request(hub={"repo": "x"}),
    request(worker={"command": []}),
    request(worker={"env": {"A": 1}}),
    request(limits={"max_attempts": 21}),
    request(labels={f"k{i}": "" for i in range(17)}),
]


@pytest.mark.parametrize("document", REQUESTS, ids=lambda document: json.dumps(document)[50:110])
def test_the_request_schema_agrees_with_the_parser(document: dict[str, Any]) -> None:
    assert accepts("request.json", document) is isinstance(parse(document), RunRequest)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("command.json", {"command": "cancel", "run_id": "r"}, {"command": "kill", "run_id": "r"}),
        ("marker.json", {"ok": True, "attempt": 0, "token": "t", "ts": 1.5}, {"ok": 1, "attempt": 0, "token": "t"}),
        ("heartbeat.json", {"stage": "boot", "ts": 1, "attempt": "", "history": [[1, 2, None, 4]]}, {"step": "1"}),
        ("metrics.json", {"anything": [1]}, [1]),
        ("preload_result.json", {"preloaded": [], "already_cached": [], "failed": {}, "error": None}, {"failed": []}),
    ],
)
def test_the_other_schemas_take_and_refuse(name: str, good: object, bad: object) -> None:
    assert accepts(name, good)
    assert not accepts(name, bad)


def test_every_message_of_the_asyncapi_document_is_a_schema_and_is_used() -> None:
    document = DOCUMENTS["asyncapi.json"]
    schemas = {message["payload"]["schema"]["$ref"][2:] for message in document["components"]["messages"].values()}
    assert schemas <= set(DOCUMENTS)
    assert {name for name in DOCUMENTS if name.startswith("event.")} <= schemas
    used = {name for channel in document["channels"].values() for name in channel["messages"]}
    assert used == set(document["components"]["messages"])
    assert document["channels"]["requests"]["x-flashd-redis"]["key"] == "flashd:{<ns>}:requests"
