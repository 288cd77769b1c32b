"""A gateway in front of scripted servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from sidecar.config import Config, Retry
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.model import Entries
from tests.gateway.scripted import Scripted, config

CONFIG = Config(list_wait=0.2, retry=Retry(attempts=3, base=0.001))

Serve = Callable[..., Scripted]


@pytest.fixture
def bus() -> Bus:
    return Bus()


@pytest.fixture
async def gateway(bus: Bus) -> AsyncIterator[Gateway]:
    made = Gateway(CONFIG, bus)
    yield made
    await made.close()


@pytest.fixture
async def patient(bus: Bus) -> AsyncIterator[Gateway]:
    """One that waits for ever, as good as: what returns has waited for nobody."""
    made = Gateway(replace(CONFIG, list_wait=600), bus)
    yield made
    await made.close()


@pytest.fixture
def serve(gateway: Gateway, bus: Bus) -> Serve:
    """Attach one more server: its name, what it offers, then configuration by keyword."""

    def attach(name: str, entries: Entries, **rest: object) -> Scripted:
        upstream = Scripted(name, entries, bus=bus)
        gateway.attach(upstream, config(name, **rest))
        return upstream

    return attach
