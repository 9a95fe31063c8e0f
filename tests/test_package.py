"""What is installed: the wheel has the box programs, the scripts and the stand-ins, and the locks fit everybody."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ["requirements.lock", "requirements-dev.lock"]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    target = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = target.glob("flashd-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize(
    ("folder", "inside"),
    [("flashd", "flashd"), ("bootstrap", "flashd/_bootstrap")],
)
def test_every_file_of_the_tree_is_in_the_wheel(folder: str, inside: str, wheel_names: list[str]) -> None:
    files = [path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*") if path.is_file()]
    wanted = {f"{inside}/{path.as_posix()}" for path in files if "__pycache__" not in path.parts}
    assert wanted - set(wheel_names) == set()


@pytest.mark.parametrize("pattern", [r"flashd/_bootstrap/\w+\.py", r"flashd/adapters/scripts/\w+\.lua"])
def test_what_is_no_module_of_flashd_is_in_the_wheel_too(pattern: str, wheel_names: list[str]) -> None:
    assert [name for name in wheel_names if re.fullmatch(pattern, name)]


def test_the_wheel_has_nothing_else(wheel_names: list[str]) -> None:
    assert [name for name in wheel_names if not re.match(r"flashd/|flashd-[\d.]+\.dist-info/", name)] == []
    assert [name for name in wheel_names if "__pycache__" in name or name.endswith(".pyc")] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_no_path(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert re.findall(r"://|file:|^-|(?<![a-z0-9])/", text, re.MULTILINE) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_serves_python_3_11_2_too(lock: str) -> None:
    """redis needs async-timeout before 3.11.3, which a lock made on a newer Python would leave out."""
    assert "async-timeout==" in (ROOT / lock).read_text()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_of_a_lock_has_a_hash(lock: str) -> None:
    pins = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    assert [
        pin for pin in pins if not re.match(r"[a-z0-9.-]+==\S+.*(\\\n    --hash=sha256:[0-9a-f]{64} ?)+$", pin)
    ] == []


def test_the_runtime_lock_is_part_of_the_development_lock() -> None:
    runtime, development = ({line for line in (ROOT / lock).read_text().splitlines() if "==" in line} for lock in LOCKS)
    assert runtime <= development
