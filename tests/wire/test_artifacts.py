"""What user code may leave in the Hub: every body is a value, hostile ones too (F20, F21)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flashd.wire.artifacts import (
    Done,
    Heartbeat,
    Invalid,
    Marker,
    Metrics,
    PreloadResult,
    Wrong,
    error_text,
    parse_done,
    parse_heartbeat,
    parse_marker,
    parse_metrics,
    parse_preload,
)
from flashd.wire.commit_title import CommitEvent, CommitTitle, parse_commit_title

OBJECTS: dict[str, Callable[[bytes], Any]] = {
    "marker": parse_marker,
    "heartbeat": parse_heartbeat,
    "metrics": parse_metrics,
    "preload": parse_preload,
}
HOSTILE = {
    "empty": (b"", Wrong.NO_JSON),
    "spaces": (b"  \n", Wrong.NO_JSON),
    "list": (b"[1]", Wrong.NO_OBJECT),
    "two_numbers": (b"[1, 2]", Wrong.NO_OBJECT),
    "null": (b"null", Wrong.NO_OBJECT),
    "truth": (b"true", Wrong.NO_OBJECT),
    "number": (b"3", Wrong.NO_OBJECT),
    "text": (b'"x"', Wrong.NO_OBJECT),
    "nan": (b"NaN", Wrong.NO_OBJECT),
    "oops": (b"{oops", Wrong.NO_JSON),
    "half": (b'{"ok": true', Wrong.NO_JSON),
    "two": (b"{}{}", Wrong.NO_JSON),
    "python": (b"{'ok': True}", Wrong.NO_JSON),
    "html": (b"<html><body>502</body></html>", Wrong.NO_JSON),
    "not_utf8": (b'{"ok": "\xff\xfe"}', Wrong.NO_JSON),
    "utf16": ('{"ok": true}'.encode("utf-16"), Wrong.NO_JSON),
    "surrogate_bytes": (b'{"a": "\xed\xa0\x80"}', Wrong.NO_JSON),
    "nul": (b"\0" * 100, Wrong.NO_JSON),
    "deep_lists": (b"[" * 60_000, Wrong.NO_JSON),
    "deep_objects": (b'{"a":' * 10_000, Wrong.NO_JSON),
    "deep_closed": (b'{"a":' * 150 + b"1" + b"}" * 150, Wrong.NO_JSON),
    "five_megabytes": (b'{"a": "' + b"x" * 5_000_000 + b'"}', Wrong.TOO_LARGE),
    "lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\n", Wrong.NO_JSON),
}


@pytest.mark.parametrize("parse", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize(("raw", "wrong"), HOSTILE.values(), ids=HOSTILE)
def test_f20_a_hostile_body_is_a_typed_answer(parse: Callable[[bytes], Any], raw: bytes, wrong: Wrong) -> None:
    found = parse(raw)
    assert isinstance(found, Invalid)
    assert found.wrong is wrong


@given(st.binary(max_size=300))
@example(b'{"attempt": 1e400, "ok": true, "token": "\\ud800"}')
@example(b'{"step": ' + b"9" * 5000 + b"}")
def test_f20_random_bytes_never_raise(raw: bytes) -> None:
    for parse in OBJECTS.values():
        assert parse(raw) is not None
    assert isinstance(parse_done(raw), Done)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
known = ["ok", "attempt", "token", "ts", "retriable", "error", "exit_code", "stage", "step", "run_id", "seed"]
known += ["epoch", "loss", "gpu", "liveness", "history", "preloaded", "already_cached", "failed"]


@given(st.dictionaries(st.sampled_from(known), json_values))
def test_f20_random_fields_never_raise_and_heartbeats_are_strict(document: dict[str, Any]) -> None:
    raw = json.dumps(document).encode()
    for parse in OBJECTS.values():
        parse(raw)
    found = parse_heartbeat(raw)
    if isinstance(found, Heartbeat):
        numbers = [found.ts, found.epoch, found.loss, *(cell for row in found.history for cell in row)]
        assert all(number is None or math.isfinite(number) for number in numbers)
        assert found.step is None or found.step >= 0
        json.dumps([found.stage, found.error, found.gpu], ensure_ascii=False, allow_nan=False).encode()


def marker(**changes: Any) -> bytes:
    said = {"ok": True, "attempt": 2, "token": "t", "ts": 5.0, "retriable": False, "error": None, "exit_code": 0}
    return json.dumps(said | changes).encode()


def test_a_marker_is_read() -> None:
    assert parse_marker(marker(error="boom", exit_code=1)) == Marker(
        ok=True, attempt=2, token="t", ts=5.0, retriable=False, error="boom", exit_code=1
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"ok": 1}, "ok"),
        ({"ok": "true"}, "ok"),
        ({"ok": None}, "ok"),
        ({"attempt": "2"}, "attempt"),
        ({"attempt": True}, "attempt"),
        ({"attempt": 2.5}, "attempt"),
        ({"attempt": -1}, "attempt"),
        ({"attempt": 10**400}, "attempt"),
        ({"attempt": math.nan}, "attempt"),
        ({"token": None}, "token"),
        ({"token": ""}, "token"),
        ({"token": 5}, "token"),
    ],
)
def test_a_marker_with_a_doubtful_identity_does_not_count(changes: dict[str, Any], field: str) -> None:
    found = parse_marker(marker(**changes))
    assert isinstance(found, Invalid)
    assert (found.wrong, field in found.text) == (Wrong.BAD_FIELD, True)


@pytest.mark.parametrize(
    "changes", [{"ts": math.inf}, {"ts": "now"}, {"exit_code": "x"}, {"error": [1]}, {"retriable": "yes"}]
)
def test_a_marker_counts_although_a_detail_of_it_is_wrong(changes: dict[str, Any]) -> None:
    found = parse_marker(marker(**changes))
    assert isinstance(found, Marker) and found.ok and not found.retriable


def test_a_host_marker_without_time_counts() -> None:
    raw = b'{"ok": false, "attempt": 0, "token": "t", "retriable": true, "error": "host: docker"}'
    assert parse_marker(raw) == Marker(ok=False, attempt=0, token="t", retriable=True, error="host: docker")


def test_a_long_error_is_cut_to_what_the_hash_keeps() -> None:
    found = parse_marker(marker(error="é" * 10_000))
    assert isinstance(found, Marker) and found.error is not None
    assert len(found.error.encode()) <= 16 * 1024


@pytest.mark.parametrize("size", [64 * 1024, 64 * 1024 + 1])
def test_a_marker_has_at_most_64_kib(size: int) -> None:
    raw = marker().ljust(size)
    assert isinstance(parse_marker(raw), Marker if size == 64 * 1024 else Invalid)


@pytest.mark.parametrize(
    ("attempt", "number"),
    [
        (None, None),
        ("", None),
        ("2", 2),
        (2, 2),
        (2.0, 2),
        ("x", Invalid),
        ([1], Invalid),
        (-1, Invalid),
        (True, Invalid),
    ],
)
def test_the_attempt_of_a_heartbeat_may_be_absent_empty_or_text(attempt: Any, number: Any) -> None:
    found = parse_heartbeat(json.dumps({"stage": "x", "attempt": attempt}).encode())
    if number is Invalid:
        assert isinstance(found, Invalid)
    else:
        assert isinstance(found, Heartbeat) and found.attempt == number


@pytest.mark.parametrize(
    ("step", "number"),
    [
        (1, 1),
        (12.0, 12),
        (0, 0),
        (-1, None),
        (1.5, None),
        (math.nan, None),
        (math.inf, None),
        ("3", None),
        (True, None),
        (10**30, None),
    ],
)
def test_f20_a_step_is_a_whole_number_or_nothing(step: Any, number: int | None) -> None:
    found = parse_heartbeat(json.dumps({"step": step}).encode())
    assert isinstance(found, Heartbeat) and found.step == number


def test_f21_a_heartbeat_with_nan_is_read_with_none() -> None:
    raw = b'{"stage": "rl", "step": 5, "loss": NaN, "reward": Infinity, "epoch": 1e999, "gpu": {"util": NaN}}'
    found = parse_heartbeat(raw)
    assert isinstance(found, Heartbeat)
    assert (found.step, found.loss, found.reward, found.epoch, found.gpu) == (5, None, None, None, {"util": None})


def test_only_true_is_liveness_and_only_whole_rows_are_history() -> None:
    rows = [[1.0, 2, 0.5, 1e-4], [1], "x", [1, 2, "x", None]] + [[float(n), n, 0.1, 0.2] for n in range(200)]
    found = parse_heartbeat(json.dumps({"liveness": 1, "history": rows}).encode())
    assert isinstance(found, Heartbeat)
    assert not found.liveness
    assert len(found.history) == 120 and found.history[-1] == (199.0, 199.0, 0.1, 0.2)


def test_metrics_are_strict_json_and_know_their_size() -> None:
    raw = b'{"loss": NaN, "n": {"x": [Infinity, 1]}, "big": ' + b"9" * 5000 + b"}"
    assert parse_metrics(raw) == Metrics({"loss": None, "n": {"x": [None, 1]}, "big": None}, len(raw))


def test_metrics_may_have_one_mebibyte() -> None:
    head, tail = b'{"x": "', b'"}'
    assert isinstance(parse_metrics(head + b"y" * (1024 * 1024 - 9) + tail), Metrics)
    assert isinstance(parse_metrics(head + b"y" * (1024 * 1024 - 8) + tail), Invalid)


@pytest.mark.parametrize(
    ("raw", "at"),
    [
        (b"1700000000.5", 1700000000.5),
        (b" 1700000000\n", 1700000000.0),
        (b"nan", None),
        (b"inf", None),
        (b"-5", None),
        (b"", None),
        (b"[1]", None),
        (b"\xff", None),
        (b"9" * 100, None),
        (b"1" * 5_000_000, None),
    ],
)
def test_done_counts_whatever_stands_in_it(raw: bytes, at: float | None) -> None:
    assert parse_done(raw) == Done(at)


def test_an_error_file_is_told_by_its_end_without_tokens() -> None:
    told = error_text(b"begin\n" * 9000 + b"\xff token hf_" + b"a" * 34 + b"\nKeyError: 'prompt'\n")
    assert told.endswith("token ***\nKeyError: 'prompt'")
    assert len(told) == 1500
    assert error_text(b"  \n") == ""


def test_a_preload_result_is_read_as_far_as_it_is_right() -> None:
    raw = json.dumps(
        {"preloaded": ["a", 1], "already_cached": "x", "failed": {"b": "404", "c": 5}, "error": None}
    ).encode()
    assert parse_preload(raw) == PreloadResult(("a",), (), {"b": "404", "c": ""}, None)


@pytest.mark.parametrize(
    ("title", "found"),
    [
        (
            "flashd run=r1 seed=0 attempt=2 event=heartbeat stage=train step=12 loss=0.5",
            CommitTitle(run_id="r1", seed=0, attempt=2, event=CommitEvent.HEARTBEAT, stage="train", step=12, loss=0.5),
        ),
        (
            "flashd run=a.b-c_d seed=2147483647 attempt=99999 event=heartbeat liveness=1\n\nbody",
            CommitTitle(run_id="a.b-c_d", seed=2147483647, attempt=99999, event=CommitEvent.HEARTBEAT, liveness=True),
        ),
        (
            "flashd run=r seed=0 attempt=0 event=end x=y",
            CommitTitle(run_id="r", seed=0, attempt=0, event=CommitEvent.END),
        ),
        (
            "flashd run=r seed=0 attempt=0 event=heartbeat step=NaN loss=nan liveness=yes",
            CommitTitle(run_id="r", seed=0, attempt=0, event=CommitEvent.HEARTBEAT),
        ),
        ("Upload folder using huggingface_hub", None),
        ("", None),
        ("flashd", None),
        ("flashdrun=r seed=0 attempt=0 event=end", None),
        ("flashd run=r seed=0 attempt=0", None),
        ("flashd run=r seed=0 attempt=0 event=party", None),
        ("flashd run=r seed=0 attempt=x event=end", None),
        ("flashd run=r seed=-1 attempt=0 event=end", None),
        ("flashd run=r seed=0 attempt=٣ event=end", None),
        ("flashd run={r} seed=0 attempt=0 event=end", None),
        ("flashd seed=0 attempt=0 event=end", None),
    ],
)
def test_a_commit_title_tells_what_happened_or_nothing(title: str, found: CommitTitle | None) -> None:
    assert parse_commit_title(title) == found


@given(st.text(st.characters()))
def test_no_title_raises(title: str) -> None:
    parse_commit_title(title)
    parse_commit_title(f"flashd run=r seed=0 attempt=0 event=heartbeat step={title} loss={title}")
