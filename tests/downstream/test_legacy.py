"""Conversations of the sessions' era over HTTP."""

from __future__ import annotations

import asyncio
import json
import re

import aiohttp
import pytest

from sidecar.config.types import Limits
from sidecar.downstream import Authenticator
from sidecar.events import SessionClosed, SessionOpened
from sidecar.mcp.versions import LEGACY_VERSIONS
from sidecar.model import Client, Era, Principal, TraceContext
from tests.downstream.kit import (
    BOTH,
    TOOLS_CHANGED,
    Rig,
    call,
    initialize,
    request,
    running,
    until,
)

CANCEL = "notifications/cancelled"


def cancel(id_: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": CANCEL, "params": {"requestId": id_, "reason": "bored"}}


# ------------------------------------------------------------------------------- opening


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_initialize_answers_the_version_that_was_asked_for(version: str) -> None:
    async with running() as rig:
        reply = await rig.post(initialize(protocolVersion=version))
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json"
        assert re.fullmatch("[0-9a-f]{32}", reply.headers["Mcp-Session-Id"])
        assert reply.json == {
            "jsonrpc": "2.0",
            "id": 0,
            "result": {
                "protocolVersion": version,
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "sidecar", "version": "0"},
                "instructions": "be kind",
            },
        }


@pytest.mark.parametrize("version", ["2026-07-28", "1999-01-01", ""])
async def test_initialize_offers_our_latest_for_any_other_version(version: str) -> None:
    async with running() as rig:
        rig.gateway.instructions_text = ""
        reply = await rig.post(initialize(protocolVersion=version))
        assert reply.json["result"]["protocolVersion"] == "2025-11-25"
        assert "instructions" not in reply.json["result"]


@pytest.mark.parametrize(
    "params",
    [
        {"protocolVersion": None},
        {"protocolVersion": 1},
        {"capabilities": []},
        {"capabilities": {"x": "y" * 5000}},
    ],
)
async def test_an_initialize_that_says_nothing_opens_nothing(params: dict[str, object]) -> None:
    async with running() as rig:
        reply = await rig.post(initialize(**params))
        assert (reply.status, reply.error["code"], reply.json["id"]) == (200, -32602, 0)
        assert "Mcp-Session-Id" not in reply.headers
        assert rig.listener.sessions() == []


async def test_ids_are_never_the_same() -> None:
    async with running() as rig:
        ids = {(await rig.initialize())["Mcp-Session-Id"] for _ in range(50)}
        assert len(ids) == 50


async def test_a_stale_session_does_not_keep_a_client_from_initialising() -> None:
    async with running() as rig:
        session = await rig.initialize(headers={"Mcp-Session-Id": "0" * 32})
        assert session["Mcp-Session-Id"] != "0" * 32
        assert (await rig.post(request("ping"), headers=session)).json["result"] == {}


async def test_a_client_that_takes_nothing_but_streams_gets_them() -> None:
    async with running() as rig:
        only = {"Accept": "text/event-stream"}
        opened = await rig.post(initialize(), headers=only)
        assert opened.events[0]["result"]["protocolVersion"] == "2025-11-25"
        session = {**only, "Mcp-Session-Id": opened.headers["Mcp-Session-Id"]}
        reply = await rig.post(call("echo", 5), headers=session)
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert [event["id"] for event in reply.events] == [5]


# ------------------------------------------------------------------------- what is carried


