"""One era in the shape of the other: what is named changes, everything else keeps its bytes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.mcp import errors, shape
from sidecar.mcp.errors import Rejection
from sidecar.model import Era, Fields, RpcError
from sidecar.wire import json
from tests.wire.test_json import TEXT, VALUES

P = "io.modelcontextprotocol/"
ME = {"name": "sidecar", "version": "1"}
CACHEABLE = [
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
]
NAMED = {"_meta", "resultType", "ttlMs", "cacheScope"}


def fields(data: bytes | str) -> Fields:
    return json.fields(data.encode() if isinstance(data, str) else data)


def written(era: Era, method: str, data: bytes | str) -> bytes:
    return json.encode(shape.result_for(era, method, fields(data), ME))


# ------------------------------------------------------------------------------- results

RESULT = (
    '{"content":[ {"type":"text","text":"\\u00e4 ä \\ud83d\\ude00"},{"type":"new","x":null} ],'
    '"structuredContent":{ "n": 1.10, "big": 123456789012345678901234567890, "e": 1e400 },'
    '"isError":false,"unknown":{"b":1,"a":[ ]},"null":null}'
)


def test_a_result_for_a_legacy_client_keeps_every_byte() -> None:
    assert written(Era.LEGACY, "tools/call", RESULT) == RESULT.encode()
    with_meta = RESULT[:-1] + ',"_meta":{ "ifc" : {"x": 1.0}, "v":[ ]} }'
    assert written(Era.LEGACY, "tools/call", with_meta) == with_meta[:-2].encode() + b"}"


def test_a_result_for_a_modern_client_gains_what_it_needs() -> None:
    assert (
        written(Era.MODERN, "tools/call", RESULT)
        == (
            RESULT[:-1] + ',"resultType":"complete",'
            '"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"sidecar","version":"1"}}}'
        ).encode()
    )


@given(
    st.dictionaries(TEXT.filter(lambda key: key not in NAMED), VALUES), st.sampled_from(CACHEABLE)
)
def test_what_is_not_named_keeps_its_bytes(value: dict[str, object], method: str) -> None:
    # Spaces that a writer of ours would never make: a field that is read would lose them.
    body = b"{" + b",".join(
        json.encode(key) + b" : " + msgspec.json.format(json.encode(item), indent=3)
        for key, item in value.items()
    )
    body += b"}"
    before = {key: bytes(raw) for key, raw in json.fields(body).items()}  # type: ignore[arg-type]
    for era in Era:
        for name in (method, "tools/call"):
            shaped = json.fields(json.encode(shape.result_for(era, name, json.fields(body), ME)))
            after = {key: bytes(raw) for key, raw in shaped.items()}  # type: ignore[arg-type]
            assert {k: v for k, v in after.items() if k not in NAMED} == before
            assert NAMED.isdisjoint(after) == (era is Era.LEGACY)


def test_there_and_back_is_where_it_was() -> None:
    for method in (*CACHEABLE, "tools/call", "prompts/get", "completion/complete"):
        for data in (RESULT, '{"_meta":{"v":{"a":1}}}', "{}"):
            there = shape.result_for(Era.MODERN, method, fields(data), ME)
            back = shape.result_for(Era.LEGACY, method, there, ME)
            assert json.encode(back) == data.encode()


@pytest.mark.parametrize("method", CACHEABLE)
def test_cacheable_results(method: str) -> None:
    shaped = shape.result_for(Era.MODERN, method, {}, ME)
    assert (shaped["ttlMs"], shaped["cacheScope"]) == (0, "private")
    assert shape.result_for(Era.MODERN, method, {}, ME, ttl_ms=500)["ttlMs"] == 500
    # The server's own time is kept; its scope is not, since we answer each principal apart.
    shaped = shape.result_for(
        Era.MODERN, method, fields('{"ttlMs": 60000, "cacheScope":"public"}'), ME
    )
    assert json.encode({key: shaped[key] for key in ("ttlMs", "cacheScope")}) == (
        b'{"ttlMs":60000,"cacheScope":"private"}'
    )
    for bad in ('"x"', "-1", "null", "true"):
        shaped = shape.result_for(Era.MODERN, method, fields('{"ttlMs":' + bad + "}"), ME)
        assert shaped["ttlMs"] == 0


def test_other_results_are_not_cacheable() -> None:
    shaped = shape.result_for(Era.MODERN, "tools/call", {}, ME)
    assert set(shaped) == {"resultType", "_meta"}
    # There these keys are a server's own.
    data = b'{"ttlMs":1,"cacheScope":"x"}'
    assert written(Era.LEGACY, "tools/call", data) == data
    assert written(Era.LEGACY, "tools/list", data) == b"{}"


def test_input_required_is_not_cached_and_not_completed() -> None:
    data = '{"resultType":"input_required","inputRequests":{ "q":{}},"requestState":"s"}'
    shaped = shape.result_for(Era.MODERN, "resources/read", fields(data), ME)
    assert set(shaped) == {"resultType", "inputRequests", "requestState", "_meta"}
    assert shape.result_type(shaped) == "input_required"


@pytest.mark.parametrize("kind", ["input_required", "task", "new"])
def test_what_a_legacy_client_cannot_take_up(kind: str) -> None:
    data = json.encode({"resultType": kind})
    with pytest.raises(Rejection, match=kind) as caught:
        shape.result_for(Era.LEGACY, "tools/call", json.fields(data), ME)
    assert caught.value.code == -32603
    assert (
        shape.result_type(shape.result_for(Era.MODERN, "tools/call", json.fields(data), ME)) == kind
    )


def test_protocol_keys_stay_in_their_era() -> None:
    theirs = (
        b'{"resultType":"complete","a":[ 1 ],"_meta":{"io.modelcontextprotocol/serverInfo":'
        b'{"name":"up"},"io.modelcontextprotocol/x":1,"v":1}}'
    )
    assert written(Era.LEGACY, "tools/call", theirs) == b'{"a":[ 1 ],"_meta":{"v":1}}'
    digits = b'{"_meta":{"io.modelcontextprotocol/x":1,"v":{ "n":1.10,"e":1e400 }}}'
    assert written(Era.LEGACY, "tools/call", digits) == b'{"_meta":{"v":{ "n":1.10,"e":1e400 }}}'
    assert b'"v":{ "n":1.10,"e":1e400 }' in written(Era.MODERN, "tools/call", digits)
    only = b'{"_meta":{"io.modelcontextprotocol/serverInfo":{}}}'
    assert written(Era.LEGACY, "tools/call", only) == b"{}"
    # We answer, not the server behind us.
    shaped = json.decode(written(Era.MODERN, "tools/call", theirs))
    assert shaped == {
        "resultType": "complete",
        "a": [1],
        "_meta": {P + "serverInfo": ME, P + "x": 1, "v": 1},
    }


def test_plain_and_raw_fields_are_shaped_alike() -> None:
    data = {"resultType": "complete", "ttlMs": 5, "_meta": {P + "x": 1, "sidecar/call": "c"}}
    for era in Era:
        for method in ("tools/list", "tools/call"):
            plain = shape.result_for(era, method, dict(data), ME)
            raw = shape.result_for(era, method, json.fields(json.encode(data)), ME)
            assert json.decode(json.encode(plain)) == json.decode(json.encode(raw))


def test_what_was_given_is_not_changed() -> None:
    meta = {P + "x": 1, "v": 2}
    data: Fields = {"resultType": "complete", "_meta": meta}
    for era in Era:
        shape.result_for(era, "tools/list", data, ME)
        shape.notification_for(era, "notifications/message", data, subscription="s")
    assert data == {"resultType": "complete", "_meta": {P + "x": 1, "v": 2}}
    assert data["_meta"] is meta


def test_a_meta_that_is_no_object_costs_itself() -> None:
    assert json.decode(written(Era.MODERN, "tools/call", b'{"_meta":7}')) == {
        "resultType": "complete",
        "_meta": {P + "serverInfo": ME},
    }
    assert written(Era.LEGACY, "tools/call", b'{"_meta":7}') == b'{"_meta":7}'


# ------------------------------------------------------------------------------- errors


def told(error: RpcError) -> tuple[int, str, object]:
    return error.code, error.message, shape.plain(error.data)


def test_a_resource_that_is_not_there() -> None:
    legacy = RpcError(-32002, "not found", msgspec.Raw(b'{"uri":"file:///x"}'))
    modern = shape.error_for(Era.MODERN, legacy, "resources/read")
    assert told(modern) == (-32602, "not found", {"uri": "file:///x"})
    assert told(shape.error_for(Era.LEGACY, modern, "resources/read")) == told(legacy)
    assert shape.error_for(Era.LEGACY, legacy, "resources/read") is legacy
    bare = shape.error_for(Era.MODERN, RpcError(-32002, "no"), "resources/read", "file:///x")
    assert told(bare) == (-32602, "no", {"uri": "file:///x"})
    bare = shape.error_for(Era.MODERN, RpcError(-32002, "no", {"a": 1}), "resources/read", "u")
    assert told(bare) == (-32602, "no", {"a": 1})


def test_our_own_unknown_resource_has_its_reason_and_its_uri() -> None:
    ours = errors.invalid_params("no such resource", {"reason": "unknown_resource"}, id=3)
    modern = shape.error_for(Era.MODERN, ours, "resources/read", "file:///x")
    assert told(modern) == (
        -32602,
        "no such resource",
        {"reason": "unknown_resource", "uri": "file:///x"},
    )
    assert isinstance(modern, Rejection)
    assert modern.id == 3
    assert shape.error_for(Era.LEGACY, ours, "resources/read", "file:///x") is ours
    not_found = errors.invalid_params("no such resource", {"uri": "file:///x"})
    assert shape.error_for(Era.LEGACY, not_found, "resources/read") is not_found


@pytest.mark.parametrize("era", list(Era))
def test_every_other_error_is_left_alone(era: Era) -> None:
    for method, error in (
        ("tools/call", RpcError(-32002, "a tool's own", {"uri": "x"})),
        ("tools/call", RpcError(-32602, "bad", {"uri": "x"})),
        ("resources/read", RpcError(-32602, "bad cursor", {"why": "x"})),
        ("resources/read", RpcError(-32603, "x", {"uri": "x"})),
        ("resources/read", RpcError(-32050, "x", msgspec.Raw(b"[ 1 ]"))),
        ("resources/read", RpcError(-32021, "x", {"requiredCapabilities": {}})),
        ("", RpcError(-32002, "x")),
    ):
        assert shape.error_for(era, error, method) is error


# ------------------------------------------------------------------------------- notifications


def test_notifications_pass_as_they_are() -> None:
    for era in Era:
        for params in ({}, {"level": "info", "data": 1}, {"_meta": {"v": 1}}, {"_meta": {}}):
            assert shape.notification_for(era, "notifications/message", params) is params
            assert shape.notification_for(era, "vendor/anything", params) is params


def test_a_subscription_id_is_that_of_the_stream_it_goes_on() -> None:
    theirs: dict[str, object] = {"uri": "x", "_meta": {P + "subscriptionId": "up", "v": 1}}
    method = "notifications/resources/updated"
    assert shape.notification_for(Era.MODERN, method, theirs, subscription="L1") == {
        "uri": "x",
        "_meta": {"v": 1, P + "subscriptionId": "L1"},
    }
    assert shape.notification_for(Era.MODERN, method, {}, subscription=0) == {
        "_meta": {P + "subscriptionId": 0}
    }
    assert shape.notification_for(Era.MODERN, method, theirs) == {"uri": "x", "_meta": {"v": 1}}
    assert shape.notification_for(Era.LEGACY, method, theirs) == {"uri": "x", "_meta": {"v": 1}}
    only: dict[str, object] = {"_meta": {P + "subscriptionId": "up"}}
    assert shape.notification_for(Era.LEGACY, method, only) == {}


@pytest.mark.parametrize(
    ("method", "era"),
    [
        ("notifications/elicitation/complete", Era.LEGACY),
        ("notifications/tasks/status", Era.LEGACY),
        ("notifications/subscriptions/acknowledged", Era.MODERN),
        ("notifications/tasks", Era.MODERN),
    ],
)
def test_a_notification_of_one_era_stays_there(method: str, era: Era) -> None:
    for other in Era:
        assert (shape.notification_for(other, method, {}) is not None) == (other is era)
