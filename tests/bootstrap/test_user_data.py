"""`user_data`: what it holds, how large it becomes, and that cloud-init takes it."""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import random
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flashd.adapters.prose import without_prose
from flashd.adapters.userdata import (
    MAX_PROGRAMS_BYTES,
    MAX_USER_DATA_BYTES,
    compressed_programs_bytes,
    fits,
    plan_spec,
    program_sources,
    programs_archive,
    render_user_data,
)
from flashd.errors import PayloadTooLargeError
from flashd.wire.payload import (
    JsonValue,
    Payload,
    PayloadCache,
    PayloadCode,
    PayloadHub,
    PayloadWorker,
    encode_spec,
)

SECRET = "hf_SecretOfThisTestOnly0123456789"


def a_payload(spec: JsonValue = None, env: dict[str, str] | None = None) -> Payload:
    return Payload(
        run_id="r" * 128,
        ns="demo",
        phase="sft",
        seed=0,
        attempt=0,
        token="t" * 40,
        provider="hyperstack",
        hub=PayloadHub("https://huggingface.co", "o" * 40 + "/" + "n" * 90, "sft/" + "r" * 128 + "/seed0"),
        code=PayloadCode("o/n", "0" * 40, "code"),
        worker=PayloadWorker("ghcr.io/acme/worker:cu128", ("python", "-m", "flash.engine.worker"), ("tool>=1",)),
        max_wall_s=86_400,
        deadline_at=1_800_000_000,
        env={"HF_TOKEN": SECRET} | (env or {}),
        spec=spec,
        cache=PayloadCache("/weight-cache", ".flash-cache-mounted", "fl-abcdefghij", 100),
    )


def noise(seed: int, size: int) -> str:
    """`size` bytes of text that no compression makes smaller than 6 bits a character."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    return "".join(random.Random(seed).choices(alphabet, k=size))


def files_of(text: str) -> dict[str, tuple[str, bytes]]:
    found = {}
    for entry in yaml.safe_load(text)["write_files"]:
        content = base64.b64decode(entry["content"])
        body = gzip.decompress(content) if entry["encoding"] == "gz+b64" else content
        found[entry["path"]] = (entry["permissions"], body)
    return found


def test_it_has_only_the_keys_that_every_image_takes() -> None:
    text = render_user_data(a_payload())
    assert text.startswith("#cloud-config\n")
    assert set(yaml.safe_load(text)) == {"write_files", "runcmd"}


def test_the_payload_arrives_as_it_was_and_for_root_alone() -> None:
    payload = a_payload({"odd": "'\"\\\n\0\u20ac\ud800"})
    permissions, body = files_of(render_user_data(payload))["/opt/flash/payload.json"]
    assert permissions == "0600"
    assert json.loads(body) == payload.as_json()


def test_it_is_the_same_every_time() -> None:
    assert render_user_data(a_payload()) == render_user_data(a_payload())


def test_no_secret_is_readable_in_it_or_in_the_payloads_repr() -> None:
    assert SECRET not in render_user_data(a_payload())
    assert SECRET not in repr(a_payload())


def test_the_programs_keep_to_their_size() -> None:
    assert compressed_programs_bytes() <= MAX_PROGRAMS_BYTES


@pytest.mark.parametrize("size", [0, 1_000, 6_000, 15_000, 40_000, 128 * 1024 - 10])
@pytest.mark.parametrize("fill", ["a", "noise"])
def test_any_allowed_spec_fits_beside_the_largest_environment(size: int, fill: str) -> None:
    spec = noise(size, size) if fill == "noise" else "a" * size
    payload = plan_spec(a_payload(spec, {"WORKER": noise(1, 6 * 1024), "SECRETS": noise(2, 4 * 1024)}))
    assert len(render_user_data(payload)) <= MAX_USER_DATA_BYTES
    assert payload.spec_in_hub or payload.spec == spec


@pytest.mark.parametrize("characters", ["\u4e00\u9fff", "\u0100\u07ff", "\u0001\u001f", "\U00010000\U0001ffff"])
def test_environments_that_json_has_to_escape_fit_too(characters: str) -> None:
    chance, (low, high) = random.Random(3), map(ord, characters)
    text = ""
    while len((text + "x").encode()) < 10 * 1024 - 4:
        text += chr(chance.randint(low, high))
    assert fits(a_payload(env={"ODD": text}))


def test_a_small_spec_travels_inside_and_a_large_one_does_not() -> None:
    assert not plan_spec(a_payload(noise(1, 5_000))).spec_in_hub
    large = plan_spec(a_payload(noise(1, 60_000)))
    assert large.spec_in_hub
    assert "spec" not in large.as_json()


def test_what_does_not_fit_is_refused_with_its_size() -> None:
    huge = a_payload(env={"BIG": noise(1, 40_000)})
    assert not fits(huge)
    with pytest.raises(PayloadTooLargeError, match="45000 are possible") as refused:
        render_user_data(huge)
    assert SECRET not in str(refused.value)


def test_a_spec_is_the_same_value_after_the_hub() -> None:
    spec: JsonValue = {"z": [1.5, None, "\u00e9'\"\n"], "a": {}}
    assert json.loads(encode_spec(spec)) == spec


@pytest.mark.skipif(shutil.which("cloud-init") is None, reason="cloud-init is not installed")
def test_cloud_init_accepts_it(tmp_path: Path) -> None:
    file = tmp_path / "user-data"
    file.write_text(render_user_data(replace(a_payload({"a": 1}), mode="preload", models=("m",))))
    done = subprocess.run(["cloud-init", "schema", "-c", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_programs_are_python_3_9_in_ascii_and_keep_their_line_numbers() -> None:
    for name, source in program_sources().items():
        assert source.isascii(), name
        bare = without_prose(source)
        ast.parse(bare, name, feature_version=(3, 9))
        assert len(bare.splitlines()) <= len(source.splitlines()), name
        lines = {ast.unparse(node): node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Return)}
        bare_lines = {
            ast.unparse(node): node.lineno for node in ast.walk(ast.parse(bare)) if isinstance(node, ast.Return)
        }
        assert bare_lines == lines, name


def test_what_travels_is_the_source_without_prose() -> None:
    """Statement by statement the same program, docstrings and the types of signatures aside."""
    with zipfile.ZipFile(io.BytesIO(programs_archive())) as archive:
        assert archive.namelist() == list(program_sources())
        for name, source in program_sources().items():
            tree = ast.parse(source)
            for node in ast.walk(tree):
                if isinstance(node, ast.arg):
                    node.annotation = None
                if isinstance(node, ast.FunctionDef):
                    node.returns = None
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                    node.body = node.body[1:] or [ast.Expr(ast.Constant(...))]
                    node.body = (
                        [] if isinstance(node, ast.Module) and len(node.body) == 1 and not tree.body else node.body
                    )
            travelled = ast.parse(archive.read(name))
            if tree.body and ast.unparse(tree) != "...":
                assert ast.unparse(travelled) == ast.unparse(tree), name


def test_the_programs_import_the_standard_library_and_huggingface_hub_only() -> None:
    allowed = sys.stdlib_module_names | {"bootstrap", "huggingface_hub"}
    for name, source in program_sources().items():
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {found.split(".")[0] for found in names} <= allowed, name


def test_only_the_child_program_needs_huggingface_hub() -> None:
    users = [name for name, source in program_sources().items() if "import huggingface_hub" in source]
    assert users == ["bootstrap/hub_files.py"]
