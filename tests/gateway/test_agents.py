"""Harnesses in the catalog: each caller is shown the checkouts that it may use."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sidecar.config import HarnessConfig
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.harness.harness import Harness
from sidecar.model import Call, Caller, Fields, Principal, RpcError, Unroutable
from sidecar.wire.json import encode
from tests.gateway.conftest import CONFIG

CHECKOUTS = ("billing", "bills", "shop")


class Nobody:
    """Runs nothing; remembers what it was to run."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def joins(self, harness: str, call: Call, caller: Caller) -> bool:
        return False

    async def run(self, config: HarnessConfig, call: Call, caller: Caller) -> Fields:
        self.calls.append(call)
        return {"content": [], "_meta": {"sidecar/running": {"call": call.id}}, "isError": True}


def caller(*checkouts: str, harnesses: tuple[str, ...] = ("*",), **rest: Any) -> Caller:
    return Caller(Principal("a", (), harnesses, checkouts), **rest)


@pytest.fixture
def runs() -> Nobody:
    return Nobody()


@pytest.fixture
async def gateway(bus: Bus, runs: Nobody) -> AsyncIterator[Gateway]:
    made = Gateway(CONFIG, bus)
    harness = Harness(HarnessConfig("claude", "claude"), CHECKOUTS, runs)
    made.attach(harness, harness.server)
    yield made
    await made.close()


async def enums(gateway: Gateway, who: Caller) -> list[list[str]]:
    """The checkouts of each tool, in each way to list them; they are all the same."""
    listed = json.loads(encode(await gateway.request("tools/list", {}, who)))["tools"]
    given = json.loads(encode(await gateway.tools_as("anthropic", who)))["tools"]
    found = [tool["inputSchema"]["properties"]["checkout"]["enum"] for tool in listed]
    assert found == [tool["input_schema"]["properties"]["checkout"]["enum"] for tool in given]
    return found


async def test_the_checkouts_are_those_of_the_caller(gateway: Gateway) -> None:
    assert await enums(gateway, caller("*")) == [list(CHECKOUTS)]
    assert await enums(gateway, caller("bill*")) == [["billing", "bills"]]
    assert await enums(gateway, caller("shop", "x")) == [["shop"]]
    assert await enums(gateway, caller("x")) == []
    assert await enums(gateway, caller("*", harnesses=())) == []
    # On its own path the tool has the same name: it is the harness.
    assert await enums(gateway, caller("*", server="claude")) == [list(CHECKOUTS)]
    # Its digest, by which it is pinned, is the same for everybody.
    assert len({tool.digest for tool in gateway.tools()}) == 1


async def test_the_rest_of_the_definition_is_not_touched(gateway: Gateway) -> None:
    def told(fields: Fields) -> Any:
        (tool,) = json.loads(encode(fields))["tools"]
        del tool["inputSchema"]["properties"]["checkout"]["enum"]
        return tool

    every = told(await gateway.request("tools/list", {}, caller("*")))
    some = told(await gateway.request("tools/list", {}, caller("shop")))
    assert some == every
    assert every["inputSchema"]["required"] == ["task"]
    assert every["outputSchema"]["type"] == "object"


async def test_what_it_says_of_its_run_is_ours_to_say(gateway: Gateway, runs: Nobody) -> None:
    who = caller("*")
    arguments = {"task": "x", "checkout": "shop", "work": "fix"}
    fields = await gateway.request("tools/call", {"name": "claude", "arguments": arguments}, who)
    (call,) = runs.calls
    assert fields["_meta"] == {"sidecar/running": {"call": call.id}, "sidecar/call": call.id}
    assert (call.kind, call.target, call.server) == ("acp", "claude", "claude")
    assert call.about == {
        "work": {"name": "fix", "checkout": "shop", "branch": "work/claude/a/fix", "path": ""}
    }


async def test_names_that_lead_nowhere(gateway: Gateway) -> None:
    for name, who in (
        ("claude", caller("*", harnesses=("codex",))),
        ("claude__execute", caller("*")),
        ("codex", caller("*")),
    ):
        with pytest.raises(Unroutable):
            await gateway.request("tools/call", {"name": name, "arguments": {}}, who)
    with pytest.raises((RpcError, Unroutable)):
        await gateway.request("prompts/get", {"name": "claude"}, caller("*"))