async def test_the_caller_is_what_the_session_said_and_nothing_of_the_headers() -> None:
    async with running() as rig:
        session = await rig.initialize(
            clientInfo={"name": "agent-x", "version": "9"}, capabilities={"roots": {}}
        )
        headers = {
            **session,
            "Authorization": "Bearer secret-1",
            "Cookie": "secret-2",
            "X-Forwarded-For": "secret-3",
        }
        trace = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
        meta = {"traceparent": trace, "progressToken": "p", "vendor/x": 1, "sidecar/labels": []}
        await rig.post(call("echo", _meta=meta), headers=headers)
        method, params, caller = rig.gateway.seen[0]
        assert method == "tools/call"
        assert params == {"name": "echo", "arguments": {}, "_meta": {"vendor/x": 1}}
        assert caller.era is Era.LEGACY
        assert caller.client == Client("agent-x", "9")
        assert caller.capabilities == {"roots": {}}
        assert caller.principal.name == "agent"
        assert caller.trace == TraceContext(trace)
        assert caller.progress == "p"
        assert caller.server is None
        assert "secret" not in repr(caller)
        # Neither the gateway nor anybody after it learns what the client shows.
        assert caller.session == rig.listener.sessions()[0]["id"]
        assert session["Mcp-Session-Id"] not in repr(caller)


async def test_answers_pass_unchanged() -> None:
    async with running() as rig:
        session = await rig.initialize()

        async def odd(params: object, caller: object) -> dict[str, object]:
            return {"content": None, "x": [2**80, None, 1.5], "resultType": "complete"}

        rig.gateway.tools["odd"] = odd
        reply = await rig.post(call("odd", "an id"), headers=session)
        assert reply.json == {
            "jsonrpc": "2.0",
            "id": "an id",
            "result": {"content": None, "x": [2**80, None, 1.5]},
        }


@pytest.mark.parametrize(
    ("tool", "error"),
    [
        ("own_error", {"code": -32050, "message": "its own", "data": {"why": None}}),
        (
            "down",
            {
                "code": -32603,
                "message": "server one is unavailable: it does not answer",
                "data": {"reason": "unavailable", "server": "one", "ran": "no", "retry_in": 2.5},
            },
        ),
        (
            "nothing",
            {
                "code": -32602,
                "message": "there is no tool of this name: nothing",
                "data": {"reason": "unknown_tool"},
            },
        ),
        ("broken", {"code": -32603, "message": "the sidecar failed; its log says more"}),
    ],
)
async def test_failures_are_errors_of_the_request(tool: str, error: dict[str, object]) -> None:
    async with running() as rig:
        session = await rig.initialize()
        reply = await rig.post(call(tool, 3), headers=session)
        assert reply.status == 200
        assert reply.json == {"jsonrpc": "2.0", "id": 3, "error": error}


async def test_methods_that_are_not_of_this_era() -> None:
    async with running() as rig:
        session = await rig.initialize()
        for method in ("server/discover", "subscriptions/listen", "tasks/list", "x"):
            reply = await rig.post(request(method), headers=session)
            assert (reply.status, reply.error["code"]) == (200, -32601), method
        again = await rig.post(initialize(id=5), headers=session)
        assert again.status == 200  # a new session, whatever the old one is doing
        assert rig.gateway.seen == []


async def test_a_resource_that_is_not_there_has_this_eras_code() -> None:
    async with running() as rig:
        session = await rig.initialize()
        reply = await rig.post(request("resources/read", {"uri": "file:///none"}), headers=session)
        assert reply.error["code"] == -32002


async def test_the_log_level_is_the_sessions_own() -> None:
    async with running() as rig:
        one, two = await rig.initialize(), await rig.initialize()
        reply = await rig.post(request("logging/setLevel", {"level": "error"}), headers=one)
        assert reply.json["result"] == {}
        await rig.post(call("echo"), headers=one)
        await rig.post(call("echo"), headers=two)
        levels = [caller.log_level for method, _, caller in rig.gateway.seen if "call" in method]
        assert levels == ["error", "debug"]


async def test_notifications_and_responses_are_taken_without_an_answer() -> None:
    async with running() as rig:
        session = await rig.initialize()
        for message in (
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"},
            {"jsonrpc": "2.0", "method": "notifications/anything", "params": {"a": 1}},
            cancel("never asked"),
            cancel(None),
            cancel({"a": []}),
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}},
        ):
            reply = await rig.post(message, headers=session)
            assert (reply.status, reply.body) == (202, b""), message
            assert "Content-Type" not in reply.headers
        assert rig.gateway.seen == []


