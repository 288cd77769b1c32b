"""What the tests of the configuration share: a folder, and a load that tells faults as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sidecar.config import Config, ConfigErrors, load

Load = Callable[..., Config]
Told = Callable[..., list[str]]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {
        "HOME": str(tmp_path / "home"),
        "XDG_RUNTIME_DIR": "/run/user/7",
        "XDG_STATE_HOME": "/state",
    }


@pytest.fixture
def good(tmp_path: Path, environ: dict[str, str]) -> Load:
    """Load text as sidecar.yaml, together with files of servers."""

    def run(text: str, *mcp: str, env: Mapping[str, str] | None = None, **more: object) -> Config:
        file = tmp_path / "sidecar.yaml"
        file.write_text(text)
        lists = []
        for i, each in enumerate(mcp):
            lists.append(tmp_path / f"mcp{i}.json")
            lists[-1].write_text(each)
        return load(file, mcp_configs=lists, environ=environ | (env or {}), **more)

    return run


@pytest.fixture
def told(good: Load, tmp_path: Path) -> Told:
    """The faults of a text, each as ``file:line:column: path: message``."""

    def run(text: str, *mcp: str, **more: object) -> list[str]:
        with pytest.raises(ConfigErrors) as caught:
            good(text, *mcp, **more)
        return [str(fault).replace(f"{tmp_path}/", "") for fault in caught.value.faults]

    return run
