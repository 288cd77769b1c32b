"""C25: what the specification says to refuse is refused as it says, and reaches no server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.cases.awkward import Behaviour
from tests.cases.behind import Stage, stage
from tests.kit.client import META, MODERN, Answer, Client, Legacy, Modern

CALL = {"name": "up__echo", "arguments": {"message": "x"}}


def call_body(client: Client, **more: Any) -> dict[str, Any]:
    """A well-formed call, but for what ``more`` replaces."""
    return {**client.body("tools/call", CALL), "id": 1, **more}


async def post(client: Client, body: Any, **headers: str) -> Answer:
    """Sends any bytes, or any JSON, with the headers of a call and some others."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {**client.headers_for("tools/call", CALL), **headers}
    return await client.send(data, sent)


class Gate:
    """A sidecar in front of one server, and a client in each era."""

    def __init__(self, scene: Stage, http: aiohttp.ClientSession) -> None:
        self.upstream = scene["up"]
        self.sidecar = scene.sidecar
        self.legacy = Legacy(http, self.sidecar.mcp)
        self.modern = Modern(http, self.sidecar.mcp)

    def client(self, era: str) -> Client:
        return self.legacy if era == "legacy" else self.modern

    async def nothing_reached(self) -> None:
        """No call of the bad kind went through, and a good one still does."""
        assert self.upstream.of("tools/call") == []
        for client in (self.legacy, self.modern):
            assert await client.text("up__echo", message="good") == "good"


@pytest.fixture(scope="module")
def scene() -> Iterator[Stage]:
    with stage({"up": Behaviour()}) as made:
        yield made


@pytest.fixture
async def gate(http: aiohttp.ClientSession, scene: Stage) -> Gate:
    scene.clear()
    made = Gate(scene, http)
    await made.legacy.open()
    return made


NESTED = 300
DUPLICATES = (
    '{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    '"params":{"name":"up__echo","name":"up__whoami","arguments":{}%s}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    '"params":{"name":"up__echo","arguments":{"a":1,"a":2}%s}}',
    '{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    '"params":{"name":"up__echo","arguments":{"b":[{"a":1,"\\u0061":2}]}%s}}',
    '{"jsonrpc":"2.0","id":1,"id":2,"method":"tools/call",'
    '"params":{"name":"up__echo","arguments":{}%s}}',
    '{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call",'
    '"params":{"name":"up__echo","arguments":{}%s}}',
)


async def test_bodies_that_are_no_json_are_parse_errors(gate: Gate, era: str) -> None:
    client = gate.client(era)
    meta = f',"_meta":{json.dumps(gate.modern.envelope())}' if era == "modern" else ""
    deep = json.dumps(call_body(client)).replace('"x"', '{"a":' * NESTED + "1" + "}" * NESTED)
    lists = json.dumps(call_body(client)).replace('"x"', "[" * 5000 + "]" * 5000)
    bad = [text % meta for text in DUPLICATES] + [deep, lists, "", "{", "nonsense", '{"a":1}x']
    bad += ['{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', '"\\ud800"', "\x00"]
    for text in bad:
        answer = await post(client, text.encode())
        assert (answer.status, answer.error["code"]) == (400, -32700), text[:80]
        assert "Traceback" not in answer.body.decode()
    for raw in (b"\xff\xfe{}", b'{"jsonrpc":"2.0","id":1,"method":"\xff"}'):
        answer = await post(client, raw)
        assert (answer.status, answer.error["code"]) == (400, -32700), raw
    await gate.nothing_reached()


async def test_messages_that_are_no_requests_are_invalid(gate: Gate, era: str) -> None:
    client = gate.client(era)
    batch = [call_body(client), call_body(client, id=2)]
    bad: list[Any] = [
        batch,
        [],
        "text",
        7,
        None,
        {},
        call_body(client, jsonrpc="1.0"),
        call_body(client, method=7),
        call_body(client, id=None),
        call_body(client, id={"a": 1}),
        call_body(client, id=True),
        call_body(client, id=1.5),
        call_body(client, params=[1]),
    ]
    for body in bad:
        answer = await post(client, body)
        code = answer.error["code"]
        assert answer.status == 400 and code in (-32600, -32602), (body, answer.body)
    assert (await post(client, batch)).error["code"] == -32600
    await gate.nothing_reached()


@pytest.mark.parametrize(
    "headers",
    [
        {"Mcp-Name": "up__whoami"},
        {"Mcp-Name": "UP__ECHO"},
        {"Mcp-Name": "=?base64?dXBfX3dob2FtaQ==?="},
        {"Mcp-Name": "=?base64?!!!?="},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Method": "TOOLS/CALL"},
    ],
)
async def test_headers_that_differ_from_the_body(
    gate: Gate, era: str, headers: dict[str, str]
) -> None:
    client = gate.client(era)
    answer = await post(client, call_body(client, id="mine"), **headers)
    assert (answer.status, answer.error["code"]) == (400, -32020)
    assert answer.last["id"] == "mine"
    await gate.nothing_reached()


