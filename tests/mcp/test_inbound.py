"""The server's side of a message: the order of checks, beside the reference SDK's ladder."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared import inbound as reference
from multidict import CIMultiDict

from sidecar.mcp import inbound
from sidecar.mcp.errors import Rejection
from sidecar.mcp.inbound import Inbound, Reply
from sidecar.model import Client, Era
from tests.wire.test_json import VALUES

P = "io.modelcontextprotocol/"
ENVELOPE = {P + "protocolVersion": "2026-07-28", P + "clientCapabilities": {}}
HEADERS = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
}


def request(method: str = "tools/call", **more: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": 7,
        "method": method,
        "params": {"name": "echo", "arguments": {"a": 1}, "_meta": copy.deepcopy(ENVELOPE)},
        **more,
    }


def told(*more: tuple[str, str], **changes: str | None) -> CIMultiDict[str]:
    renamed = {name.replace("_", "-"): value for name, value in changes.items()}
    kept = {**{k: v for k, v in HEADERS.items() if k not in renamed}, **renamed}
    return CIMultiDict([*((k, v) for k, v in kept.items() if v is not None), *more])


def refused(body: object, headers: CIMultiDict[str] | None, era: Era = Era.MODERN) -> Rejection:
    check = inbound.modern if era is Era.MODERN else inbound.legacy
    with pytest.raises(Rejection) as caught:
        check(copy.deepcopy(body), headers)
    return caught.value


# ------------------------------------------------------------------------------- modern


def test_a_modern_request() -> None:
    body = request()
    body["params"]["_meta"] |= {
        P + "clientInfo": {"name": "a", "version": "1"},
        P + "logLevel": "info",
        "progressToken": "t",
        "vendor": {"x": 1},
    }
    found = inbound.modern(body, told())
    assert (found.id, found.method, found.era) == (7, "tools/call", Era.MODERN)
    assert found.params == {"name": "echo", "arguments": {"a": 1}, "_meta": {"vendor": {"x": 1}}}
    assert found.envelope.protocol_version == "2026-07-28"
    assert found.envelope.capabilities == {}
    assert found.envelope.client == Client("a", "1")
    assert (found.envelope.log_level, found.envelope.progress) == ("info", "t")
    assert not found.is_notification


def test_each_check_comes_before_the_next() -> None:
    """A message with every fault at once: mended one by one, each fault shows in its turn."""
    body: Any = [request()]
    headers = told(("mcp-name", "echo"), MCP_Protocol_Version="2025-99-99", Mcp_Method="x/y")

    def next_fault(code: int, why: str, id: object = 7) -> None:
        rejection = refused(body, headers)
        assert (rejection.code, rejection.id) == (code, id), rejection.message
        assert why in rejection.message

    next_fault(-32600, "batches", None)
    body = request(jsonrpc="1.0", id=True, result={})
    body["params"]["_meta"] = {P + "protocolVersion": "1900-01-01", P + "logLevel": "loud"}
    next_fault(-32600, '"jsonrpc": "2.0"', None)
    body["jsonrpc"] = "2.0"
    next_fault(-32600, "id of a message", None)
    body["id"] = 7
    next_fault(-32600, "not both")
    del body["result"]
    next_fault(-32020, "Mcp-Name came more than once")
    headers = told(MCP_Protocol_Version="2025-99-99", Mcp_Method="x/y", Mcp_Name="whoami")
    next_fault(-32602, "has no io.modelcontextprotocol/clientCapabilities")
    body["params"]["_meta"][P + "clientCapabilities"] = []
    next_fault(-32020, "MCP-Protocol-Version is not the body's")
    headers["MCP-Protocol-Version"] = "1900-01-01"
    next_fault(-32020, "Mcp-Method is not the body's")
    headers["Mcp-Method"] = "tools/call"
    next_fault(-32020, "Mcp-Name is not the body's")
    headers["Mcp-Name"] = "echo"
    next_fault(-32022, "Unsupported protocol version")
    body["params"]["_meta"][P + "protocolVersion"] = "2026-07-28"
    headers["MCP-Protocol-Version"] = "2026-07-28"
    next_fault(-32602, "clientCapabilities'] is an object")
    body["params"]["_meta"][P + "clientCapabilities"] = {}
    next_fault(-32602, "logLevel'] is one of")
    body["params"]["_meta"][P + "logLevel"] = "info"
    assert isinstance(inbound.modern(body, headers), Inbound)


@pytest.mark.parametrize(
    ("body", "code", "id"),
    [
        ([], -32600, None),
        (None, -32600, None),
        ("x", -32600, None),
        (7, -32600, None),
        ({}, -32600, None),
        ({"jsonrpc": "2.0"}, -32600, None),
        ({"jsonrpc": "2.0", "id": 1}, -32600, 1),
        ({"jsonrpc": "2.0", "id": None, "method": "x"}, -32600, None),
        ({"jsonrpc": "2.0", "id": 1.0, "method": "x"}, -32600, None),
        ({"jsonrpc": "2.0", "id": [], "method": "x"}, -32600, None),
        ({"jsonrpc": "2.0", "id": 1, "method": 7}, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": None}, -32600, 1),
        ({"jsonrpc": "2.0", "id": 1, "method": ""}, -32600, 1),
        ({"jsonrpc": "2.0", "id": "a", "method": "x", "params": []}, -32600, "a"),
        ({"jsonrpc": "2.0", "id": "a", "method": "x", "params": "y"}, -32600, "a"),
        ({"jsonrpc": "2.0", "method": "x", "params": 3}, -32600, None),
        ({"jsonrpc": "2.0", "method": "x", "result": {}}, -32600, None),
    ],
)
@pytest.mark.parametrize("era", list(Era))
def test_what_is_no_message(body: object, code: int, id: object, era: Era) -> None:
    rejection = refused(body, CIMultiDict(), era)
    assert (rejection.code, rejection.id, rejection.status) == (code, id, 400)


@pytest.mark.parametrize("body", [{"result": {}}, {"error": {"code": 1, "message": ""}}])
def test_a_modern_client_never_answers(body: dict[str, object]) -> None:
    rejection = refused({"jsonrpc": "2.0", "id": 1, **body}, told())
    assert (rejection.code, rejection.id) == (-32600, None)


@pytest.mark.parametrize("found", [None, [], "x", {}, {P + "protocolVersion": "2026-07-28"}])
def test_a_modern_request_has_its_envelope(found: object) -> None:
    body = request()
    body["params"]["_meta"] = found
    rejection = refused(body, told())
    assert (rejection.code, rejection.id, rejection.status) == (-32602, 7, 400)
    assert "clientCapabilities" in rejection.message
    del body["params"]
    assert refused(body, told()).code == -32602


def test_an_unknown_version_is_told_what_is_known() -> None:
    body = request()
    body["params"]["_meta"][P + "protocolVersion"] = "1900-01-01"
    rejection = refused(body, told(MCP_Protocol_Version="1900-01-01"))
    assert (rejection.code, rejection.id, rejection.status) == (-32022, 7, 400)
    assert rejection.data == {"supported": ["2026-07-28"], "requested": "1900-01-01"}
    # Without headers (stdio) a version that is no text has nothing to negotiate.
    body["params"]["_meta"][P + "protocolVersion"] = 20260728
    assert refused(body, None).code == -32602


def test_a_modern_notification_is_taken_and_dropped() -> None:
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    found = inbound.modern(body, CIMultiDict({"MCP-Protocol-Version": "2026-07-28"}))
    assert found.is_notification
    assert (found.id, found.params) == (None, {"requestId": 1})
    rejection = refused(body, CIMultiDict({"MCP-Protocol-Version": "1900-01-01"}))
    assert (rejection.code, rejection.id) == (-32022, None)


VERSIONS = ["2026-07-28", "1900-01-01", "2025-11-25", 7, None]


@given(
    method=st.sampled_from(["tools/call", "prompts/get", "resources/read", "tools/list", "x/y"]),
    params=st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["echo", "whoami", "ä", None, 7]),
            "uri": st.sampled_from(["echo", "file:///x"]),
            "_meta": st.one_of(
                st.sampled_from([None, [], {}]),
                st.fixed_dictionaries(
                    {},
                    optional={
                        P + "protocolVersion": st.sampled_from(VERSIONS),
                        P + "clientCapabilities": st.just({}),
                        P + "clientInfo": st.sampled_from([None, {"name": "a"}]),
                    },
                ),
            ),
        },
    ),
    sent=st.fixed_dictionaries(
        {},
        optional={
            "mcp-protocol-version": st.sampled_from(["2026-07-28", "1900-01-01"]),
            "mcp-method": st.sampled_from(["tools/call", "resources/read", "tools/list"]),
            "mcp-name": st.sampled_from(["echo", "=?base64?w6Q=?=", "=?base64?!?="]),
        },
    ),
    over_http=st.booleans(),
)
@example("tools/call", {"name": "echo", "_meta": ENVELOPE}, dict(HEADERS), True)
def test_the_reference_decides_the_same(
    method: str, params: dict[str, Any], sent: dict[str, str], over_http: bool
) -> None:
    sent = {name.lower(): value for name, value in sent.items()}
    params = copy.deepcopy(params)
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    theirs = reference.classify_inbound_request(body, headers=sent if over_http else None)
    key = reference.NAME_BEARING_METHODS.get(method)
    try:
        found = inbound.modern(body, CIMultiDict(sent) if over_http else None)
    except Rejection as rejection:
        assert rejection.id == 1
        if isinstance(theirs, reference.InboundLadderRejection):
            assert rejection.code == theirs.code
            assert rejection.data == theirs.data
        else:
            # The one thing that we add: a name in front of a body that has none.
            assert (rejection.code, key in params and params[key] is not None) == (-32020, False)
            assert key is not None
            assert "mcp-name" in sent
        return
    assert isinstance(theirs, reference.InboundModernRoute)
    assert found.envelope.protocol_version == theirs.protocol_version
    assert found.envelope.capabilities == theirs.client_capabilities


# ------------------------------------------------------------------------------- legacy


def test_a_legacy_request() -> None:
    body: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": "a",
        "method": "tools/call",
        "params": {
            "name": "echo",
            "_meta": {"progressToken": 3, "v": 1, P + "related-task": {"taskId": "t"}},
        },
    }
    found = inbound.legacy(body, CIMultiDict())
    assert isinstance(found, Inbound)
    assert (found.id, found.method, found.era) == ("a", "tools/call", Era.LEGACY)
    assert found.params == {"name": "echo", "_meta": {"v": 1}}
    assert (found.envelope.progress, found.envelope.capabilities) == (3, None)


def test_legacy_notifications_and_requests_without_params() -> None:
    found = inbound.legacy({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert isinstance(found, Inbound)
    assert found.is_notification
    assert found.params == {}
    found = inbound.legacy({"jsonrpc": "2.0", "id": 0, "method": "ping", "params": None})
    assert isinstance(found, Inbound)
    assert (found.id, found.is_notification, found.params) == (0, False, {})


def test_batches_are_refused_in_every_legacy_revision() -> None:
    rejection = refused([request()], CIMultiDict(), Era.LEGACY)
    assert (rejection.code, rejection.id) == (-32600, None)
    assert "one message a request" in rejection.message


@pytest.mark.parametrize("era", list(Era))
def test_routing_headers_equal_the_body_in_either_era(era: Era) -> None:
    for changes in ({"Mcp_Method": "tools/list"}, {"Mcp_Name": "whoami"}):
        rejection = refused(request(), told(**changes), era)
        assert (rejection.code, rejection.id, rejection.status) == (-32020, 7, 400)
    rejection = refused(request(), told(("Mcp-Method", "tools/call")), era)
    assert (rejection.code, rejection.id) == (-32020, 7)


def test_a_legacy_client_need_not_send_them() -> None:
    for headers in (None, CIMultiDict[str](), told(), told(Mcp_Name=None)):
        assert isinstance(inbound.legacy(request(), headers), Inbound)


def test_a_legacy_client_answers() -> None:
    found = inbound.legacy({"jsonrpc": "2.0", "id": "e1", "result": {"action": "accept"}})
    assert found == Reply("e1", {"action": "accept"}, None)
    found = inbound.legacy(
        {"jsonrpc": "2.0", "id": 4, "error": {"code": -1, "message": "no", "data": [1]}}
    )
    assert isinstance(found, Reply)
    assert found.result is None
    assert found.error is not None
    assert (found.error.code, found.error.message, found.error.data) == (-1, "no", [1])


@pytest.mark.parametrize(
    "body",
    [
        {"result": {}},
        {"id": 1, "result": []},
        {"id": 1, "result": {}, "error": {}},
        {"id": 1, "result": None, "error": None},
        {"id": 1, "error": "x"},
        {"id": None, "error": {"code": 1, "message": ""}},
    ],
)
def test_answers_that_answer_nothing(body: dict[str, object]) -> None:
    assert refused({"jsonrpc": "2.0", **body}, None, Era.LEGACY).code == -32600


def test_an_error_without_a_code_is_still_an_answer() -> None:
    found = inbound.legacy({"jsonrpc": "2.0", "id": 1, "error": {"message": 3}})
    assert isinstance(found, Reply)
    assert found.error is not None
    assert found.error.code == -32603


# ------------------------------------------------------------------------------- both


@pytest.mark.parametrize("era", list(Era))
@pytest.mark.parametrize(
    "key", ["Name", "NAME", "Arguments", "argument\u017f", "URI", "_Meta", "taskid", "Ref"]
)
def test_a_key_that_only_some_servers_would_read(era: Era, key: str) -> None:
    """Go's encoding/json takes "Name" for "name": policy and server would read two calls."""
    body = request()
    body["params"][key] = "whoami"
    rejection = refused(body, told(), era)
    assert (rejection.code, rejection.id) == (-32602, 7)
    assert "by its case only" in rejection.message
    assert "whoami" not in rejection.message


