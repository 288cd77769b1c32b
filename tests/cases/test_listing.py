"""C1, C2, C3, P9: lists are complete, bounded, unchanged and always in one order."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp import Client

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import Child
from tests.cases.behind import behind, dead, entry, stage
from tests.kit.client import Legacy, Modern
from tests.kit.running import running

MIB = 1 << 20


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(count)]


# ------------------------------------------------------------------------------ C1 pagination


PAGES = [(13, 3), (13, 1), (13, 13), (12, 3), (1, 5), (250, 7)]


async def test_every_page_is_listed(http: aiohttp.ClientSession) -> None:
    """The last tool of all is callable without listing first."""
    late = {"name": "late_tool", "inputSchema": {"type": "object"}}
    behaviours = {
        f"s{count}-{page}": Behaviour(only=(), tools=[*numbered(count - 1), late], page=page)
        for count, page in PAGES
    }
    with stage(behaviours) as scene:
        for kind in (Legacy, Modern):
            client = kind(http, scene.sidecar.mcp)
            await client.open()
            assert await client.names() == [
                f"{name}__{tool['name']}" for name, b in behaviours.items() for tool in b.tools
            ]
            assert await client.text("s250-7__late_tool") == "awkward:late_tool"


async def test_a_tool_is_callable_without_listing(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    """The very first request of a session, and of the sidecar, is a call."""
    tools = [*numbered(12), {"name": "late_tool", "inputSchema": {"type": "object"}}]
    async with (
        serving(Behaviour(name="up", only=(), tools=tools, page=3)) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = client_of(http, sidecar.mcp)
        await client.open()
        assert await client.text("up__late_tool") == "up:late_tool"


async def test_pages_over_stdio(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    child = Child(Behaviour(only=(), tools=numbered(10), page=4), tmp_path / "record")
    async with behind({"up": child}) as sidecar:
        client = Modern(http, sidecar.mcp)
        assert await client.until_listed("up__t0") == [f"up__t{n}" for n in range(10)]


async def test_a_page_that_fails_leaves_what_was_known(http: aiohttp.ClientSession) -> None:
    """The server is stale, not empty: its tools stay, and stay callable."""
    async with (
        serving(Behaviour(name="up", only=(), tools=numbered(5), page=3)) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        names = await client.names()
        assert len(names) == 5
        upstream.server.behaviour.cursor = "fails"
        before = len(upstream.server.of("tools/list"))
        await upstream.server.announce("notifications/tools/list_changed")
        end = time.monotonic() + 30
        while len(upstream.server.of("tools/list")) == before and time.monotonic() < end:
            assert await client.names() == names
        assert await client.names() == names
        assert await client.text("up__t4") == "up:t4"


# ------------------------------------------------------------- C2 a cursor that does not advance


@pytest.mark.parametrize("cursor", ["repeats", "endless"])
async def test_a_cursor_that_never_ends_costs_little(
    http: aiohttp.ClientSession, cursor: Any
) -> None:
    """What was read stays, one warning is logged, and nobody waits beyond the list's deadline."""
    behaviour = Behaviour(name="up", only=(), tools=numbered(6), page=3, cursor=cursor)
    async with (
        serving(behaviour) as upstream,
        serving(Behaviour(name="fine", only=("echo",))) as fine,
        behind({"up": upstream, "fine": fine}, limits={"list_pages": 40}) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        names = await client.until_listed("fine__echo")
        first = "up__page_0" if cursor == "endless" else "up__t0"
        assert first in await client.until_listed(first, "fine__echo")
        assert len(upstream.server.of("tools/list")) <= 45
        assert "fine__echo" in names
        own = [line for line in sidecar.log().splitlines() if "up" in line and "page" in line]
        assert len(own) <= 1, own


# -------------------------------------------------------------------------------- C3 fidelity

RICH = {
    "name": "rich",
    "title": "Rich ✨ tool",
    "description": 'Keeps\nits text \u2028 and "quotes"',
    "icons": [{"src": "data:image/png;base64,AAAA", "mimeType": "image/png", "sizes": ["48x48"]}],
    "annotations": {
        "title": "x",
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
        "vendorHint": [1, None],
    },
    "inputSchema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
        "properties": {
            "root": {"$ref": "#/$defs/node"},
            "big": {"type": "integer", "maximum": 12345678901234567890123},
            "ratio": {"type": "number", "default": 1.0},
        },
        "required": ["root"],
        "additionalProperties": False,
        "x-order": ["root", "big"],
    },
    "outputSchema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    "execution": {"taskSupport": "optional"},
    "_meta": {"vendor.example/key": {"deep": [None, 1e30]}},
    "unknown": {"kept": None},
}