# -------------------------------------------------------------------------- which session


async def test_no_session_and_unknown_sessions() -> None:
    async with running() as rig:
        session = await rig.initialize()
        id_ = session["Mcp-Session-Id"]
        for headers, status in (
            ({}, 400),
            ({"Mcp-Session-Id": ""}, 404),
            ({"Mcp-Session-Id": "0" * 32}, 404),
            ({"Mcp-Session-Id": id_.upper()}, 404 if id_.upper() != id_ else 200),
            ({"Mcp-Session-Id": id_[:-1]}, 404),
            ({"Mcp-Session-Id": "x" * 5000}, 404),
            ({"Mcp-Session-Id": "ü"}, 404),
        ):
            reply = await rig.post(call("echo", 9), headers=headers)
            assert reply.status == status, headers
            if status != 200:
                assert reply.json["id"] == 9
                assert reply.error["code"] == -32600
            if status == 404:
                assert "initialize again" in reply.error["message"]
        assert rig.gateway.seen == []


async def test_a_session_belongs_to_its_principal_and_its_path() -> None:
    auth = Authenticator([("ta", Principal("alice")), ("tb", Principal("bob"))])
    async with running(auth=auth) as rig:
        alice = {"Authorization": "Bearer ta"}
        session = await rig.initialize("/mcp/one", alice)
        stolen = {**session, "Authorization": "Bearer tb"}
        assert (await rig.post(request("ping"), "/mcp/one", stolen)).status == 404
        assert (await rig.post(request("ping"), "/mcp/two", session)).status == 404
        assert (await rig.post(request("ping"), "/mcp", session)).status == 404
        async with rig.http.get(f"{rig.url}/mcp/one", headers=stolen) as answer:
            assert answer.status == 404
        async with rig.http.delete(f"{rig.url}/mcp/one", headers=stolen) as answer:
            assert answer.status == 404
        await rig.post(cancel(1), "/mcp/one", stolen)
        assert (await rig.post(request("ping"), "/mcp/one", session)).status == 200
        await rig.post(call("echo"), "/mcp/one", session)
        assert rig.gateway.seen[0][2].server == "one"
        assert rig.gateway.seen[0][2].principal.name == "alice"


async def test_a_server_that_is_not_seen_is_not_there() -> None:
    auth = Authenticator([("ta", Principal("alice", harnesses=("two",)))])
    async with running(auth=auth) as rig:
        for path in ("/mcp/two", "/mcp/three"):
            reply = await rig.post(initialize(), path, {"Authorization": "Bearer ta"})
            assert reply.status == 404
            assert reply.error["data"] == {"reason": "unknown_server"}
        assert rig.listener.sessions() == []


async def test_delete_ends_a_session_and_what_runs_in_it() -> None:
    async with running() as rig:
        opened: list[SessionOpened] = []
        closed: list[SessionClosed] = []
        rig.bus.listen(SessionOpened, opened.append)
        rig.bus.listen(SessionClosed, closed.append)
        session = await rig.initialize()
        key = rig.listener.sessions()[0]["id"]
        waiting = asyncio.create_task(rig.post(call("wait", 4), headers=session))
        await rig.gateway.started.wait()
        async with rig.http.delete(f"{rig.url}/mcp", headers=session) as answer:
            assert answer.status == 200
        reply = await waiting
        assert reply.json["id"] == 4
        assert "ended" in reply.error["message"]
        assert rig.gateway.cancelled == ["wait"]
        await until(lambda: rig.gateway.closed == [key])
        assert rig.listener.sessions() == []
        assert rig.gateway.listeners == []
        assert (await rig.post(request("ping"), headers=session)).status == 404
        async with rig.http.delete(f"{rig.url}/mcp", headers=session) as answer:
            assert answer.status == 404
        assert [(e.session, e.principal, e.client) for e in opened] == [(key, "agent", "test 1")]
        assert [(e.session, e.why) for e in closed] == [(key, "deleted by the client")]


