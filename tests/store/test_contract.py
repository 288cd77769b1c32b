"""The contract, held by the stores that come with the package."""

from __future__ import annotations

from pathlib import Path

from sidecar.ports.store import Store
from sidecar.store import open_store
from tests.store.contract import StoreContract


class TestMemory(StoreContract):
    def make(self, tmp_path: Path) -> Store:
        return open_store("memory")


class TestSqlite(StoreContract):
    shared = True
    durable = True

    def make(self, tmp_path: Path) -> Store:
        return open_store(f"sqlite://{tmp_path}/state.db")
