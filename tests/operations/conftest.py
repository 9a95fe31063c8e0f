"""A directory whose path is short enough for a unix socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="flashd-ops-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
