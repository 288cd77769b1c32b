"""``hosts``: which further names the agent listener answers to."""

from __future__ import annotations

import aiohttp
import pytest

from sidecar.config import Listen, values
from sidecar.wire.hosts import HostRules
from tests.kit.client import Legacy
from tests.kit.running import running


@pytest.mark.parametrize(
    "text", ["mcp.example.com", "sidecar", "MCP.Example.com.", "10.0.0.7", "[fd00::7]"]
)
def test_what_is_a_host(text: str) -> None:
    assert values.host_name(text) == text
    HostRules(Listen(), [text])  # takes all that the configuration takes


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mcp.example.com:8808", "has a port; write mcp.example.com"),
        ("[fd00::7]:8808", r"has a port; write \[fd00::7\]"),
        ("*.example.com", "is a pattern"),
        ("https://mcp.example.com", "is more than a host"),
        ("mcp.example.com/mcp", "is more than a host"),
        ("fd00::7", "in brackets"),
        ("127.1", "is not a host name"),
        ("", "is not a host name"),
        ("a b", "is not a host name"),
        ("mcp.example.com:", "is not a host name"),
    ],
)
def test_what_is_none(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        values.host_name(text)


async def test_the_listener_answers_to_them_and_to_no_other() -> None:
    async with running({"hosts": ["mcp.example.com"]}) as sidecar, aiohttp.ClientSession() as http:
        await Legacy(http, sidecar.mcp).open()
        for host, status in (
            ("mcp.example.com", 200),
            ("MCP.example.com:443", 200),
            ("www.mcp.example.com", 421),
            ("evil.example", 421),
        ):
            async with http.get(f"{sidecar.rest}/tools", headers={"Host": host}) as answer:
                assert answer.status == status, host
                if status == 421:
                    assert "`hosts`" in await answer.text()
        pages = (("https://mcp.example.com", 200), ("https://evil.example", 403))
        for origin, status in pages:
            headers = {"Host": "mcp.example.com", "Origin": origin}
            async with http.get(f"{sidecar.rest}/tools", headers=headers) as answer:
                assert answer.status == status, origin
