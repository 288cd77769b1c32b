"""C7, C9, C19: results and errors arrive as they were sent, or are refused whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour, serving
from tests.cases.awkward.stdio import Child
from tests.cases.behind import Stage, behind, stage
from tests.kit import processes
from tests.kit.client import META, Legacy, Modern, RpcFailed

MIB = 1 << 20


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    """Two well-behaved servers that answer each in another way."""
    behaviours = {"json": Behaviour(name="json"), "sse": Behaviour(name="sse", answers="sse")}
    with stage(behaviours) as made:
        yield made


@pytest.fixture
async def client(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], scene: Stage
) -> Legacy | Modern:
    """A client in each era."""
    scene.clear()
    opened = client_of(http, scene.sidecar.mcp)
    await opened.open()
    return opened


def spelled(text: str) -> Any:
    """JSON with the order of keys and the spelling of numbers."""
    return json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)


def without_ours(result: list[list[Any]]) -> list[list[Any]]:
    """A result less what the gateway and the era add to it."""
    kept = []
    for key, value in result:
        if key == "resultType":
            continue
        if key == "_meta":
            value = [p for p in value if not p[0].startswith(("sidecar/", META))]  # noqa: PLW2901
            if not value:
                continue
        kept.append([key, value])
    return kept


# ------------------------------------------------------------------------ C7 results as they are

RESULTS = {
    "everything": """{
        "content": [
            {"type": "text", "text": "é\\u2028\\ud83e\\udd8a \\"x\\"",
             "annotations": {"audience": ["user"], "priority": 0.5}, "_meta": {"a/b": null}},
            {"type": "resource_link", "uri": "file:///x", "name": "x", "mimeType": "text/plain"},
            {"type": "resource", "resource": {"uri": "u:x", "blob": "AAAA"}},
            {"type": "from-the-future", "unknown": [1, 2, {"three": null}]}
        ],
        "structuredContent": {"outside": "the schema", "n": null, "i": 12345678901234567890123},
        "isError": false,
        "_meta": {"ifc": {"integrity": "untrusted", "confidentiality": ["alice"]}, "v.e/x": 1},
        "unknownTopLevel": {"kept": true}
    }""",
    "numbers": """{"content": [], "structuredContent": {
        "a": 1.10, "b": 1E5, "c": -0, "d": 0.1e-7, "e": 9007199254740993, "f": 1e400, "g": 1.0}}""",
    "no content": '{"structuredContent": [1, "not an object"]}',
    "null structured": '{"content": [], "structuredContent": null}',
    "empty": "{}",
    "odd content": '{"content": "not a list", "isError": null}',
    "only meta": '{"content": [], "_meta": {"ifc": {"integrity": "trusted"}}}',
}


@pytest.mark.parametrize("way", ["json", "sse"])
@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_arrives_as_it_was_sent(
    client: Legacy | Modern, name: str, way: str
) -> None:
    raw = " ".join(('{"jsonrpc": "2.0", "id": $id, "result": ' + RESULTS[name] + "}").split())
    params = {"name": f"{way}__garble", "arguments": {"raw": raw}}
    answer = await client.exchange("tools/call", params)
    got = dict(spelled(answer.body.decode()))["result"]
    sent = dict(spelled(raw.replace("$id", "1")))["result"]
    assert without_ours(got) == without_ours(sent)
    assert answer.result["_meta"]["sidecar/call"]


async def test_the_ids_of_clients_come_back(
    http: aiohttp.ClientSession, client_of: type[Legacy] | type[Modern], scene: Stage
) -> None:
    """Whatever the id is, two clients with the same one do not get each other's answers."""
    clients = [client_of(http, scene.sidecar.mcp) for _ in range(2)]
    for client in clients:
        await client.open()
    for request_id in (0, -1, 2**53 + 1, "a", "", "1", "ü\u2028"):
        answers = await asyncio.gather(
            *(
                client.exchange(
                    "tools/call",
                    {"name": "json__echo", "arguments": {"message": str(number)}},
                    request_id=request_id,
                )
                for number, client in enumerate(clients)
            )
        )
        for number, answer in enumerate(answers):
            assert answer.last["id"] == request_id
            assert answer.result["content"][0]["text"] == str(number)


async def test_half_a_character_costs_no_result(http: aiohttp.ClientSession) -> None:
    """A server that cuts its text by UTF-16 units is understood in all else."""
    cut = {"content": [{"type": "text", "text": "cut \ud83d"}], "kept": 1.5}
    with stage({"up": Behaviour(result=cut)}) as scene:
        for kind in (Legacy, Modern):
            client = kind(http, scene.sidecar.mcp)
            await client.open()
            result = await client.call("up__fidelity")
            assert result["content"] == [{"type": "text", "text": "cut \ufffd"}]
            assert result["kept"] == 1.5


