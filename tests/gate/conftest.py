"""Worlds that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gate.kit import World, policy

Begin = Callable[..., Awaitable[World]]


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """``begin(text, …, shipped=(), default="allow", **world)``."""
    worlds: list[World] = []

    async def start(*texts: str, shipped: Any = (), default: str = "allow", **rest: Any) -> World:
        made = policy(tmp_path / "policies", *texts, shipped=shipped, default=default)
        world = await World.start(made, **rest)
        worlds.append(world)
        return world

    yield start
    for world in worlds:
        await world.close()