async def test_an_encoded_name_is_the_same_name(gate: Gate) -> None:
    encoded = {"Mcp-Name": "=?base64?dXBfX2VjaG8=?="}
    answer = await post(gate.modern, call_body(gate.modern), **encoded)
    assert answer.result["content"][0]["text"] == "x"


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "https://evil.example:443", "null", "http://127.0.0.1.evil.example"],
)
async def test_foreign_origins_are_forbidden(gate: Gate, era: str, origin: str) -> None:
    client = gate.client(era)
    assert (await post(client, call_body(client), Origin=origin)).status == 403
    for method in ("GET", "DELETE"):
        headers = {**client.headers, "Origin": origin}
        async with client.http.request(method, client.url, headers=headers) as response:
            assert response.status in (403, 405)
    async with client.http.get(gate.sidecar.rest + "/tools", headers={"Origin": origin}) as r:
        assert r.status == 403
    await gate.nothing_reached()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "evil.example:8808"])
async def test_foreign_hosts_are_misdirected(gate: Gate, era: str, host: str) -> None:
    client = gate.client(era)
    assert (await post(client, call_body(client), Host=host)).status in (403, 421)
    async with client.http.get(gate.sidecar.rest + "/tools", headers={"Host": host}) as response:
        assert response.status in (403, 421)
    await gate.nothing_reached()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
async def test_loopback_names_are_welcome(gate: Gate, host: str) -> None:
    port = gate.sidecar.mcp.split(":")[2].split("/")[0]
    answer = await post(gate.modern, call_body(gate.modern), Host=f"{host}:{port}")
    assert answer.status == 200


async def test_sessions_that_do_not_exist(gate: Gate) -> None:
    """404 says to a client that it has to initialize anew; no id at all is another mistake."""
    unknown = {"Mcp-Session-Id": "0" * 32}
    assert (await post(gate.legacy, call_body(gate.legacy), **unknown)).status == 404
    without = {k: v for k, v in gate.legacy.headers.items() if k != "Mcp-Session-Id"}
    body = json.dumps(call_body(gate.legacy)).encode()
    assert (await gate.legacy.send(body, without)).status == 400
    async with gate.legacy.http.get(gate.legacy.url, headers={**without, **unknown}) as response:
        assert response.status == 404
    async with gate.legacy.http.delete(gate.legacy.url, headers={**without, **unknown}) as r:
        assert r.status == 404
    await gate.nothing_reached()


async def test_the_modern_envelope_is_demanded(gate: Gate) -> None:
    for missing in ("protocolVersion", "clientCapabilities"):
        body = call_body(gate.modern)
        del body["params"]["_meta"][META + missing]
        answer = await post(gate.modern, body)
        assert (answer.status, answer.error["code"]) == (400, -32602), missing
    body = call_body(gate.modern)
    body["params"]["_meta"][META + "protocolVersion"] = "2025-11-25"
    answer = await post(gate.modern, body)
    assert (answer.status, answer.error["code"]) == (400, -32020)
    await gate.nothing_reached()


async def test_versions_that_nobody_knows(gate: Gate) -> None:
    body = call_body(gate.modern)
    body["params"]["_meta"][META + "protocolVersion"] = "1900-01-01"
    answer = await post(gate.modern, body, **{"MCP-Protocol-Version": "1900-01-01"})
    assert (answer.status, answer.error["code"]) == (400, -32022)
    assert answer.error["data"] == {"supported": [MODERN], "requested": "1900-01-01"}
    old = Legacy(gate.legacy.http, gate.sidecar.mcp)
    assert (await old.open(version="1900-01-01"))["protocolVersion"] == "2025-11-25"
    await gate.nothing_reached()


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
async def test_every_legacy_version_is_spoken(gate: Gate, version: str) -> None:
    client = Legacy(gate.legacy.http, gate.sidecar.mcp)
    assert (await client.open(version=version))["protocolVersion"] == version
    assert await client.text("up__echo", message="x") == "x"


async def test_removed_and_unknown_methods(gate: Gate) -> None:
    for method in ("ping", "logging/setLevel", "resources/subscribe", "initialize", "no/such"):
        answer = await gate.modern.exchange(method, {"uri": "x", "level": "info"})
        assert (answer.status, answer.error["code"]) == (404, -32601), method
    for method in ("no/such", "server/discover", "subscriptions/listen", "tasks/list"):
        answer = await gate.legacy.exchange(method, {})
        assert answer.error["code"] == -32601, method
    assert (await gate.legacy.request("ping")) == {}
    await gate.nothing_reached()


async def test_other_content_types_and_verbs(gate: Gate, era: str) -> None:
    client = gate.client(era)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        answer = await post(client, call_body(client), **{"Content-Type": kind})
        assert answer.status in (400, 415), kind
    for verb in ("PUT", "PATCH"):
        async with client.http.request(verb, client.url, headers=client.headers) as response:
            assert response.status == 405
    for verb in ("GET", "DELETE"):
        modern = {"MCP-Protocol-Version": MODERN}
        async with client.http.request(verb, client.url, headers=modern) as response:
            assert response.status == 405
    await gate.nothing_reached()


async def test_paths_that_lead_nowhere(gate: Gate, era: str) -> None:
    client = gate.client(era)
    for path in ("/mcp/nobody", "/", "/mcp/up/echo", "/mcp/../v1", "/nothing"):
        base = gate.sidecar.mcp.removesuffix("/mcp")
        elsewhere = Modern(client.http, base + path)
        answer = await post(elsewhere, call_body(elsewhere))
        assert answer.status in (404, 405), path
    await gate.nothing_reached()


async def test_broken_connections_leave_nothing_behind(gate: Gate) -> None:
    """Half a request, too many headers, no HTTP at all: the next client is served."""
    host, port = gate.sidecar.mcp.split("/")[2].split(":")
    for raw in (
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ):
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(raw)
        writer.close()
    await gate.nothing_reached()