ARGUMENTS = [
    {"big": 12345678901234567890123, "half": 0.5, "null": None, "text": "é\u2028\x00"},
    {"nested": [[[{"a": [None, True, {}]}]]]},
    {"": "empty key", "_meta": "not ours", "name": "not the tool", "sidecar/x": 1},
    {},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
async def test_arguments_arrive_as_they_were_sent(
    client: Legacy | Modern, arguments: dict[str, Any]
) -> None:
    result = await client.call("json__arguments", **arguments)
    assert result["structuredContent"]["arguments"] == arguments


async def test_vendor_meta_goes_up_and_ours_does_not(client: Legacy | Modern) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    meta = {"vendor.example/k": {"v": [1]}, "sidecar/labels": ["none"], "traceparent": trace}
    params = {"name": "json__meta", "arguments": {}, "_meta": meta}
    seen = (await client.request("tools/call", params))["structuredContent"]["meta"]
    assert seen["vendor.example/k"] == {"v": [1]}
    assert "sidecar/labels" not in seen
    assert seen["traceparent"].split("-")[1] == trace.split("-")[1]


# --------------------------------------------------------------------------- C9 errors as they are


@pytest.mark.parametrize("way", ["json", "sse"])
@pytest.mark.parametrize(
    "error",
    [
        {"code": -32050, "message": "no such luck", "data": {"why": "because"}},
        {"code": 7, "message": "", "data": None},
        {"code": -32000, "message": "é", "data": [1, {"big": 12345678901234567890123}]},
        {"code": -32603, "message": "internal"},
        {"code": -32602, "message": "bad arguments", "data": "text"},
        {"code": -32042, "message": "go there", "data": {"elicitations": []}},
    ],
)
async def test_an_error_arrives_as_it_was_sent(
    client: Legacy | Modern, scene: Stage, way: str, error: dict[str, Any]
) -> None:
    params = {"name": f"{way}__fail_rpc", "arguments": {"error": error}}
    answer = await client.exchange("tools/call", params, request_id="mine")
    assert answer.last["id"] == "mine"
    assert "result" not in answer.last
    # A null `data` says the same as none.
    expected = {key: value for key, value in error.items() if value is not None}
    assert {k: v for k, v in answer.error.items() if v is not None} == expected
    assert len(scene[way].calls("fail_rpc")) == 1


async def test_a_tools_own_error_is_a_result(client: Legacy | Modern) -> None:
    result = await client.call("json__fail")
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "it failed"}]


GARBAGE = [
    "<html>no</html>",
    "",
    "[]",
    "null",
    '{"jsonrpc": "2.0"}',
    '{"jsonrpc": "2.0", "id": $id}',
    '{"jsonrpc": "2.0", "id": "other", "result": {}}',
    '{"jsonrpc": "2.0", "id": $id, "result": "text"}',
    '{"jsonrpc": "2.0", "id": $id, "error": "text"}',
    '{"jsonrpc": "2.0", "id": $id, "result": {',
    '{"jsonrpc": "2.0", "id": $id, "result": ' + '{"a":' * 2000 + "1" + "}" * 2000 + "}",
]


@pytest.mark.parametrize("way", ["json", "sse"])
async def test_garbage_costs_its_own_call_only(client: Legacy | Modern, way: str) -> None:
    """Over HTTP each bad answer is one failed call, at once, and the leg goes on."""

    async def failing(raw: str) -> None:
        with pytest.raises(RpcFailed) as failed:
            await client.call(f"{way}__garble", raw=raw)
        assert failed.value.code == -32603

    await asyncio.wait_for(asyncio.gather(*(failing(raw) for raw in GARBAGE)), 30)
    assert await client.text(f"{way}__echo", message="still here") == "still here"


# ----------------------------------------------------------------------------- C19 large results


@pytest.mark.parametrize("way", ["json", "sse", "stdio"])
async def test_large_results_pass_or_are_refused_and_nobody_else_suffers(
    http: aiohttp.ClientSession, tmp_path: Path, way: str
) -> None:
    child = Child(Behaviour(name="big"), tmp_path / "record")
    async with (
        serving(Behaviour(name="big", answers="sse" if way == "sse" else "json")) as upstream,
        serving(Behaviour(name="small")) as small,
        behind({"big": child if way == "stdio" else upstream, "small": small}) as sidecar,
    ):
        client, other = Legacy(http, sidecar.mcp), Modern(http, sidecar.mcp)
        await client.open()
        await client.until_listed("big__big", "small__echo")
        for mib in (3, 12):
            assert len(await client.text("big__big", mib=mib)) == mib * MIB
        before = processes.memory([sidecar.worker])
        refused = asyncio.create_task(client.call("big__big", mib=50))
        while not refused.done():
            assert await other.text("small__echo", message="on") == "on"
        with pytest.raises(RpcFailed) as failed:
            await refused
        error = failed.value.error
        assert error["code"] == -32603
        assert "limits." in error["message"] and "16" in error["message"]
        # The same leg goes on, and the memory came back.
        assert await client.text("big__echo", message="on") == "on"
        growth = processes.memory([sidecar.worker]) - before
        assert growth <= 3 * 16 * MIB, f"{growth / MIB:.0f} MiB"


async def test_a_limit_can_be_raised_and_lowered(http: aiohttp.ClientSession) -> None:
    limits = {"result": "1MiB", "event": "1MiB"}
    async with (
        serving(Behaviour(name="up")) as upstream,
        behind({"up": upstream}, limits=limits) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        assert len(await client.text("up__big", mib=0.9)) == int(0.9 * MIB)
        with pytest.raises(RpcFailed) as failed:
            await client.call("up__big", mib=1.1)
        assert "limits.result" in failed.value.error["message"]


async def test_a_body_over_the_limit_is_refused(client: Legacy | Modern, scene: Stage) -> None:
    params = {"name": "json__echo", "arguments": {"message": "x" * (5 * MIB)}}
    assert (await client.exchange("tools/call", params)).status == 413
    assert scene["json"].of("tools/call") == []
    assert await client.text("json__echo", message="on") == "on"
