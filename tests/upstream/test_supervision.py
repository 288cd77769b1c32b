"""States, lists and events over a server's life: down, up, flapping, hanging, changing."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from sidecar.config import Limits
from sidecar.events import LegChanged, PromptsChanged, ResourcesChanged, ToolsChanged
from sidecar.model import NOTHING, Era, RpcError, State, Unavailable
from tests.upstream.kit import Seen, Stream, caller, said, tool, until


async def call(server: Any, who: Any = None, **arguments: Any) -> Any:
    params = {"name": "echo", "arguments": arguments}
    return await server.request("tools/call", params, who or caller("s"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def keys(server: Any) -> list[str]:
    return [entry.key for entry in server.entries().tools]


async def test_events_of_a_life(make, fake, era, watch) -> None:
    up = await fake(
        eras=(era,),
        capabilities={"tools": {"listChanged": True}, "prompts": {}, "resources": {}},
    )

    async def prompts(seen: Seen, stream: Stream) -> Any:
        return {"prompts": [{"name": "p"}]}

    up.on["prompts/list"] = prompts
    port = up.server.port
    server = make(up.url)
    assert server.entries() == NOTHING
    assert server.status.state is State.CONNECTING
    await server.settled()
    assert watch.states() == ["connecting", "ready"]
    tools = watch.of(ToolsChanged)[0]
    assert (tools.name, tools.server, tools.count) == ("sc", "up", 2)
    assert (tools.added, tools.removed, tools.changed) == (("echo", "whoami"), (), ())
    assert len(watch.of(PromptsChanged)) == 1
    # No resources, before or after: nothing to tell.
    assert watch.of(ResourcesChanged) == []
    assert [entry.key for entry in server.entries().prompts] == ["p"]
    assert server.entries().capabilities == up.capabilities
    await up.stop()
    with pytest.raises(Unavailable):
        await call(server, caller("s", era=Era(era)))
    await until(lambda: "backoff" in watch.states())
    assert watch.counts() == [2, 0]
    assert len(watch.of(PromptsChanged)) == 2
    assert server.status.tools == 0
    assert keys(server) == ["echo", "whoami"]
    again = await fake(
        port=port,
        eras=(era,),
        tools=[tool("echo", description="new"), tool("third")],
    )
    await until(lambda: server.status.state is State.READY)
    last = watch.of(ToolsChanged)[-1]
    assert (last.count, last.added, last.removed) == (2, ("third",), ("whoami",))
    assert last.changed == ("echo",)
    # What it does not declare any more is gone.
    assert server.entries().prompts == ()
    assert said(await call(server, caller("s", era=Era(era)), a=1))["a"] == 1
    assert again.of("tools/call")


async def test_a_dead_server_is_picked_up_when_it_starts(make, fake, watch) -> None:
    port = free_port()
    server = make(f"http://127.0.0.1:{port}/mcp")
    await server.settled()
    status = server.status
    assert status.state is State.BACKOFF
    assert "Connection refused" in str(status.error)
    assert 0 <= status.retry_in <= 0.5
    assert watch.counts() == []
    await fake(port=port)
    await until(lambda: server.status.state is State.READY)
    assert server.status.error is None
    assert watch.counts() == [2]


async def test_a_server_that_is_down_is_told_once_and_so_is_its_return(make, fake, caplog) -> None:
    """An operator sees a mistyped command in the log, without asking for a list."""
    caplog.set_level("INFO", "sidecar.upstream")
    port = free_port()
    server = make(f"http://127.0.0.1:{port}/mcp")
    await until(lambda: server._supervisor._backoff.failures >= 2)
    up = await fake(port=port)
    await until(lambda: server.status.state is State.READY)
    await up.stop()
    await until(lambda: server.status.state is State.BACKOFF)
    told = [r.getMessage() for r in caplog.records]
    assert told[:2] == [
        "server up: is down, and tried again now and then: cannot connect: Connection refused",
        "server up: is up again, tools: 2",
    ]
    assert len(told) == 3
    assert told[2].startswith("server up: is down, and tried again now and then: ")


async def test_a_call_to_a_dead_server_fails_fast_and_surely_did_not_run(make) -> None:
    server = make(f"http://127.0.0.1:{free_port()}/mcp")
    await server.settled()
    await until(lambda: server._supervisor._backoff.failures >= 2)
    started = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as caught:
        await call(server)
    assert asyncio.get_running_loop().time() - started < 20
    assert caught.value.ran == "no"
    assert not caught.value.permanent


async def test_a_request_knocks_at_a_server_in_long_backoff(make, fake) -> None:
    port = free_port()
    server = make(f"http://127.0.0.1:{port}/mcp")
    await server.settled()
    supervisor = server._supervisor
    supervisor._backoff._failures = 10
    await until(lambda: (supervisor.retry_in or 0) > 3, within=30)
    await asyncio.sleep(1.05)
    await fake(port=port)
    assert said(await call(server, a=1))["a"] == 1


async def test_a_hanging_server_keeps_nobody_for_long(make, monkeypatch) -> None:
    monkeypatch.setattr("sidecar.upstream.supervisor.PATIENCE", 0.3)

    async def hang(reader: Any, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    listener = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    server = make(f"http://127.0.0.1:{port}/mcp")
    for _ in range(3):
        started = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable) as caught:
            await call(server)
        assert caught.value.ran == "no"
        assert asyncio.get_running_loop().time() - started < 20
    assert server.status.state is State.CONNECTING
    started = asyncio.get_running_loop().time()
    await server.close()
    assert asyncio.get_running_loop().time() - started < 20
    listener.close()
    await listener.wait_closed()


async def test_a_flapping_server_is_connected_ever_more_rarely(make, fake, watch) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    for _ in range(3):
        ready = watch.states().count("ready")
        server._supervisor.leg.gone.set_result("it flaps")
        await until(lambda ready=ready: watch.states().count("ready") > ready, within=30)
    delays = [e.retry_in for e in watch.of(LegChanged) if e.state is State.BACKOFF]
    assert server._supervisor._backoff.failures == 3
    assert all(delay <= 0.5 * 2**n for n, delay in enumerate(delays))


async def test_a_fault_of_ours_does_not_end_supervision(make, fake, caplog, monkeypatch) -> None:
    up = await fake()
    server = make(up.url, start=False)
    opened = server._opener.open

    async def broken(isolation: str = "") -> Any:
        monkeypatch.setattr(server._opener, "open", opened)
        raise KeyError("broken")

    monkeypatch.setattr(server._opener, "open", broken)
    server.start()
    await until(lambda: server.status.state is State.READY)
    assert "an attempt to use it failed" in caplog.text


# ------------------------------------------------------------------------------------- lists


def paged(pages: list[list[str]], cursors: list[str | None]) -> Any:
    async def handler(seen: Seen, stream: Stream) -> Any:
        cursor = seen.params.get("cursor")
        index = 0 if cursor is None else cursors.index(cursor) + 1
        result: dict[str, Any] = {"tools": [tool(name) for name in pages[index]]}
        if cursors[index] is not None:
            result["nextCursor"] = cursors[index]
        return result

    return handler


async def test_all_pages_are_listed(make, fake, era) -> None:
    up = await fake(eras=(era,))
    names = [[f"t{page}{n}" for n in range(3)] for page in range(4)] + [["late_tool"]]
    up.on["tools/list"] = paged(names, ["3", "6", "9", "12", None])
    server = make(up.url)
    await server.settled()
    assert keys(server) == [name for page in names for name in page]
    assert len(keys(server)) == 13


async def test_a_cursor_that_does_not_advance(make, fake, era, caplog) -> None:
    up = await fake(eras=(era,))

    async def endless(seen: Seen, stream: Stream) -> Any:
        return {"tools": [tool("a")], "nextCursor": "again"}

    up.on["tools/list"] = endless
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.READY
    assert keys(server) == ["a"]
    assert len(up.of("tools/list")) == 2
    assert caplog.text.count("repeats a cursor") == 1


async def test_a_page_cap(make, fake, caplog) -> None:
    up = await fake()

    async def endless(seen: Seen, stream: Stream) -> Any:
        n = int(seen.params.get("cursor", "0"))
        return {"tools": [tool(f"t{n}")], "nextCursor": str(n + 1)}

    up.on["tools/list"] = endless
    server = make(up.url, limits=Limits(list_pages=30))
    await server.settled()
    assert len(keys(server)) == 30
    assert caplog.text.count("limits.list_pages") == 1


async def test_a_page_that_fails_keeps_what_was_known_and_is_tried_again(
    make, fake, era, watch, monkeypatch
) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()
    await until(lambda: up.streams or up.listens)

    async def broken(seen: Seen, stream: Stream) -> Any:
        if "cursor" in seen.params:
            raise RpcError(-32603, "out of order")
        return {"tools": [tool("new")], "nextCursor": "2"}

    up.on["tools/list"] = broken
    await up.broadcast("notifications/tools/list_changed", {})
    await until(lambda: server.status.error)
    assert "tools/list failed" in str(server.status.error)
    assert server.status.state is State.READY
    assert keys(server) == ["echo", "whoami"]
    assert watch.counts() == [2]
    del up.on["tools/list"]
    up.tools.append(tool("new"))
    await until(lambda: len(keys(server)) == 3)
    assert server.status.error is None


async def test_a_first_list_that_fails_leaves_the_server_callable(make, fake) -> None:
    up = await fake()

    async def broken(seen: Seen, stream: Stream) -> Any:
        raise RpcError(-32603, "out of order")

    up.on["tools/list"] = broken
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.READY
    assert "tools/list" in str(server.status.error)
    assert said(await call(server, a=1))["a"] == 1


async def test_only_declared_lists_are_read_and_a_missing_method_is_empty(make, fake, era) -> None:
    up = await fake(eras=(era,), capabilities={"resources": {}})
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.READY
    assert server.status.error is None
    asked = {m for m in up.methods() if m.endswith("/list")}
    assert asked == {"resources/list", "resources/templates/list"}
    assert server.entries().resources == ()


async def test_one_bad_entry_costs_only_itself(make, fake, caplog) -> None:
    up = await fake(tools=[tool("a"), "x", {"description": "nameless"}, None, tool("b")])
    server = make(up.url)
    await server.settled()
    assert keys(server) == ["a", "b"]
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert warnings[0].startswith("server up: 3 of its tools left out")


async def test_a_slow_list_does_not_keep_calls_waiting(make, fake) -> None:
    up = await fake(stateful=False)
    listing = asyncio.Event()

    async def slow(seen: Seen, stream: Stream) -> Any:
        await listing.wait()
        return {"tools": up.tools}

    up.on["tools/list"] = slow
    server = make(up.url)
    await until(lambda: up.of("tools/list"))
    assert said(await call(server, a=1))["a"] == 1
    assert server.status.state is State.CONNECTING
    listing.set()
    await server.settled()
    assert server.status.state is State.READY


# ---------------------------------------------------------------------------- list_changed


async def test_a_storm_is_coalesced_and_a_change_in_mid_list_seen(make, fake, era, watch) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()
    await until(lambda: up.streams or up.listens)
    first = len(up.of("tools/list"))
    held, entered = asyncio.Event(), asyncio.Event()

    async def slow(seen: Seen, stream: Stream) -> Any:
        tools = list(up.tools)
        entered.set()
        await held.wait()
        return {"tools": tools}

    up.on["tools/list"] = slow
    up.tools.append(tool("one"))
    for _ in range(5):
        await up.broadcast("notifications/tools/list_changed", {})
        await asyncio.sleep(0.01)
    await entered.wait()
    up.tools.append(tool("two"))
    await up.broadcast("notifications/tools/list_changed", {})
    await asyncio.sleep(0.05)
    held.set()
    await until(lambda: keys(server)[-1] == "two")
    await asyncio.sleep(0.2)
    assert len(up.of("tools/list")) - first == 2
    assert [event.added for event in watch.of(ToolsChanged)[1:]] == [("one",), ("two",)]


async def test_a_change_of_nothing_is_not_announced(make, fake, watch) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    await until(lambda: up.streams)
    before, entries = len(up.of("tools/list")), server.entries()
    await up.broadcast("notifications/tools/list_changed", {})
    await until(lambda: len(up.of("tools/list")) > before)
    await asyncio.sleep(0.05)
    assert len(watch.of(ToolsChanged)) == 1
    assert server.entries() is entries


async def test_other_lists_have_events_of_their_own(make, fake, era, watch) -> None:
    up = await fake(
        eras=(era,),
        capabilities={
            "tools": {},
            "prompts": {"listChanged": True},
            "resources": {"listChanged": True},
        },
    )
    prompts: list[Any] = []
    templates: list[Any] = []

    async def list_prompts(seen: Seen, stream: Stream) -> Any:
        return {"prompts": prompts}

    async def list_templates(seen: Seen, stream: Stream) -> Any:
        return {"resourceTemplates": templates}

    up.on |= {"prompts/list": list_prompts, "resources/templates/list": list_templates}
    server = make(up.url)
    await server.settled()
    await until(lambda: up.streams or up.listens)
    assert watch.of(PromptsChanged) == watch.of(ResourcesChanged) == []
    lists = len(up.of("tools/list"))
    prompts.append({"name": "p"})
    await up.broadcast("notifications/prompts/list_changed", {})
    await until(lambda: watch.of(PromptsChanged))
    templates.append({"uriTemplate": "x://{y}", "name": "t"})
    await up.broadcast("notifications/resources/list_changed", {})
    await until(lambda: watch.of(ResourcesChanged))
    assert [entry.key for entry in server.entries().templates] == ["x://{y}"]
    assert len(up.of("tools/list")) == lists


async def test_a_modern_stream_is_opened_again_and_lists_are_read_again(make, fake) -> None:
    up = await fake(eras=("modern",))
    server = make(up.url)
    await server.settled()
    await until(lambda: up.listens)
    asked = up.of("subscriptions/listen")[0]
    assert asked.params["notifications"] == {"toolsListChanged": True}
    assert asked.headers["Mcp-Method"] == "subscriptions/listen"
    up.tools.append(tool("late"))
    up.listens[0][1].request.transport.abort()
    await until(lambda: len(keys(server)) == 3)
    assert len(up.listens) == 1


async def test_a_modern_server_that_does_not_take_listens_is_left_alone(make, fake, caplog) -> None:
    up = await fake(eras=("modern",))

    async def refuse(seen: Seen, stream: Stream) -> Any:
        raise RpcError(-32601, "Method not found")

    up.on["subscriptions/listen"] = refuse
    server = make(up.url)
    await server.settled()
    await asyncio.sleep(0.3)
    assert len(up.of("subscriptions/listen")) == 1
    assert caplog.text.count("refuses subscriptions/listen") == 1
    assert server.status.state is State.READY


async def test_a_change_of_what_is_watched_opens_the_new_stream_first(make, fake, watch) -> None:
    up = await fake(eras=("modern",), capabilities={"tools": {}, "resources": {"subscribe": True}})
    server = make(up.url)
    await server.settled()
    # Nothing to listen for, nothing to keep open.
    assert not up.of("subscriptions/listen")
    who = caller(era=Era.MODERN)
    await server.subscribe("u://1", who)
    await until(lambda: up.listens)
    await server.subscribe("u://2", who)

    def both() -> bool:
        wanted = [seen.params["notifications"] for seen, _ in up.listens]
        return wanted == [{"resourceSubscriptions": ["u://1", "u://2"]}]

    await until(both)
    assert up.most_listens == 2
    await server.unsubscribe("u://1", who)
    await server.unsubscribe("u://2", who)
    await until(lambda: not up.listens)


async def test_log_levels_and_subscriptions_come_back_with_a_session(make, fake) -> None:
    up = await fake(capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}})
    server = make(up.url)
    await server.settled()
    who = caller("x")
    await server.set_log_level("info", who)
    await server.subscribe("u://1", who)
    own = up.of("resources/subscribe")[0].session
    assert [s.session for s in up.of("logging/setLevel") if s.session == own] == [own]
    up.sessions.clear()
    assert said(await call(server, who, a=1))["a"] == 1
    await until(lambda: len(up.of("resources/subscribe")) == 2)
    again = up.of("resources/subscribe")[1]
    assert again.session not in (None, own)
    assert again.params == {"uri": "u://1"}
    levels = [(s.session, s.params["level"]) for s in up.of("logging/setLevel")]
    assert (again.session, "info") in levels


async def test_updates_and_logs_of_an_own_session_name_its_caller(make, fake, watch) -> None:
    up = await fake(capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}})
    server = make(up.url)
    await server.settled()
    await server.subscribe("u://1", caller("x"))
    await until(lambda: len(up.streams) == 2)
    await up.streams[1].notify("notifications/resources/updated", {"uri": "u://1", "v/x": None})
    await up.streams[1].notify("notifications/message", {"level": "error", "data": 1})
    await until(lambda: len(watch.events) and watch.events[-1].__class__.__name__ == "LogMessage")
    update, log = watch.events[-2:]
    assert (update.uri, update.params, update.isolation) == (
        "u://1",
        {"uri": "u://1", "v/x": None},
        "x",
    )
    assert (log.params, log.isolation) == ({"level": "error", "data": 1}, "x")


async def test_a_subscription_that_is_refused_is_not_kept(make, fake) -> None:
    up = await fake(stateful=False)

    async def refuse(seen: Seen, stream: Stream) -> Any:
        raise RpcError(-32002, "no such resource")

    up.on["resources/subscribe"] = refuse
    server = make(up.url)
    await server.settled()
    for n in (1, 2):
        with pytest.raises(RpcError, match="no such resource"):
            await server.subscribe("u://1", caller("x"))
        assert len(up.of("resources/subscribe")) == n


async def test_progress_on_the_standing_stream_reaches_its_caller(make, fake) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()

    async def elsewhere(seen: Seen, stream: Stream) -> Any:
        await until(lambda: len(up.streams) == 2)
        token = seen.meta["progressToken"]
        await up.streams[1].notify(
            "notifications/progress", {"progressToken": token, "progress": 1}
        )
        await asyncio.sleep(0.1)
        return {"content": []}

    up.on["tools/call echo"] = elsewhere
    got: list[Any] = []
    await call(server, caller("x", progress="tok", notify=lambda m, p: got.append(p)))
    assert got == [{"progressToken": "tok", "progress": 1}]


# --------------------------------------------------------------------------- nothing is left


async def test_a_hundred_callers_leave_nothing(make, fake) -> None:
    up = await fake(get=False)
    server = make(up.url)
    await server.settled()
    await asyncio.gather(*(call(server, caller(f"s{n}")) for n in range(100)))
    assert len(up.sessions) == 101
    await asyncio.gather(*(server.forget(f"s{n}") for n in range(100)))
    assert len(up.sessions) == 1
    assert len(server._own) == 0
    await server.close()
    assert up.sessions == set()


async def test_a_server_that_does_not_take_deletes_does_not_hold_the_end(
    make, fake, monkeypatch
) -> None:
    monkeypatch.setattr("sidecar.upstream.legacy_http.END_TIMEOUT", 0.2)
    up = await fake()
    server = make(up.url)
    await server.settled()
    await asyncio.gather(*(call(server, caller(f"s{n}")) for n in range(10)))
    handle = up.handle

    async def stuck(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            await asyncio.sleep(30)
        return await handle(request)

    # The route holds a bound method: it is the sessions that get stuck.
    up._legacy = lambda seen, request: stuck(request)  # type: ignore[method-assign]
    started = asyncio.get_running_loop().time()
    await server.close()
    assert asyncio.get_running_loop().time() - started < 20


async def test_close_fails_what_runs(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)

    async def slow(seen: Seen, stream: Stream) -> Any:
        await asyncio.sleep(30)

    server = make(up.url)
    await server.settled()
    up.on["tools/call echo"] = slow
    task = asyncio.create_task(call(server, caller(era=Era(era))))
    await until(lambda: up.inflight)
    await server.close()
    with pytest.raises(Unavailable) as caught:
        await task
    assert caught.value.ran == "maybe"


async def test_a_server_without_streams_is_down_when_a_caller_finds_it_so(
    make, fake, watch
) -> None:
    up = await fake(get=False)
    server = make(up.url)
    await server.settled()
    await call(server, caller("x"))
    await up.stop()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await call(server, caller("x"))
    await until(lambda: watch.counts() == [2, 0])
    assert server.status.state is not State.READY
