"""The world of one box, for every test here."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.bootstrap.box_world import BoxWorld, box_world


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[BoxWorld]:
    async with box_world(tmp_path) as made:
        yield made
