"""Run requests under random bytes and random JSON: never an exception, and only well-formed answers."""

from __future__ import annotations

import hashlib
import json
import re

from hypothesis import example, given
from hypothesis import strategies as st

from flashd.wire.faults import RejectReason
from flashd.wire.request import Rejection, RunRequest, parse_request
from flashd.wire.request_model import all_names

LINE = re.compile(rf"(?:{'|'.join(RejectReason)}): \$[^\n]*?: [^\n]+")
scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner), max_leaves=8
)
names = st.sampled_from(sorted({name.rsplit(".", 1)[-1] for name in all_names()}))
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner), max_leaves=20
)


def parse(raw: bytes | str) -> RunRequest | Rejection:
    return parse_request(raw, catalogue=("L40",), secrets=(), default_image="flash:1")


def check(found: RunRequest | Rejection) -> None:
    if isinstance(found, Rejection):
        assert found.detail_lines
        assert all(LINE.fullmatch(line) for line in found.detail_lines), found.detail_lines
        assert found.detail_lines[0].startswith(f"{found.reason}: ")


@given(st.binary(max_size=400))
@example(b"\xed\xa0\x80")
def test_bytes_never_raise(raw: bytes) -> None:
    check(parse(raw))


@given(st.text(st.characters(), max_size=200))
@example("\ud800")
@example('"\\ud800"')
def test_text_never_raises(raw: str) -> None:
    check(parse(raw))


@given(values | documents)
def test_json_never_raises(document: object) -> None:
    check(parse(json.dumps(document)))


@given(st.dictionaries(names, documents, max_size=6))
def test_a_good_request_with_random_fields_never_raises(changes: dict[str, object]) -> None:
    check(parse(json.dumps({"run_id": "r", "gpu": {"class": "L40"}, "hub": {"repo": "a/b"}} | changes)))


@given(values, st.booleans())
def test_any_spec_is_taken_unchanged_and_hashed_by_the_recipe(spec: object, escaped: bool) -> None:
    document = {"run_id": "r", "gpu": {"class": "L40"}, "hub": {"repo": "a/b"}, "spec": spec}
    raw = json.dumps(document, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    found = parse(raw)
    if isinstance(found, Rejection):
        assert found.reason is RejectReason.BAD_JSON and re.search("[\ud800-\udfff]|\\\\ud", repr(spec))
        return
    text = json.dumps(json.loads(raw), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert json.dumps(found.spec, sort_keys=True) == json.dumps(spec, sort_keys=True)
