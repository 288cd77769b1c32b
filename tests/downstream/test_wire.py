"""Everything that must not get through: one table a kind, sent as raw bytes where it matters."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from sidecar.config.types import Limits
from sidecar.downstream import Authenticator
from sidecar.model import Principal
from tests.downstream.kit import (
    BOTH,
    JSON_HEADERS,
    MODERN,
    call,
    initialize,
    modern,
    request,
    routing,
    running,
)

PING = json.dumps(request("ping")).encode()


def http(
    head: str = "POST /mcp HTTP/1.1",
    *,
    host: str | None = "Host: 127.0.0.1",
    headers: tuple[str, ...] = ("Content-Type: application/json",),
    body: bytes | None = PING,
) -> bytes:
    lines = [head, *([host] if host is not None else []), *headers, "Connection: close"]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + (body or b"")


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
    assert found, answer[:200]
    return int(found[1])


# A body that is fine but for the missing session: whoever gets as far as that gets 400.
FINE = 400


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("Host: 127.0.0.1", FINE),
        ("Host: localhost:1", FINE),
        ("host: LOCALHOST.", FINE),
        ("Host: [::1]:9", FINE),
        ("Host: evil.example", 421),
        ("Host: evil.example:8808", 421),
        ("Host: 127.0.0.1.nip.io", 421),
        ("Host: localhost.evil.example", 421),
        ("Host: [::ffff:127.0.0.1]", 421),
        ("Host: 0.0.0.0", 421),
        ("Host: ", 400),
        ("Host: localhost@evil.example", 400),
        ("Host: localhost, evil.example", 400),
        ("Host: localhost\r\nHost: localhost", 400),
        ("Host: localhost\r\nHost: evil.example", 400),
        ("Host: evil.example\r\nHost: localhost", 400),
        ("Host: localhost\r\nhost: evil.example", 400),
        (None, 400),
    ],
)
async def test_host(host: str | None, expected: int) -> None:
    async with running() as rig:
        assert status(await rig.raw(http(host=host))) == expected
        assert rig.gateway.seen == []


async def test_without_a_host_http_1_0_is_refused_too() -> None:
    async with running() as rig:
        assert status(await rig.raw(http("POST /mcp HTTP/1.0", host=None))) == 400


@pytest.mark.parametrize(
    "target", ["http://localhost/mcp", "http://evil.example/mcp", "*", "mcp", "//evil.example/mcp"]
)
async def test_the_target_is_a_path(target: str) -> None:
    async with running() as rig:
        answer = await rig.raw(http(f"POST {target} HTTP/1.1"))
        assert status(answer) in (400, 404)
        assert rig.gateway.seen == []


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:3000", FINE),
        ("http://127.0.0.1", FINE),
        ("http://evil.example", 403),
        ("https://localhost.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://localhost\r\nOrigin: http://evil.example", 403),
        ("http://localhost/", 403),
    ],
)
async def test_origin(origin: str, expected: int) -> None:
    async with running() as rig:
        headers = ("Content-Type: application/json", f"Origin: {origin}")
        answer = await rig.raw(http(headers=headers))
        assert status(answer) == expected
        assert b"access-control" not in answer.lower()


@pytest.mark.parametrize("path", ["/mcp", "/mcp/one", "/v1/call", "/v1/tools", "/nope"])
async def test_every_path_has_the_same_checks(path: str) -> None:
    auth = Authenticator([("token", Principal("alice"))])
    async with running(auth=auth) as rig:
        for method in ("POST", "GET", "DELETE", "OPTIONS", "HEAD"):
            head = f"{method} {path} HTTP/1.1"
            body = PING if method == "POST" else None
            foreign = await rig.raw(http(head, host="Host: evil.example", body=body))
            assert status(foreign) == 421
            page = await rig.raw(http(head, headers=("Origin: http://evil.example",), body=body))
            assert status(page) == 403
            answer = await rig.raw(http(head, body=body))
            assert status(answer) in (401, 404, 405)
            assert rig.gateway.seen == []


@pytest.mark.parametrize(
    ("head", "expected", "allow"),
    [
        ("PUT /mcp HTTP/1.1", 405, "POST, GET, DELETE"),
        ("OPTIONS /mcp HTTP/1.1", 405, "POST, GET, DELETE"),
        ("PATCH /mcp/one HTTP/1.1", 405, "POST, GET, DELETE"),
        ("POST /v1/tools HTTP/1.1", 405, "GET"),
        ("GET /v1/call HTTP/1.1", 405, "POST"),
        ("GET / HTTP/1.1", 404, None),
        ("GET /mcp/ HTTP/1.1", 404, None),
        ("GET /mcp/a/b HTTP/1.1", 404, None),
        ("GET /v1/ HTTP/1.1", 404, None),
        ("GET /v1/tools/ HTTP/1.1", 404, None),
        ("GET /MCP HTTP/1.1", 404, None),
        ("GET /mcp%2fone HTTP/1.1", 404, None),
        ("GET /../mcp HTTP/1.1", 404, None),
        ("GET /v1/sessions HTTP/1.1", 404, None),
    ],
)
async def test_paths_and_methods(head: str, expected: int, allow: str | None) -> None:
    async with running() as rig:
        answer = await rig.raw(http(head, body=None))
        assert status(answer) == expected
        found = re.search(rb"\r\nAllow: ([^\r]*)", answer)
        assert (found[1].decode() if found else None) == allow


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_the_stateless_era_has_post_alone(method: str) -> None:
    async with running() as rig:
        answer = await rig.raw(
            http(f"{method} /mcp HTTP/1.1", headers=(f"MCP-Protocol-Version: {MODERN}",), body=None)
        )
        assert status(answer) == 405
        assert b"\r\nAllow: POST\r\n" in answer


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("Content-Type: application/json", FINE),
        ("Content-Type: Application/JSON", FINE),
        ("Content-Type: application/json; charset=utf-8", FINE),
        ('content-type: application/json;charset="UTF-8"', FINE),
        ("Content-Type: application/json; charset=utf-16", 415),
        ("Content-Type: text/plain", 415),
        ("Content-Type: application/jsonp", 415),
        ("Content-Type: application/json-rpc", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("Content-Type: multipart/form-data; boundary=application/json", 415),
        ("Content-Type: text/plain; application/json", 415),
        ("Content-Type: application/json, text/plain", 415),
        ("Content-Type: application/json\r\nContent-Type: text/plain", 400),
        ("Content-Type:", 415),
        ("X: y", 415),
        ("Content-Type: application/json\r\nContent-Encoding: gzip", 415),
        ("Content-Type: application/json\r\nContent-Encoding: identity", FINE),
    ],
)
@pytest.mark.parametrize("path", ["/mcp", "/v1/call"])
async def test_content_type(content_type: str, expected: int, path: str) -> None:
    async with running() as rig:
        answer = await rig.raw(http(f"POST {path} HTTP/1.1", headers=(content_type,)))
        assert status(answer) == expected


async def test_a_body_over_the_limit_is_refused_before_and_while_it_comes() -> None:
    async with running(limits=Limits(body=1000)) as rig:
        fits = json.dumps(request("ping")).encode().ljust(1000)
        assert status(await rig.raw(http(body=fits))) == FINE
        declared = await rig.raw(
            http(headers=("Content-Type: application/json", "Content-Length: 1001"), body=None)
        )
        assert status(declared) == 413
        assert b"limits.body, 1000 bytes" in declared
        chunked = http(
            headers=("Content-Type: application/json", "Transfer-Encoding: chunked"), body=None
        )
        grows = await rig.raw(chunked + b"3f0\r\n" + b" " * 0x3F0 + b"\r\n64\r\n" + b" " * 100)
        assert status(grows) == 413


async def test_a_body_that_comes_in_pieces_is_one_body() -> None:
    async with running() as rig:
        data = http()
        reader, writer = await asyncio.open_connection(rig.host, rig.port)
        for start in range(0, len(data), 40):
            writer.write(data[start : start + 40])
            await writer.drain()
            await asyncio.sleep(0.002)
        assert status(await asyncio.wait_for(reader.read(), 30)) == FINE
        writer.close()


async def test_a_client_that_waits_for_100_continue_gets_it() -> None:
    async with running() as rig:
        headers = ("Content-Type: application/json", "Expect: 100-continue")
        data = http(headers=headers)
        reader, writer = await asyncio.open_connection(rig.host, rig.port)
        writer.write(data[: -len(PING)])
        assert await asyncio.wait_for(reader.readline(), 30) == b"HTTP/1.1 100 Continue\r\n"
        await reader.readline()
        writer.write(PING)
        assert status(await asyncio.wait_for(reader.read(), 30)) == FINE
        writer.close()
        too_much = await rig.raw(
            http(headers=(*headers, "Content-Length: 99999999"), body=None), timeout=5
        )
        assert status(too_much) == 413
        other = await rig.raw(
            http(headers=("Content-Type: application/json", "Expect: tea"), body=None).replace(
                b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n"
            )
        )
        assert status(other) == 417


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01secret",
        b"GET /mcp?secret HTTP/9.9\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nsecret\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: secret\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: " + b"secret" * 20_000 + b"\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nsecret\r\n",
    ],
)
async def test_what_is_not_http_is_answered_without_repeating_it(data: bytes) -> None:
    async with running() as rig:
        answer = await rig.raw(data)
        assert status(answer) == 400
        assert b"secret" not in answer
        assert b"Traceback" not in answer
        assert rig.gateway.seen == []


# ---------------------------------------------------------------------------- message bodies

_DEEP = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":' + b"[" * 300 + b"]" * 300 + b"}}"
_TWICE = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    b'"params":{"name":"echo","name":"whoami","arguments":{}}}'
)
_TWICE_ESCAPED = (
    rb'{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    rb'"params":{"name":"echo","n\u0061me":"whoami","arguments":{}}}'
)
_TWICE_INSIDE = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    b'"params":{"name":"echo","arguments":{"deep":[{"a":1,"a":2}]}}}'
)
_CASE = (
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call",'
    b'"params":{"name":"echo","Name":"whoami","arguments":{}}}'
)

BAD_BODIES: list[tuple[str, bytes, int, int, Any]] = [
    ("empty", b"", 400, -32700, None),
    ("not JSON", b"{", 400, -32700, None),
    ("two documents", b"{}{}", 400, -32700, None),
    ("NaN", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":NaN}}', 400, -32700, None),
    (
        "infinite",
        b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1e999}}',
        400,
        -32700,
        None,
    ),
    ("half a pair", rb'{"jsonrpc":"2.0","id":1,"method":"\ud800"}', 400, -32700, None),
    ("not UTF-8", b'{"jsonrpc":"2.0","id":1,"method":"\xff"}', 400, -32700, None),
    ("a BOM", b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}', 400, -32700, None),
    ("300 deep", _DEEP, 400, -32700, None),
    ("100,000 deep", b"[" * 100_000, 400, -32700, None),
    ("a key twice", _TWICE, 400, -32700, None),
    ("a key twice, escaped", _TWICE_ESCAPED, 400, -32700, None),
    ("a key twice, inside", _TWICE_INSIDE, 400, -32700, None),
    ("a key twice but for case", _CASE, 400, -32602, 1),
    ("a batch", b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', 400, -32600, None),
    ("an empty batch", b"[]", 400, -32600, None),
    ("a string", b'"ping"', 400, -32600, None),
    ("null", b"null", 400, -32600, None),
    ("no version", b'{"id":1,"method":"ping"}', 400, -32600, 1),
    ("version 1", b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400, -32600, 1),
    ("id null", b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600, None),
    ("id true", b'{"jsonrpc":"2.0","id":true,"method":"ping"}', 400, -32600, None),
    ("id 1.5", b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 400, -32600, None),
    ("id an object", b'{"jsonrpc":"2.0","id":{},"method":"ping"}', 400, -32600, None),
    ("method a number", b'{"jsonrpc":"2.0","id":1,"method":1}', 400, -32600, 1),
    ("method empty", b'{"jsonrpc":"2.0","id":1,"method":""}', 400, -32600, 1),
    ("no method", b'{"jsonrpc":"2.0","id":1}', 400, -32600, 1),
    ("params a list", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400, -32600, 1),
    ("both", b'{"jsonrpc":"2.0","id":1,"method":"ping","result":{}}', 400, -32600, 1),
]


@pytest.mark.parametrize("depth", [300, 100_000])
@pytest.mark.parametrize("path", ["/mcp", "/v1/call"])
async def test_what_is_too_deep_is_told_the_setting(path: str, depth: int) -> None:
    body = b'{"name":"echo","args":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    async with running() as rig:
        headers = await rig.initialize() if path == "/mcp" else {}
        reply = await rig.post(body, path=path, headers=headers)
        told = "the request cannot be read: the JSON is nested deeper than limits.depth, 64"
        assert (reply.status, json.loads(reply.body)["error"]["message"]) == (400, told)


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("body", "status_", "code", "id_"),
    [case[1:] for case in BAD_BODIES],
    ids=[case[0] for case in BAD_BODIES],
)
async def test_bad_bodies(era: str, body: bytes, status_: int, code: int, id_: Any) -> None:
    async with running() as rig:
        headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
        if era == "legacy":
            headers = await rig.initialize()
        reply = await rig.post(body, headers=headers)
        assert reply.status == status_
        assert reply.error["code"] == code
        assert reply.json["id"] == id_
        assert rig.gateway.seen == []


SECRETS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"x":"hush"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"x":hush}}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"e","name":"hush"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"hush"}',
    b'{"jsonrpc":"2.0","id":1,"method":"hush hush","params":{}}'.replace(b"hush ", b"hush\\n"),
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"broken","arguments":{"x":"hush"}}}',
]


@pytest.mark.parametrize("body", SECRETS)
async def test_no_refusal_repeats_what_was_sent(
    body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as rig:
        session = await rig.initialize()
        reply = await rig.post(body, headers={**session, "Authorization": "Bearer hush"})
        assert b"hush" not in reply.body
        assert b"secret" not in reply.body
        assert "hush" not in caplog.text
        assert "a secret argument value" not in caplog.text


# ------------------------------------------------------------------------- routing headers


@pytest.mark.parametrize("era", ["legacy", "modern"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Mcp-Name": "echo"},
        {"Mcp-Name": "WHOAMI"},
        {"Mcp-Name": ""},
        {"Mcp-Method": "tools/list"},
        {"Mcp-Method": "TOOLS/CALL"},
        {"Mcp-Name": "=?base64?ZWNobw==?="},
        {"Mcp-Name": "=?base64?d2hvYW1p"},
    ],
)
async def test_headers_that_differ_from_the_body(era: str, headers: dict[str, str]) -> None:
    async with running() as rig:
        message = modern("tools/call", {"name": "whoami", "arguments": {}}, 7)
        if era == "legacy":
            message = call("whoami", 7)
            given = await rig.initialize()
        else:
            given = routing(message)
        reply = await rig.post(message, headers={**given, **headers})
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32020, 7)
        assert rig.gateway.seen == []


@pytest.mark.parametrize("name", ["Mcp-Name", "Mcp-Method", "MCP-Protocol-Version"])
async def test_a_routing_header_that_comes_twice(name: str) -> None:
    async with running() as rig:
        message = modern("tools/call", {"name": "echo", "arguments": {}}, 7)
        headers = [*{**JSON_HEADERS, **routing(message)}.items()]
        headers.append((name, dict(headers)[name]))
        async with rig.http.post(f"{rig.url}/mcp", json=message, headers=headers) as answer:
            assert answer.status == 400
            assert (await answer.json())["error"]["code"] == -32020
        assert rig.gateway.seen == []


async def test_headers_that_equal_the_body_pass_however_they_are_written() -> None:
    async with running() as rig:
        session = await rig.initialize()
        for name in ("echo", "=?base64?ZWNobw==?="):
            headers = {**session, "Mcp-Name": name, "Mcp-Method": "tools/call"}
            assert (await rig.post(call("echo"), headers=headers)).status == 200
        reply = await rig.modern("tools/call", {"name": "echo"}, headers={"Mcp-Name": "  echo "})
        assert reply.status == 200


@pytest.mark.parametrize("missing", ["Mcp-Name", "Mcp-Method"])
async def test_the_stateless_era_needs_its_routing_headers(missing: str) -> None:
    async with running() as rig:
        message = modern("tools/call", {"name": "echo"})
        headers = {key: value for key, value in routing(message).items() if key != missing}
        reply = await rig.post(message, headers=headers)
        assert (reply.status, reply.error["code"]) == (400, -32020)


@pytest.mark.parametrize(
    ("header", "body", "code"),
    [
        ("1900-01-01", "1900-01-01", -32022),
        ("2099-01-01", "2099-01-01", -32022),
        ("nonsense", "nonsense", -32022),
        ("", MODERN, -32020),
        (MODERN, "2025-11-25", -32020),
        ("2099-01-01", MODERN, -32020),
    ],
)
async def test_versions_that_we_do_not_speak(header: str, body: str, code: int) -> None:
    async with running() as rig:
        message = modern("tools/list", {"_meta": {"io.modelcontextprotocol/protocolVersion": body}})
        headers = {**routing(message), "MCP-Protocol-Version": header}
        reply = await rig.post(message, headers=headers)
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, code, 1)
        if code == -32022:
            assert reply.error["data"] == {"supported": [MODERN], "requested": body}


@pytest.mark.parametrize(
    "meta",
    [
        None,
        {},
        {"io.modelcontextprotocol/protocolVersion": MODERN},
        {"io.modelcontextprotocol/clientCapabilities": {}},
        {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": [],
        },
    ],
)
async def test_the_stateless_era_needs_its_envelope(meta: Any) -> None:
    async with running() as rig:
        params = {} if meta is None else {"_meta": meta}
        message = request("tools/list", params)
        reply = await rig.post(
            message, headers={"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
        )
        assert (reply.status, reply.error["code"], reply.json["id"]) == (400, -32602, 1)


@pytest.mark.parametrize(
    ("accept", "modern_status", "legacy_status"),
    [
        (BOTH, 200, 200),
        ("*/*", 200, 200),
        ("application/*, text/*", 200, 200),
        ("application/json; q=0.5, text/event-stream; q=0.1", 200, 200),
        ("application/json", 406, 200),
        ("text/event-stream", 406, 200),
        ("application/json, text/event-stream;q=0", 406, 200),
        ("text/html", 406, 406),
        ("application/json;q=0", 406, 406),
        ("", 406, 406),
    ],
)
async def test_accept(accept: str, modern_status: int, legacy_status: int) -> None:
    async with running() as rig:
        message = modern("tools/list")
        headers = {**routing(message), "Accept": accept}
        assert (await rig.post(message, headers=headers)).status == modern_status
        reply = await rig.post(initialize(), headers={"Accept": accept})
        assert reply.status == legacy_status


async def test_what_was_left_out_of_the_stateless_era_is_not_found() -> None:
    async with running() as rig:
        for method in ("initialize", "ping", "logging/setLevel", "resources/subscribe", "x/y"):
            reply = await rig.modern(method)
            assert (reply.status, reply.error["code"]) == (404, -32601), method
        assert rig.gateway.seen == []


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as rig:
        first = http("GET /v1/tools HTTP/1.1", body=None).replace(b"Connection: close\r\n", b"")
        answer = await rig.raw(first * 3 + http())
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"200", b"200", b"400"]


async def test_the_answer_does_not_tell_what_it_was_made_with() -> None:
    async with running() as rig:
        reply = await rig.modern("server/discover")
        assert not {"Server", "X-Powered-By"} & reply.headers.keys()
