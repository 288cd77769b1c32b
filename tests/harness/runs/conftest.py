from __future__ import annotations

import pytest

from sidecar.harness import run_work
from sidecar.harness.profiles import PROFILES
from tests.harness.agent.kit import PROFILE


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profile ``generic`` is that of a scripted agent."""
    monkeypatch.setattr(run_work, "PROFILES", {**PROFILES, "generic": PROFILE})
