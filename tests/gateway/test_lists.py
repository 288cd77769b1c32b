"""What callers are shown, how long it waits for servers, and what it says of those missing."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest

from sidecar.config import Config
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.model import Caller, Entries, Fields, JsonObject, State, Unroutable
from sidecar.wire.json import encode
from tests.gateway.conftest import CONFIG, Serve
from tests.gateway.gates import Keeper
from tests.gateway.scripted import (
    ALL,
    Scripted,
    caller,
    config,
    offers,
    prompt,
    resource,
    template,
    tool,
)


def plain(fields: Fields) -> dict[str, object]:
    value = json.loads(encode(fields))
    assert isinstance(value, dict)
    return value


async def names(gateway: Gateway, who: Caller | None = None) -> list[str]:
    listed = plain(await gateway.request("tools/list", {}, who or caller()))
    return [t["name"] for t in listed["tools"]]  # type: ignore[attr-defined, index]


async def test_each_caller_sees_its_own(gateway: Gateway, serve: Serve) -> None:
    for name in ("github", "git", "linear"):
        serve(name, offers(["x"]))
    assert await names(gateway) == ["github__x", "git__x", "linear__x"]
    assert await names(gateway, caller("git*")) == ["github__x", "git__x"]
    assert await names(gateway, caller("git")) == ["git__x"]
    assert await names(gateway, caller("git", server="git")) == ["x"]
    nobody = caller("git")
    nobody.principal = type(nobody.principal)("nobody", ())
    assert await names(gateway, nobody) == []


async def test_c1_every_page_of_the_upstream_is_in_ours(gateway: Gateway, serve: Serve) -> None:
    serve("s", offers([f"t{i}" for i in range(1500)]))
    serve("u", offers(["late_tool"]))
    seen: list[str] = []
    params: JsonObject = {}
    pages = 0
    while True:
        page = plain(await gateway.request("tools/list", params, caller()))
        seen += [t["name"] for t in page["tools"]]  # type: ignore[attr-defined, index]
        pages += 1
        if "nextCursor" not in page:
            break
        params = {"cursor": page["nextCursor"]}
    assert pages == 2
    assert seen == [f"s__t{i}" for i in range(1500)] + ["u__late_tool"]


async def test_prompts_resources_and_templates(gateway: Gateway, serve: Serve) -> None:
    for name in ("a", "b"):
        serve(
            name,
            Entries(
                prompts=(prompt("p"),),
                resources=(resource("f:///x"), resource(f"f:///{name}")),
                templates=(template("f:///{id}"),),
                capabilities=ALL,
            ),
        )
    listed = plain(await gateway.request("prompts/list", {}, caller()))
    assert [p["name"] for p in listed["prompts"]] == ["a__p", "b__p"]  # type: ignore[attr-defined, index]
    listed = plain(await gateway.request("resources/list", {}, caller()))
    uris = [r["uri"] for r in listed["resources"]]  # type: ignore[attr-defined, index]
    assert uris == ["f:///x", "f:///a", "f:///b"]
    listed = plain(await gateway.request("resources/templates/list", {}, caller()))
    assert len(listed["resourceTemplates"]) == 1  # type: ignore[arg-type]
    listed = plain(await gateway.request("resources/list", {}, caller(server="b")))
    assert [r["uri"] for r in listed["resources"]] == ["f:///x", "f:///b"]  # type: ignore[attr-defined, index]


async def test_p9_two_lists_are_the_same_bytes(serve: Serve, gateway: Gateway, bus: Bus) -> None:
    serve("a", offers(["x", "ns.y"]))
    serve("b", offers(["z"])).becomes(State.FAILED)
    other = Gateway(CONFIG, bus)
    for slot in ("a", "b"):
        twin = Scripted(slot, offers(["x", "ns.y"] if slot == "a" else ["z"]))
        twin.becomes(State.READY if slot == "a" else State.FAILED)
        other.attach(twin, config(slot))
    one = encode(await gateway.request("tools/list", {}, caller()))
    assert encode(await gateway.request("tools/list", {}, caller(session="s2"))) == one
    assert encode(await other.request("tools/list", {}, caller())) == one
    await other.close()


async def test_a_tool_that_policy_hides_is_not_listed(bus: Bus) -> None:
    keeper = Keeper()
    keeper.hidden = {"s__secret"}
    gateway = Gateway(CONFIG, bus, gate=keeper)
    gateway.attach(Scripted("s", offers(["secret", "open"])), config("s"))
    assert await names(gateway) == ["s__open"]
    for separator in (None, "."):
        made = plain(await gateway.tools_as("anthropic", caller(), separator=separator))
        assert len(made["tools"]) == 1  # type: ignore[arg-type]
    await gateway.close()


# --------------------------------------------------------------------- servers that are not up


async def test_c24_a_list_waits_for_first_attempts_and_no_longer_than_list_wait(
    gateway: Gateway, bus: Bus, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    serve("live", offers(["x"]))
    dead, hang, slow = (
        Scripted(name, state=State.CONNECTING, bus=bus) for name in ("dead", "hang", "slow")
    )
    for upstream in (dead, hang, slow):
        gateway.attach(upstream, config(upstream.name))
    dead.becomes(State.BACKOFF)
    loop = asyncio.get_running_loop()
    loop.call_later(0.05, slow.becomes, State.READY, offers(["y"]))
    began = loop.time()
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert 0.18 < loop.time() - began < 30
    assert [t["name"] for t in listed["tools"]] == ["live__x", "slow__y"]  # type: ignore[attr-defined, index]
    assert listed["_meta"] == {
        "sidecar/unavailable": [
            {"server": "dead", "state": "backoff"},
            {"server": "hang", "state": "connecting"},
        ]
    }
    # The patience with one that hangs is spent once, not by every list.
    gateway.reconfigure(replace(CONFIG, list_wait=600))
    began = loop.time()
    again = plain(await gateway.request("prompts/list", {}, caller()))
    assert loop.time() - began < 30
    assert again["_meta"] == listed["_meta"]
    warned = [r.getMessage() for r in caplog.records if "missing from lists" in r.getMessage()]
    # One that is down says so itself.
    assert warned == ["server hang is missing from lists: it is still connecting"]
    # And when it comes, it is there.
    hang.becomes(State.READY, offers(["z"]))
    assert "hang__z" in await names(gateway)


async def test_of_many_missing_servers_a_list_names_some(gateway: Gateway, bus: Bus) -> None:
    for number in range(20):
        gateway.attach(Scripted(f"s{number}", state=State.BACKOFF), config(f"s{number}"))
    listed = plain(await gateway.request("tools/list", {}, caller()))
    twenty = [{"server": f"s{number}", "state": "backoff"} for number in range(20)]
    assert listed["_meta"] == {"sidecar/unavailable": twenty}
    for number in range(20, 23):
        gateway.attach(Scripted(f"s{number}", state=State.BACKOFF), config(f"s{number}"))
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert listed["_meta"] == {"sidecar/unavailable": twenty, "sidecar/unavailable_more": 3}


async def test_a_server_that_is_down_is_not_told_again_while_it_is_tried_again(
    gateway: Gateway, bus: Bus, caplog: pytest.LogCaptureFixture
) -> None:
    again = Scripted("again", state=State.CONNECTING, bus=bus)
    gateway.attach(again, config("again"))
    again.becomes(State.BACKOFF)
    again.state, again.error = State.CONNECTING, "cannot connect: Connection refused"
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert listed["_meta"] == {"sidecar/unavailable": [{"server": "again", "state": "connecting"}]}
    assert "missing from lists" not in caplog.text


async def test_nobody_waits_for_a_server_they_do_not_see(patient: Gateway, bus: Bus) -> None:
    gateway = patient
    gateway.attach(Scripted("hang", state=State.CONNECTING, bus=bus), config("hang"))
    gateway.attach(Scripted("live", offers(["x"])), config("live"))
    began = time.monotonic()
    listed = plain(await gateway.request("tools/list", {}, caller("live")))
    assert time.monotonic() - began < 30
    assert "_meta" not in listed


async def test_cancelling_a_waiting_list_leaves_the_others_waiting(
    gateway: Gateway, bus: Bus
) -> None:
    slow = Scripted("slow", state=State.CONNECTING, bus=bus)
    gateway.attach(slow, config("slow"))
    first, second = (asyncio.create_task(names(gateway)) for _ in range(2))
    await asyncio.sleep(0.02)
    first.cancel()
    await asyncio.sleep(0.02)
    slow.becomes(State.READY, offers(["x"]))
    assert await second == ["slow__x"]


async def test_a_server_that_is_down_offers_nothing_and_comes_back(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x"]))
    server.becomes(State.BACKOFF)
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert listed["tools"] == []
    assert listed["_meta"] == {"sidecar/unavailable": [{"server": "s", "state": "backoff"}]}
    server.becomes(State.READY)
    assert await names(gateway) == ["s__x"]


async def test_a_connected_server_that_cannot_list_is_missing_unless_older_lists_are_shown(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers([], prompts=(prompt("p"),)))
    server.error = "tools/list failed"
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert listed["_meta"] == {"sidecar/unavailable": [{"server": "s", "state": "ready"}]}
    listed = plain(await gateway.request("prompts/list", {}, caller()))
    assert "_meta" not in listed
    server.lists(offers(["x"]))
    listed = plain(await gateway.request("tools/list", {}, caller()))
    assert "_meta" not in listed


async def test_with_no_servers_lists_are_empty(gateway: Gateway) -> None:
    assert plain(await gateway.request("tools/list", {}, caller())) == {"tools": []}


# -------------------------------------------------------------------------------- model APIs


@pytest.mark.parametrize("format", ["mcp", "anthropic", "openai"])
@pytest.mark.parametrize("separator", [None, "__", ".", "_"])
async def test_what_tools_as_gives_comes_back_through_call(
    gateway: Gateway, serve: Serve, format: str, separator: str | None
) -> None:
    tools = ["b_x", "ns.dotted", "t" * 70]
    a = serve("a", offers(tools))
    ab = serve("a_b", offers(["x"]))
    made = plain(await gateway.tools_as(format, caller(), separator=separator))["tools"]  # type: ignore[arg-type]
    assert isinstance(made, list)
    called = [m["function"]["name"] if format == "openai" else m["name"] for m in made]
    assert len(set(called)) == 4
    for name in called:
        await gateway.call(name, {}, caller(), separator=separator)
    assert [p["name"] for _, p, _ in a.asked] == tools
    assert [p["name"] for _, p, _ in ab.asked] == ["x"]
    again = await gateway.tools_as(format, caller(), separator=separator)  # type: ignore[arg-type]
    assert plain(again)["tools"] == made


async def test_tools_as_follows_what_a_server_lists(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["x"]))
    await gateway.tools_as("openai", caller())
    server.lists(offers([tool("x", description="new"), "y"]))
    made = plain(await gateway.tools_as("openai", caller()))["tools"]
    assert [m["function"]["name"] for m in made] == ["s__x", "s__y"]  # type: ignore[attr-defined]
    assert made[0]["function"]["description"] == "new"  # type: ignore[index]


async def test_tools_of_one_server_and_of_those_that_fail(gateway: Gateway, serve: Serve) -> None:
    serve("a", offers(["x"]))
    serve("b", offers(["x"])).becomes(State.FAILED)
    made = plain(await gateway.tools_as("anthropic", caller(), server="a"))
    assert made == {"tools": [{"name": "a__x", "input_schema": {"type": "object"}}]}
    made = plain(await gateway.tools_as("anthropic", caller()))
    assert made["_meta"] == {"sidecar/unavailable": [{"server": "b", "state": "failed"}]}
    for who, server in ((caller("a"), "b"), (caller(), "nobody")):
        with pytest.raises(Unroutable) as failure:
            await gateway.tools_as("anthropic", who, server=server)
        assert failure.value.reason == "unknown_server"


# ----------------------------------------------------------------------------------- size


async def test_five_thousand_tools_of_fifty_servers(bus: Bus) -> None:
    """Not timed: a list_changed builds its own server's tools and no other's."""
    gateway = Gateway(Config(), bus)
    servers = [Scripted(f"s{i}", offers([f"t{j}" for j in range(100)])) for i in range(50)]
    gateway.set_servers([(s, config(s.name)) for s in servers])
    before = {t.name: t for t in gateway.tools()}
    assert len(before) == 5000
    servers[7].lists(offers([f"t{j}" for j in range(101)]))
    after = {t.name: t for t in gateway.tools()}
    assert set(after) - set(before) == {"s7__t100"}
    assert all(after[name] is before[name] for name in before)
    page = plain(await gateway.request("tools/list", {}, caller()))
    assert len(page["tools"]) == 1000  # type: ignore[arg-type]
    await gateway.close()
