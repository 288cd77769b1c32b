"""One call through the gateway: routed, decided once, sent as it is, answered as it came."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import msgspec
import pytest

from sidecar.events import Bus, CallFinished
from sidecar.gateway import Gateway
from sidecar.mcp import errors
from sidecar.model import (
    Caller,
    Entries,
    Fields,
    JsonObject,
    Kind,
    RpcError,
    Unavailable,
    Unroutable,
)
from sidecar.wire.json import encode, fields
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
    result,
    template,
    tool,
)

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")

FULL = Entries(
    tools=(tool("echo"), tool("ns.dotted")),
    prompts=(prompt("greet"),),
    resources=(resource("f:///x"),),
    templates=(template("f:///{+path}"),),
    capabilities=ALL,
)


def plain(result: Fields) -> dict[str, object]:
    """A result as a client reads it, without the call's id."""
    value = json.loads(encode(result))
    assert UUID.fullmatch(value["_meta"].pop("sidecar/call"))
    return value


async def test_a_call_reaches_its_server_under_its_own_name(gateway: Gateway, serve: Serve) -> None:
    one, two = serve("one", FULL), serve("two", FULL)
    params: JsonObject = {
        "name": "two__ns_dotted_" + gateway.tools()[3].name[-8:],
        "arguments": {"n": 2**80, "null": None},
        "_meta": {"vendor": 1},
        "unknown": [None],
    }
    before = json.dumps(params)
    answer = await gateway.request("tools/call", params, caller())
    assert plain(answer) == {"content": [{"type": "text", "text": "ok"}], "_meta": {}}
    assert one.asked == []
    ((method, sent, _),) = two.asked
    assert method == "tools/call"
    assert sent == {**params, "name": "ns.dotted"}
    assert json.dumps(params) == before


CONVERSATIONS = [
    ("tools/call", {"name": "s__echo"}, {"name": "echo"}, Kind.MCP, "s__echo", "echo"),
    (
        "prompts/get",
        {"name": "s__greet", "arguments": {"who": "x"}},
        {"name": "greet", "arguments": {"who": "x"}},
        Kind.PROMPT,
        "s__greet",
        "greet",
    ),
    ("resources/read", {"uri": "f:///x"}, {"uri": "f:///x"}, Kind.RESOURCE, "f:///x", "f:///x"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "s__greet"}, "argument": {"name": "a"}},
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "a"}},
        Kind.COMPLETION,
        "s__greet",
        "greet",
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/resource", "uri": "f:///{+path}"}, "argument": {}},
        {"ref": {"type": "ref/resource", "uri": "f:///{+path}"}, "argument": {}},
        Kind.COMPLETION,
        "f:///{+path}",
        "f:///{+path}",
    ),
]


@pytest.mark.parametrize(("method", "params", "sent", "kind", "target", "own"), CONVERSATIONS)
@pytest.mark.parametrize("alone", [False, True])
async def test_everything_that_goes_to_a_server_is_decided_exactly_once(
    bus: Bus,
    method: str,
    params: JsonObject,
    sent: JsonObject,
    kind: Kind,
    target: str,
    own: str,
    alone: bool,
) -> None:
    """On ``/mcp`` and on ``/mcp/{server}``: policy sees the catalog's name either way."""
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", FULL)
    gateway.attach(server, config("s"))
    who = caller(server="s") if alone else caller()
    answer = await gateway.request(method, sent if alone else params, who)
    assert [(m, p) for m, p, _ in server.asked] == [(method, sent)]
    ((call, by),) = keeper.calls
    assert (call.kind, call.method, call.server, call.target, call.upstream_name) == (
        kind,
        method,
        "s",
        target,
        own,
    )
    assert call.params == sent
    assert (call.tool is None) == (kind is not Kind.MCP)
    assert by is who
    assert answer["_meta"] == {"sidecar/call": call.id}
    assert len(keeper.seen) == 1
    await gateway.close()