def spelled(text: str) -> Any:
    """JSON with the order of keys and the spelling of numbers."""
    return json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)


def as_is(value: Any) -> Any:
    return spelled(json.dumps(value))


TOOLS: list[dict[str, Any]] = [
    RICH,
    {"name": "bare", "inputSchema": {"type": "object"}},
    {"unknown": 1, "inputSchema": {"type": "object"}, "name": "name_comes_last"},
]


async def test_a_definition_differs_in_its_name_only(http: aiohttp.ClientSession) -> None:
    with stage({"up": Behaviour(only=(), tools=TOOLS)}) as scene:
        for kind in (Legacy, Modern):
            for url, prefix in ((scene.sidecar.mcp, "up__"), (scene.sidecar.at("up"), "")):
                client = kind(http, url)
                await client.open()
                listed = spelled((await client.exchange("tools/list")).body.decode())
                found = dict(dict(listed)["result"])["tools"]
                assert len(found) == len(TOOLS)
                for ours, theirs in zip(found, TOOLS, strict=True):
                    assert dict(ours)["name"] == prefix + theirs["name"]
                    kept = [[key, value] for key, value in ours if key != "name"]
                    sent = [[key, value] for key, value in as_is(theirs) if key != "name"]
                    assert kept == sent


# For any of these, official clients refuse the whole list, and with it every other server.
ODD_TOOLS: list[dict[str, Any]] = [
    {"name": "no_schema"},
    {"name": "odd_types", "inputSchema": True, "annotations": None, "description": None},
    {"name": "no_type", "inputSchema": {"anyOf": [{"type": "object"}, {"not": {}}]}},
    {"name": "odd_hint", "inputSchema": {}, "annotations": {"readOnlyHint": "yes", "own": 1}},
    {"name": "array", "inputSchema": []},
    {"name": "text", "inputSchema": {"type": "string"}},
]


async def test_an_odd_tool_takes_the_list_from_nobody(http: aiohttp.ClientSession) -> None:
    behaviours = {"odd": Behaviour(only=(), tools=ODD_TOOLS), "fine": Behaviour(only=("echo",))}
    with stage(behaviours) as scene:
        for kind in (Legacy, Modern):
            client = kind(http, scene.sidecar.mcp)
            await client.open()
            found = {tool["name"]: tool for tool in (await client.request("tools/list"))["tools"]}
            assert list(found) == [
                "odd__no_schema",
                "odd__odd_types",
                "odd__no_type",
                "odd__odd_hint",
                "fine__echo",
            ]
            assert found["odd__odd_types"] == {
                "name": "odd__odd_types",
                "inputSchema": {"type": "object"},
            }
            assert found["odd__no_type"]["inputSchema"] == {
                "anyOf": [{"type": "object"}, {"not": {}}],
                "type": "object",
            }
            assert found["odd__odd_hint"]["annotations"] == {"own": 1}
            assert await client.text("odd__no_schema") == "awkward:no_schema"
        async with Client(scene.sidecar.mcp) as official:
            assert len((await official.list_tools()).tools) == len(found)
        assert "server odd: 2 of its tools left out" in scene.sidecar.log()


# -------------------------------------------------------------------- P9 deterministic order


async def test_lists_are_the_same_bytes_each_time_and_after_a_restart(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    """Order is the file's and then the server's, whoever answered first."""
    async with (
        serving(Behaviour(name="slow", only=("echo", "whoami"), list_delay=0.3)) as slow,
        serving(Behaviour(name="quick", only=("whoami", "count"))) as quick,
    ):
        servers = {"zeta": entry(slow), "gone": dead(), "alpha": entry(quick)}
        seen = set()
        for _ in range(2):
            async with running({"servers": servers}) as sidecar:
                client = client_of(http, sidecar.mcp)
                await client.open()
                names = await client.until_listed("zeta__echo", "alpha__count")
                assert names == ["zeta__echo", "zeta__whoami", "alpha__whoami", "alpha__count"]
                for method, key in (
                    ("tools/list", "tools"),
                    ("prompts/list", "prompts"),
                    ("resources/list", "resources"),
                    ("resources/templates/list", "resourceTemplates"),
                ):
                    for _ in range(2):
                        page = await client.request(method)
                        seen.add(json.dumps([method, page[key]]))
        assert len(seen) == 4
