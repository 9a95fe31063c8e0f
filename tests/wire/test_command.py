"""Control commands: a cancel is taken whenever it can be understood."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.wire.command import CancelCommand, parse_command
from flashd.wire.faults import Rejection, RejectReason


def parse(**said: Any) -> CancelCommand | Rejection:
    return parse_command(json.dumps(said))


def test_a_cancel_is_read() -> None:
    assert parse(command="cancel", run_id="r1", by="ann", reason="no budget") == CancelCommand(
        command="cancel", run_id="r1", by="ann", reason="no budget"
    )


def test_a_cancel_needs_only_the_run() -> None:
    assert parse(command="cancel", run_id="r1") == CancelCommand(command="cancel", run_id="r1")


def test_long_words_are_cut_and_tokens_masked_rather_than_refused() -> None:
    found = parse(command="cancel", run_id="r1", by="x" * 500, reason="leaked hf_" + "a" * 34)
    assert isinstance(found, CancelCommand)
    assert found.by is not None and len(found.by.encode()) <= 128
    assert found.reason == "leaked ***"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", RejectReason.BAD_JSON),
        (b"[]", RejectReason.BAD_JSON),
        (b"\xff", RejectReason.BAD_JSON),
        (b'{"command": "cancel", "command": "cancel", "run_id": "r"}', RejectReason.BAD_JSON),
        (b"{}", RejectReason.MISSING_FIELD),
        (b'{"command": "cancel"}', RejectReason.MISSING_FIELD),
        (b'{"command": "cancel", "run_id": "r", "who": "x"}', RejectReason.UNKNOWN_FIELD),
        (b'{"command": "kill", "run_id": "r"}', RejectReason.BAD_VALUE),
        (b'{"command": "cancel", "run_id": "r", "by": 5}', RejectReason.BAD_VALUE),
        (b'{"command": "cancel", "run_id": "a b"}', RejectReason.BAD_RUN_ID),
        (b'{"command": "cancel", "run_id": "r", "reason": "' + b"x" * 20_000 + b'"}', RejectReason.TOO_LARGE),
    ],
)
def test_a_malformed_command_is_refused_with_its_reason(raw: bytes, reason: RejectReason) -> None:
    found = parse_command(raw)
    assert isinstance(found, Rejection)
    assert found.reason is reason


def test_the_run_of_a_malformed_command_is_named_when_it_is_readable() -> None:
    found = parse_command('{"command": "cancle", "run_id": "r7"}')
    assert isinstance(found, Rejection) and found.run_id == "r7"


@given(st.binary(max_size=100) | st.text(st.characters(), max_size=100))
def test_nothing_raises(raw: bytes | str) -> None:
    parse_command(raw)
