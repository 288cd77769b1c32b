"""JSON-RPC: strictly one message, and payloads that pass byte for byte."""

from __future__ import annotations

import json as stdlib

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.model import RpcError
from sidecar.wire import json, jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import BadMessage
from tests.wire.test_json import TEXT, VALUES

IDS = st.integers() | st.integers(-(10**30), 10**30) | TEXT
OBJECTS = st.dictionaries(TEXT, VALUES, max_size=3)


@given(IDS, TEXT.filter(bool), OBJECTS)
def test_requests_and_notifications(id: int | str, method: str, params: dict[str, object]) -> None:
    message = jsonrpc.parse(jsonrpc.request(id, method, params))
    assert (message.id, type(message.id), message.method) == (id, type(id), method)
    assert message.params is not None
    assert json.decode(message.params) == params
    assert (message.is_request, message.is_notification, message.is_response) == (
        True,
        False,
        False,
    )

    message = jsonrpc.parse(jsonrpc.notification(method, params))
    assert (message.id, message.method) == (None, method)
    assert (message.is_request, message.is_notification, message.is_response) == (
        False,
        True,
        False,
    )


@given(IDS, OBJECTS)
def test_results(id: int | str, fields: dict[str, object]) -> None:
    message = jsonrpc.parse(jsonrpc.result(id, fields))
    assert (message.id, message.method, message.error) == (id, "", None)
    assert message.is_response
    assert message.result is not None
    assert json.decode(message.result) == fields


@given(IDS | st.none(), st.integers(-(2**40), 2**40), TEXT, st.none() | VALUES)
def test_errors(id: int | str | None, code: int, text: str, data: object) -> None:
    message = jsonrpc.parse(jsonrpc.error(id, RpcError(code, text, data)))
    assert (message.id, message.method, message.result) == (id, "", None)
    assert message.is_response
    assert message.error is not None
    error = jsonrpc.error_of(message.error)
    assert (error.code, error.message) == (code, text)
    if data is None:
        assert error.data is None
    else:
        assert isinstance(error.data, msgspec.Raw)
        assert json.decode(error.data) == data


def test_params_are_left_out_where_there_are_none() -> None:
    assert jsonrpc.request(1, "ping", None) == b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    assert jsonrpc.request(1, "x", {}) == b'{"jsonrpc":"2.0","id":1,"method":"x","params":{}}'
    assert jsonrpc.notification("a/b", None) == b'{"jsonrpc":"2.0","method":"a/b"}'
    assert jsonrpc.error(None, RpcError(-1, "x")) == (
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"x"}}'
    )


def test_a_result_passes_byte_for_byte() -> None:
    inside = (
        b'{ "content" : [ {"type":"text", "text":"\\u00e4 \xc3\xa4"} ] , "n": 1.10,\t"big": 1e400,'
        b' "dup": {"a":1,"a":2}, "z": -0 }'
    )
    message = jsonrpc.parse(b'{"result": ' + inside + b' , "id" : "x", "jsonrpc":"2.0"}')
    assert message.result is not None
    assert bytes(message.result) == inside
    fields = json.fields(message.result)
    assert jsonrpc.result(7, fields) == (
        b'{"jsonrpc":"2.0","id":7,"result":{"content":'
        b'[ {"type":"text", "text":"\\u00e4 \xc3\xa4"} ],"n":1.10,"big":1e400,'
        b'"dup":{"a":1,"a":2},"z":-0}}'
    )


def test_an_errors_data_passes_byte_for_byte() -> None:
    raw = msgspec.Raw(b'{"code": -32050, "message":"no", "data": {"why": [ 1.0 ]}, "x": 1}')
    assert jsonrpc.error(3, jsonrpc.error_of(raw)) == (
        b'{"jsonrpc":"2.0","id":3,"error":{"code":-32050,"message":"no","data":{"why": [ 1.0 ]}}}'
    )


