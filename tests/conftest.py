"""Fixtures that every room's tests may use."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import aiohttp
import pytest
from hypothesis import settings

from tests.kit.client import CLIENTS, TIMEOUT, Legacy, Modern
from tests.kit.examples import examples

# A busy machine is not a failure: how long an example takes says nothing of what it shows.
settings.register_profile("sidecar", deadline=None, max_examples=examples(50))
settings.load_profile("sidecar")


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client without a limit on connections."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=TIMEOUT) as session:
        yield session


@pytest.fixture(params=["legacy", "modern"])
def era(request: pytest.FixtureRequest) -> str:
    """Both eras, for tests that must hold in each."""
    return str(request.param)


@pytest.fixture
def client_of(era: str) -> type[Legacy] | type[Modern]:
    """The raw client class of ``era``."""
    return CLIENTS[era]


# A shell that runs pytest in the background ignores SIGINT for it, and so would every process
# that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
