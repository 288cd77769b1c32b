"""Requests of ours to a client while its own runs: over its stream, over stdio, and withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sidecar.downstream.asks import MOST, Asks
from sidecar.mcp.inbound import Reply
from sidecar.model import Caller, Era, Fields, JsonObject, RpcError
from tests.downstream.kit import ScriptedGateway, call, initialize, modern, running, until
from tests.downstream.test_stdio import serving


def asking(gateway: ScriptedGateway) -> list[Any]:
    """Give it a tool that asks its client; the list is what came back."""
    heard: list[Any] = []

    async def ask(params: JsonObject, caller: Caller) -> Fields:
        if caller.ask is None:
            heard.append("cannot be asked")
            return {"content": []}
        question: JsonObject = {"message": "well?"}
        work = asyncio.ensure_future(caller.ask("elicitation/create", question))
        over = asyncio.ensure_future(gateway.release.wait())
        try:
            await asyncio.wait({work, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            work.cancel()
        try:
            heard.append(await work)
        except asyncio.CancelledError:
            heard.append("withdrawn")
        except RpcError as error:
            heard.append(error.code)
        return {"content": []}

    gateway.tools["ask"] = ask
    return heard


def answer(id: object, result: object) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "result": result}


async def test_asked_on_the_requests_own_stream_and_answered_by_a_post() -> None:
    async with running() as rig:
        heard = asking(rig.gateway)
        session, other = await rig.initialize(), await rig.initialize()
        async with rig.tap("POST", call("ask"), Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            asked = await tap.next()
            assert asked["method"] == "elicitation/create"
            assert asked["params"] == {"message": "well?"}
            # Neither another session's, nor another question's, nor one of another type.
            for id_, headers in ((asked["id"], other), (99, session), (str(asked["id"]), session)):
                reply = await rig.post(answer(id_, {"action": "accept"}), headers=headers)
                assert reply.status == 202
            assert await tap.quiet(0.2) and heard == []
            mine = {"action": "decline", "_meta": {"x": 1}}
            assert (await rig.post(answer(asked["id"], mine), headers=session)).status == 202
            assert (await tap.next())["result"] == {"content": []}
            assert heard == [mine]
        # A second answer is to nothing.
        assert (await rig.post(answer(asked["id"], mine), headers=session)).status == 202
        assert len(heard) == 1


async def test_an_error_for_an_answer() -> None:
    async with running() as rig:
        heard = asking(rig.gateway)
        session = await rig.initialize()
        async with rig.tap("POST", call("ask"), Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            asked = await tap.next()
            error = {"code": -32601, "message": "no"}
            message = {"jsonrpc": "2.0", "id": asked["id"], "error": error}
            assert (await rig.post(message, headers=session)).status == 202
            assert (await tap.next())["result"] == {"content": []}
        assert heard == [-32601]


async def test_withdrawn_before_the_answer_of_the_request() -> None:
    async with running() as rig:
        heard = asking(rig.gateway)
        session = await rig.initialize()
        async with rig.tap("POST", call("ask"), Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            asked = await tap.next()
            rig.gateway.release.set()
            gone = await tap.next()
            assert gone["method"] == "notifications/cancelled"
            assert gone["params"]["requestId"] == asked["id"]
            assert (await tap.next())["result"] == {"content": []}
            assert await tap.next() is None
        assert heard == ["withdrawn"]
        assert (await rig.post(answer(asked["id"], {}), headers=session)).status == 202


async def test_a_client_that_leaves_is_asked_no_more() -> None:
    async with running() as rig:
        heard = asking(rig.gateway)
        session = await rig.initialize()
        async with rig.tap("POST", call("ask"), Mcp_Session_Id=session["Mcp-Session-Id"]) as tap:
            await tap.next()
        await until(lambda: rig.gateway.cancelled == ["ask"])
        assert heard == []


@pytest.mark.parametrize("era", list(Era))
async def test_who_cannot_be_asked(era: Era) -> None:
    """Clients that take no stream, and those of the stateless era."""
    async with running() as rig:
        heard = asking(rig.gateway)
        if era is Era.LEGACY:
            session = await rig.initialize()
            only = {**session, "Accept": "application/json"}
            assert (await rig.post(call("ask"), headers=only)).status == 200
        else:
            params: JsonObject = {"name": "ask", "arguments": {}}
            assert (await rig.modern("tools/call", params)).status == 200
        assert heard == ["cannot be asked"]


async def test_what_answers_a_question_of_ours_is_brought_and_goes_no_further() -> None:
    async with running() as rig:
        params: JsonObject = {
            "name": "echo",
            "arguments": {},
            "requestState": "sidecar/approval:1",
            "inputResponses": {"approval": {"action": "accept"}},
        }
        assert (await rig.modern("tools/call", params)).status == 200
        _, seen, caller = rig.gateway.seen[-1]
        assert set(seen) == {"name", "arguments"}
        assert caller.brought is not None
        assert caller.brought.state == "sidecar/approval:1"
        assert caller.brought.responses == {"approval": {"action": "accept"}}
        theirs: JsonObject = {
            "name": "echo",
            "arguments": {},
            "requestState": "t",
            "inputResponses": {},
        }
        assert (await rig.modern("tools/call", theirs)).status == 200
        _, seen, caller = rig.gateway.seen[-1]
        assert seen["requestState"] == "t" and caller.brought is None


async def test_over_stdio() -> None:
    async with serving() as peer:
        heard = asking(peer.gateway)
        # What is answered before anything was asked is nothing.
        await peer.ask(initialize())
        peer.send(answer(1, {"action": "accept"}))
        asked = await peer.ask(call("ask", 7))
        assert (asked["method"], asked["params"]) == ("elicitation/create", {"message": "well?"})
        peer.send(answer(asked["id"], {"action": "cancel"}))
        assert (await peer.next())["id"] == 7
        again = await peer.ask(call("ask", 8))
        assert again["id"] != asked["id"]
        peer.gateway.release.set()
        assert (await peer.next())["params"]["requestId"] == again["id"]
        assert (await peer.next())["id"] == 8
        assert heard == [{"action": "cancel"}, "withdrawn"]


async def test_over_stdio_in_the_stateless_era() -> None:
    async with serving() as peer:
        heard = asking(peer.gateway)
        params: JsonObject = {"name": "ask", "arguments": {}, "requestState": "sidecar/approval:1"}
        assert (await peer.ask(modern("tools/call", params, 1)))["id"] == 1
        assert heard == ["cannot be asked"]
        assert peer.gateway.seen[0][2].brought is not None


async def test_a_client_owes_so_many_answers_at_most() -> None:
    sent: list[bytes] = []
    asks = Asks()
    tasks = [asyncio.create_task(asks.ask(sent.append, "x", {})) for _ in range(MOST)]
    await asyncio.sleep(0)
    with pytest.raises(RpcError, match="owes"):
        await asks.ask(sent.append, "x", {})
    asks.answered(Reply(1, {"a": 1}, None))
    assert await tasks[0] == {"a": 1}
    for task in tasks[1:]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(asks) == 0 and len(sent) == MOST + MOST - 1
