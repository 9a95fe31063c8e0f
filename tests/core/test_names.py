"""Machine names: at most 50 characters, recomputable, and nobody else's."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashd.core.names import (
    artifact_prefix,
    launch_label,
    machine_name,
    marker_path,
    parse_machine_name,
    run_hash,
    slug,
)

NAMESPACES = st.from_regex(r"[a-z0-9]{1,12}", fullmatch=True)
RUN_IDS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)


@given(NAMESPACES, RUN_IDS, st.integers(0, 99_999))
def test_every_name_fits_and_leads_back_to_its_run_and_number(ns: str, run_id: str, number: int) -> None:
    name = machine_name(ns, run_id, number)
    assert len(name) <= 50
    assert re.fullmatch(r"[a-z0-9-]+", name)
    parsed = parse_machine_name(ns, name)
    assert parsed is not None
    assert (parsed.hash, parsed.number) == (run_hash(ns, run_id), number)
    assert machine_name(ns, run_id, parsed.number) == name


def test_the_hash_is_the_contracts() -> None:
    digest = hashlib.sha256(b"prod/my-run").digest()
    assert run_hash("prod", "my-run") == base64.b32encode(digest).decode().lower()[:10]


@pytest.mark.parametrize(
    ("run_id", "expected"),
    [
        ("my-run", "my-run"),
        ("My_Run.7", "my-run-7"),
        ("a" * 128, "a" * 12),
        ("abcdefghijk-lmn", "abcdefghijk"),  # cut to 12 ends in a dash, which goes
        ("A..__--B", "a-b"),
        ("0", "0"),
    ],
)
def test_the_slug_is_short_lower_case_and_clean(run_id: str, expected: str) -> None:
    assert slug(run_id) == expected


def test_runs_that_share_a_beginning_share_no_machine_name() -> None:
    names = {machine_name("t", run_id, 0) for run_id in ("a", "a-s1", "flash-a", "A", "a.s1")}
    assert len(names) == 5


def test_an_empty_slug_is_left_out_with_its_dash() -> None:
    assert machine_name("t", "é"[:0] or "-", 0).count("--") == 0


@pytest.mark.parametrize("number", [-1, 100_000])
def test_a_number_outside_the_contract_is_refused(number: int) -> None:
    with pytest.raises(ValueError):
        machine_name("t", "r", number)


@pytest.mark.parametrize(
    "name",
    [
        "flash-x",
        "flash-t-x",
        "flash-other-r1-aaaaaaaaaa-a0",
        "flash-t-r1-aaaaaaaaaa-a007",
        "flash-t-r1-aaaaaaaaaa-a",
        "flash-t-r1-AAAAAAAAAA-a0",
        "flash-t-r1-aaaaaaaaa1-a0",
        "flash-t-r1-aaaaaaaaaa-a0-1",
        "gpu-box",
    ],
)
def test_other_names_are_not_of_our_pattern(name: str) -> None:
    assert parse_machine_name("t", name) is None


def test_label_prefix_and_marker_are_the_contracts() -> None:
    assert launch_label("tok") == hashlib.sha256(b"tok").hexdigest()[:8]
    assert artifact_prefix("sft", "r", 3) == "sft/r/seed3"
    assert marker_path("sft/r/seed3", "hyperstack", 2) == "sft/r/seed3/hyperstack_attempt2.json"
