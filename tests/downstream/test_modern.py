"""Conversations of the stateless era over HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from sidecar.config.types import Limits
from sidecar.downstream import Authenticator
from sidecar.downstream import exchange as exchange_module
from sidecar.downstream import stream as stream_module
from sidecar.model import Client, Era, Principal, TraceContext
from tests.downstream.kit import (
    JSON_HEADERS,
    META,
    TOOLS_CHANGED,
    Rig,
    modern,
    request,
    routing,
    running,
    until,
)

INFO = {"io.modelcontextprotocol/serverInfo": {"name": "sidecar", "version": "0"}}
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
PROMPTS_CHANGED = "notifications/prompts/list_changed"


def tap(rig: Rig, message: dict[str, Any], path: str = "/mcp", **more: str) -> Any:
    headers = {key.replace("-", "_"): value for key, value in routing(message).items()}
    return rig.tap("POST", message, path, **headers, **more)


def listen(id_: object = "L1", **wanted: object) -> dict[str, Any]:
    return modern("subscriptions/listen", {"notifications": wanted}, id_)


async def test_discover() -> None:
    async with running() as rig:
        reply = await rig.modern("server/discover", id="d")
        assert reply.status == 200
        assert reply.json == {
            "jsonrpc": "2.0",
            "id": "d",
            "result": {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {"listChanged": True}},
                "instructions": "be kind",
                "ttlMs": 0,
                "cacheScope": "private",
                "_meta": INFO,
            },
        }
        assert "Mcp-Session-Id" not in reply.headers


async def test_a_call_is_answered_as_json_in_the_shape_of_the_era() -> None:
    async with running() as rig:
        reply = await rig.modern("tools/call", {"name": "echo", "arguments": {"a": 2**70}})
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.json["result"] == {
            "content": [{"type": "text", "text": '{"a": 1180591620717411303424}'}],
            "resultType": "complete",
            "_meta": INFO,
        }
        listed = await rig.modern("tools/list")
        assert listed.json["result"]["cacheScope"] == "private"


async def test_the_caller_is_what_the_envelope_said() -> None:
    async with running() as rig:
        trace = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
        meta = {
            "io.modelcontextprotocol/clientInfo": {"name": "agent-x", "version": "9"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
            "io.modelcontextprotocol/logLevel": "warning",
            "io.modelcontextprotocol/else": 1,
            "progressToken": 7,
            "traceparent": trace,
            "tracestate": "a=b",
            "vendor/x": [1],
            "sidecar/labels": ["none"],
        }
        await rig.modern(
            "tools/call",
            {"name": "echo", "arguments": {}, "_meta": meta},
            path="/mcp/one",
            headers={"Authorization": "Bearer secret", "Cookie": "secret", "Mcp-Session-Id": "x"},
        )
        _, params, caller = rig.gateway.seen[0]
        assert params == {"name": "echo", "arguments": {}, "_meta": {"vendor/x": [1]}}
        assert caller.era is Era.MODERN
        assert caller.session == ""
        assert caller.server == "one"
        assert caller.client == Client("agent-x", "9")
        assert caller.capabilities == {"elicitation": {}}
        assert caller.log_level == "warning"
        assert caller.progress == 7
        assert caller.trace == TraceContext(trace, "a=b")
        assert "secret" not in repr(caller)


@pytest.mark.parametrize(
    ("tool", "status", "code"),
    [
        ("own_error", 200, -32050),
        ("down", 200, -32603),
        ("none", 400, -32602),
        ("broken", 200, -32603),
    ],
)
async def test_failures_have_the_status_of_their_code(tool: str, status: int, code: int) -> None:
    async with running() as rig:
        reply = await rig.modern("tools/call", {"name": tool})
        assert (reply.status, reply.error["code"], reply.json["id"]) == (status, code, 1)


async def test_a_server_that_is_not_seen_is_not_there() -> None:
    auth = Authenticator([("ta", Principal("alice", harnesses=("two",)))])
    async with running(auth=auth) as rig:
        for path, status in (("/mcp/one", 200), ("/mcp/two", 404), ("/mcp/three", 404)):
            reply = await rig.modern(
                "tools/list", path=path, headers={"Authorization": "Bearer ta"}
            )
            assert reply.status == status
            if status == 404:
                assert reply.error["data"] == {"reason": "unknown_server"}
                assert reply.json["id"] == 1


async def test_notifications_are_acknowledged_and_dropped() -> None:
    async with running() as rig:
        waiting = asyncio.create_task(rig.modern("tools/call", {"name": "wait"}, id=4))
        await rig.gateway.started.wait()
        message = modern("notifications/cancelled", {"requestId": 4})
        del message["id"]
        reply = await rig.post(message, headers=routing(message))
        assert (reply.status, reply.body) == (202, b"")
        await asyncio.sleep(0.05)
        # Anybody could have posted that: ids are the clients' own.
        assert rig.gateway.cancelled == []
        rig.gateway.release.set()
        assert (await waiting).status == 200
        wrong = await rig.post(message, headers={"MCP-Protocol-Version": "2030-01-01"})
        assert (wrong.status, wrong.error["code"]) == (400, -32022)
        response = await rig.post(
            {"jsonrpc": "2.0", "id": 1, "result": {}}, headers=routing(message)
        )
        assert (response.status, response.error["code"]) == (400, -32600)


async def test_equal_ids_of_two_requests_do_not_meet() -> None:
    async with running() as rig:
        both = [
            asyncio.create_task(rig.modern("tools/call", {"name": "wait"}, id=1)) for _ in range(2)
        ]
        await until(lambda: rig.gateway.at_once == 2)
        rig.gateway.release.set()
        assert [reply.status for reply in await asyncio.gather(*both)] == [200, 200]


async def test_closing_the_connection_cancels_at_once() -> None:
    async with running() as rig:
        for streaming in (False, True):
            rig.gateway.cancelled.clear()
            rig.gateway.started.clear()
            name = "progress" if streaming else "wait"
            meta = {"progressToken": 1} if streaming else {}
            call = rig.modern("tools/call", {"name": name, "_meta": meta})
            waiting = asyncio.create_task(call)
            await rig.gateway.started.wait()
            await asyncio.sleep(0.02)
            waiting.cancel()
            await until(lambda: rig.gateway.cancelled, 30)
            await until(lambda: len(rig.listener._state.crowd) == 0)


async def test_progress_and_logs_come_as_they_happen() -> None:
    async with running() as rig:
        message = modern("tools/call", {"name": "progress", "_meta": {"progressToken": "t"}}, 3)
        async with tap(rig, message) as found:
            assert [(await found.next())["params"]["progress"] for _ in range(3)] == [0, 1, 2]
            rig.gateway.release.set()
            assert await found.next() == {
                "jsonrpc": "2.0",
                "id": 3,
                "result": {"content": [], "resultType": "complete", "_meta": INFO},
            }
            assert await found.next() is None
        level = {"io.modelcontextprotocol/logLevel": "info"}
        async with tap(rig, modern("tools/call", {"name": "log", "_meta": level})) as found:
            assert (await found.next())["params"] == {"level": "info", "data": "info"}


async def test_a_long_silence_is_broken_by_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange_module, "PING_AFTER", 0.1)
    async with running() as rig:
        message = modern("tools/call", {"name": "wait"})
        sent = asyncio.create_task(
            rig.http.post(
                f"{rig.url}/mcp", json=message, headers={**JSON_HEADERS, **routing(message)}
            )
        )
        await rig.gateway.started.wait()
        for _ in range(3):
            await asyncio.sleep(0.11)
            for exchange in rig.listener._state.crowd:
                exchange.tick(time.monotonic() + 1000 * _)
        answer = await sent
        assert answer.content_type == "text/event-stream"
        assert (await answer.content.readline()).startswith(b":")
        rig.gateway.release.set()
        body = await answer.content.read()
        assert b'"id":1' in body


# ------------------------------------------------------------------- Mcp-Param headers


@pytest.mark.parametrize(
    ("arguments", "headers", "status"),
    [
        ({"region": "eu"}, {"Mcp-Param-Region": "eu"}, 200),
        ({"region": "eu"}, {"mcp-param-region": "=?base64?ZXU=?="}, 200),
        ({"region": "eu"}, {"Mcp-Param-Region": "us"}, 400),
        ({"region": "eu"}, {"Mcp-Param-Region": "EU"}, 400),
        ({"region": "eu"}, {}, 400),
        ({}, {"Mcp-Param-Region": "eu"}, 400),
        ({"region": None}, {"Mcp-Param-Region": "eu"}, 400),
        ({}, {}, 200),
        ({}, {"Mcp-Param-Else": "x"}, 200),
    ],
)
async def test_argument_headers_equal_the_arguments(
    arguments: dict[str, object], headers: dict[str, str], status: int
) -> None:
    async with running() as rig:
        for _ in range(2):  # the second time the schema is known
            reply = await rig.modern(
                "tools/call", {"name": "echo", "arguments": arguments}, headers=headers
            )
            assert reply.status == status
            if status == 400:
                assert reply.error["code"] == -32020
                assert rig.gateway.seen == []


# ------------------------------------------------------------------------------ listen


async def test_listen_acknowledges_first_and_tells_only_what_was_asked_for() -> None:
    async with running() as rig:
        message = listen(toolsListChanged=True, promptsListChanged=False, unknown=True)
        async with tap(rig, message) as found:
            assert await found.next() == {
                "jsonrpc": "2.0",
                "method": "notifications/subscriptions/acknowledged",
                "params": {
                    "_meta": {SUBSCRIPTION: "L1"},
                    "notifications": {"toolsListChanged": True},
                },
            }
            rig.gateway.tell(PROMPTS_CHANGED)
            rig.gateway.tell("notifications/message", {"level": "error", "data": 1})
            rig.gateway.tell("notifications/resources/updated", {"uri": "a"})
            for _ in range(5):
                rig.gateway.tell(TOOLS_CHANGED)
            assert await found.next() == {
                "jsonrpc": "2.0",
                "method": TOOLS_CHANGED,
                "params": {"_meta": {SUBSCRIPTION: "L1"}},
            }
            assert await found.quiet(0.3)
        await until(lambda: not rig.gateway.listeners)
        assert not rig.listener._state.listens


async def test_listen_watches_resources_that_lead_somewhere() -> None:
    async with running() as rig:
        message = listen(7, resourceSubscriptions=["file:///a", "nowhere:b", "file:///a"])
        async with tap(rig, message) as found:
            acknowledged = await found.next()
            assert acknowledged["params"]["notifications"] == {
                "resourceSubscriptions": ["file:///a"]
            }
            assert acknowledged["params"]["_meta"] == {SUBSCRIPTION: 7}
            rig.gateway.tell("notifications/resources/updated", {"uri": "file:///other"})
            meta = {"vendor": 1, SUBSCRIPTION: "the server's"}
            rig.gateway.tell("notifications/resources/updated", {"uri": "file:///a", "_meta": meta})
            assert (await found.next())["params"] == {
                "uri": "file:///a",
                "_meta": {"vendor": 1, SUBSCRIPTION: 7},
            }
            assert await found.quiet(0.1)


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        {"toolsListChanged": 1},
        {"resourceSubscriptions": "file:///a"},
        {"resourceSubscriptions": [1]},
        {"resourceSubscriptions": [f"file:///{i}" for i in range(2000)]},
    ],
)
async def test_a_listen_that_says_nothing_sensible_is_refused(wanted: object) -> None:
    async with running() as rig:
        reply = await rig.modern("subscriptions/listen", {"notifications": wanted}, id=5)
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32602, 5)
        assert rig.gateway.listeners == []


async def test_a_listen_with_nothing_to_tell_is_held_open_with_comments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_module, "PING_AFTER", 0.05)
    async with running() as rig:
        message = listen()
        headers = {**JSON_HEADERS, **routing(message)}
        async with rig.http.post(f"{rig.url}/mcp", json=message, headers=headers) as answer:
            text = b""
            while text.count(b": ping\n\n") < 3:
                text += await asyncio.wait_for(answer.content.readany(), 30)
            assert text.startswith(b"event: message\ndata: ")
            assert answer.headers["X-Accel-Buffering"] == "no"
            answer.close()


async def test_draining_ends_a_listen_with_its_result() -> None:
    async with running() as rig, tap(rig, listen(toolsListChanged=True)) as found:
        await found.next()
        rig.gateway.tell(TOOLS_CHANGED)
        await rig.listener.drain(0.5)
        assert (await found.next())["method"] == TOOLS_CHANGED
        assert await found.next() == {
            "jsonrpc": "2.0",
            "id": "L1",
            "result": {"resultType": "complete", "_meta": {SUBSCRIPTION: "L1", **INFO}},
        }
        assert await found.next() is None


async def test_only_so_many_listens() -> None:
    async with running(limits=Limits(sessions=2)) as rig:
        async with tap(rig, listen("a")) as one, tap(rig, listen("b")) as two:
            await one.next()
            await two.next()
            reply = await rig.modern("subscriptions/listen", {"notifications": {}}, id="c")
            assert reply.status == 503
            assert "limits.sessions, 2" in reply.error["message"]
        await until(lambda: not rig.listener._state.listens)
        async with tap(rig, listen("c")) as three:
            assert (await three.next())["params"]["_meta"] == {SUBSCRIPTION: "c"}


async def test_a_legacy_message_under_a_modern_header_is_told_what_is_missing() -> None:
    async with running() as rig:
        headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/list"}
        reply = await rig.post(request("tools/list"), headers=headers)
        assert reply.error["code"] == -32602
        assert "io.modelcontextprotocol/protocolVersion" in reply.error["message"]
        assert META.keys() == {
            f"io.modelcontextprotocol/{k}"
            for k in ("protocolVersion", "clientCapabilities", "clientInfo")
        }