async def test_rest_and_blocks_and_subscriptions_are_decided_too(bus: Bus) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", FULL)
    gateway.attach(server, config("s"))
    await gateway.call("s.echo", {"a": 1}, caller(), separator=".")
    await gateway.call_block({"type": "tool_use", "name": "s__echo", "input": {"a": 2}}, caller())
    function = {"name": "s__echo", "arguments": '{"a": 3}'}
    await gateway.call_block({"type": "function", "function": function}, caller())
    await gateway.request("resources/subscribe", {"uri": "f:///x"}, caller())
    listening = gateway.listen(caller(), lambda method, params: None)
    assert await listening.watch(["f:///x", "f:///y"]) == ["f:///x", "f:///y"]
    assert [(c.method, c.target) for c, _ in keeper.calls] == [
        ("tools/call", "s__echo"),
        ("tools/call", "s__echo"),
        ("tools/call", "s__echo"),
        ("resources/subscribe", "f:///x"),
        ("resources/subscribe", "f:///x"),
        ("resources/subscribe", "f:///y"),
    ]
    assert [p["arguments"] for _, p, _ in server.asked] == [{"a": 1}, {"a": 2}, {"a": 3}]
    assert all(p["name"] == "echo" for _, p, _ in server.asked)
    await gateway.close()


async def test_what_the_gate_refuses_is_not_sent(bus: Bus) -> None:
    keeper = Keeper()
    keeper.refuse = refusal()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", FULL)
    gateway.attach(server, config("s"))
    answer = plain(await gateway.request("tools/call", {"name": "s__echo"}, caller()))
    assert answer["isError"] is True
    assert answer["_meta"] == {"sidecar/denied": {"rule": "r"}}
    await gateway.request("resources/subscribe", {"uri": "f:///x"}, caller())
    assert await gateway.listen(caller(), lambda m, p: None).watch(["f:///x"]) == []
    assert (server.asked, server.watched) == ([], [])
    await gateway.close()


async def test_a_result_that_the_gate_refuses_does_not_get_out(bus: Bus) -> None:
    keeper = Keeper()
    keeper.refuse_result = refusal()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", FULL)
    server.answers["tools/call"] = result("SECRET")
    gateway.attach(server, config("s"))
    answer = await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert b"SECRET" not in encode(answer)
    assert "sidecar/denied" in plain(answer)["_meta"]  # type: ignore[operator]
    await gateway.close()


async def test_c7_a_result_is_what_the_server_sent_but_for_our_keys(
    gateway: Gateway, serve: Serve
) -> None:
    sent = (
        b'{"content":[{"type":"text","text":"t","annotations":{"priority":0.10},"_meta":{"x":1}},'
        b'{"type":"resource_link","uri":"u:x","name":"n"}],"structuredContent":{"beyond":'
        b'123456789012345678901234567890,"null":null},"unknownKey":{"a":[1.0,-0.0,1E5]},'
        b'"isError":false,"_meta":{"ifc":{"confidential":true},"vendor/x":1.10,"n":'
        b'98765432109876543210,"sidecar/call":"forged","sidecar/approved":true}}'
    )
    serve("s", FULL).answers["tools/call"] = fields(sent)
    answer = await gateway.request("tools/call", {"name": "s__echo"}, caller())
    call = answer["_meta"]["sidecar/call"]  # type: ignore[index]
    right = sent.replace(
        b'"sidecar/call":"forged","sidecar/approved":true', f'"sidecar/call":"{call}"'.encode()
    )
    assert UUID.fullmatch(call)
    assert encode(answer) == right


@pytest.mark.parametrize("meta", ["null", "[]", '"text"', "1", "{}"])
async def test_a_meta_of_any_shape_ends_up_as_an_object(
    gateway: Gateway, serve: Serve, meta: str
) -> None:
    serve("s", FULL).answers["tools/call"] = fields(f'{{"content":[],"_meta":{meta}}}'.encode())
    answer = await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert plain(answer) == {"content": [], "_meta": {}}


async def test_the_gate_sees_a_result_without_foreign_keys_of_ours(bus: Bus) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", FULL)
    server.answers["tools/call"] = result(_meta={"ifc": {"x": 1}, "sidecar/labels": ["inside"]})
    gateway.attach(server, config("s"))
    await gateway.request("tools/call", {"name": "s__echo"}, caller())
    ((seen),) = keeper.seen
    assert json.loads(encode(seen["_meta"])) == {"ifc": {"x": 1}}
    await gateway.close()


