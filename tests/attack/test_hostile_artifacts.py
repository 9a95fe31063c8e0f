"""What user code may commit to the Hub: it can hurt its own run at most, and no token in it goes any further."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap.job import Job
from flashd.daemon.announce import metrics_of
from flashd.sim.harness import HF_BOX_TOKEN, House, name_of
from flashd.wire.artifacts import parse_heartbeat, parse_marker, parse_preload
from flashd.wire.commit_title import parse_commit_title
from tests.attack.siege import Files, HostileBoxes, Trick, audit, check_no_secret, request, siege, until_ready

TOKEN = "hf_" + "AbCdEf0123" * 4
METRICS: Files = {"metrics.json": b'{"fake": 1}'}


def lie(job: Job, **changes: object) -> bytes:
    return json.dumps(json.loads(job.marker(True, False, "", 0, 1.0)) | changes).encode()


def marker(body: Callable[[Job], bytes], name: str = "hyperstack_attempt{}.json") -> Trick:
    """A box that claims its end with this file and has metrics beside it."""
    return lambda job: [(job.title("end"), {name.format(job.attempt): body(job), **METRICS})]


def heartbeat(body: bytes) -> Trick:
    return lambda job: [
        (job.title("heartbeat", {"stage": "train", "step": 1}), {"heartbeat.json": body}),
        ("the worker's own words", {"heartbeat.json": body + b" "}),
    ]


def titles(job: Job) -> list[tuple[str, Files]]:
    steps = ("nan", "1e9", "-1", "9" * 20, "\u0663", "0x1", "")
    mine = f"flashd run={job.run_id} seed=0 attempt=0 event="
    words = [f"{mine}heartbeat step={step}" for step in steps]
    words += ["", "\n\n", "flashd", "flashd run= seed= attempt= event=", "flashd " * 500, "\x00\x1b[31m"]
    words += [f"{mine}heartbeat step=5 stage={'s' * 5000}", f"{mine}end\nflashd run=victim seed=0 attempt=0 event=end"]
    words += [f"flashd run=victim seed=0 attempt=0 event={event} step=77 stage=pwned" for event in ("end", "heartbeat")]
    return [(title, {"x": str(number).encode()}) for number, title in enumerate(words)]


# A worker that fails in the end although something claims success for it: none of these may be believed.
LIES: dict[str, Trick] = {
    "marker-list": marker(lambda _: b"[1]"),
    "marker-empty": marker(lambda _: b""),
    "marker-binary": marker(lambda _: b"\xff\xfe"),
    "marker-number": marker(lambda job: lie(job, ok=1)),
    "marker-text-attempt": marker(lambda job: lie(job, attempt="0")),
    "marker-bool-attempt": marker(lambda job: lie(job, attempt=False)),
    "marker-no-token": marker(lambda job: lie(job, token=None)),
    "marker-deep": marker(lambda _: b"[" * 50_000),
    "marker-large": marker(lambda job: lie(job, error="x" * 70_000)),
    "marker-nan": marker(lambda job: lie(job).replace(b"true", b"NaN")),
    "marker-other-token": marker(lambda job: lie(job, token="0" * 32)),
    "marker-other-attempt": marker(lambda job: lie(job, attempt=7)),
    "marker-other-name": marker(lie, "hyperstack_attempt9.json"),
    "done-of-other-attempt": lambda job: [
        (job.title("end").replace(f"attempt={job.attempt}", "attempt=5"), {"DONE": b"1", **METRICS})
    ],
}
# A worker that is well in the end, whatever it wrote before.
NOISE: dict[str, Trick] = {
    "beat-5-mb": heartbeat(b'{"step":1,"x":"' + b"a" * 5_000_000 + b'"}'),
    "beat-list": heartbeat(b"[1,2]"),
    "beat-nan": heartbeat(b'{"step":NaN,"loss":Infinity,"history":[[NaN,1,2,3],"x",{},[1e999,null,"a",[]]]}'),
    "beat-huge": heartbeat(b'{"step":1e300,"epoch":1e400,"ts":-1e308}'),
    "beat-digits": heartbeat(b'{"step":' + b"9" * 5000 + b"}"),
    "beat-types": heartbeat(b'{"step":"1","loss":"x","stage":5,"gpu":[1],"error":{"a":1},"history":5}'),
    "beat-surrogate": heartbeat(b'{"stage":"\\u0000\\ud800","step":3,"gpu":{"a":{"b":NaN}}}'),
    "beat-attempt": heartbeat(b'{"step":5,"attempt":[]}'),
    "titles": titles,
    "three-hundred": lambda job: [(f"spam {number}", {"spam": str(number).encode()}) for number in range(300)],
}
REFUSED_METRICS = {
    "list": b"[1]",
    "empty": b"",
    "deep": b'{"a":' + b"[" * 300 + b"]" * 300 + b"}",
    "1.5-mb": b'{"a":"' + b"x" * 1_500_000 + b'"}',
}
TAKEN_METRICS = {
    "nan": b'{"loss":NaN,"x":[Infinity]}',
    "900-kb": b'{"a":"' + b"x" * 900_000 + b'"}',
    "surrogate": b'{"a\\ud800":"\\udfff"}',
    "digits": b'{"a":' + b"9" * 400 + b"}",
}
LEAKS: dict[str, Trick] = {
    "leak-marker": marker(lambda job: lie(job, ok=False, error=f"boom {TOKEN}")),
    "leak-title": lambda job: [(job.title("heartbeat", {"stage": TOKEN, "step": 3}), {"x": b"x"})],
    "leak-beat": heartbeat(json.dumps({"stage": TOKEN, "step": 3, "error": TOKEN, "gpu": {TOKEN: 1}}).encode()),
}


async def test_hostile_artifacts_hurt_nobody_and_leak_nothing(short_path: Path) -> None:
    async with siege(short_path) as house:
        assert isinstance(house.boxes, HostileBoxes)
        expected = _arm(house.boxes)
        await until_ready(house)
        for run_id, (_, request_) in expected.items():
            assert request_["run_id"] == run_id
            await house.submit(request_)
        await house.until_released(list(expected), 45)
        states = {run_id: (await house.fields(run_id))["state"] for run_id in expected}
        assert states == {run_id: state for run_id, (state, _) in expected.items()}
        await audit(house, list(expected))
        await check_no_secret(house, [TOKEN])
        await _check_events_are_strict(house)


def _arm(boxes: HostileBoxes) -> dict[str, tuple[str, dict[str, Any]]]:
    """Every run with the state it must end in."""
    boxes.tricks |= LIES | NOISE | LEAKS
    boxes.metrics |= REFUSED_METRICS | TAKEN_METRICS | {"token": json.dumps({"t": [HF_BOX_TOKEN]}).encode()}
    runs = {name: ("failed", request(name, trick=name, ends=["failed"], seconds=1.2)) for name in LIES}
    runs |= {name: ("succeeded", request(name, trick=name, seconds=0.8)) for name in (*NOISE, *LEAKS)}
    runs["leak-marker"] = ("failed", runs["leak-marker"][1])
    for name in (*TAKEN_METRICS, "token"):
        runs[f"m-{name}"] = ("succeeded", request(f"m-{name}", metrics=name))
    for name in REFUSED_METRICS:
        runs[f"m-{name}"] = ("failed", request(f"m-{name}", metrics=name))
    runs["victim"] = ("succeeded", request("victim", seconds=1.0))
    return runs


async def _check_events_are_strict(house: House) -> None:
    events = await house.all_events()
    for event in events:
        text = json.dumps(event, allow_nan=False, ensure_ascii=False)
        assert len(text.encode()) <= 16 * 1024
        assert "pwned" not in text
    ends = {event["subject"]: event["data"] for event in events if name_of(event) == "succeeded"}
    assert ends["m-nan"]["metrics"] == {"loss": None, "x": [None]}
    assert ends["m-token"]["metrics"] is None
    assert ends["m-token"]["metrics_ref"]["path"] == "sft/m-token/seed0/metrics.json"


@pytest.mark.parametrize("text", [TOKEN, f"x {TOKEN} y"])
def test_a_token_in_any_artifact_is_masked_before_it_goes_anywhere(text: str) -> None:
    body = {"ok": False, "attempt": 0, "token": "t", "error": text, "stage": text, "gpu": {"name": text}}
    raw = json.dumps({**body, "preloaded": [text], "failed": {text: text}}).encode()
    said: list[object] = [parse_marker(raw), parse_heartbeat(raw), parse_preload(raw)]
    said += [parse_commit_title(f"flashd run=r seed=0 attempt=0 event=heartbeat stage={TOKEN}")]
    assert TOKEN not in repr(said)
    assert metrics_of({"t": text}, "p", "c", 1).secret


def test_a_word_that_only_begins_like_a_token_is_kept() -> None:
    title = parse_commit_title("flashd run=r seed=0 attempt=0 event=heartbeat stage=hf_model_load")
    assert title is not None
    assert title.stage == "hf_model_load"
    assert not metrics_of({"model": "hf_model"}, "p", "c", 1).secret
