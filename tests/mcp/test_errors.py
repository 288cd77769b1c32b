"""The table of failures, in its two forms."""

from __future__ import annotations

import msgspec
import pytest
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS

from sidecar.mcp import errors
from sidecar.mcp.errors import Rejection
from sidecar.model import Fields, RpcError, Unavailable, Unroutable
from sidecar.wire import json, jsonrpc


@pytest.mark.parametrize(
    "reason",
    [
        "no_separator",
        "unknown_server",
        "unknown_tool",
        "unknown_prompt",
        "unknown_resource",
        "ambiguous_name",
    ],
)
def test_a_name_that_leads_nowhere(reason: str) -> None:
    failure = Unroutable(reason, "no tool a__b; tools/list names what there is")  # type: ignore[arg-type]
    error = errors.of(failure)
    assert (error.code, error.message) == (-32602, "no tool a__b; tools/list names what there is")
    assert error.data == {"reason": reason}
    assert errors.rest(failure) == (
        404,
        {
            "error": {
                "code": -32602,
                "message": "no tool a__b; tools/list names what there is",
                "data": {"reason": reason},
            }
        },
    )


@pytest.mark.parametrize("ran", ["no", "maybe"])
@pytest.mark.parametrize("retry_in", [None, 2.5])
def test_a_server_that_cannot_answer(ran: str, retry_in: float | None) -> None:
    failure = Unavailable("github", "the connection was lost", ran=ran, retry_in=retry_in)  # type: ignore[arg-type]
    error = errors.of(failure)
    assert error.code == -32603
    assert error.message == "server github is unavailable: the connection was lost"
    assert error.data == {
        "reason": "unavailable",
        "server": "github",
        "ran": ran,
        "retry_in": retry_in,
    }
    assert errors.http_status(error.code) == 200
    status, body = errors.rest(failure)
    assert status == 503
    assert body == {"error": {"code": -32603, "message": error.message, "data": error.data}}


def test_a_servers_own_error_is_left_alone() -> None:
    failure = RpcError(-32050, "nope", msgspec.Raw(b'{ "why": 1.0 }'))
    assert errors.of(failure) is failure
    status, body = errors.rest(failure)
    assert status == 502
    assert json.encode(body) == (
        b'{"error":{"code":-32050,"message":"nope","data":{ "why": 1.0 }}}'
    )
    assert errors.rest(RpcError(-32602, "theirs"))[0] == 502
    assert errors.rest(RpcError(1, "x")) == (502, {"error": {"code": 1, "message": "x"}})


def test_our_own_fault_keeps_its_text_to_itself() -> None:
    for failure in (ValueError("hunter2"), KeyError("hunter2"), RecursionError("hunter2")):
        error = errors.of(failure)
        assert (error.code, error.data) == (-32603, None)
        assert "hunter2" not in error.message
        status, body = errors.rest(failure)
        assert status == 500
        assert "hunter2" not in str(body)


@pytest.mark.parametrize(
    ("error", "code", "status", "rest"),
    [
        (errors.parse_error("the JSON ends too early"), -32700, 400, 400),
        (errors.invalid_request("no"), -32600, 400, 400),
        (errors.method_not_found("x/y"), -32601, 404, 404),
        (errors.invalid_params("no"), -32602, 400, 400),
        (errors.internal(), -32603, 200, 500),
        (errors.header_mismatch("no"), -32020, 400, 400),
        (errors.missing_capability({"sampling": {}}), -32021, 400, 400),
        (errors.unsupported_version("1900-01-01"), -32022, 400, 400),
    ],
)
def test_our_own_refusals(error: Rejection, code: int, status: int, rest: int) -> None:
    assert (error.code, error.status) == (code, status)
    assert errors.rest(error)[0] == rest
    assert error.id is None


def test_statuses_are_the_references() -> None:
    assert dict(errors.HTTP_STATUS) == dict(ERROR_CODE_HTTP_STATUS)
    for code in (-32603, -32000, -32002, -32042, 0, 7):
        assert errors.http_status(code) == 200


def test_what_the_specification_puts_into_data() -> None:
    assert errors.unsupported_version("1900-01-01").data == {
        "supported": ["2026-07-28"],
        "requested": "1900-01-01",
    }
    assert errors.unsupported_version(None).data == {"supported": ["2026-07-28"]}
    assert errors.missing_capability({"sampling": {}}).data == {
        "requiredCapabilities": {"sampling": {}}
    }
    assert {-32020, -32021, -32022} == errors.MODERN_CODES


def test_a_method_is_told_back_only_if_it_looks_like_one() -> None:
    assert errors.method_not_found("tools/fly").message == "method not found: tools/fly"
    for strange in ("x" * 65, "a\nb", "ä", "\x1b[31m"):
        assert errors.method_not_found(strange).message == "method not found"


def test_a_rejection_goes_out_under_its_id() -> None:
    rejection = errors.invalid_params("no such page", id="a")
    assert jsonrpc.error(rejection.id, rejection) == (
        b'{"jsonrpc":"2.0","id":"a","error":{"code":-32602,"message":"no such page"}}'
    )


@pytest.mark.parametrize(
    ("meta", "status"),
    [
        ({"sidecar/denied": {"rule": "r", "message": ""}}, 403),
        ({"sidecar/parked": {"id": "1"}, "sidecar/call": "c"}, 202),
        ({"sidecar/running": {}}, 202),
        ({"sidecar/expired": {}}, 410),
        ({"sidecar/call": "c", "vendor/denied": 1}, 200),
        ({}, 200),
    ],
)
def test_results_that_the_gate_wrote(meta: dict[str, object], status: int) -> None:
    assert errors.rest_status({"content": [], "isError": True, "_meta": meta}) == status
    raw: Fields = {"isError": True, "_meta": msgspec.Raw(json.encode(meta))}
    assert errors.rest_status(raw) == status


def test_a_tools_own_error_is_a_result() -> None:
    assert errors.rest_status({"isError": msgspec.Raw(b"true"), "content": []}) == 200
    assert errors.rest_status({"_meta": msgspec.Raw(b"[")}) == 200
    assert errors.rest_status({"_meta": "sidecar/denied"}) == 200


def test_what_is_unavailable_is_503_in_either_form() -> None:
    down = Unavailable("s", "it is shutting down", ran="maybe")
    assert errors.rest(down) == errors.rest(errors.of(down))
    assert errors.rest(errors.of(down))[0] == 503
    assert errors.rest(errors.internal())[0] == 500