async def test_c9_a_servers_error_passes_unchanged(gateway: Gateway, serve: Serve) -> None:
    data = msgspec.Raw(b'{"why":1.10}')
    serve("s", FULL).answers["tools/call"] = RpcError(-32050, "no", data)
    with pytest.raises(RpcError) as failure:
        await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert (failure.value.code, failure.value.message) == (-32050, "no")
    assert failure.value.data is data
    assert errors.of(failure.value) is failure.value


async def test_a_tools_own_error_is_a_result(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", FULL)
    server.answers["tools/call"] = result("broken", isError=True)
    answer = plain(await gateway.request("tools/call", {"name": "s__echo"}, caller()))
    assert answer["isError"] is True
    assert len(server.asked) == 1


async def test_calls_of_one_session_run_side_by_side(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", FULL)
    together = asyncio.Barrier(8)

    async def answer(method: str, params: JsonObject, caller: Caller) -> Fields:
        await together.wait()
        return result()

    server.answer = answer
    calls = (gateway.request("tools/call", {"name": "s__echo"}, caller()) for _ in range(8))
    async with asyncio.timeout(30):
        await asyncio.gather(*calls)


async def test_cancelling_a_call_cancels_it_at_the_server(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", FULL)
    began, ended = asyncio.Event(), asyncio.Event()

    async def answer(method: str, params: JsonObject, caller: Caller) -> Fields:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()
        return result()

    server.answer = answer
    call = asyncio.create_task(gateway.request("tools/call", {"name": "s__echo"}, caller()))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended.is_set()
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("tools/call", {}, "params.name"),
        ("tools/call", {"name": ["SECRET"]}, "params.name"),
        ("tools/call", {"name": "s__echo", "arguments": ["SECRET"]}, "params.arguments"),
        ("tools/call", {"name": "s__echo", "arguments": "SECRET"}, "params.arguments"),
        ("prompts/get", {"name": 1}, "params.name"),
        ("prompts/get", {"name": "s__greet", "arguments": 1}, "params.arguments"),
        ("resources/read", {"uri": None}, "params.uri"),
        ("resources/subscribe", {}, "params.uri"),
        ("resources/unsubscribe", {}, "params.uri"),
        ("completion/complete", {}, "params.ref"),
        ("completion/complete", {"ref": {"type": "SECRET"}}, "params.ref.type"),
        ("completion/complete", {"ref": {"type": "ref/prompt"}}, "params.ref.name"),
        ("completion/complete", {"ref": {"type": "ref/resource"}}, "params.ref.uri"),
        ("logging/setLevel", {"level": "loud"}, "params.level"),
        ("logging/setLevel", {"level": ["SECRET"]}, "params.level"),
        ("tools/list", {"cursor": 1}, "params.cursor"),
        ("prompts/list", {"cursor": "nonsense"}, "list again without one"),
    ],
)
async def test_params_of_the_wrong_shape_are_refused_and_not_echoed(
    gateway: Gateway, serve: Serve, method: str, params: JsonObject, says: str
) -> None:
    server = serve("s", FULL)
    with pytest.raises(RpcError) as failure:
        await gateway.request(method, params, caller())
    assert failure.value.code == -32602
    assert says in failure.value.message
    assert "SECRET" not in failure.value.message
    assert server.asked == []


@pytest.mark.parametrize("method", ["tools/nonsense", "initialize", "", "server/discover"])
async def test_methods_that_are_not_asked_here(gateway: Gateway, method: str) -> None:
    with pytest.raises(RpcError) as failure:
        await gateway.request(method, {}, caller())
    assert failure.value.code == -32601


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/subscribe", {"uri": "f:///x"}),
        ("resources/unsubscribe", {"uri": "f:///x"}),
        ("logging/setLevel", {"level": "info"}),
    ],
)
async def test_what_lasts_needs_a_session(
    gateway: Gateway, serve: Serve, method: str, params: JsonObject
) -> None:
    server = serve("s", FULL)
    with pytest.raises(RpcError) as failure:
        await gateway.request(method, params, caller(session=""))
    assert failure.value.code == -32601
    assert (server.watched, server.levels) == ([], [])


