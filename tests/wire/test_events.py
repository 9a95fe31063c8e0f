"""Events as subscribers see them: the fields of the contract, strict JSON, and sizes that hold whatever was put in."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.wire import events as ev

SHA = "0123456789" * 4
BASE: dict[str, Any] = {"run_id": "r1", "phase": "sft", "seed": 0, "attempt": 0}
STAMP = ev.Stamp(id="r1.4", ns="prod", time=1_700_000_000.25, sequence=4, traceparent="00-a-b-01")
ATTEMPT = ev.AttemptSummary(
    attempt=0,
    provider="hyperstack",
    region="NORWAY-1",
    gpu="L40",
    machine="flash-prod-r1-abcdefghij-a0",
    machine_id="123",
    started=1_700_000_000,
    ended=1_700_000_060.5,
    reason="job_preempted",
    cost_usd=0.5,
    commit=SHA,
)
ARTIFACTS = ev.Artifacts(repo="a/b", prefix="sft/r1/seed0", commit=SHA)
REF = ev.MetricsRef(path="sft/r1/seed0/metrics.json", commit=SHA, bytes=7000)


def succeeded(**changes: Any) -> ev.Succeeded:
    said: dict[str, Any] = {
        "metrics": {"loss": 0.5},
        "metrics_ref": REF,
        "attempts": (ATTEMPT,),
        "cost_usd": 1.5,
        "evidence": "marker",
    }
    return ev.Succeeded(**BASE, state="succeeded", artifacts=ARTIFACTS, **(said | changes))


def samples() -> list[ev.EventData | ev.RequestRejected]:
    """One of each kind."""
    place = ev.Place(
        provider="hyperstack", region="US-1", gpu="L40", refusal="no_stock", text="none left", next_try=5.0
    )
    gone = ev.MachineSummary(name="flash-a", id="1", created=1.0, gone=2.0)
    return [
        ev.Accepted(**BASE | {"attempt": None}, state="queued", request_sha256="f" * 64),
        ev.Waiting(**BASE, state="backoff", reason="no_capacity", places=(place,), next_try=9.0),
        ev.Launching(**BASE, state="launching", machine="m", provider="p", region="r", gpu="L40", usd_per_hour=1.0),
        ev.Booting(**BASE, state="booting", machine="m", machine_id="5"),
        ev.Setup(**BASE, state="setup", stage="pip"),
        ev.Training(**BASE, state="training", step=1),
        ev.AttemptFailed(**BASE, state="backoff", reason="stalled", detail="d", retry_at=7.0, attempts_left=1),
        succeeded(),
        ev.Failed(**BASE, state="failed", reason="deadline", detail="d", fault="user", attempts=(), cost_usd=None),
        ev.Cancelled(**BASE, state="cancelled", by="me", reason="no", attempts=(ATTEMPT,), cost_usd=0.0),
        ev.Released(**BASE, state="failed", machines=(gone,), cost_usd=1.0),
        ev.Progress(
            **BASE, state="training", stage="train", step=5, heartbeat_age_s=3.0, history=((1.0, 5, None, 0.1),)
        ),
        ev.RequestRejected(entry_id="1-0", run_id=None, reason="bad_json", detail="bad_json: $: not JSON"),
    ]


def sent(event: ev.EventData | ev.RequestRejected, stamp: ev.Stamp = STAMP) -> dict[str, Any]:
    """The event as a subscriber with a strict parser reads it."""
    if isinstance(event, ev.Progress | ev.RequestRejected):
        stamp = dataclasses.replace(stamp, sequence=None)
    text = ev.stream_fields(ev.envelope(event, stamp))["event"]
    assert len(text.encode()) <= 16 * 1024

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in an event")

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def test_the_envelope_is_a_cloud_event_with_the_contracts_fields() -> None:
    event = sent(ev.Training(**BASE, state="training", step=1, group="g", labels={"a": "b"}))
    assert event == {
        "specversion": "1.0",
        "id": "r1.4",
        "source": "/flashd/prod",
        "type": "dev.flashd.run.training.v1",
        "subject": "r1",
        "time": "2023-11-14T22:13:20.250Z",
        "datacontenttype": "application/json",
        "sequence": 4,
        "traceparent": "00-a-b-01",
        "data": {**BASE, "state": "training", "group": "g", "labels": {"a": "b"}, "step": 1},
    }


def test_flat_copies_stand_beside_the_event() -> None:
    fields = ev.stream_fields(ev.envelope(ev.Setup(**BASE, state="setup", stage=None), STAMP))
    flat = {name: value for name, value in fields.items() if name != "event"}
    assert flat == {"id": "r1.4", "type": "dev.flashd.run.setup.v1", "run_id": "r1", "sequence": "4", "state": "setup"}


def test_a_rejected_request_has_no_sequence_and_two_flat_copies() -> None:
    cloud_event = ev.envelope(samples()[-1], ev.Stamp(id="x", ns="prod", time=0.0))
    assert cloud_event["type"] == "dev.flashd.request.rejected.v1"
    assert "sequence" not in cloud_event and "subject" not in cloud_event
    assert set(ev.stream_fields(cloud_event)) == {"event", "id", "type"}
    assert cloud_event["data"] == {
        "entry_id": "1-0",
        "run_id": None,
        "reason": "bad_json",
        "detail": "bad_json: $: not JSON",
    }


@pytest.mark.parametrize("event", samples(), ids=lambda event: event.NAME)
def test_absent_group_and_labels_are_null_and_times_are_rfc3339(event: ev.EventData | ev.RequestRejected) -> None:
    data = sent(event)["data"]
    if isinstance(event, ev.EventData):
        assert (data["group"], data["labels"]) == (None, None)
    texts = [data.get("retry_at"), data.get("next_try"), *(row.get("started") for row in data.get("attempts", []))]
    texts += [row["next_try"] for row in data.get("places", [])] + [row["gone"] for row in data.get("machines", [])]
    assert all(text is None or text.endswith("Z") for text in texts)


def test_a_transition_without_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="sequence"):
        ev.envelope(samples()[3], ev.Stamp(id="x", ns="prod", time=0.0))
    with pytest.raises(ValueError, match="sequence"):
        ev.envelope(samples()[-2], STAMP)


@pytest.mark.parametrize(
    ("unix", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_700_000_000, "2023-11-14T22:13:20Z"),
        (1.0004, "1970-01-01T00:00:01Z"),
        (1.9996, "1970-01-01T00:00:02Z"),
        (0.05, "1970-01-01T00:00:00.050Z"),
        (-5.0, "1970-01-01T00:00:00Z"),
        (1e300, "9999-12-31T23:59:59Z"),
    ],
)
def test_times_are_utc_to_the_millisecond_and_bounded(unix: float, text: str) -> None:
    assert ev.rfc3339(unix) == text


def test_small_metrics_are_inlined_and_the_reference_goes() -> None:
    data = sent(succeeded(metrics={"x": "y" * 6000}))["data"]
    assert data["metrics"] == {"x": "y" * 6000}
    assert data["metrics_ref"] is None


def test_metrics_above_6_kib_are_referred_to() -> None:
    data = sent(succeeded(metrics={"x": "y" * 6200}))["data"]
    assert data["metrics"] is None
    assert data["metrics_ref"] == {"path": REF.path, "commit": SHA, "bytes": 7000}
    assert "cut" not in data


def test_numbers_that_are_not_finite_are_null() -> None:
    data = sent(succeeded(metrics={"loss": math.nan, "deep": [math.inf, {"x": -math.inf}]}, cost_usd=math.nan))["data"]
    assert data["metrics"] == {"loss": None, "deep": [None, {"x": None}]}
    assert data["cost_usd"] is None


def test_error_text_is_cut_to_2_kib_and_said_so() -> None:
    event = ev.AttemptFailed(
        **BASE, state="backoff", reason="stalled", detail="é" * 3000, retry_at=None, attempts_left=0
    )
    data = sent(event)["data"]
    assert len(data["detail"].encode()) <= 2048
    assert data["detail"].endswith("…")
    assert data["cut"] == ["detail"]


def test_places_are_cut_to_32_and_their_text_to_200_bytes() -> None:
    place = ev.Place(provider="p", region="r", gpu="g", refusal="no_stock", text="\x07é" * 400)
    event = ev.Waiting(**BASE, state="queued", reason="no_capacity", places=(place,) * 40)
    data = sent(event)["data"]
    assert len(data["places"]) == 32
    assert all(len(row["text"].encode()) <= 200 and "\x07" not in row["text"] for row in data["places"])
    assert data["cut"] == ["places.text", "places"]


def test_the_largest_terminal_event_still_fits_and_keeps_its_reference() -> None:
    labels = {f"{index:02}" + '"' * 61: '"' * 128 for index in range(16)}
    data = sent(succeeded(metrics={"x": "y" * 6000}, attempts=(ATTEMPT,) * 20, labels=labels, group='"' * 128))["data"]
    assert data["metrics"] is None
    assert data["metrics_ref"]["commit"] == SHA
    assert data["labels"] == labels
    assert 2 <= len(data["attempts"]) <= 20


texts = st.text(st.characters(), max_size=5000)


@given(detail=texts, texts=st.lists(texts, max_size=5), repeat=st.integers(1, 60), group=st.none() | texts)
def test_no_text_breaks_the_size_or_the_json(detail: str, texts: list[str], repeat: int, group: str | None) -> None:
    places = tuple(ev.Place(provider="p", region=text[:64], gpu="g", refusal="x", text=text) for text in texts) * repeat
    waiting = ev.Waiting(**BASE, state="queued", reason="no_capacity", places=places, group=group and group[:128])
    failed = ev.Failed(
        **BASE, state="failed", reason="job_failed", detail=detail, fault="user", attempts=(ATTEMPT,) * 20, cost_usd=1.0
    )
    for event in (waiting, failed):
        assert sent(event)["data"]["run_id"] == "r1"


@given(st.lists(st.lists(st.none() | st.floats(), min_size=4, max_size=4), max_size=300))
def test_a_long_history_keeps_its_newest_rows(rows: list[list[float | None]]) -> None:
    event = ev.Progress(
        **BASE, state="training", stage="t", step=1, heartbeat_age_s=1.0, history=tuple(tuple(row) for row in rows)
    )
    history = sent(event)["data"]["history"]
    assert len(history) <= 120
    newest = [[x if x is None or math.isfinite(x) else None for x in row] for row in rows]
    assert history == newest[len(newest) - len(history) :]


HEAVY: dict[str, Any] = {"labels": {f"{index:02}" + '"' * 61: '"' * 128 for index in range(16)}, "group": '"' * 128}


@pytest.mark.parametrize(
    ("event", "cut"),
    [
        (
            ev.Waiting(
                **BASE,
                **HEAVY,
                state="queued",
                reason="no_capacity",
                places=(ev.Place(provider="p", region="r", gpu="g", refusal="x", text='"' * 200),) * 32,
            ),
            ["places"],
        ),
        (
            ev.Failed(
                **BASE,
                **HEAVY,
                state="failed",
                reason="job_failed",
                detail='"' * 2048,
                fault="user",
                attempts=(dataclasses.replace(ATTEMPT, region="R" * 400),) * 20,
                cost_usd=1.0,
            ),
            ["detail", "attempts"],
        ),
        (
            ev.Progress(
                **BASE,
                **HEAVY,
                state="training",
                stage="train",
                step=9,
                heartbeat_age_s=1.0,
                gpu={"name": "x" * 4000},
                history=((1700000000.123456, 123456, 0.12345678901234567, 1.2345678901234567e-05),) * 120,
            ),
            ["history"],
        ),
        (
            ev.Released(
                **BASE,
                **HEAVY,
                state="failed",
                machines=(ev.MachineSummary(name="m" * 50, id="1" * 200, created=1.5, gone=2.5),) * 40,
                cost_usd=1.0,
            ),
            ["machines"],
        ),
        (
            ev.Cancelled(
                **BASE, **HEAVY, state="cancelled", by='"' * 2048, reason='"' * 2048, attempts=(), cost_usd=None
            ),
            [],
        ),
        (
            ev.Training(**BASE, state="training", step=1, labels={str(index): "x" * 900 for index in range(40)}),
            ["labels"],
        ),
    ],
    ids=["waiting", "failed", "progress", "released", "cancelled", "labels"],
)
def test_parts_at_their_limits_together_are_cut_and_named(event: ev.EventData, cut: list[str]) -> None:
    data = sent(event)["data"]
    assert data.get("cut", []) == cut
    if cut != ["labels"]:
        assert data["labels"] == HEAVY["labels"]
