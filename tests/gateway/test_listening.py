"""Who is told of changes, how often, and of what."""

from __future__ import annotations

import asyncio

import pytest

from sidecar.events import Bus, LogMessage, PromptsChanged, ResourcesChanged, ResourceUpdated
from sidecar.gateway import Gateway, Listening
from sidecar.gateway.listeners import PATIENCE, QUIET
from sidecar.model import Caller, Entries, Era, JsonObject, RpcError, State
from tests.gateway.conftest import CONFIG, Serve
from tests.gateway.gates import Keeper, refusal
from tests.gateway.scripted import (
    ALL,
    Scripted,
    caller,
    config,
    offers,
    prompt,
    resource,
    template,
)

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"
RESOURCES = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
MESSAGE = "notifications/message"


class Ear:
    """Listens as one caller and remembers what it was told."""

    def __init__(self, gateway: Gateway, who: Caller) -> None:
        self.told: list[tuple[str, JsonObject]] = []
        self.listening: Listening = gateway.listen(
            who, lambda method, params: self.told.append((method, params))
        )

    @property
    def methods(self) -> list[str]:
        return [method for method, _ in self.told]

    def clear(self) -> None:
        self.told.clear()


async def quiet() -> None:
    await asyncio.sleep(QUIET * 2)


async def test_c11_a_burst_of_changes_is_told_once_or_twice(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["x"]))
    await quiet()
    ears = [Ear(gateway, caller(session=f"s{i}")) for i in range(2)]
    for _ in range(5):
        server.lists(offers(["x", "new"]))
        await asyncio.sleep(0.02)
    await quiet()
    for ear in ears:
        assert set(ear.methods) == {TOOLS}
        assert 1 <= len(ear.told) <= 2
        assert all(params == {} for _, params in ear.told)


async def test_a_burst_that_does_not_end_is_told_all_the_same(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller())
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE + 0.1
    n = 0
    while loop.time() < until:
        n += 1
        server.lists(offers([f"t{n}"]))
        await asyncio.sleep(QUIET / 4)
    assert 1 <= len(ear.told) <= 2


async def test_a_listener_is_told_of_changes_since_it_came(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["x"], prompts=(prompt("p"),)))
    # Nobody has been told of the server yet, but these know what there is.
    early, late = Ear(gateway, caller()), Ear(gateway, caller())
    await quiet()
    assert early.told == late.told == []
    server.lists(offers(["x", "y"], prompts=(prompt("p"),)))
    late = Ear(gateway, caller())
    server.lists(offers(["x", "y"], prompts=()))
    await quiet()
    assert (early.methods, late.methods) == ([TOOLS, PROMPTS], [PROMPTS])


async def test_only_those_who_see_the_server_are_told(gateway: Gateway, serve: Serve) -> None:
    one, _ = serve("one", offers(["x"])), serve("two", offers(["x"]))
    await quiet()
    all_, sees, not_, alone, other = (
        Ear(gateway, who)
        for who in (
            caller(),
            caller("one"),
            caller("two"),
            caller(server="one"),
            caller(server="two"),
        )
    )
    one.lists(offers([]))
    await quiet()
    assert [len(e.told) for e in (all_, sees, not_, alone, other)] == [1, 1, 0, 1, 0]


async def test_each_list_is_told_of_for_itself(gateway: Gateway, serve: Serve, bus: Bus) -> None:
    server = serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller())
    server.lists(offers(["x"], prompts=(prompt("p"),)), times=0)
    bus.publish(PromptsChanged(server="s"))
    await quiet()
    assert ear.methods == [PROMPTS]
    ear.clear()
    server.lists(offers(["x"], prompts=(prompt("p"),), templates=(template("f:///{x}"),)), times=0)
    bus.publish(ResourcesChanged(server="s"))
    await quiet()
    assert ear.methods == [RESOURCES]


async def test_what_changes_nothing_for_callers_is_not_told(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["x", "hidden"]), only=("x",))
    await quiet()
    ear = Ear(gateway, caller())
    server.lists(offers(["x", "hidden", "hidden2"]))
    await quiet()
    # Gone and back within a moment: nobody need know.
    server.becomes(State.BACKOFF)
    server.becomes(State.READY)
    await quiet()
    assert ear.told == []


async def test_a_server_that_goes_and_comes_back_is_told_each_time(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller())
    server.becomes(State.BACKOFF)
    await quiet()
    assert ear.methods == [TOOLS]
    server.becomes(State.READY)
    await quiet()
    assert ear.methods == [TOOLS, TOOLS]


async def test_c6_a_server_added_at_run_time_is_told_once(gateway: Gateway, serve: Serve) -> None:
    serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller())
    serve("t", offers(["x"]))
    serve("u", offers(["x"]))
    await quiet()
    assert ear.methods == [TOOLS]
    ear.clear()
    gateway.detach("t")
    await quiet()
    assert ear.methods == [TOOLS]


async def test_a_stopped_listener_hears_nothing(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller())
    server.lists(offers([]))
    ear.listening.stop()
    ear.listening.stop()
    await quiet()
    assert ear.told == []