async def test_null_arguments_pass_as_they_came(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", FULL)
    await gateway.request("tools/call", {"name": "s__echo", "arguments": None}, caller())
    assert server.asked[0][1] == {"name": "echo", "arguments": None}


async def test_a_principal_calls_only_what_it_sees(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", FULL)
    serve("other", FULL)
    who = caller("other")
    requests: list[tuple[str, JsonObject]] = [
        ("tools/call", {"name": "s__echo"}),
        ("prompts/get", {"name": "s__greet"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "s__greet"}}),
    ]
    for method, params in requests:
        with pytest.raises(Unroutable) as failure:
            await gateway.request(method, params, who)
        assert failure.value.reason == "unknown_server"
    for method in ("tools/call", "prompts/get", "resources/read", "tools/list", "resources/list"):
        with pytest.raises(Unroutable) as failure:
            await gateway.request(
                method, {"name": "echo", "uri": "f:///x"}, caller("other", server="s")
            )
        assert failure.value.reason == "unknown_server"
    # A URI that both have is, to this caller, the visible server's.
    await gateway.request("resources/read", {"uri": "f:///x"}, who)
    assert server.asked == []
    assert not gateway.sees("s", who)
    assert gateway.sees("other", who)
    assert not gateway.sees("nobody", who)


@pytest.fixture
async def finished(bus: Bus) -> AsyncIterator[list[CallFinished]]:
    events: list[CallFinished] = []
    stop = bus.listen(CallFinished, events.append)
    yield events
    stop()


async def test_each_call_ends_in_one_event(
    gateway: Gateway, serve: Serve, finished: list[CallFinished]
) -> None:
    server = serve("s", FULL)
    gone = Unavailable("s", "gone", ran="maybe")
    server.answers["tools/call"] = [
        result(),
        result(isError=True),
        RpcError(-1, "x"),
        gone,
        Unavailable("s", "refused", ran="no"),
        result(),
    ]
    for outcome in ("ok", "tool_error", "rpc_error", "unavailable", "ok"):
        request = gateway.request("tools/call", {"name": "s__echo"}, caller(name="me"))
        if outcome in ("rpc_error", "unavailable"):
            with pytest.raises((RpcError, Unavailable)):
                await request
        else:
            await request
        assert finished[-1].outcome == outcome
    assert [e.attempts for e in finished] == [1, 1, 1, 1, 2]
    last = finished[-1]
    assert (last.method, last.server, last.target) == ("tools/call", "s", "s__echo")
    assert (last.principal, last.session) == ("me", "s1")
    assert UUID.fullmatch(last.call)
    assert 0 < last.seconds < 5


async def test_a_call_of_a_tool_that_was_redefined_while_it_waited_is_decided_anew(
    bus: Bus,
) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", offers(["echo"]))
    gateway.attach(server, config("s"))
    changed = offers([tool("echo", description="now it deletes")])
    keeper.before = lambda: server.lists(changed)
    await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert len(keeper.calls) == 2
    (first, _), (second, _) = keeper.calls
    assert first is second
    assert second.tool is gateway.tools()[0]
    assert len(server.asked) == 1
    # Another order of keys is the same definition.
    turned = json.dumps(dict(reversed(json.loads(changed.tools[0].json).items()))).encode()
    again = offers([type(changed.tools[0])("echo", turned)])
    keeper.before = lambda: server.lists(again)
    await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert len(keeper.calls) == 3
    await gateway.close()


async def test_a_tool_that_never_stays_the_same_is_not_called(bus: Bus) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", offers(["echo"]))
    gateway.attach(server, config("s"))
    keeper.before = lambda: server.lists(offers([tool("echo", n=len(keeper.calls))]))
    with pytest.raises(Unavailable) as failure:
        await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert failure.value.ran == "no"
    assert server.asked == []
    assert len(keeper.calls) == 3
    await gateway.close()


@pytest.mark.parametrize("gone", ["tool", "server"])
async def test_a_call_whose_tool_or_server_went_while_it_waited_is_unavailable(
    bus: Bus, gone: str
) -> None:
    keeper = Keeper()
    gateway = Gateway(CONFIG, bus, gate=keeper)
    server = Scripted("s", offers(["echo", "other"]))
    gateway.attach(server, config("s"))
    if gone == "tool":
        keeper.before = lambda: server.lists(offers(["other"]))
    else:
        keeper.before = lambda: gateway.detach("s") and None
    with pytest.raises(Unavailable) as failure:
        await gateway.request("tools/call", {"name": "s__echo"}, caller())
    assert (failure.value.server, failure.value.ran) == ("s", "no")
    assert server.asked == []
    await gateway.close()
