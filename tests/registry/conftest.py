"""The PostgreSQL server that the tests of this folder share."""

from __future__ import annotations

from tests.store.conftest import postgres

__all__ = ["postgres"]