async def test_a_listener_that_fails_keeps_nobody_else_from_hearing(
    gateway: Gateway, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve("s", offers(["x"]))
    await quiet()

    def broken(method: str, params: JsonObject) -> None:
        raise RuntimeError("broken")

    gateway.listen(caller(), broken)
    ear = Ear(gateway, caller())
    server.lists(offers([]))
    await quiet()
    assert ear.methods == [TOOLS]
    assert "a listener of agent failed" in caplog.text


async def test_a_policy_reload_is_told_to_everybody(gateway: Gateway, serve: Serve) -> None:
    serve("s", offers(["x"]))
    await quiet()
    ear = Ear(gateway, caller("nothing"))
    gateway.tools_changed()
    await quiet()
    assert ear.methods == [TOOLS]


# ---------------------------------------------------------------------- log messages


def message(level: str, server: str = "s", isolation: str = "") -> LogMessage:
    return LogMessage(server=server, params={"level": level, "data": "text"}, isolation=isolation)


async def test_log_messages_go_to_sessions_that_see_the_server(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    serve("s", offers(["x"]))
    ear, blind, modern = (
        Ear(gateway, who) for who in (caller(), caller("other"), caller(era=Era.MODERN, session=""))
    )
    bus.publish(message("info"))
    assert ear.told == [(MESSAGE, {"level": "info", "data": "text"})]
    assert blind.told == modern.told == []


async def test_a_message_of_a_session_of_ones_own_is_nobody_elses(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    serve("s", offers(["x"]))
    mine, theirs = Ear(gateway, caller(session="s1")), Ear(gateway, caller(session="s2"))
    bus.publish(message("info", isolation="s1"))
    assert (len(mine.told), len(theirs.told)) == (1, 0)


async def test_each_session_has_its_own_level_and_servers_are_told(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    s, mute = serve("s", offers(["x"])), serve("mute", offers(["x"], {"tools": {}}))
    strict, lax, all_ = (Ear(gateway, caller(session=x)) for x in ("strict", "lax", "all"))
    assert (
        await gateway.request("logging/setLevel", {"level": "error"}, caller(session="strict"))
        == {}
    )
    await gateway.request("logging/setLevel", {"level": "debug"}, caller(session="lax"))
    assert s.levels == [("error", "strict"), ("debug", "lax")]
    assert mute.levels == []
    for level in ("debug", "warning", "error", "emergency"):
        bus.publish(message(level))
    assert [p["level"] for _, p in strict.told] == ["error", "emergency"]
    assert len(lax.told) == len(all_.told) == 4
    # Only those that the caller sees.
    await gateway.request("logging/setLevel", {"level": "error"}, caller("mute", session="m"))
    assert len(s.levels) == 2


async def test_a_server_that_does_not_answer_delays_no_level(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", offers(["x"]))
    released = asyncio.Event()

    async def hang(level: str, caller: Caller) -> None:
        await released.wait()
        server.levels.append((level, caller.session))

    server.set_log_level = hang  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        await gateway.request("logging/setLevel", {"level": "error"}, caller())
    released.set()
    await asyncio.sleep(0.01)
    assert server.levels == [("error", "s1")]


# ----------------------------------------------------------------------- subscriptions

OFFER = Entries(
    resources=(resource("f:///x"), resource("f:///y")),
    templates=(template("f:///{+path}"),),
    capabilities=ALL,
)


def updated(uri: str, server: str = "s", isolation: str = "") -> ResourceUpdated:
    return ResourceUpdated(
        server=server, uri=uri, params={"uri": uri, "title": "t"}, isolation=isolation
    )


async def subscribe(gateway: Gateway, uri: str, session: str = "s1") -> None:
    await gateway.request("resources/subscribe", {"uri": uri}, caller(session=session))


async def test_updates_go_to_the_sessions_that_subscribed(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    server = serve("s", OFFER)
    serve("t", OFFER)
    await quiet()
    one, two = Ear(gateway, caller(session="s1")), Ear(gateway, caller(session="s2"))
    await subscribe(gateway, "f:///x")
    await subscribe(gateway, "f:///x")
    assert server.watched == [("+", "f:///x", "s1")]
    for _ in range(4):
        bus.publish(updated("f:///x"))
        bus.publish(updated("f:///y"))
        # Another server's resource of the same URI is another resource.
        bus.publish(updated("f:///x", server="t"))
    await quiet()
    assert one.told == [(UPDATED, {"uri": "f:///x", "title": "t"})]
    assert two.told == []
    await gateway.request("resources/unsubscribe", {"uri": "f:///x"}, caller())
    await gateway.request("resources/unsubscribe", {"uri": "f:///x"}, caller())
    assert server.watched == [("+", "f:///x", "s1"), ("-", "f:///x", "s1")]
    bus.publish(updated("f:///x"))
    await quiet()
    assert len(one.told) == 1


@pytest.mark.parametrize(
    ("watched", "uri", "heard"),
    [
        ("f:///dir", "f:///dir/file", True),
        ("f:///dir/", "f:///dir/file", True),
        ("f:///dir", "f:///dir#part", True),
        ("f:///dir", "f:///directory", False),
        ("f:///dir/file", "f:///dir", False),
    ],
)
async def test_an_update_below_what_was_subscribed_to_is_told(
    gateway: Gateway, serve: Serve, bus: Bus, watched: str, uri: str, heard: bool
) -> None:
    serve("s", OFFER)
    await quiet()
    ear = Ear(gateway, caller())
    await subscribe(gateway, watched)
    bus.publish(updated(uri))
    await quiet()
    assert ear.methods == ([UPDATED] if heard else [])


async def test_an_update_in_a_session_of_ones_own_is_nobody_elses(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    serve("s", OFFER)
    await quiet()
    one, two = Ear(gateway, caller(session="s1")), Ear(gateway, caller(session="s2"))
    await subscribe(gateway, "f:///x", "s1")
    await subscribe(gateway, "f:///x", "s2")
    bus.publish(updated("f:///x", isolation="s2"))
    await quiet()
    assert (one.methods, two.methods) == ([], [UPDATED])


async def test_a_listeners_own_watches_end_with_it(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    server = serve("s", OFFER)
    await quiet()
    who = caller(session="", era=Era.MODERN, name="me")
    first, second = Ear(gateway, who), Ear(gateway, who)
    assert await first.listening.watch(["f:///x", "f:///x", "f:///y"]) == ["f:///x", "f:///y"]
    assert await second.listening.watch(["f:///x"]) == ["f:///x"]
    bus.publish(updated("f:///x"))
    bus.publish(updated("f:///y", isolation="principal:me"))
    await quiet()
    assert [p["uri"] for _, p in first.told] == ["f:///x", "f:///y"]
    assert [p["uri"] for _, p in second.told] == ["f:///x"]
    first.listening.stop()
    await asyncio.sleep(0.01)
    assert server.watched[3:] == [
        ("-", "f:///x", "principal:me"),
        ("-", "f:///y", "principal:me"),
    ]


async def test_watch_leaves_out_what_cannot_be_watched(bus: Bus) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", OFFER)
    gateway.attach(server, config("s"))
    gateway.attach(Scripted("t", OFFER), config("t"))
    ear = Ear(gateway, caller())
    assert await ear.listening.watch(["unknown:x", "f:///x"]) == ["f:///x"]
    server.answers["resources/subscribe"] = RpcError(-32601, "cannot")
    assert await ear.listening.watch(["f:///y"]) == []
    keeper.refuse = refusal()
    assert await ear.listening.watch(["f:///z"]) == []
    assert await ear.listening.watch([]) == []
    await gateway.close()


async def test_a_refused_subscription_is_the_servers_error_and_leaves_nothing(
    gateway: Gateway, serve: Serve, bus: Bus
) -> None:
    server = serve("s", OFFER)
    await quiet()
    ear = Ear(gateway, caller())
    server.answers["resources/subscribe"] = RpcError(-32601, "cannot")
    with pytest.raises(RpcError) as failure:
        await subscribe(gateway, "f:///x")
    assert failure.value.message == "cannot"
    bus.publish(updated("f:///x"))
    await quiet()
    assert ear.told == []
    del server.answers["resources/subscribe"]
    await subscribe(gateway, "f:///x")
    assert server.watched == [("+", "f:///x", "s1")]


async def test_a_client_cannot_watch_without_end(gateway: Gateway, serve: Serve) -> None:
    serve("s", OFFER)
    for n in range(1000):
        await subscribe(gateway, f"f:///{n}")
    await subscribe(gateway, "f:///0")
    with pytest.raises(RpcError) as failure:
        await subscribe(gateway, "f:///1000")
    assert failure.value.code == -32602
    assert "unsubscribe" in failure.value.message
    await subscribe(gateway, "f:///1000", "s2")


async def test_a_session_that_ends_leaves_nothing(gateway: Gateway, serve: Serve, bus: Bus) -> None:
    server, other = serve("s", OFFER), serve("t", OFFER)
    await quiet()
    ear = Ear(gateway, caller())
    await subscribe(gateway, "f:///x")
    await subscribe(gateway, "f:///x", "s2")
    await gateway.request("logging/setLevel", {"level": "error"}, caller())
    await gateway.close_session("s1")
    await gateway.close_session("s1")
    assert server.watched[2:] == [("-", "f:///x", "s1")]
    assert server.forgotten == other.forgotten == ["s1", "s1"]
    bus.publish(updated("f:///x"))
    bus.publish(message("debug"))
    await quiet()
    # The level went with the session, the subscription too.
    assert ear.methods == [MESSAGE]


async def test_a_subscription_under_way_when_its_session_ends_is_ended_too(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", OFFER)
    released = asyncio.Event()
    subscribed = server.subscribe

    async def slow(uri: str, caller: Caller) -> None:
        await released.wait()
        await subscribed(uri, caller)

    server.subscribe = slow  # type: ignore[method-assign]
    task = asyncio.create_task(subscribe(gateway, "f:///x"))
    await asyncio.sleep(0.01)
    await gateway.close_session("s1")
    released.set()
    await task
    await asyncio.sleep(0.01)
    assert server.watched[-2:] == [("+", "f:///x", "s1"), ("-", "f:///x", "s1")]
