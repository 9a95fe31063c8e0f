"""A directory whose path is short enough for a unix socket, kept when the test fails."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashd.sim.box_launch import BoxIsolationError, check_isolation


@pytest.fixture
def short_path(request: pytest.FixtureRequest) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="flashd-e2e-"))
    failed_before = request.session.testsfailed
    yield directory
    if request.session.testsfailed == failed_before:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def isolation() -> None:
    """Skips where this computer cannot isolate a box."""
    try:
        await check_isolation()
    except BoxIsolationError as missing:
        pytest.skip(str(missing))
