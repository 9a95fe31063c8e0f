"""Run requests: what is taken, what is refused, and that everything wrong is said at once."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from flashd.errors import RequestError
from flashd.wire.request import Mode, Rejection, RejectReason, RunRequest, parse_request, restore_request

CLASSES = ("RTX A6000", "L40", "A100 PCIe", "H100", "H100 SXM", "H200 SXM", "RTX Pro 6000")
CATALOGUE = {name: name for name in CLASSES} | {"A6000": "RTX A6000"}
SECRETS = ("WANDB_API_KEY",)
TOKEN = "hf_" + "A1b2" * 9


def request(**changes: Any) -> dict[str, Any]:
    """A small good request with changes."""
    return {"run_id": "r1", "gpu": {"class": "L40"}, "hub": {"repo": "team/runs"}} | changes


def parse(document: object) -> RunRequest | Rejection:
    raw = document if isinstance(document, bytes | str) else json.dumps(document)
    return parse_request(raw, catalogue=CATALOGUE, secrets=SECRETS, default_image="flash:1")


def taken(document: object) -> RunRequest:
    found = parse(document)
    assert isinstance(found, RunRequest), found
    return found


def refused(document: object) -> Rejection:
    found = parse(document)
    assert isinstance(found, Rejection), found
    return found


def test_defaults_are_those_of_the_contract() -> None:
    found = taken(request())
    assert (found.schema, found.mode, found.phase, found.seed, found.priority) == (1, Mode.TRAIN, "sft", 0, 0)
    assert (found.limits.max_wall_s, found.limits.max_attempts) == (86400, 3)
    assert (found.limits.max_usd, found.limits.deadline_s) == (None, None)
    assert (found.hub.code.repo, found.hub.code.revision, found.hub.code.path) == ("team/runs", "main", "code")
    assert found.worker.command == ("python", "-m", "flash.engine.worker")
    assert found.worker.image == "flash:1"
    assert (found.cache, found.group, found.labels, found.traceparent) == (None, None, None, None)
    assert found.gpu.classes == ("L40",)
    assert found.gpu.spot is False


def test_every_field_is_read() -> None:
    everything = request(
        schema=1,
        mode="preload",
        phase="rl",
        seed=7,
        gpu={
            "class": ["h100-sxm", "rtx a6000"],
            "min_vram_gb": 40,
            "min_disk_gb": 100.5,
            "min_ram_gb": 64,
            "max_usd_per_hour": 2.5,
            "providers": ["hyperstack"],
            "regions": ["NORWAY-1"],
            "exclude_regions": ["US-1"],
            "spot": True,
        },
        hub={"repo": "a/b", "code": {"repo": "a/c", "revision": "f" * 40, "path": "src/worker"}},
        worker={
            "image": "ghcr.io/x/y:{gpu}-{sm}",
            "command": ["python", "train.py"],
            "pip": ["trl==0.9"],
            "env": {"WANDB_MODE": "offline"},
            "secrets": ["WANDB_API_KEY"],
        },
        models=["meta/llama", "gpt2"],
        spec={"lr": 1e-4, "nested": [None, {"x": "é"}]},
        cache={"volume": "flash-weights", "size_gb": 200},
        limits={"max_wall_s": 60, "max_attempts": 20, "max_usd": 12.5, "deadline_s": 7200},
        priority=-100,
        group="sweep-1",
        labels={"owner": "ml"},
        traceparent="00-" + "a" * 32 + "-" + "b" * 16 + "-01",
    )
    found = taken(everything)
    assert found.gpu.classes == ("H100 SXM", "RTX A6000")
    assert (found.gpu.min_disk_gb, found.gpu.spot, found.gpu.exclude_regions) == (100.5, True, ("US-1",))
    assert (found.hub.code.repo, found.hub.code.path) == ("a/c", "src/worker")
    assert found.worker.secrets == ("WANDB_API_KEY",)
    assert found.worker.env == {"WANDB_MODE": "offline"}
    assert found.spec == everything["spec"]
    assert found.cache is not None and (found.cache.volume, found.cache.size_gb) == ("flash-weights", 200)
    assert (found.limits.max_usd, found.limits.deadline_s) == (12.5, 7200)
    assert found.labels == {"owner": "ml"}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": {"min_vram_gb": 24}},
        {"gpu": {"class": None, "min_vram_gb": 24, "regions": None}},
        {"gpu": {"class": "h100 sxm"}},
        {"gpu": {"class": ["RTX_PRO_6000"]}},
        {"hub": {"repo": "a/b", "code": None}},
        {"worker": {"image": None}},
        {"cache": None, "group": None, "labels": None, "traceparent": None},
        {"limits": {"max_usd": 0}},
        {"limits": {"max_wall_s": 2592000, "max_attempts": 1}},
        {"run_id": "A" + "." * 127},
        {"seed": 2147483647},
        {"spec": None},
        {"spec": [1, "x", {"a": 12345678901234567890}]},
        {"spec": "\x00 any text \n"},
        {"spec": {"model": "hf_internal_testing", "sk": "sk-learn", "note": "AKIA", "cert": "BEGIN CERTIFICATE"}},
        {"spec": "x" * (128 * 1024 - 2)},
        {"labels": {"k" * 63: "v" * 128}},
        {"group": "g" * 128},
    ],
    ids=lambda changes: json.dumps(changes)[:60],
)
def test_these_are_taken(changes: dict[str, Any]) -> None:
    taken(request(**changes))


BAD = [
    ("no_object", [1], RejectReason.BAD_JSON, "$"),
    ("a_text", "hello", RejectReason.BAD_JSON, "$"),
    ("nan", '{"run_id": NaN}', RejectReason.BAD_JSON, "$"),
    ("infinity", '{"spec": -Infinity}', RejectReason.BAD_JSON, "$"),
    ("beyond_double", '{"spec": 1e999}', RejectReason.BAD_JSON, "$"),
    ("duplicate_key", '{"run_id": "a", "run_id": "b"}', RejectReason.BAD_JSON, "$"),
    ("duplicate_deep", '{"spec": [{"a": 1, "a": 1}]}', RejectReason.BAD_JSON, "$"),
    ("lone_surrogate", '{"spec": "\\ud800"}', RejectReason.BAD_JSON, "$"),
    ("not_utf8", b'{"run_id": "\xff"}', RejectReason.BAD_JSON, "$"),
    ("byte_order_mark", b"\xef\xbb\xbf{}", RejectReason.BAD_JSON, "$"),
    ("too_deep", "[" * 100_000, RejectReason.BAD_JSON, "$"),
    ("deep_and_closed", '{"spec":' + "[" * 200 + "]" * 200 + "}", RejectReason.BAD_JSON, "$"),
    ("digits", '{"seed": ' + "9" * 5000 + "}", RejectReason.BAD_JSON, "$"),
    ("empty", b"", RejectReason.BAD_JSON, "$"),
    ("spec_too_large", request(spec="x" * (129 * 1024)), RejectReason.TOO_LARGE, "$.spec"),
    ("boot_parts_too_large", request(worker={"env": {"A": "x" * 6200}}), RejectReason.TOO_LARGE, "$.worker.env"),
    ("label_key", request(labels={"k" * 64: "v"}), RejectReason.TOO_LARGE, f"$.labels.{'k' * 64}"),
    ("label_value", request(labels={"k": "é" * 65}), RejectReason.TOO_LARGE, "$.labels.k"),
    ("labels", request(labels={f"k{i}": "" for i in range(17)}), RejectReason.TOO_LARGE, "$.labels"),
    ("group_size", request(group="g" * 129), RejectReason.TOO_LARGE, "$.group"),
    ("no_run_id", {"gpu": {"class": "L40"}, "hub": {"repo": "a/b"}}, RejectReason.MISSING_FIELD, "$.run_id"),
    ("no_hub", {"run_id": "r", "gpu": {"class": "L40"}}, RejectReason.MISSING_FIELD, "$.hub"),
    ("no_repo", request(hub={}), RejectReason.MISSING_FIELD, "$.hub.repo"),
    ("no_gpu_choice", request(gpu={"spot": True}), RejectReason.MISSING_FIELD, "$.gpu.class"),
    ("cache_without_volume", request(cache={"size_gb": 5}), RejectReason.MISSING_FIELD, "$.cache.volume"),
    ("unknown", request(sped={}), RejectReason.UNKNOWN_FIELD, "$.sped"),
    ("unknown_inside", request(limits={"max_wall": 60}), RejectReason.UNKNOWN_FIELD, "$.limits.max_wall"),
    ("schema", request(schema=2), RejectReason.BAD_VALUE, "$.schema"),
    ("mode", request(mode="trian"), RejectReason.BAD_VALUE, "$.mode"),
    ("phase", request(phase="SFT"), RejectReason.BAD_VALUE, "$.phase"),
    ("seed_negative", request(seed=-1), RejectReason.BAD_VALUE, "$.seed"),
    ("seed_large", request(seed=2147483648), RejectReason.BAD_VALUE, "$.seed"),
    ("seed_huge", request(seed=10**400), RejectReason.BAD_VALUE, "$.seed"),
    ("seed_truth", request(seed=True), RejectReason.BAD_VALUE, "$.seed"),
    ("seed_text", request(seed="1"), RejectReason.BAD_VALUE, "$.seed"),
    ("number_truth", request(gpu={"min_vram_gb": True}), RejectReason.BAD_VALUE, "$.gpu.min_vram_gb"),
    ("number_huge", request(gpu={"min_vram_gb": 10**400}), RejectReason.BAD_VALUE, "$.gpu.min_vram_gb"),
    ("number_text", request(limits={"max_usd": "5"}), RejectReason.BAD_VALUE, "$.limits.max_usd"),
    ("negative_money", request(limits={"max_usd": -1}), RejectReason.BAD_VALUE, "$.limits.max_usd"),
    ("wall_short", request(limits={"max_wall_s": 59}), RejectReason.BAD_VALUE, "$.limits.max_wall_s"),
    ("wall_long", request(limits={"max_wall_s": 2592001}), RejectReason.BAD_VALUE, "$.limits.max_wall_s"),
    ("attempts", request(limits={"max_attempts": 21}), RejectReason.BAD_VALUE, "$.limits.max_attempts"),
    ("priority", request(priority=101), RejectReason.BAD_VALUE, "$.priority"),
    ("spot_number", request(gpu={"class": "L40", "spot": 1}), RejectReason.BAD_VALUE, "$.gpu.spot"),
    ("class_empty", request(gpu={"class": []}), RejectReason.BAD_VALUE, "$.gpu.class"),
    ("class_number", request(gpu={"class": 5}), RejectReason.BAD_VALUE, "$.gpu.class"),
    ("regions_text", request(gpu={"class": "L40", "regions": "US-1"}), RejectReason.BAD_VALUE, "$.gpu.regions"),
    ("gpu_list", request(gpu=[]), RejectReason.BAD_VALUE, "$.gpu"),
    ("repo", request(hub={"repo": "runs"}), RejectReason.BAD_VALUE, "$.hub.repo"),
    ("repo_dots", request(hub={"repo": "a/.."}), RejectReason.BAD_VALUE, "$.hub.repo"),
    ("code_path", request(hub={"repo": "a/b", "code": {"path": "../x"}}), RejectReason.BAD_VALUE, "$.hub.code.path"),
    ("code_root", request(hub={"repo": "a/b", "code": {"path": "/x"}}), RejectReason.BAD_VALUE, "$.hub.code.path"),
    ("image_option", request(worker={"image": "--privileged"}), RejectReason.BAD_VALUE, "$.worker.image"),
    ("image_braces", request(worker={"image": "a:{cuda}"}), RejectReason.BAD_VALUE, "$.worker.image"),
    ("command_empty", request(worker={"command": []}), RejectReason.BAD_VALUE, "$.worker.command"),
    ("command_text", request(worker={"command": "python x"}), RejectReason.BAD_VALUE, "$.worker.command"),
    ("command_nul", request(worker={"command": ["a\0"]}), RejectReason.BAD_VALUE, "$.worker.command[0]"),
    ("pip_lines", request(worker={"pip": ["a\nb"]}), RejectReason.BAD_VALUE, "$.worker.pip[0]"),
    ("env_number", request(worker={"env": {"A": 1}}), RejectReason.BAD_VALUE, "$.worker.env.A"),
    ("env_name", request(worker={"env": {"A B": "1"}}), RejectReason.BAD_VALUE, '$.worker.env["A B"]'),
    ("env_reserved", request(worker={"env": {"HF_TOKEN": "x"}}), RejectReason.BAD_VALUE, "$.worker.env.HF_TOKEN"),
    ("env_reserved_old", request(worker={"env": {"RUN_MODE": "x"}}), RejectReason.BAD_VALUE, "$.worker.env.RUN_MODE"),
    ("secret_name", request(worker={"secrets": ["wandb"]}), RejectReason.BAD_VALUE, "$.worker.secrets[0]"),
    ("secret_reserved", request(worker={"secrets": ["SEED"]}), RejectReason.BAD_VALUE, "$.worker.secrets[0]"),
    ("model", request(models=["a/b/c"]), RejectReason.BAD_VALUE, "$.models[0]"),
    ("volume", request(cache={"volume": "Weights"}), RejectReason.BAD_VALUE, "$.cache.volume"),
    ("label_control", request(labels={"k": "\x1b[2J"}), RejectReason.BAD_VALUE, "$.labels.k"),
    ("label_number", request(labels={"k": 1}), RejectReason.BAD_VALUE, "$.labels.k"),
    ("traceparent", request(traceparent="00-x"), RejectReason.BAD_VALUE, "$.traceparent"),
    ("traceparent_zero", request(traceparent=f"00-{'0' * 32}-{'b' * 16}-01"), RejectReason.BAD_VALUE, "$.traceparent"),
    ("run_id_space", request(run_id="a b"), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("run_id_newline", request(run_id="a\n"), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("run_id_empty", request(run_id=""), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("run_id_long", request(run_id="a" * 129), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("run_id_number", request(run_id=7), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("run_id_braces", request(run_id="{x}"), RejectReason.BAD_RUN_ID, "$.run_id"),
    ("token_in_spec", request(spec={"a": [TOKEN]}), RejectReason.INLINE_SECRET, "$.spec.a[0]"),
    ("token_in_env", request(worker={"env": {"T": TOKEN}}), RejectReason.INLINE_SECRET, "$.worker.env.T"),
    ("token_after_newline", request(spec=f"x\n{TOKEN}"), RejectReason.INLINE_SECRET, "$.spec"),
    ("token_as_key", request(spec={TOKEN: 1}), RejectReason.INLINE_SECRET, '$.spec["***"]'),
    ("private_key", request(spec="-----BEGIN OPENSSH PRIVATE KEY-----"), RejectReason.INLINE_SECRET, "$.spec"),
    ("unknown_secret", request(worker={"secrets": ["NOPE"]}), RejectReason.UNKNOWN_SECRET, "$.worker.secrets[0]"),
    ("unknown_gpu", request(gpu={"class": "H101"}), RejectReason.UNKNOWN_GPU, "$.gpu.class"),
    ("unknown_gpu_in_list", request(gpu={"class": ["L40", "X"]}), RejectReason.UNKNOWN_GPU, "$.gpu.class[1]"),
    (
        "preload_regions",
        request(mode="preload", cache={"volume": "v"}, models=["a"]),
        RejectReason.MISSING_FIELD,
        "$.gpu.regions",
    ),
]


@pytest.mark.parametrize(("document", "reason", "path"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_fault_is_named_with_its_reason_and_path(document: object, reason: RejectReason, path: str) -> None:
    found = refused(document)
    assert found.reason is reason, found.detail
    assert any(line.startswith(f"{reason}: {path}: ") for line in found.detail_lines)
    assert TOKEN not in found.detail


def test_all_faults_are_reported_at_once_in_the_order_of_the_contract() -> None:
    found = refused(
        {
            "run_id": "a b",
            "gpus": 1,
            "gpu": {"class": ["X9"], "min_vram_gb": True},
            "limits": {"max_wall_s": 1},
            "worker": {"env": {"T": TOKEN, "SEED": "1"}, "secrets": ["NOPE"]},
            "spec": "x" * (129 * 1024),
        }
    )
    reasons = [line.split(": ", 1)[0] for line in found.detail_lines]
    assert reasons == [
        "too_large",
        "missing_field",
        "unknown_field",
        "bad_value",
        "bad_value",
        "bad_value",
        "bad_run_id",
        "inline_secret",
        "unknown_secret",
        "unknown_gpu",
    ]
    assert found.reason is RejectReason.TOO_LARGE
    assert found.run_id is None


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        (request(gpus={}), '"gpu"'),
        (request(max_wall_s=60), '"limits.max_wall_s"'),
        (request(repo="a/b"), '"hub.repo"'),
        (request(limits={"max_atempts": 3}), '"max_attempts"'),
        (request(gpu={"clas": "L40", "min_vram_gb": 1}), '"class"'),
        (request(gpu={"class": "H100 SMX"}), '"H100 SXM"'),
    ],
)
def test_a_wrong_name_is_answered_with_the_nearest_known_one(document: object, hint: str) -> None:
    assert hint in refused(document).detail


def test_a_request_above_256_kib_is_too_large_and_its_run_id_is_still_named() -> None:
    found = refused(request(group="x" * (257 * 1024)))
    assert found.reason is RejectReason.TOO_LARGE
    assert found.run_id == "r1"


def test_a_body_of_megabytes_is_not_even_parsed() -> None:
    found = refused(b" " * (2 * 1024 * 1024))
    assert found.reason is RejectReason.TOO_LARGE
    assert found.may_hold_secret


def test_thousands_of_faults_give_a_bounded_answer() -> None:
    found = refused(request(**{f"k{index}": 1 for index in range(20_000)}))
    assert len(found.detail_lines) == 201
    assert "19800 more" in found.detail_lines[-1]


@pytest.mark.parametrize("missing", [{}, {"regions": []}, {"regions": ["A", "B"]}])
def test_preload_needs_one_region_a_volume_and_models(missing: dict[str, Any]) -> None:
    found = refused(request(mode="preload", gpu={"class": "L40", **missing}))
    assert [line.split(": ")[1] for line in found.detail_lines if "preload" in line] != []
    assert {"$.cache.volume", "$.models", "$.gpu.regions"} == {line.split(": ")[1] for line in found.detail_lines}


@pytest.mark.parametrize(
    ("document", "hidden"),
    [
        (request(seed=-1, spec=TOKEN), True),
        (request(seed=-1, spec={"password": "hunter2"}), True),
        (request(seed=-1, worker={"env": {"WANDB_API_KEY": "0" * 40}}), True),
        (request(seed=-1, worker={"pip": ["git+https://user:pw@host/x"]}), True),
        ('{"run_id": "' + TOKEN, True),
        ('{"spec": "\\u0068f_' + TOKEN[3:], True),
        (b"\xff" + TOKEN.encode(), True),
        (request(seed=-1), False),
        (request(seed=-1, spec={"max_tokens": 5, "tokenizer": "gpt2"}), False),
        ("{oops", False),
    ],
)
def test_a_body_that_may_hold_a_secret_is_marked(document: object, hidden: bool) -> None:
    assert refused(document).may_hold_secret is hidden


def test_a_run_id_that_is_a_token_is_not_repeated() -> None:
    found = refused(request(run_id=TOKEN))
    assert found.run_id is None
    assert found.reason is RejectReason.INLINE_SECRET


def test_the_content_hash_is_the_recipe_of_the_contract() -> None:
    document = request(spec={"ü": [1.0, 1e3, -0.0, 10**30], "a": "\u2028"}, traceparent=f"00-{'a' * 32}-{'b' * 16}-00")
    found = taken(document)
    said = {key: value for key, value in json.loads(json.dumps(document)).items() if key != "traceparent"}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert found.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert json.loads(found.canonical_json) == document


def test_the_hash_ignores_spaces_order_and_traceparent_but_nothing_else() -> None:
    first = taken('{"run_id":"r1","gpu":{"class":"L40"},"hub":{"repo":"a/b"}}')
    again = taken(
        f'{{ "hub": {{"repo":"a/b"}}, "traceparent": "00-{"a" * 32}-{"b" * 16}-01", '
        '"gpu":{"class":"L40"}, "run_id":"r1"}'
    )
    other = taken('{"run_id":"r1","gpu":{"class":["L40"]},"hub":{"repo":"a/b"}}')
    assert first.sha256 == again.sha256 != other.sha256


def test_a_stored_request_is_read_back_even_when_the_catalogue_has_changed() -> None:
    found = taken(request(gpu={"class": ["H100", "a6000"]}, worker={"secrets": ["WANDB_API_KEY"]}))
    assert found.gpu.classes == ("H100", "RTX A6000")
    assert restore_request(found.canonical_json, catalogue=CATALOGUE, default_image="flash:1") == found
    less = restore_request(found.canonical_json, catalogue=("H100",), default_image="flash:1")
    assert less.gpu.classes == ("H100", "a6000")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"run_id": 3}'])
def test_a_damaged_stored_request_is_an_error_that_says_so(text: str) -> None:
    with pytest.raises(RequestError, match="stored request"):
        restore_request(text, catalogue=CATALOGUE, default_image="flash:1")
