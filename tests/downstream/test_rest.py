"""The REST face."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sidecar.downstream import Authenticator
from sidecar.model import Principal
from tests.downstream.kit import Reply, Rig, running, until


async def get(rig: Rig, query: str = "", **headers: str) -> Reply:
    async with rig.http.get(f"{rig.url}/v1/tools{query}", headers=headers) as answer:
        return Reply(answer.status, dict(answer.headers), await answer.read())


async def test_tools_in_a_format() -> None:
    async with running() as rig:
        reply = await get(rig)
        assert (reply.status, reply.json) == (200, {"tools": [{"name": "echo"}]})
        await get(rig, "?format=anthropic&separator=.&server=one")
        asked = [params for _, params, _ in rig.gateway.seen]
        assert asked == [
            {"format": "mcp", "separator": None, "server": None},
            {"format": "anthropic", "separator": ".", "server": "one"},
        ]


@pytest.mark.parametrize(
    "query",
    [
        "?format=gemini",
        "?format=",
        "?format=mcp&format=openai",
        "?formt=openai",
        "?x",
        "?&&",
        "?separator=%ff",
        "?" + "&".join(f"a{i}=1" for i in range(40)),
    ],
)
async def test_queries_that_are_refused(query: str) -> None:
    async with running() as rig:
        reply = await get(rig, query)
        assert reply.status == 400
        assert set(reply.error) == {"code", "message"}
        assert rig.gateway.seen == []


async def test_an_unknown_server_is_not_found() -> None:
    async with running() as rig:
        reply = await get(rig, "?server=none")
        assert reply.status == 404
        assert reply.error == {
            "code": -32602,
            "message": "there is no server of this name",
            "data": {"reason": "unknown_server"},
        }


async def call(rig: Rig, body: object, **headers: str) -> Reply:
    return await rig.post(body, "/v1/call", headers)


async def test_a_call_by_name() -> None:
    async with running() as rig:
        reply = await call(rig, {"name": "echo", "args": {"a": [2**70, None]}, "separator": "."})
        assert reply.status == 200
        text = '{"a": [1180591620717411303424, null]}'
        assert reply.json == {"content": [{"type": "text", "text": text}]}
        method, params, caller = rig.gateway.seen[0]
        assert method == "call"
        assert params == {
            "name": "echo",
            "arguments": {"a": [2**70, None]},
            "separator": ".",
        }
        assert caller.deadline is None
        assert (await call(rig, {"name": "echo"})).status == 200


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "t", "name": "echo", "input": {}},
        {
            "type": "function",
            "id": "t",
            "function": {"name": "echo", "arguments": "{}"},
            "name": "echo",
        },
        {"function": {"name": "echo", "arguments": {}}, "name": "echo"},
    ],
)
async def test_a_models_block(block: dict[str, Any]) -> None:
    async with running() as rig:
        reply = await call(rig, {**block, "timeout": 5})
        assert reply.status == 200
        method, seen, caller = rig.gateway.seen[0]
        assert (method, seen) == ("call_block", block)
        assert caller.deadline is not None
        assert 0 < caller.deadline - asyncio.get_running_loop().time() <= 5


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, -32700),
        (b"{", 400, -32700),
        (b'{"name":"echo","name":"wait"}', 400, -32700),
        (b'{"name":"echo","args":{"a":1,"a":2}}', 400, -32700),
        (b"[" * 300 + b"]" * 300, 400, -32700),
        (b"[]", 400, -32600),
        (b'"echo"', 400, -32600),
        (b"{}", 400, -32600),
        (b'{"name":1}', 400, -32600),
        (b'{"name":""}', 400, -32600),
        (b'{"name":"echo","args":[]}', 400, -32600),
        (b'{"name":"echo","args":null}', 400, -32600),
        (b'{"name":"echo","arguments":{}}', 400, -32600),
        (b'{"name":"echo","separator":1}', 400, -32600),
        (b'{"name":"echo","timeout":0}', 400, -32600),
        (b'{"name":"echo","timeout":-1}', 400, -32600),
        (b'{"name":"echo","timeout":true}', 400, -32600),
        (b'{"name":"echo","timeout":"5"}', 400, -32600),
        (b'{"name":"echo","timeout":1e9}', 400, -32600),
    ],
)
async def test_bodies_that_are_refused(body: bytes, status: int, code: int) -> None:
    async with running() as rig:
        reply = await call(rig, body)
        assert (reply.status, reply.error["code"]) == (status, code)
        assert set(reply.json) == {"error"}
        assert rig.gateway.seen == []


@pytest.mark.parametrize(
    ("name", "args", "status"),
    [
        ("nothing", {}, 404),
        ("down", {}, 503),
        ("own_error", {}, 502),
        ("broken", {}, 500),
        ("deny", {}, 403),
        ("deny", {"key": "parked"}, 202),
        ("deny", {"key": "running"}, 202),
        ("deny", {"key": "expired"}, 410),
    ],
)
async def test_statuses(name: str, args: dict[str, object], status: int) -> None:
    async with running() as rig:
        reply = await call(rig, {"name": name, "args": args})
        assert reply.status == status
        assert ("error" in reply.json) == (name != "deny")
        assert b"secret" not in reply.body


async def test_an_error_keeps_its_data() -> None:
    async with running() as rig:
        reply = await call(rig, {"name": "own_error"})
        assert reply.error == {"code": -32050, "message": "its own", "data": {"why": None}}


async def test_a_tools_own_error_is_a_result() -> None:
    async with running() as rig:

        async def failing(params: object, caller: object) -> dict[str, object]:
            return {"content": [], "isError": True, "resultType": "complete"}

        rig.gateway.tools["failing"] = failing
        reply = await call(rig, {"name": "failing"})
        assert (reply.status, reply.json) == (200, {"content": [], "isError": True})


async def test_closing_the_connection_cancels() -> None:
    async with running() as rig:
        waiting = asyncio.create_task(call(rig, {"name": "wait"}))
        await rig.gateway.started.wait()
        waiting.cancel()
        await until(lambda: rig.gateway.cancelled == ["wait"], 30)


async def test_the_trace_is_that_of_the_headers() -> None:
    async with running() as rig:
        trace = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
        await call(rig, {"name": "echo"}, traceparent=trace, tracestate="a=b")
        await call(rig, {"name": "echo"}, traceparent="nonsense")
        first, second = (caller.trace for _, _, caller in rig.gateway.seen)
        assert (first.traceparent, first.tracestate) == (trace, "a=b")
        assert second.traceparent == ""


async def test_who_calls() -> None:
    auth = Authenticator([("ta", Principal("alice"))])
    async with running(auth=auth) as rig:
        assert (await get(rig)).status == 401
        refused = await call(rig, {"name": "echo"})
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"] == "Bearer"
        assert set(refused.json) == {"error"}
        assert (await call(rig, {"name": "echo"}, Authorization="Bearer ta")).status == 200
        assert [caller.principal.name for _, _, caller in rig.gateway.seen] == ["alice"]


async def test_draining() -> None:
    async with running() as rig:
        await rig.listener.drain(0)
        for reply in (await get(rig), await call(rig, {"name": "echo"})):
            assert reply.status == 503
            assert int(reply.headers["Retry-After"]) > 0
            assert json.loads(reply.body)["error"]["message"]