@pytest.mark.parametrize(
    ("data", "why", "id", "batch"),
    [
        (b'[{"jsonrpc":"2.0","id":1,"method":"x"}]', "batches", None, True),
        (b" \r\n[]", "batches", None, True),
        (b"1", "JSON object", None, False),
        (b'"[x]"', "JSON object", None, False),
        (b"null", "JSON object", None, False),
        (b"{}", '"jsonrpc": "2.0"', None, False),
        (b'{"id":4,"method":"x"}', '"jsonrpc": "2.0"', 4, False),
        (b'{"jsonrpc":2.0,"id":"a","method":"x"}', '"jsonrpc": "2.0"', "a", False),
        (b'{"jsonrpc":"1.0","id":4,"method":"x"}', '"jsonrpc": "2.0"', 4, False),
        (b'{"jsonrpc":"2.0","id":true,"method":"x"}', "integer or a string", None, False),
        (b'{"jsonrpc":"2.0","id":1.0,"method":"x"}', "integer or a string", None, False),
        (b'{"jsonrpc":"2.0","id":[1],"method":"x"}', "integer or a string", None, False),
        (b'{"jsonrpc":"2.0","id":null,"method":"x"}', "not null", None, False),
        (b'{"jsonrpc":"2.0","id":4,"method":7}', "method is not a string", 4, False),
        (b'{"jsonrpc":"2.0","id":4,"method":""}', "method is empty", 4, False),
        (b'{"jsonrpc":"2.0","id":4,"method":"x","params":[1]}', "params is not", 4, False),
        (b'{"jsonrpc":"2.0","id":4,"method":"x","params":7}', "params is not", 4, False),
        (b'{"jsonrpc":"2.0","id":4,"method":"x","result":{}}', "not both", 4, False),
        (b'{"jsonrpc":"2.0","id":4}', "either a result", 4, False),
        (b'{"jsonrpc":"2.0","id":4,"result":{},"error":{}}', "either a result", 4, False),
        (b'{"jsonrpc":"2.0","id":null,"result":{}}', "answers nothing", None, False),
        (b'{"jsonrpc":"2.0","result":{}}', "answers nothing", None, False),
    ],
)
def test_what_is_json_but_no_message(
    data: bytes, why: str, id: int | str | None, batch: bool
) -> None:
    with pytest.raises(BadMessage, match=why) as caught:
        jsonrpc.parse(data)
    assert (caught.value.id, caught.value.batch) == (id, batch)


def test_null_members_count_as_absent() -> None:
    message = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"result":{"a":null},"error":null}')
    assert message.result == msgspec.Raw(b'{"a":null}')
    assert message.error is None
    message = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1}}')
    assert message.result is None
    assert message.error == msgspec.Raw(b'{"code":1}')
    assert jsonrpc.parse(b'{"jsonrpc":"2.0","method":"x","params":null}').params is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1",
        b'[{"jsonrpc":"2.0","id":1,"method":"x"}} ',
        b'{"jsonrpc":"2.0","id":1,"result":{}} x',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"\xff"}}',
        b'{"jsonrpc":"2.0","id":1,"unknown":"\xff","result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"\\ud800}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":"\\ud800","b":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(BadJson):
        jsonrpc.parse(data)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"cut \ud83d", r"cut \ufffd"),
        (rb"\uDE00 cut", r"\ufffd cut"),
        (rb"\ud83d\ude00 \ud83d\ud83d\ude00", r"\ud83d\ude00 \ufffd\ud83d\ude00"),
        (rb"\ude00\ud83d", r"\ufffd\ufffd"),
        (rb"\\ud83d \\\ud83d", r"\\ud83d \\\ufffd"),
        (rb"\ud83d\u0041\n", r"\ufffd\u0041\n"),
    ],
)
def test_half_a_pair_costs_one_character(sent: bytes, read: str) -> None:
    """JavaScript's JSON.stringify and Python's json.dumps write what was cut in an emoji."""
    message = jsonrpc.parse(b'{"jsonrpc":"2.0","id":1,"result":{"n":1.50,"a":"' + sent + b'"}}')
    assert message.result is not None
    assert bytes(message.result).decode() == '{"n":1.50,"a":"' + read + '"}'
    assert json.fields(message.result)["n"] == msgspec.Raw(b"1.50")


