"""A store of another package: found by its entry point, held to the contract, used by a sidecar."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sidecar.admin import AdminClient
from sidecar.config import ConfigErrors, load
from sidecar.ports.store import Store
from sidecar.store import open_store
from tests.kit.running import running
from tests.store.contract import StoreContract

PACKAGE = Path(__file__).parent / "outside"


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE))
    before = os.environ.get("PYTHONPATH")
    path = str(PACKAGE) + (os.pathsep + before if before else "")
    monkeypatch.setenv("PYTHONPATH", path)


class TestOutside(StoreContract):
    shared = True
    durable = True

    def make(self, tmp_path: Path) -> Store:
        return open_store(f"folder://{tmp_path}/store")


async def test_a_sidecar_on_it(tmp_path: Path) -> None:
    config = {"store": f"folder://{tmp_path}/store", "runtime_servers": {"check": False}}
    async with running(config) as sidecar:
        admin = AdminClient(sidecar.admin)
        await asyncio.to_thread(admin.add, "a", url="http://127.0.0.1:1/mcp")
    async with running(config) as sidecar:
        admin = AdminClient(sidecar.admin)
        assert [each["name"] for each in await asyncio.to_thread(admin.servers)] == ["a"]


def test_it_counts_as_shared(tmp_path: Path) -> None:
    """Nothing is known of who else writes to it, so no program may be added through it."""
    file = tmp_path / "sidecar.yaml"
    rules = "runtime_servers: {check: false, commands: true}"
    file.write_text(f"store: folder:///x\n{rules}\n")
    with pytest.raises(ConfigErrors, match="a store that others share"):
        load(file, environ={})


def test_without_the_package_the_scheme_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    file = tmp_path / "sidecar.yaml"
    file.write_text("store: folder:///x\n")
    with pytest.raises(ConfigErrors, match="is not a store"):
        load(file, environ={})
