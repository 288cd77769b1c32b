"""The PostgreSQL server that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.postgres import Postgres
from tests.kit.postgres import postgres as running_postgres
from tests.peers.postgres import MISSING, programs


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if programs() is None:
        pytest.skip(MISSING)
    with running_postgres() as server:
        yield server
