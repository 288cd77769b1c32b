"""Fixtures of the policy tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policy.kit import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder of policies that is empty."""
    return Folder(tmp_path)