@given(VALUES)
def test_nothing_else_is_ever_raised(value: object) -> None:
    bodies = [value]
    if isinstance(value, dict):
        bodies += [{"jsonrpc": "2.0", **value}, request(params=value), request(**value)]
        bodies.append(request(params={"_meta": {**ENVELOPE, **value}}))
    for body in bodies:
        for check in (inbound.modern, inbound.legacy):
            try:
                check(copy.deepcopy(body), told())
            except Rejection as rejection:
                assert rejection.code in (-32600, -32602, -32020, -32022)
        with contextlib.suppress(Rejection):
            inbound.stdio(copy.deepcopy(body), None)


@pytest.mark.parametrize(
    ("body", "era"),
    [
        ({"method": "initialize", "params": {"protocolVersion": "2025-11-25"}}, Era.LEGACY),
        ({"method": "initialize", "params": {"_meta": ENVELOPE}}, Era.LEGACY),
        ({"method": "server/discover"}, Era.MODERN),
        ({"method": "tools/list", "params": {"_meta": ENVELOPE}}, Era.MODERN),
        ({"method": "tools/list", "params": {}}, None),
        ({"method": "ping"}, None),
        ({"id": 1, "result": {}}, None),
        ([], None),
    ],
)
def test_the_era_that_a_message_shows(body: object, era: Era | None) -> None:
    assert inbound.era_of(body) is era


def test_the_first_message_on_stdio_decides() -> None:
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    opening["params"] = {"protocolVersion": "2025-11-25"}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}

    def era(body: dict[str, Any], before: Era | None) -> Era:
        found = inbound.stdio(copy.deepcopy(body), before)
        assert isinstance(found, Inbound)
        return found.era

    assert era(opening, None) is Era.LEGACY
    assert era(ping, None) is Era.LEGACY
    assert era(ping, Era.LEGACY) is Era.LEGACY
    assert era(request(), None) is Era.MODERN
    assert era(request(), Era.MODERN) is Era.MODERN

    with pytest.raises(Rejection) as caught:
        inbound.stdio(opening, Era.MODERN)
    assert (caught.value.code, caught.value.id) == (-32022, 1)
    assert caught.value.data == {"supported": ["2026-07-28"], "requested": "2025-11-25"}

    with pytest.raises(Rejection) as caught:
        inbound.stdio(request(), Era.LEGACY)
    assert (caught.value.code, caught.value.id) == (-32600, 7)

    with pytest.raises(Rejection) as caught:
        inbound.stdio(ping, Era.MODERN)
    assert (caught.value.code, caught.value.id) == (-32602, 2)
