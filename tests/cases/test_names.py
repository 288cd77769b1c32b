"""C4, C5, C6: names fit the model APIs, lead to one tool each, and never move."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.behind import Stage, behind, entry, stage
from tests.kit.client import Legacy, Modern, RpcFailed, eventually

FITS = re.compile(r"^[A-Za-z0-9_-]{1,64}$")
LONG = "a-rather-long-server-name"


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    with stage({"up": Behaviour(only=("echo",))}) as made:
        yield made


def named(*names: str) -> list[dict[str, Any]]:
    return [{"name": name, "inputSchema": {"type": "object"}} for name in names]


# ---------------------------------------------------------- C4 names that the model APIs take

ODD = (
    "x" * 60,
    "ns.dotted",
    "a/b",
    "ä",
    "e" * 55 + "first",
    "e" * 55 + "other",
    "with space",
    "emoji 🦊",
    "a:b",
    "_",
    "-",
    "a__b",
    "UPPER",
    "upper",
    "n" * 200,
    "tab\tand\nline",
    "ns_dotted",
    "a_b",
)


async def test_odd_names_fit_are_distinct_lead_back_and_stay(http: aiohttp.ClientSession) -> None:
    async with serving(Behaviour(name="up", only=(), tools=named(*ODD))) as upstream:
        seen = []
        for _ in range(2):
            async with behind({LONG: upstream}) as sidecar:
                client = Modern(http, sidecar.mcp)
                names = await client.names()
                assert [name for name in names if not FITS.match(name)] == []
                assert len(set(names)) == len(names) == len(ODD)
                for name, original in zip(names, ODD, strict=True):
                    assert await client.text(name) == f"up:{original}"
                seen.append(names)
        assert seen[0] == seen[1]


async def test_plain_names_stay_plain(http: aiohttp.ClientSession) -> None:
    async with (
        serving(Behaviour(only=(), tools=named("search_issues", "get-me", "X1"))) as upstream,
        behind({"github": upstream}) as sidecar,
    ):
        names = await Modern(http, sidecar.mcp).names()
        assert names == ["github__search_issues", "github__get-me", "github__X1"]


# ---------------------------------------------------------------- C5 names that look alike


async def test_names_that_look_alike_lead_each_to_its_own(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern]
) -> None:
    async with (
        serving(Behaviour(name="a", only=("echo",), tools=named("b_x", "b", "_b"))) as first,
        serving(Behaviour(name="a_b", only=("echo",), tools=named("x", "_x"))) as second,
        serving(Behaviour(name="sidecar2", only=("whoami",))) as third,
        behind({"a": first, "a_b": second, "search": third}) as sidecar,
    ):
        client = client_of(http, sidecar.mcp)
        await client.open()
        names = await client.names()
        assert len(set(names)) == len(names) == 8
        answers = {name: await client.text(name) for name in names if not name.endswith("echo")}
        assert sorted(answers.values()) == sorted(
            ["a:b_x", "a:b", "a:_b", "a_b:x", "a_b:_x", "sidecar2:whoami"]
        )
        assert answers["a__b_x"] == "a:b_x"
        assert answers["a_b__x"] == "a_b:x"
        for name, server in (("a__echo", first), ("a_b__echo", second)):
            await client.call(name, message="hi")
            assert len(server.server.calls("echo")) == 1


async def test_a_server_that_lists_one_name_twice(http: aiohttp.ClientSession) -> None:
    """The first is offered; nothing else of that server is lost."""
    tools = [*named("one"), {**named("twice")[0], "title": "first"}, *named("twice", "last")]
    async with (
        serving(Behaviour(name="up", only=(), tools=tools)) as upstream,
        behind({"up": upstream}) as sidecar,
    ):
        listed = await Modern(http, sidecar.mcp).tools()
        assert [tool["name"] for tool in listed] == ["up__one", "up__twice", "up__last"]
        assert listed[1]["title"] == "first"


@pytest.mark.parametrize(
    "name", ["echo", "up__", "__echo", "up_echo", "up__nothing", "nobody__echo", "UP__echo"]
)
async def test_a_name_that_leads_nowhere_says_so(
    http: aiohttp.ClientSession,
    client_of: type[Legacy] | type[Modern],
    scene: Stage,
    name: str,
) -> None:
    client = client_of(http, scene.sidecar.mcp)
    await client.open()
    with pytest.raises(RpcFailed) as failed:
        await client.call(name)
    assert failed.value.code == -32602
    reason = failed.value.error["data"]["reason"]
    assert reason in {"no_separator", "unknown_server", "unknown_tool"}
    assert scene["up"].of("tools/call") == []


# ------------------------------------------------------- C6 names when a server is added later


async def test_a_server_that_is_added_moves_no_name(http: aiohttp.ClientSession) -> None:
    """By reload: the list grows, what was learnt before works, and it is said once."""
    async with (
        serving(Behaviour(name="one", only=("echo", "whoami"))) as first,
        serving(Behaviour(name="two", only=("echo", "whoami"))) as second,
        behind({"up": first}) as sidecar,
    ):
        client = Legacy(http, sidecar.mcp)
        await client.open()
        before = await client.until_listed("up__echo", "up__whoami")
        async with client.listening() as heard:
            config = dict(sidecar.config)
            # First in the file, so that order alone would move the others.
            config["servers"] = {"more": entry(second), **config["servers"]}
            sidecar.write(config)
            after = await client.until_listed("more__echo")
            assert [name for name in after if name.startswith("up__")] == before
            assert await client.text("up__whoami") == "one:whoami"
            assert await client.text("more__whoami") == "two:whoami"
            changed = "notifications/tools/list_changed"
            await eventually(lambda: [m for m in heard if m["method"] == changed])
            assert len([m for m in heard if m["method"] == changed]) <= 2
