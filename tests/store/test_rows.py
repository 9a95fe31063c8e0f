"""The ledger row as text: the contract's fields, tolerant reading, errors that name the row."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.adapters.store_rows import gone_from_json, gone_to_json, row_from_json, row_to_json
from flashd.core.ledger import Gone, LedgerRow, RowState
from flashd.errors import StoreError
from tests.store.makers import a_row

times = st.floats(0, 4e9)
maybe_times = st.none() | times
rows = st.builds(
    LedgerRow,
    name=st.just("m"), run_id=st.text(), attempt=st.integers(0, 99_999), provider=st.text(), account=st.text(),
    region=st.text(), gpu=st.text(), machine_id=st.none() | st.text(), state=st.sampled_from(RowState),
    usd_per_hour=st.floats(0, 1e4), requested_at=times, posted_at=maybe_times, live_at=maybe_times,
    deleting_at=maybe_times, created_at=maybe_times, until=maybe_times, launch=st.text(),
)  # fmt: skip


@given(rows)
def test_a_row_is_read_back_as_it_was_written(row: LedgerRow) -> None:
    assert row_from_json("m", row_to_json(row)) == row


def test_a_row_has_every_field_of_the_contract() -> None:
    assert {
        "run_id", "attempt", "provider", "account", "region", "gpu", "machine_id", "state", "usd_per_hour",
        "requested_at", "live_at", "deleting_at",
    } <= set(json.loads(row_to_json(a_row())))  # fmt: skip


def test_a_row_of_a_newer_or_older_flashd_is_read() -> None:
    raw = json.loads(row_to_json(a_row()))
    for ours in ("posted_at", "created_at", "until", "launch"):
        del raw[ours]
    raw["added_later"] = [1]
    assert row_from_json("flash-t-r1-abc-a0", json.dumps(raw)) == a_row(launch="")


def test_a_numeric_machine_id_is_read_as_text() -> None:
    raw = json.loads(row_to_json(a_row())) | {"machine_id": 77}
    assert row_from_json("m", json.dumps(raw)).machine_id == "77"


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "{}", "{broken", '"x"', "\xff",
        json.dumps(json.loads(row_to_json(a_row())) | {"state": "new"}),
        json.dumps(json.loads(row_to_json(a_row())) | {"requested_at": None}),
        json.dumps(json.loads(row_to_json(a_row())) | {"live_at": "soon"}),
        json.dumps(json.loads(row_to_json(a_row())) | {"run_id": 5}),
    ],
)  # fmt: skip
def test_a_damaged_row_is_named(text: str) -> None:
    with pytest.raises(StoreError, match="flash-t-x"):
        row_from_json("flash-t-x", text)


def test_a_proof_of_absence_is_read_back() -> None:
    for proof in (Gone("m", "77", 1.5, 2.25), Gone("m", None, 1.5, 2.25)):
        assert gone_from_json("m", gone_to_json(proof)) == proof
    with pytest.raises(StoreError, match="proof of absence of m"):
        gone_from_json("m", "{}")