def test_nothing_large_is_put_right() -> None:
    """It would hold the loop up, and whoever sends that much may mean to."""
    body = b'{"jsonrpc":"2.0","id":1,"result":{"a":"' + rb"\ud800" * (json.MENDED // 6) + b'"}}'
    with pytest.raises(BadJson):
        jsonrpc.parse(body)


@given(st.lists(st.sampled_from(["\\", "\\\\", "\\ud83d", "\\ude00", '\\"', "x", "\\u0041"])))
def test_whole_pairs_changes_nothing_but_halves(parts: list[str]) -> None:
    text = '"' + "".join(parts) + '"'
    try:
        meant = stdlib.loads(text)
    except ValueError:
        return
    assert isinstance(meant, str)
    whole = stdlib.loads(json.whole_pairs(text.encode()))
    assert whole == meant.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@given(
    st.binary(max_size=80)
    | VALUES.map(json.encode)
    | st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error"]),
        VALUES | st.just("2.0"),
    ).map(json.encode)
)
@example(b'{"jsonrpc":"2.0","id":1,"method":"x","params":{}}')
def test_nothing_else_is_ever_raised(data: bytes) -> None:
    try:
        message = jsonrpc.parse(data)
    except (BadJson, BadMessage) as error:
        assert error.__cause__ is None
        return
    assert [message.is_request, message.is_notification, message.is_response].count(True) == 1
    assert isinstance(message.id, int | str | None)


@pytest.mark.parametrize(
    "raw",
    [b"{}", b'{"code":"x","message":"m"}', b'"no"', b"[]", b'{"code":1.5,"message":""}', b"{"],
)
def test_an_error_that_is_none_says_so(raw: bytes) -> None:
    error = jsonrpc.error_of(raw)
    assert (error.code, error.data) == (-32603, None)
    assert "without a code" in error.message


def test_ids_of_decoded_messages() -> None:
    assert jsonrpc.id_of({"id": 3}) == 3
    assert jsonrpc.id_of({"id": ""}) == ""
    for other in ({"id": True}, {"id": 1.0}, {"id": None}, {"id": []}, {}, [], None, "id"):
        assert jsonrpc.id_of(other) is None


def test_values_that_can_be_ids() -> None:
    for value in (0, -1, 10**30, "", "a"):
        assert jsonrpc.as_id(value) == value
    for other in (True, False, None, 1.0, [], {}):
        assert jsonrpc.as_id(other) is None


def test_the_id_of_a_message_of_which_only_the_ends_are_known() -> None:
    ends = jsonrpc.id_from_ends
    assert ends(b'{"jsonrpc":"2.0","id":5,"result":{"a', b"") == 5
    assert ends(b' { "id" : "a\\"b" , "jsonrpc"', b"") == 'a"b'
    assert ends(b'data: {"id":-7,"result":', b"") == -7
    assert ends(b'{"result":{"id":5,', b'xx"},"id":7}') == 7
    assert ends(b'{"result":{"id":5,', b'xx"}, "id": "s" , "jsonrpc":"2.0" }\r\n') == "s"


def test_nothing_inside_of_a_payload_passes_for_the_id() -> None:
    ends = jsonrpc.id_from_ends
    assert ends(b'{"result":{"id":5,', b'"id":6}}') is None
    assert ends(b'{"jsonrpc":"2.0","result":{"id":5,', b'x"]}}') is None
    assert ends(b'{"a":{"jsonrpc":"2.0","id":5,', b'"id":6,"x":1}') is None
    assert ends(b'{"jsonrpc":"2.0","id":5.5,', b'"id":null}') is None
    assert ends(b'{"jsonrpc":"2.0","id":true,', b"") is None
    assert ends(b'{"jsonrpc":"2.0","id":' + b"1" * 200, b"") is None
    assert ends(b"", b"") is None


def test_the_codes_of_json_rpc() -> None:
    assert (jsonrpc.PARSE_ERROR, jsonrpc.INVALID_REQUEST) == (-32700, -32600)
    assert (jsonrpc.METHOD_NOT_FOUND, jsonrpc.INVALID_PARAMS) == (-32601, -32602)
    assert jsonrpc.INTERNAL_ERROR == -32603
