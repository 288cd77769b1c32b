"""Streamable HTTP: both eras, both forms of an answer, sessions, and what can go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from sidecar.config import Limits, SecretRef
from sidecar.model import Era, RpcError, State, TraceContext, Unavailable
from tests.upstream.kit import META, MODERN, Fake, Seen, Stream, Watch, caller, plain, said, until

ERAS = pytest.mark.parametrize("eras", [("legacy",), ("modern",)])


async def call(server: Any, name: str = "echo", who: Any = None, **arguments: Any) -> Any:
    params = {"name": name, "arguments": arguments}
    return await server.request("tools/call", params, who or caller("s"))


@ERAS
@pytest.mark.parametrize("sse", [False, True])
async def test_a_call_is_answered_in_either_form(make, fake, eras, sse) -> None:
    up = await fake(eras=eras, sse=sse)
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.READY
    assert server.status.era == eras[0]
    assert [entry.key for entry in server.entries().tools] == ["echo", "whoami"]
    assert server.entries().instructions == f"{eras[0]} instructions"
    assert said(await call(server, message="hi"))["message"] == "hi"


@ERAS
async def test_connections_are_used_again_after_a_stream(make, fake, eras) -> None:
    up = await fake(eras=eras, sse=True)
    server = make(up.url, isolation="shared")
    await server.settled()
    ports: set[int] = set()

    async def port(seen: Seen, stream: Stream) -> Any:
        ports.add(stream.request.transport.get_extra_info("peername")[1])
        return {"content": []}

    up.on["tools/call echo"] = port
    for _ in range(10):
        await call(server)
    assert len(ports) <= 2


async def test_what_a_modern_request_says(make, fake) -> None:
    up = await fake(
        eras=("modern",),
        tools=[
            {
                "name": "echo",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "region": {"type": "string", "x-mcp-header": "Region"},
                        "n": {"type": "integer"},
                    },
                },
            }
        ],
    )
    server = make(up.url)
    await server.settled()
    who = caller(
        era=Era.MODERN,
        progress="tok",
        log_level="info",
        trace=TraceContext("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "k=v", "who=me"),
    )
    params = {
        "name": "echo",
        "arguments": {"region": "é", "n": 12345678901234567890123},
        "_meta": {"vendor/x": 1},
        "unknown": None,
    }
    await server.request("tools/call", params, who)
    seen = up.of("tools/call")[0]
    assert seen.headers["MCP-Protocol-Version"] == MODERN
    assert seen.headers["Mcp-Method"] == "tools/call"
    assert seen.headers["Mcp-Name"] == "echo"
    assert seen.headers["Mcp-Param-Region"] == "=?base64?w6k=?="
    assert "Mcp-Session-Id" not in seen.headers
    assert seen.params["arguments"] == {"region": "é", "n": 12345678901234567890123}
    assert "unknown" in seen.params
    meta = seen.meta
    assert meta["vendor/x"] == 1
    assert meta[META + "protocolVersion"] == MODERN
    assert meta[META + "clientCapabilities"] == {}
    assert meta[META + "clientInfo"]["name"] == "mcp-sidecar"
    assert meta[META + "logLevel"] == "info"
    assert meta["progressToken"] == seen.body["id"]
    assert meta["traceparent"] == who.trace.traceparent
    assert seen.headers["traceparent"] == who.trace.traceparent
    # What others wrote about the trace is for trusted servers only.
    for name in ("tracestate", "baggage"):
        assert name not in meta
        assert name not in seen.headers
    assert params["_meta"] == {"vendor/x": 1}


@pytest.mark.parametrize("stateful", [False, True])
async def test_a_trusted_server_has_all_of_a_trace(make, fake, stateful) -> None:
    up = await fake(stateful=stateful)
    server = make(up.url, trusted=True)
    await server.settled()
    parent = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    trace = {"traceparent": parent, "tracestate": "k=v", "baggage": "who=me"}
    await call(server, who=caller("s", trace=TraceContext(**trace)))
    await call(server, who=caller("s", trace=TraceContext(baggage="who=me")))
    whole, baggage = up.of("tools/call")
    assert whole.meta == trace
    assert {name: whole.headers[name] for name in trace} == trace
    assert baggage.meta == {"baggage": "who=me"}
    assert "traceparent" not in baggage.headers


async def test_nothing_of_ours_is_added_when_there_is_nothing_to_add(make, fake) -> None:
    up = await fake(stateful=False)
    server = make(up.url)
    await server.settled()
    await call(server, message="x")
    assert up.of("tools/call")[0].params == {"name": "echo", "arguments": {"message": "x"}}


async def test_only_configured_and_protocol_headers_go_out(make, fake, tmp_path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one\n")
    up = await fake()
    server = make(
        up.url,
        headers={
            "Authorization": SecretRef(from_file=secret, template="Bearer {}"),
            "X-Own": SecretRef(literal="own"),
            "Content-Type": SecretRef(literal="text/plain"),
        },
    )
    await server.settled()
    await call(server)
    seen = up.of("tools/call")[0]
    assert seen.headers["Authorization"] == "Bearer one"
    assert seen.headers["X-Own"] == "own"
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.headers["Accept"] == "application/json, text/event-stream"
    assert seen.headers["MCP-Protocol-Version"] == "2025-11-25"
    assert {name.lower() for name in seen.headers} <= {
        "authorization",
        "x-own",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "user-agent",
        "host",
        "mcp-protocol-version",
        "mcp-session-id",
    }


async def test_a_rotated_secret_is_seen_at_the_first_401(make, fake, tmp_path) -> None:
    secret = tmp_path / "token"
    secret.write_text("one")
    up = await fake(stateful=False)
    server = make(up.url, headers={"Authorization": SecretRef(from_file=secret)})
    await server.settled()

    async def guarded(seen: Seen, stream: Stream) -> Any:
        if seen.headers["Authorization"] != "two":
            return web.Response(status=401)
        return {"content": []}

    up.on["tools/call echo"] = guarded
    with pytest.raises(Unavailable) as caught:
        await call(server)
    assert (caught.value.ran, caught.value.permanent) == ("no", True)
    assert "HTTP 401" in caught.value.why
    secret.write_text("two")
    assert plain(await call(server)) == {"content": []}


async def test_a_secret_no_header_may_hold_is_told_without_its_value(make, fake, tmp_path) -> None:
    secret = tmp_path / "token"
    secret.write_text("se\x01cret")
    server = make((await fake()).url, headers={"X-Key": SecretRef(from_file=secret)})
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "headers.X-Key" in str(server.status.error)
    assert "cret" not in str(server.status.error)


async def test_errors_and_unknown_fields_pass_as_they_are(make, fake, era) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()

    async def odd(seen: Seen, stream: Stream) -> Any:
        return {"content": None, "x": [1.5, None], "_meta": {"v/y": {}}, "big": 2**80}

    async def bad(seen: Seen, stream: Stream) -> Any:
        raise RpcError(-32050, "no", {"why": "because", "n": 2**70})

    up.on |= {"tools/call odd": odd, "tools/call bad": bad}
    assert plain(await call(server, "odd")) == {
        "content": None,
        "x": [1.5, None],
        "_meta": {"v/y": {}},
        "big": 2**80,
    }
    with pytest.raises(RpcError) as caught:
        await call(server, "bad")
    assert (caught.value.code, caught.value.message) == (-32050, "no")
    assert json.loads(bytes(caught.value.data)) == {"why": "because", "n": 2**70}


async def test_a_modern_error_in_a_4xx_is_the_servers_own(make, fake) -> None:
    up = await fake(eras=("modern",))
    server = make(up.url)
    await server.settled()

    async def bad(seen: Seen, stream: Stream) -> Any:
        error = {"code": -32602, "message": "bad argument"}
        return web.json_response(
            {"jsonrpc": "2.0", "id": seen.body["id"], "error": error}, status=400
        )

    up.on["tools/call echo"] = bad
    with pytest.raises(RpcError, match="bad argument"):
        await call(server, who=caller(era=Era.MODERN))


def garbage(**kwargs: Any) -> Callable[..., Any]:
    async def handler(seen: Seen, stream: Stream) -> Any:
        return web.Response(**kwargs)

    return handler


@pytest.mark.parametrize(
    ("handler", "ran", "why"),
    [
        (garbage(text="<html>", content_type="text/html"), "maybe", "text/html instead of JSON"),
        (garbage(text="{]", content_type="application/json"), "maybe", "no JSON-RPC message"),
        (
            garbage(
                text='{"jsonrpc":"2.0","id":99999,"result":{}}', content_type="application/json"
            ),
            "maybe",
            "no answer to ours",
        ),
        (garbage(status=202), "maybe", "HTTP 202"),
        (garbage(status=503, headers={"Retry-After": "7"}), "maybe", "HTTP 503"),
        (garbage(status=429), "no", "HTTP 429"),
        (garbage(status=302, headers={"Location": "/other?token=x"}), "no", "redirects to"),
        (garbage(text="data: x\n\n", content_type="text/event-stream"), "maybe", "JSON-RPC"),
        (garbage(text=": nothing\n\n", content_type="text/event-stream"), "maybe", "ended before"),
    ],
)
async def test_garbage_costs_its_own_call(make, fake, era, handler, ran, why, caplog) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()
    up.on["tools/call echo"] = handler
    who = caller(era=Era(era))
    with pytest.raises(Unavailable) as caught:
        await call(server, who=who)
    assert caught.value.ran == ran
    assert why in caught.value.why
    assert "token" not in caught.value.why
    if "503" in why:
        assert caught.value.retry_in == 7.0
    assert said(await call(server, "whoami", who, a=1))["a"] == 1
    assert server.status.state is State.READY
    with pytest.raises(Unavailable):
        await call(server, who=who)
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    garbled = ran == "maybe" and not any(hint in why for hint in ("HTTP", "ended"))
    assert len(warnings) == garbled
    assert all(warning.startswith("server up: answered with") for warning in warnings)


async def test_a_result_that_is_no_object_is_no_result(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()

    async def text(seen: Seen, stream: Stream) -> Any:
        return "text"

    up.on["tools/call echo"] = text
    with pytest.raises(Unavailable, match="result that cannot be read"):
        await call(server, who=caller(era=Era(era)))


async def test_a_connection_cut_in_mid_call_is_one_failed_call(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()

    async def cut(seen: Seen, stream: Stream) -> Any:
        stream.request.transport.abort()
        return web.Response()

    up.on["tools/call echo"] = cut
    slow = asyncio.create_task(call(server, "whoami", caller(era=Era(era))))
    with pytest.raises(Unavailable) as caught:
        await call(server, who=caller(era=Era(era)))
    assert caught.value.ran == "maybe"
    await slow
    assert server.status.state is State.READY


async def test_a_call_that_is_cut_by_us_does_not_blame_the_server(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()
    there = asyncio.Event()

    async def held(seen: Seen, stream: Stream) -> Any:
        there.set()
        await asyncio.sleep(30)

    up.on["tools/call echo"] = held
    running = asyncio.create_task(call(server, who=caller(era=Era(era))))
    async with asyncio.timeout(30):
        await there.wait()
    await server.close()
    with pytest.raises(Unavailable, match="is removed or starts anew here") as caught:
        await running
    assert caught.value.ran == "maybe"


@pytest.mark.parametrize("form", ["json", "chunked", "gzip", "sse"])
async def test_over_a_cap_only_that_call_suffers(make, fake, era, form) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url, limits=Limits(result=100_000, event=100_000))
    await server.settled()

    async def big(seen: Seen, stream: Stream) -> Any:
        answer = {
            "jsonrpc": "2.0",
            "id": seen.body["id"],
            "result": {"content": [], "x": "y" * seen.params["arguments"]["size"]},
        }
        if form == "sse":
            await stream.send(answer)
            return await stream.open()
        response = web.Response(body=json.dumps(answer).encode(), content_type="application/json")
        if form == "gzip":
            response.enable_compression(web.ContentCoding.gzip)
        if form == "chunked":
            response.enable_chunked_encoding()
        return response

    up.on["tools/call big"] = big
    who = caller(era=Era(era))
    setting = "limits.event" if form == "sse" else "limits.result"
    other = asyncio.create_task(call(server, "whoami", who))
    with pytest.raises(Unavailable) as caught:
        await call(server, "big", who, size=3_000_000)
    assert setting in caught.value.why
    assert caught.value.permanent
    await other
    assert len(plain(await call(server, "big", who, size=90_000))["x"]) == 90_000


async def test_a_large_body_is_sent_whole(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()
    text = "x" * 3_000_000
    await call(server, who=caller(era=Era(era)), message=text)
    assert up.of("tools/call")[0].params["arguments"]["message"] == text


async def test_calls_of_one_session_run_side_by_side(make, fake, era) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()

    async def slow(seen: Seen, stream: Stream) -> Any:
        # Each answers once there are eight.
        async with asyncio.timeout(30):
            await together.wait()
        return {"content": []}

    together = asyncio.Barrier(8)
    up.on["tools/call slow"] = slow
    who = caller("s", era=Era(era))
    await asyncio.gather(*(call(server, "slow", who) for _ in range(8)))
    assert up.most_inflight >= 8


async def test_time_out_is_per_attempt_and_progress_does_not_extend_it(make, fake, era) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url, timeout=0.4)
    await server.settled()
    ended = asyncio.Event()

    async def endless(seen: Seen, stream: Stream) -> Any:
        try:
            for n in range(2000):
                token = seen.meta["progressToken"]
                await stream.notify(
                    "notifications/progress", {"progressToken": token, "progress": n}
                )
                await asyncio.sleep(0.05)
        finally:
            ended.set()

    up.on["tools/call endless"] = endless
    got: list[Any] = []
    who = caller(era=Era(era), progress="t", notify=lambda m, p: got.append(p))
    started = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as caught:
        await call(server, "endless", who)
    assert 0.3 < asyncio.get_running_loop().time() - started < 30
    assert (caught.value.ran, caught.value.permanent) == ("maybe", False)
    assert "0.4 s" in caught.value.why
    assert len(got) > 2
    if era == "modern":
        await asyncio.wait_for(ended.wait(), 30)
    else:
        await until(lambda: up.of("notifications/cancelled"))
        sent = up.of("tools/call")[0].body["id"]
        assert up.of("notifications/cancelled")[0].params["requestId"] == sent


async def test_the_callers_deadline_counts_when_it_is_earlier(make, fake) -> None:
    up = await fake(stateful=False)
    server = make(up.url)
    await server.settled()

    async def slow(seen: Seen, stream: Stream) -> Any:
        await asyncio.sleep(5)

    up.on["tools/call slow"] = slow
    deadline = asyncio.get_running_loop().time() + 0.1
    with pytest.raises(Unavailable, match="deadline"):
        await call(server, "slow", caller("s", deadline=deadline))


async def test_cancelling_reaches_the_server_with_our_id_at_once(make, fake, era) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()
    running, closed = asyncio.Event(), asyncio.Event()

    async def slow(seen: Seen, stream: Stream) -> Any:
        running.set()
        try:
            await asyncio.sleep(600)
        finally:
            closed.set()
        return {"content": []}

    up.on["tools/call slow"] = slow
    task = asyncio.create_task(call(server, "slow", caller("s", era=Era(era))))
    await running.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    if era == "modern":
        # Closing the response is the cancellation; a notification is not.
        await asyncio.wait_for(closed.wait(), 30)
        assert not up.of("notifications/cancelled")
    else:
        await until(lambda: up.of("notifications/cancelled"))
        cancelled = up.of("notifications/cancelled")[0]
        sent = up.of("tools/call")[0]
        assert cancelled.params["requestId"] == sent.body["id"]
        assert cancelled.session == sent.session


async def test_progress_comes_in_order_at_once_and_under_the_callers_token(make, fake, era) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()
    go = asyncio.Event()

    async def steps(seen: Seen, stream: Stream) -> Any:
        token = seen.meta.get("progressToken")
        await stream.notify(
            "notifications/progress",
            {"progressToken": token, "progress": 1, "total": 2, "message": "m", "x": None},
        )
        await stream.notify("notifications/progress", {"progressToken": "other", "progress": 9})
        await go.wait()
        await stream.notify("notifications/progress", {"progressToken": token, "progress": 2})
        return {"content": []}

    up.on["tools/call steps"] = steps
    first: list[Any] = []
    second: list[Any] = []
    tasks = [
        asyncio.create_task(
            call(
                server,
                "steps",
                caller(
                    session,
                    era=Era(era),
                    progress="tok",
                    notify=lambda m, p, got=got: got.append((m, p)),
                ),
            )
        )
        for session, got in (("a", first), ("b", second))
    ]
    await until(lambda: first and second)
    assert not any(task.done() for task in tasks)
    go.set()
    await asyncio.gather(*tasks)
    want = [
        {"progressToken": "tok", "progress": 1, "total": 2, "message": "m", "x": None},
        {"progressToken": "tok", "progress": 2},
    ]
    assert [params for _, params in first] == want
    assert [params for _, params in second] == want
    tokens = [seen.meta["progressToken"] for seen in up.of("tools/call")]
    assert "tok" not in tokens


async def test_no_token_goes_up_when_none_came_down(make, fake, era) -> None:
    up = await fake(eras=(era,))
    server = make(up.url)
    await server.settled()
    await call(server, who=caller("s", era=Era(era)))
    assert "progressToken" not in up.of("tools/call")[0].meta


async def test_log_messages_on_a_calls_stream_are_its_callers(make, fake, era, watch) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()

    async def chatty(seen: Seen, stream: Stream) -> Any:
        for level in ("debug", "warning"):
            await stream.notify("notifications/message", {"level": level, "data": {"n": None}})
        return {"content": []}

    up.on["tools/call chatty"] = chatty
    got: list[Any] = []
    who = caller(era=Era(era), log_level="info", notify=lambda m, p: got.append((m, p)))
    await call(server, "chatty", who)
    assert got == [("notifications/message", {"level": "warning", "data": {"n": None}})]
    got.clear()
    who = caller(era=Era(era), notify=lambda m, p: got.append((m, p)))
    await call(server, "chatty", who)
    # A modern client that named no level gets nothing; a legacy one what the server sends.
    assert len(got) == (0 if era == "modern" else 2)


async def test_a_header_mismatch_lists_again_and_is_sent_once_more(make, fake) -> None:
    up = await fake(eras=("modern",))
    server = make(up.url)
    await server.settled()
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "x-mcp-header": "A"}},
    }

    async def strict(seen: Seen, stream: Stream) -> Any:
        if seen.headers.get("Mcp-Param-A") != "v":
            error = {"code": -32020, "message": "header mismatch"}
            return web.json_response(
                {"jsonrpc": "2.0", "id": seen.body["id"], "error": error}, status=400
            )
        return {"content": []}

    up.on["tools/call echo"] = strict
    with pytest.raises(RpcError):
        await call(server, who=caller(era=Era.MODERN), a="v")
    assert len(up.of("tools/call")) == 1
    up.tools = [{"name": "echo", "inputSchema": schema}]
    assert plain(await call(server, who=caller(era=Era.MODERN), a="v")) == {"content": []}


async def test_a_tool_with_a_bad_header_annotation_is_left_out(make, fake, caplog) -> None:
    bad = {
        "name": "bad",
        "inputSchema": {"properties": {"a": {"type": "object", "x-mcp-header": "A"}}},
    }
    up = await fake(eras=("modern",), tools=[bad, {"name": "good", "inputSchema": {}}])
    server = make(up.url)
    await server.settled()
    assert [entry.key for entry in server.entries().tools] == ["good"]
    assert caplog.text.count("server up: 1 of its tools left out") == 1


# --------------------------------------------------------------------------------- sessions


async def test_a_stateful_session_is_never_shared_between_callers(make, fake) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    x1 = said(await call(server, who=caller("x")))["session"]
    x2 = said(await call(server, who=caller("x")))["session"]
    y = said(await call(server, who=caller("y")))["session"]
    rest = said(await call(server, who=caller(era=Era.MODERN)))["session"]
    listing = up.of("tools/list")[0].session
    assert x1 == x2
    assert len({x1, y, rest, listing}) == 4


async def test_shared_means_one_session_for_all(make, fake) -> None:
    up = await fake()
    server = make(up.url, isolation="shared")
    await server.settled()
    for name in "xyz":
        await call(server, who=caller(name))
    assert len(up.sessions) == 1


async def test_one_handshake_for_a_callers_first_requests(make, fake) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    await asyncio.gather(*(call(server, who=caller("x")) for _ in range(10)))
    assert len(up.of("initialize")) == 2


async def test_forget_deletes_the_session_and_close_the_rest(make, fake) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    x = said(await call(server, who=caller("x")))["session"]
    await call(server, who=caller("y"))
    await server.forget("x")
    assert [seen.session for seen in up.of("DELETE")] == [x]
    await server.forget("x")
    await server.close()
    assert up.sessions == set()


async def test_kept_sessions_are_bounded_and_the_longest_unused_goes(make, fake) -> None:
    up = await fake()
    server = make(up.url, limits=Limits(sessions=3))
    await server.settled()
    for name in "abcd":
        await call(server, who=caller(name))
    assert len(up.of("DELETE")) == 1
    assert len(up.sessions) == 4  # three of callers, one that lists
    release = asyncio.Event()

    async def slow(seen: Seen, stream: Stream) -> Any:
        await release.wait()
        return {"content": []}

    up.on["tools/call slow"] = slow
    busy = [asyncio.create_task(call(server, "slow", caller(name))) for name in "bcd"]
    await until(lambda: up.inflight == 3)
    with pytest.raises(Unavailable, match=r"limits\.sessions"):
        await call(server, who=caller("e"))
    release.set()
    await asyncio.gather(*busy)


async def test_idle_sessions_expire(make, fake) -> None:
    up = await fake()
    server = make(up.url, limits=Limits(session_ttl=0.05))
    await server.settled()
    await call(server, who=caller("x"))
    await asyncio.sleep(0.1)
    await server._own.expire()
    assert len(up.of("DELETE")) == 1
    # The next request simply gets a new one.
    await call(server, who=caller("x"))


LOST = {
    "404": lambda: web.Response(status=404),
    "404 json": Fake.lost,
    "400": lambda: web.json_response(
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32000, "message": "Bad Request: No valid session ID provided"},
        },
        status=400,
    ),
    "400 ts": lambda: web.json_response(
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32000, "message": "Bad Request: Server not initialized"},
        },
        status=400,
    ),
    "200": lambda: web.json_response(
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}
    ),
}


@pytest.mark.parametrize("how", LOST)
async def test_a_lost_session_is_made_anew_once_for_all(make, fake, how) -> None:
    up = await fake(lost=LOST[how])
    server = make(up.url, isolation="shared")
    await server.settled()
    await until(lambda: up.streams)
    up.sessions.clear()
    results = await asyncio.gather(*(call(server, n=n) for n in range(5)))
    assert sorted(said(result)["n"] for result in results) == [0, 1, 2, 3, 4]
    assert len(up.of("initialize")) == 2
    assert len({said(result)["session"] for result in results}) == 1
    assert server.status.state is State.READY
    # Its lists may be others now.
    await until(lambda: len(up.of("tools/list")) == 2)


async def test_a_server_that_keeps_forgetting_is_not_asked_for_ever(make, fake) -> None:
    up = await fake()
    server = make(up.url, isolation="shared")
    await server.settled()

    async def lost(seen: Seen, stream: Stream) -> Any:
        return up.lost()

    up.on["tools/call echo"] = lost
    with pytest.raises(Unavailable) as caught:
        await call(server)
    assert caught.value.ran == "no"
    assert len(up.of("tools/call")) == 2


async def test_a_tools_own_error_is_not_a_lost_session(make, fake) -> None:
    up = await fake()
    server = make(up.url, isolation="shared")
    await server.settled()

    async def own(seen: Seen, stream: Stream) -> Any:
        raise RpcError(-32050, "session not found in the archive")

    up.on["tools/call echo"] = own
    with pytest.raises(RpcError, match="archive"):
        await call(server)
    assert len(up.of("initialize")) == 1


async def test_a_call_that_may_have_run_is_not_sent_again(make, fake) -> None:
    up = await fake()
    server = make(up.url, isolation="shared")
    await server.settled()

    async def cut(seen: Seen, stream: Stream) -> Any:
        up.sessions.clear()
        stream.request.transport.abort()
        return web.Response()

    up.on["tools/call cut"] = cut
    with pytest.raises(Unavailable) as caught:
        await call(server, "cut")
    assert caught.value.ran == "maybe"
    assert len(up.of("tools/call")) == 1


# ------------------------------------------------------------------------------ both eras


async def test_a_server_of_both_eras_is_spoken_to_in_the_callers(make, fake) -> None:
    up = await fake(eras=("legacy", "modern"))
    server = make(up.url)
    await server.settled()
    assert server.status.era is Era.MODERN
    assert not up.of("initialize")
    await call(server, who=caller(era=Era.MODERN))
    legacy = said(await call(server, who=caller("s", era=Era.LEGACY)))
    other = said(await call(server, who=caller("t", era=Era.LEGACY)))
    modern, in_session, _ = up.of("tools/call")
    assert modern.headers["MCP-Protocol-Version"] == MODERN
    assert in_session.headers["MCP-Protocol-Version"] == "2025-11-25"
    assert legacy["session"] != other["session"]
    await server.forget("s")
    assert [seen.session for seen in up.of("DELETE")] == [legacy["session"]]


async def test_a_modern_only_server_serves_legacy_callers_too(make, fake) -> None:
    up = await fake(eras=("modern",))
    server = make(up.url)
    await server.settled()
    for _ in range(3):
        assert "session" in said(await call(server, who=caller("s", era=Era.LEGACY)))
    # It was asked for sessions once.
    assert len(up.of("initialize")) == 1


async def test_stateless_legacy_sessions_are_shared(make, fake) -> None:
    up = await fake(eras=("legacy", "modern"), stateful=False)
    server = make(up.url)
    await server.settled()
    for name in "abc":
        await call(server, who=caller(name))
    assert len(up.of("initialize")) <= 2
    assert len(server._own) <= 2


@pytest.mark.parametrize("configured", ["legacy", "modern"])
async def test_a_configured_era_is_not_probed(make, fake, configured) -> None:
    up = await fake(eras=("legacy", "modern"))
    server = make(up.url, era=configured)
    await server.settled()
    for era in Era:
        await call(server, who=caller("s", era=era))
    assert server.status.era == configured
    unwanted = "server/discover" if configured == "legacy" else "initialize"
    assert not up.of(unwanted)


async def test_a_silent_probe_falls_back(make, fake, monkeypatch) -> None:
    monkeypatch.setattr("sidecar.upstream.opener.PROBE", 0.1)
    up = await fake()

    async def silent(seen: Seen, stream: Stream) -> Any:
        await asyncio.sleep(30)

    up.on["server/discover"] = silent
    server = make(up.url)
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.LEGACY)


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 500])
async def test_any_refusal_of_the_probe_falls_back(make, fake, status) -> None:
    up = await fake()
    up.on["server/discover"] = garbage(status=status)
    server = make(up.url)
    await server.settled()
    assert server.status.era is Era.LEGACY


async def test_a_discovery_of_legacy_versions_only_means_legacy(make, fake) -> None:
    up = await fake(eras=("legacy", "modern"))

    async def discover(seen: Seen, stream: Stream) -> Any:
        return {"supportedVersions": ["2025-11-25"], "capabilities": {}}

    up.on["server/discover"] = discover
    server = make(up.url)
    await server.settled()
    assert server.status.era is Era.LEGACY


async def test_the_verdict_is_remembered_and_doubted(make, fake) -> None:
    up = await fake()
    port = up.server.port
    server = make(up.url)
    await server.settled()
    assert len(up.of("server/discover")) == 1
    await up.stop()
    with pytest.raises(Unavailable):
        await call(server)
    await until(lambda: server.status.state is not State.READY)
    again = await fake(port=port)
    await until(lambda: server.status.state is State.READY)
    assert not again.of("server/discover")
    await again.stop()
    # In its place comes a server of the other era.
    modern = await fake(port=port, eras=("modern",))
    await until(lambda: server.status.era is Era.MODERN, within=30)
    assert modern.of("server/discover")


# -------------------------------------------------------------------------- event streams


async def test_a_broken_answer_is_resumed_where_events_have_ids(make, fake) -> None:
    up = await fake(stateful=False)
    server = make(up.url)
    await server.settled()
    resumed: list[str] = []

    async def polled(seen: Seen, stream: Stream) -> Any:
        await stream.raw(b"id: e1\nretry: 10\ndata:\n\n")
        up.on_resume = {"jsonrpc": "2.0", "id": seen.body["id"], "result": {"content": []}}
        return await stream.open()

    events = up._events

    async def get(request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        if last is None:
            return await events(request)
        resumed.append(last)
        stream = Stream(request)
        if len(resumed) == 1:
            await stream.raw(b"id: e2\ndata:\n\n")
        else:
            await stream.send(up.on_resume, id="e3")
        return await stream.open()

    up._events = get
    up.on["tools/call echo"] = polled
    assert plain(await call(server)) == {"content": []}
    assert resumed == ["e1", "e2"]


async def test_requests_of_the_server_are_answered_on_the_spot(make, fake) -> None:
    up = await fake(stateful=False)
    server = make(up.url)
    await server.settled()

    async def asks(seen: Seen, stream: Stream) -> Any:
        for id, method in (("r1", "roots/list"), ("r2", "ping"), (3, "sampling/createMessage")):
            await stream.send({"jsonrpc": "2.0", "id": id, "method": method})
        await until(lambda: len(answers()) == 3)
        return {"content": []}

    def answers() -> list[Any]:
        return [seen.body for seen in up.seen if seen.http == "POST" and not seen.method]

    up.on["tools/call echo"] = asks
    await call(server)
    by_id = {answer["id"]: answer for answer in answers()}
    assert by_id["r1"]["result"] == {"roots": []}
    assert by_id["r2"]["result"] == {}
    assert by_id[3]["error"]["code"] == -32601


async def test_a_server_without_event_stream_is_not_pestered(make, fake) -> None:
    up = await fake(get=False)
    server = make(up.url)
    await server.settled()
    await asyncio.sleep(0.3)
    assert len(up.of("GET")) == 1
    assert server.status.state is State.READY


async def test_the_event_stream_comes_back_and_lists_are_read_again(make, fake) -> None:
    up = await fake()
    server = make(up.url)
    await server.settled()
    await until(lambda: up.streams)
    up.tools.append({"name": "late", "inputSchema": {}})
    up.streams[0].request.transport.abort()
    await until(lambda: len(server.entries().tools) == 3)
    assert server.status.state is State.READY
    assert len(up.of("initialize")) == 1


async def test_own_sessions_have_no_standing_stream_until_they_need_one(make, fake) -> None:
    up = await fake(capabilities={"tools": {}, "resources": {"subscribe": True}, "logging": {}})
    server = make(up.url)
    await server.settled()
    await call(server, who=caller("x"))
    await until(lambda: len(up.streams) == 1)
    await server.subscribe("u://1", caller("x"))
    await until(lambda: len(up.streams) == 2)


async def test_a_redirect_is_named_at_connect(make, fake) -> None:
    up = await fake()
    moved = garbage(status=308, headers={"Location": "https://user:pw@other.example/x?key=1"})
    up.on |= {"initialize": moved, "server/discover": moved}
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.BACKOFF
    error = str(server.status.error)
    assert "https://other.example/x" in error
    assert "pw" not in error
    assert "key" not in error


async def test_hello_html(make, fake, watch: Watch) -> None:
    up = await fake()
    html = garbage(text="<html>hello</html>", content_type="text/html")
    up.on |= {"initialize": html, "server/discover": html}
    server = make(up.url)
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "text/html" in str(server.status.error)
    assert watch.states()[:2] == ["connecting", "backoff"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:99999/",
        "http://256.1.1.1/",
        "ftp://127.0.0.1/",
        "no address",
        "http://[x/",
    ],
)
async def test_an_address_that_is_none(make, url) -> None:
    server = make(url)
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "url of server up" in str(server.status.error)


@pytest.mark.parametrize(
    ("scheme", "why"), [("https", "does not speak TLS"), ("http", "what is no HTTP")]
)
async def test_a_port_that_speaks_something_else(make, scheme, why) -> None:
    async def hello(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        await reader.read(100)
        writer.close()

    async with await asyncio.start_server(hello, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        server = make(f"{scheme}://127.0.0.1:{port}/mcp")
        await server.settled()
        assert why in str(server.status.error)
        await server.close()


async def test_an_odd_answer_to_one_caller_takes_the_server_from_nobody(
    make, fake, era, watch
) -> None:
    up = await fake(eras=(era,), stateful=False)
    server = make(up.url)
    await server.settled()
    up.on["completion/complete"] = garbage(status=404)
    lists = len(up.of("tools/list"))
    with pytest.raises(Unavailable) as caught:
        await server.request("completion/complete", {}, caller(era=Era(era)))
    assert caught.value.ran == "no"
    await until(lambda: len(up.of("tools/list")) > lists)
    assert watch.states() == ["connecting", "ready"]
    # But when nothing of it is there any more, it is down.
    up.on |= dict.fromkeys(("tools/list", "tools/call echo"), garbage(status=404))
    up.on |= dict.fromkeys(("initialize", "server/discover"), garbage(status=404))
    with pytest.raises(Unavailable):
        await call(server, who=caller(era=Era(era)))
    await until(lambda: watch.counts() == [2, 0])
    assert "HTTP 404" in str(server.status.error)


@pytest.mark.parametrize("code", [-32022, -32021, -32020])
async def test_a_modern_refusal_of_the_probe_is_answered_in_the_modern_era(
    make, fake, code
) -> None:
    up = await fake(eras=("modern",))

    async def once(seen: Seen, stream: Stream) -> Any:
        del up.on["server/discover"]
        error = {"code": code, "message": "no", "data": {"supported": [MODERN]}}
        return web.json_response(
            {"jsonrpc": "2.0", "id": seen.body["id"], "error": error}, status=400
        )

    up.on["server/discover"] = once
    server = make(up.url)
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.MODERN)
    assert not up.of("initialize")
