from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.harness.kit import Desk


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """A checkout with one commit, and no works yet."""
    found = await Desk(tmp_path).open()
    yield found
    await found.works.close()
