"""The contract, held in PostgreSQL; and what happens between several nodes of one database."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sidecar.ports.store import Store
from sidecar.store import open_store
from tests.kit.postgres import Postgres
from tests.store.contract import StoreContract


def place(tmp_path: Path) -> str:
    return "t" + hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]


class TestPostgres(StoreContract):
    shared = True
    durable = True

    @pytest.fixture(autouse=True)
    def _server(self, postgres: Postgres) -> None:
        self.postgres = postgres

    def make(self, tmp_path: Path) -> Store:
        return open_store(self.postgres.schema(place(tmp_path)))