# ---------------------------------------------------------------- while a request runs


async def test_progress_comes_as_it_happens_and_before_the_result() -> None:
    async with running() as rig:
        session = await rig.initialize()
        message = call("progress", 8, _meta={"progressToken": "tok-1"})
        async with rig.tap("POST", message, Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            for i in range(3):
                assert await tap.next() == {
                    "jsonrpc": "2.0",
                    "method": "notifications/progress",
                    "params": {"progressToken": "tok-1", "progress": i},
                }
            assert not rig.gateway.release.is_set()
            rig.gateway.release.set()
            assert await tap.next() == {"jsonrpc": "2.0", "id": 8, "result": {"content": []}}
            assert await tap.next() is None


async def test_without_a_token_there_is_no_progress_and_no_stream() -> None:
    async with running() as rig:
        rig.gateway.release.set()
        session = await rig.initialize()
        reply = await rig.post(call("progress"), headers=session)
        assert reply.headers["Content-Type"] == "application/json"
        assert rig.gateway.seen[0][2].progress is None


async def test_a_client_without_streams_gets_the_answer_alone() -> None:
    async with running() as rig:
        rig.gateway.release.set()
        session = await rig.initialize()
        reply = await rig.post(
            call("progress", _meta={"progressToken": 1}),
            headers={**session, "Accept": "application/json"},
        )
        assert reply.json["result"] == {"content": []}


async def test_equal_tokens_and_ids_of_two_sessions_do_not_cross() -> None:
    async with running() as rig:
        one, two = await rig.initialize(), await rig.initialize()
        message = call("progress", 1, _meta={"progressToken": 1})
        async with (
            rig.tap("POST", message, Mcp_Session_Id=one["Mcp-Session-Id"]) as first,
            rig.tap("POST", message, Mcp_Session_Id=two["Mcp-Session-Id"]) as second,
        ):
            assert (await first.next())["params"]["progress"] == 0
            assert (await second.next())["params"]["progress"] == 0
            assert (await rig.post(cancel(1), headers=two)).status == 202
            while (message_ := await second.next()) is not None:
                assert "result" not in message_
            rig.gateway.release.set()
            found = [await first.next() for _ in range(3)]
            assert [message_.get("id") for message_ in found] == [None, None, 1]


async def test_calls_of_one_session_run_at_once() -> None:
    async with running() as rig:
        session = await rig.initialize()
        tasks = [asyncio.create_task(rig.post(call("wait", i), headers=session)) for i in range(8)]
        await until(lambda: rig.gateway.at_once == 8)
        assert rig.listener.sessions()[0]["calls"] == 8
        assert (await rig.post(call("echo", 99), headers=session)).status == 200
        rig.gateway.release.set()
        replies = await asyncio.gather(*tasks)
        assert sorted(reply.json["id"] for reply in replies) == list(range(8))


async def test_an_id_that_is_still_unanswered_is_refused_and_free_afterwards() -> None:
    async with running() as rig:
        session = await rig.initialize()
        first = asyncio.create_task(rig.post(call("wait", 5), headers=session))
        await rig.gateway.started.wait()
        twice = await rig.post(call("echo", 5), headers=session)
        assert (twice.status, twice.error["code"], twice.json["id"]) == (400, -32600, 5)
        other = await rig.post(call("echo", "5"), headers=session)
        assert other.json["id"] == "5"
        rig.gateway.release.set()
        assert (await first).json["id"] == 5
        assert (await rig.post(call("echo", 5), headers=session)).status == 200


async def test_cancelled_from_another_connection_ends_the_call_at_once() -> None:
    async with running() as rig:
        session = await rig.initialize()
        waiting = asyncio.create_task(rig.post(call("wait", 4), headers=session))
        await rig.gateway.started.wait()
        # Neither another type of id nor another session's can reach it.
        other = await rig.initialize()
        await rig.post(cancel("4"), headers=session)
        await rig.post(cancel(4), headers=other)
        await rig.post(cancel(True), headers=session)
        assert rig.gateway.cancelled == []
        assert (await rig.post(cancel(4), headers=session)).status == 202
        reply = await asyncio.wait_for(waiting, 30)
        assert rig.gateway.cancelled == ["wait"]
        assert (reply.status, reply.body) == (202, b"")


async def test_a_cancelled_call_that_streams_ends_without_an_answer() -> None:
    async with running() as rig:
        session = await rig.initialize()
        message = call("progress", 4, _meta={"progressToken": 1})
        async with rig.tap("POST", message, Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            await tap.next()
            await rig.post(cancel(4), headers=session)
            while (found := await tap.next()) is not None:
                assert found["method"] == "notifications/progress"


async def test_a_late_answer_of_a_cancelled_call_is_discarded() -> None:
    async with running() as rig:
        session = await rig.initialize()

        async def stubborn(params: object, caller: object) -> dict[str, object]:
            try:
                await rig.gateway.release.wait()
            except asyncio.CancelledError:
                return {"content": "too late"}
            return {}

        rig.gateway.tools["stubborn"] = stubborn
        waiting = asyncio.create_task(rig.post(call("stubborn", 4), headers=session))
        await rig.gateway.started.wait()
        await rig.post(cancel(4), headers=session)
        assert (await waiting).status == 202


async def test_a_closed_connection_cancels_a_little_later() -> None:
    async with running() as rig:
        session = await rig.initialize()
        loop = asyncio.get_running_loop()
        waiting = asyncio.create_task(rig.post(call("wait", 4), headers=session))
        await rig.gateway.started.wait()
        waiting.cancel()
        gone = loop.time()
        await until(lambda: rig.gateway.cancelled == ["wait"], 30)
        assert loop.time() - gone >= 0.25
        await until(lambda: rig.listener.sessions()[0]["calls"] == 0)


async def test_a_call_that_ends_soon_after_its_connection_is_not_cancelled() -> None:
    async with running() as rig:
        session = await rig.initialize()
        waiting = asyncio.create_task(rig.post(call("wait", 4), headers=session))
        await rig.gateway.started.wait()
        waiting.cancel()
        await asyncio.sleep(0.05)
        rig.gateway.release.set()
        await until(lambda: rig.gateway.at_once == 0)
        await asyncio.sleep(0.4)
        assert rig.gateway.cancelled == []


async def test_a_flood_of_progress_costs_a_slow_reader_progress_and_nothing_else() -> None:
    async with running() as rig:
        session = await rig.initialize()
        message = call("flood", 4, _meta={"progressToken": 1})
        async with rig.tap("POST", message, Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            await rig.gateway.started.wait()
            # Another session is not held up meanwhile.
            other = await rig.initialize()
            assert (await rig.post(call("echo"), headers=other)).status == 200
            rig.gateway.release.set()
            seen = []
            while (found := await tap.next()) is not None:
                seen.append(found)
            assert seen[-1] == {"jsonrpc": "2.0", "id": 4, "result": {"content": []}}
            progress = [message["params"]["progress"] for message in seen[:-1]]
            assert progress == sorted(progress)
            assert progress[-1] == 4999
            assert len(progress) <= 300


async def test_a_large_answer_arrives_whole() -> None:
    async with running() as rig:
        session = await rig.initialize()
        reply = await rig.post(call("big"), headers=session)
        assert len(reply.json["result"]["content"][0]["text"]) == 3 << 20


# ------------------------------------------------------------------------ the GET stream


def _get(rig: Rig, session: dict[str, str]) -> object:
    return rig.tap("GET", Mcp_Session_Id=session["Mcp-Session-Id"], Accept="text/event-stream")


async def test_a_burst_of_list_changes_is_told_once_or_twice_to_each_that_listens() -> None:
    async with running() as rig:
        one, two, deaf = [await rig.initialize() for _ in range(3)]
        async with (
            _get(rig, one) as first,  # type: ignore[attr-defined]
            _get(rig, two) as second,  # type: ignore[attr-defined]
        ):
            for _ in range(5):
                rig.gateway.tell(TOOLS_CHANGED)
                await asyncio.sleep(0.02)
            for tap in (first, second):
                told = {"jsonrpc": "2.0", "method": TOOLS_CHANGED}
                assert await tap.next() == told
                try:
                    assert await tap.next(1.5) == told
                except TimeoutError:
                    continue
                assert await tap.quiet(0.3)
            # What a session missed is told when it begins to listen, once.
            async with _get(rig, deaf) as third:  # type: ignore[attr-defined]
                assert (await third.next())["method"] == TOOLS_CHANGED
                assert await third.quiet(0.2)


async def test_the_stream_carries_updates_and_logs() -> None:
    async with running() as rig:
        session = await rig.initialize()
        async with _get(rig, session) as tap:  # type: ignore[attr-defined]
            rig.gateway.tell("notifications/resources/updated", {"uri": "a", "x": None})
            assert await tap.next() == {
                "jsonrpc": "2.0",
                "method": "notifications/resources/updated",
                "params": {"uri": "a", "x": None},
            }
            rig.gateway.tell("notifications/message", {"level": "info", "data": 1})
            assert (await tap.next())["params"] == {"level": "info", "data": 1}


async def test_a_message_goes_to_one_stream_the_newest() -> None:
    async with running() as rig:
        session = await rig.initialize()
        async with _get(rig, session) as old:  # type: ignore[attr-defined]
            async with _get(rig, session) as new:  # type: ignore[attr-defined]
                rig.gateway.tell(TOOLS_CHANGED)
                assert (await new.next())["method"] == TOOLS_CHANGED
                assert await old.quiet(0.2)
            opened = next(iter(rig.listener._state.sessions))
            await until(lambda: len(opened._streams) == 1)
            rig.gateway.tell(TOOLS_CHANGED)
            assert (await old.next())["method"] == TOOLS_CHANGED


async def test_a_session_has_few_streams_and_the_oldest_goes() -> None:
    async with running() as rig:
        session = await rig.initialize()
        answers = []
        for _ in range(5):
            answer = await rig.http.get(
                f"{rig.url}/mcp", headers={**session, "Accept": "text/event-stream"}
            )
            await answer.content.readany()
            answers.append(answer)
        assert await asyncio.wait_for(answers[0].content.read(), 30) == b""
        assert not answers[1].content.at_eof()
        for answer in answers:
            answer.close()


async def test_a_stream_needs_its_session_and_a_client_that_takes_it() -> None:
    async with running() as rig:
        session = await rig.initialize()
        for headers, status in (
            ({"Accept": "text/event-stream"}, 400),
            ({"Accept": "text/event-stream", "Mcp-Session-Id": "x"}, 404),
            ({"Accept": "application/json", **session}, 406),
        ):
            async with rig.http.get(f"{rig.url}/mcp", headers=headers) as answer:
                assert answer.status == status


async def test_an_open_stream_keeps_its_session_and_a_closed_one_is_forgotten() -> None:
    async with running(limits=Limits(session_ttl=0.0)) as rig:
        session = await rig.initialize()
        state = rig.listener._state
        async with _get(rig, session):  # type: ignore[attr-defined]
            state.sessions.reap(asyncio.get_running_loop().time() + 100)
            assert len(rig.listener.sessions()) == 1
        await until(lambda: rig.listener._state.sessions.find is not None)
        await until(lambda: next(iter(state.sessions)).idle)
        state.sessions.reap(asyncio.get_running_loop().time() + 100)
        assert rig.listener.sessions() == []


async def test_a_slow_reader_of_a_stream_is_cut_off() -> None:
    async with running() as rig:
        session = await rig.initialize()
        reader, writer = await asyncio.open_connection(rig.host, rig.port, limit=1024)
        writer.write(
            f"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n"
            f"Mcp-Session-Id: {session['Mcp-Session-Id']}\r\n\r\n".encode()
        )
        await reader.readline()
        # Nothing is read from here on, and what is told is more than sockets hold.
        for i in range(200):
            for n in range(60):
                rig.gateway.tell(
                    "notifications/resources/updated", {"uri": f"{i}-{n}", "x": "x" * 2000}
                )
            await asyncio.sleep(0)
            if not next(iter(rig.listener._state.sessions))._streams:
                break
        await until(lambda: not next(iter(rig.listener._state.sessions))._streams)
        writer.close()
        assert (await rig.post(request("ping"), headers=session)).status == 200


# -------------------------------------------------------------------------- sessions' number


async def test_the_session_that_was_idle_longest_makes_room() -> None:
    async with running(limits=Limits(sessions=3)) as rig:
        first, second, third = [await rig.initialize() for _ in range(3)]
        await rig.post(request("ping"), headers=first)
        fourth = await rig.initialize()
        statuses = [
            (await rig.post(request("ping"), headers=headers)).status
            for headers in (first, second, third, fourth)
        ]
        assert statuses == [200, 404, 200, 200]


async def test_when_every_session_is_in_use_the_limit_is_named() -> None:
    async with running(limits=Limits(sessions=2)) as rig:
        one, two = await rig.initialize(), await rig.initialize()
        calls = [
            asyncio.create_task(rig.post(call("wait"), headers=headers)) for headers in (one, two)
        ]
        await until(lambda: rig.gateway.at_once == 2)
        reply = await rig.post(initialize())
        assert reply.status == 503
        assert "limits.sessions, 2" in reply.error["message"]
        assert "Retry-After" in reply.headers
        rig.gateway.release.set()
        await asyncio.gather(*calls)
        assert (await rig.post(initialize())).status == 200


async def test_a_crowd_of_one_principal_makes_room_among_its_own() -> None:
    auth = Authenticator([("ta", Principal("alice")), ("tb", Principal("bob"))])
    async with running(auth=auth, limits=Limits(sessions=3)) as rig:
        alice, bob = {"Authorization": "Bearer ta"}, {"Authorization": "Bearer tb"}
        quiet = await rig.initialize(headers=bob)
        for _ in range(10):
            await rig.initialize(headers=alice)
        assert (await rig.post(request("ping"), headers=quiet)).status == 200
        names = sorted(str(session["principal"]) for session in rig.listener.sessions())
        assert names == ["alice", "alice", "bob"]


async def test_the_listing_tells_no_id() -> None:
    async with running() as rig:
        session = await rig.initialize("/mcp/one")
        (listed,) = rig.listener.sessions()
        assert listed["client"] == {"name": "test", "version": "1"}
        assert listed["era"] == "legacy"
        assert listed["server"] == "one"
        assert listed["calls"] == 0
        assert 0 <= float(str(listed["idle"])) < 5
        assert session["Mcp-Session-Id"] not in json.dumps(listed)
        assert session["Mcp-Session-Id"][:8] not in json.dumps(listed)


async def test_too_many_requests_at_once_are_told_to_come_back() -> None:
    async with running(most_in_flight=3) as rig:
        session = await rig.initialize()
        calls = [asyncio.create_task(rig.post(call("wait", i), headers=session)) for i in range(3)]
        await until(lambda: rig.gateway.at_once == 3)
        reply = await rig.post(call("echo", 77), headers=session)
        assert (reply.status, reply.json["id"]) == (503, 77)
        assert reply.headers["Retry-After"] == "1"
        # What makes room still passes.
        assert (await rig.post(cancel(0), headers=session)).status == 202
        await until(lambda: rig.gateway.at_once == 2)
        assert (await rig.post(call("echo", 78), headers=session)).status == 200
        rig.gateway.release.set()
        await asyncio.gather(*calls)


async def test_a_client_may_send_accept_all(http: aiohttp.ClientSession) -> None:
    async with running() as rig:
        session = await rig.initialize(headers={"Accept": "*/*"})
        assert (await rig.post(call("echo"), headers={**session, "Accept": BOTH})).status == 200
