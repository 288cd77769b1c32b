"""Servers that come, go and change while others are used; what a connection is told of them."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.config import Config, Retry
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.model import (
    NOTHING,
    Caller,
    Entries,
    Fields,
    JsonObject,
    State,
    Unavailable,
    Unroutable,
)
from tests.gateway.conftest import Serve
from tests.gateway.scripted import (
    ALL,
    Scripted,
    caller,
    config,
    offers,
    prompt,
    resource,
    result,
)
from tests.gateway.test_lists import names


async def test_a_reload_replaces_the_list_and_disturbs_no_call(
    gateway: Gateway, serve: Serve
) -> None:
    kept, gone = serve("kept", offers(["x"])), serve("gone", offers(["x"]))
    release = asyncio.Event()

    async def slow(method: str, params: JsonObject, caller: Caller) -> Fields:
        await release.wait()
        return result("done")

    kept.answer = gone.answer = slow
    running = [
        asyncio.create_task(gateway.request("tools/call", {"name": f"{s}__x"}, caller()))
        for s in ("kept", "gone")
    ]
    await asyncio.sleep(0.01)
    new = Scripted("new", offers(["x"]))
    unused = gateway.set_servers([(new, config("new")), (kept, config("kept"))])
    assert unused == [gone]
    assert not gone.closed
    assert await names(gateway) == ["new__x", "kept__x"]
    with pytest.raises(Unroutable) as failure:
        await gateway.request("tools/call", {"name": "gone__x"}, caller())
    assert failure.value.reason == "unknown_server"
    release.set()
    for answer in await asyncio.gather(*running):
        assert b"done" in bytes(answer["content"])  # type: ignore[call-overload]
    assert [s.name for s in gateway.servers()] == ["new", "kept"]


async def test_attach_in_the_place_of_one_and_detach(gateway: Gateway, serve: Serve) -> None:
    serve("a", offers(["x"]))
    serve("b", offers(["x"]))
    again = serve("a", offers(["y"]))
    assert await names(gateway) == ["a__y", "b__x"]
    assert gateway.detach("a") is again
    assert gateway.detach("a") is None
    assert await names(gateway) == ["b__x"]


async def test_a_server_with_a_new_configuration_and_the_same_connection(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x", "y"]))
    gateway.set_servers([(server, config("s", only=("y",), gated=True))])
    (tool,) = gateway.tools()
    assert (tool.name, tool.gated, tool.gate_set) == ("s__y", True, True)


async def test_while_a_replaced_server_connects_its_tools_are_unavailable_not_unknown(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    serve("s", offers(["x"]))
    again = Scripted("s", NOTHING, state=State.CONNECTING, bus=bus)
    again.answers["tools/call"] = Unavailable("s", "not connected", ran="no", retry_in=5.0)
    gateway.attach(again, config("s"))
    with pytest.raises(Unavailable):
        await gateway.request("tools/call", {"name": "s__x"}, caller())
    assert await names(gateway) == []
    again.becomes(State.READY, offers(["y"]))
    assert await names(gateway) == ["s__y"]
    with pytest.raises(Unroutable):
        await gateway.request("tools/call", {"name": "s__x"}, caller())


async def test_a_replaced_server_is_asked_what_its_predecessor_was(
    gateway: Gateway, serve: Serve
) -> None:
    offer = Entries(resources=(resource("f:///x"),), capabilities=ALL)
    serve("s", offer)
    other = serve("t", offers([]))
    await gateway.request("resources/subscribe", {"uri": "f:///x"}, caller())
    await gateway.request("logging/setLevel", {"level": "error"}, caller())
    listening = gateway.listen(caller(session="s2"), lambda method, params: None)
    await listening.watch(["f:///x"])
    again = serve("s", offer)
    await asyncio.sleep(0.01)
    assert sorted(again.watched) == [("+", "f:///x", "s1"), ("+", "f:///x", "s2")]
    assert again.levels == [("error", "s1")]
    assert (other.watched, len(other.levels)) == ([], 1)


async def test_a_reload_of_what_is_ours(bus: Bus) -> None:
    gateway = Gateway(Config(retry=Retry(1, 0.001), list_wait=600), bus)
    server = Scripted("s", offers(["x"]))
    server.answers["tools/call"] = Unavailable("s", "refused", ran="no")
    gateway.attach(server, config("s"))
    gateway.attach(Scripted("hang", state=State.CONNECTING), config("hang"))
    gateway.reconfigure(Config(retry=Retry(4, 0.001), list_wait=0.01))
    with pytest.raises(Unavailable):
        await gateway.request("tools/call", {"name": "s__x"}, caller())
    assert len(server.asked) == 4
    async with asyncio.timeout(30):
        assert await names(gateway) == ["s__x"]
    await gateway.close()


async def test_close_leaves_no_task_and_closes_no_server(bus: Bus) -> None:
    gateway = Gateway(Config(list_wait=0.01), bus)
    server = Scripted("hang", state=State.CONNECTING)
    gateway.attach(server, config("hang"))
    await names(gateway)
    assert len(asyncio.all_tasks()) == 2
    await gateway.close()
    await gateway.close()
    assert len(asyncio.all_tasks()) == 1
    assert not server.closed


# ------------------------------------------------------------------ what a connection is told

BARE: JsonObject = {"tools": {"listChanged": True}}
EVERYTHING: JsonObject = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


async def test_capabilities_are_those_of_the_visible_servers(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    assert gateway.capabilities(caller()) == BARE
    serve("bare", offers(["x"], {"tools": {}, "tasks": {}, "extensions": {"x": {}}}))
    assert gateway.capabilities(caller()) == BARE
    serve("some", offers([], {"resources": {}, "logging": {}}))
    some = {**BARE, "resources": {"listChanged": True}, "logging": {}}
    assert gateway.capabilities(caller()) == some
    serve("all", offers([], ALL))
    assert gateway.capabilities(caller()) == EVERYTHING
    assert gateway.capabilities(caller("bare", "some")) == some
    assert gateway.capabilities(caller(server="bare")) == BARE
    # Who has not told yet may have anything.
    gateway.attach(Scripted("late", state=State.CONNECTING, bus=bus), config("late"))
    assert gateway.capabilities(caller("bare", "late")) == EVERYTHING
    assert gateway.capabilities(caller("bare")) == BARE


async def test_instructions_are_under_their_servers_names(gateway: Gateway, serve: Serve) -> None:
    serve("a", offers([], instructions="Do this.\n"))
    serve("b", offers([]))
    serve("c", offers([], instructions="Not that."))
    assert gateway.instructions(caller()) == "## a\n\nDo this.\n\n## c\n\nNot that."
    assert gateway.instructions(caller("c")) == "## c\n\nNot that."
    assert gateway.instructions(caller(server="a")) == "Do this."
    assert gateway.instructions(caller("b")) == ""


# ------------------------------------------------------------- before a server has told


@pytest.mark.parametrize("alone", [False, True])
async def test_a_call_without_a_list_waits_for_its_own_server(
    patient: Gateway, bus: Bus, alone: bool
) -> None:
    """As a list would, and for no other: who calls a tool knows that it is there."""
    gateway = patient
    # A resource may be of any of them, so what reads it waits for all.
    gateway.reconfigure(Config(list_wait=1.5))
    late = Scripted("late", state=State.CONNECTING, bus=bus)
    gateway.attach(late, config("late"))
    gateway.attach(Scripted("hang", state=State.CONNECTING, bus=bus), config("hang"))
    who = caller(server="late") if alone else caller()
    prefix = "" if alone else "late__"
    requests: list[tuple[str, JsonObject]] = [
        ("tools/call", {"name": f"{prefix}x"}),
        ("prompts/get", {"name": f"{prefix}p"}),
        ("resources/read", {"uri": "f:///x"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": f"{prefix}p"}}),
        ("completion/complete", {"ref": {"type": "ref/resource", "uri": "f:///x"}}),
    ]
    running = [asyncio.create_task(gateway.request(m, p, who)) for m, p in requests]
    await asyncio.sleep(0.1)
    late.becomes(
        State.READY,
        offers(["x"], prompts=(prompt("p"),), resources=(resource("f:///x"),)),
    )
    async with asyncio.timeout(30):
        await asyncio.gather(*running)
    assert sorted(m for m, _, _ in late.asked) == sorted(m for m, _ in requests)


async def test_a_call_of_a_server_that_never_told_is_unavailable(
    gateway: Gateway, bus: Bus
) -> None:
    dead = Scripted("dead", state=State.BACKOFF, bus=bus)
    dead.becomes(State.BACKOFF)
    hang = Scripted("hang", state=State.CONNECTING, bus=bus)
    gateway.attach(dead, config("dead"))
    gateway.attach(hang, config("hang"))
    for name in ("dead__x", "hang__x", "hang__x"):
        with pytest.raises(Unavailable) as failure:
            await gateway.request("tools/call", {"name": name}, caller())
        assert failure.value.ran == "no"
        assert failure.value.server == name[:4]
        assert "has not told yet what it has" in failure.value.why
    # What names no server, or none that is visible, is told at once.
    for name in ("x", "nobody__x"):
        with pytest.raises(Unroutable):
            await gateway.request("tools/call", {"name": name}, caller())
    with pytest.raises(Unroutable):
        await gateway.request("tools/call", {"name": "dead__x"}, caller("hang"))
    with pytest.raises(Unavailable):
        await gateway.request("resources/read", {"uri": "f:///x"}, caller(server="dead"))


async def test_no_waiting_past_the_deadline(patient: Gateway, bus: Bus) -> None:
    gateway = patient
    gateway.attach(Scripted("hang", state=State.CONNECTING, bus=bus), config("hang"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unavailable):
        await gateway.request("tools/call", {"name": "hang__x"}, caller(deadline=began + 0.05))
    assert loop.time() - began < 30


async def test_a_resource_is_not_given_to_another_server_while_its_own_connects(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    first = serve("first", Entries(resources=(resource("f:///x"),), capabilities=ALL))
    late = Scripted("late", state=State.CONNECTING, bus=bus)
    gateway.attach(late, config("late"))
    reading = asyncio.create_task(gateway.request("resources/read", {"uri": "f:///late"}, caller()))
    await gateway.request("resources/read", {"uri": "f:///x"}, caller())
    await asyncio.sleep(0.02)
    late.becomes(State.READY, Entries(resources=(resource("f:///late"),), capabilities=ALL))
    await reading
    assert [len(first.asked), len(late.asked)] == [1, 1]
