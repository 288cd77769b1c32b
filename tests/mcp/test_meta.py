"""``_meta``: what is taken out of a request, what stays, what a leg writes."""

from __future__ import annotations

import copy

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.mcp import meta
from sidecar.mcp.errors import Rejection
from sidecar.mcp.meta import Envelope
from sidecar.model import NO_TRACE, Client, TraceContext
from tests.wire.test_json import TEXT, VALUES

PARENT = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
P = "io.modelcontextprotocol/"


def test_everything_is_taken_and_vendors_keys_stay() -> None:
    params: dict[str, object] = {
        "name": "echo",
        "arguments": {"_meta": {"progressToken": 1, "sidecar/x": 1}},
        "_meta": {
            P + "protocolVersion": "2026-07-28",
            P + "clientInfo": {"name": "a", "version": "1", "title": "A"},
            P + "clientCapabilities": {"elicitation": {"form": {}}},
            P + "logLevel": "warning",
            P + "somethingNew": [1],
            "progressToken": "t",
            "traceparent": PARENT,
            "tracestate": "a=b",
            "baggage": "k=v",
            "sidecar/denied": {"rule": "mine"},
            "sidecar/labels": [],
            "com.example/x": {"y": [1.0, None]},
            "ifc": 1,
        },
    }
    arguments = copy.deepcopy(params["arguments"])
    assert meta.take(params) == Envelope(
        protocol_version="2026-07-28",
        capabilities={"elicitation": {"form": {}}},
        client=Client("a", "1"),
        log_level="warning",
        progress="t",
        trace=TraceContext(PARENT, "a=b", "k=v"),
    )
    assert params == {
        "name": "echo",
        "arguments": arguments,
        "_meta": {"com.example/x": {"y": [1.0, None]}, "ifc": 1},
    }


def test_an_empty_meta_goes() -> None:
    for given_meta in ({}, None, {"progressToken": 1}, {"sidecar/x": 1}, {P + "x": 1}):
        params: dict[str, object] = {"name": "x", "_meta": given_meta}
        envelope = meta.take(params)
        assert params == {"name": "x"}
        assert (envelope.protocol_version, envelope.capabilities) == (None, None)
    assert meta.take({}) == Envelope()


NAMED = ("io.modelcontextprotocol/", "sidecar/", "progressToken", "trace", "baggage")


@given(st.dictionaries(TEXT.filter(lambda key: not key.startswith(NAMED)), VALUES))
@example({"Sidecar/x": 1, "xsidecar/": 2, "io.modelcontextprotocol": 3, "traceParent": 4})
def test_what_is_not_named_is_not_touched(vendors: dict[str, object]) -> None:
    params: dict[str, object] = {"a": 1, "_meta": {**copy.deepcopy(vendors), "progressToken": 5}}
    assert meta.take(params).progress == 5
    assert params == ({"a": 1, "_meta": vendors} if vendors else {"a": 1})
    if vendors:
        assert list(params["_meta"]) == list(vendors)  # type: ignore[call-overload]


@pytest.mark.parametrize("token", [0, -1, 10**30, "", "tok-1"])
def test_tokens(token: int | str) -> None:
    assert meta.take({"_meta": {"progressToken": token}}).progress == token


@pytest.mark.parametrize("token", [True, 1.0, [], {}])
@pytest.mark.parametrize("strict", [True, False])
def test_tokens_that_are_none(token: object, strict: bool) -> None:
    with pytest.raises(Rejection, match="progressToken is a string or an integer") as caught:
        meta.take({"_meta": {"progressToken": token}}, strict=strict)
    assert caught.value.code == -32602


@pytest.mark.parametrize("found", [[], "x", 1, True])
@pytest.mark.parametrize("strict", [True, False])
def test_a_meta_that_is_no_object(found: object, strict: bool) -> None:
    with pytest.raises(Rejection, match="_meta is an object") as caught:
        meta.take({"_meta": found}, strict=strict)
    assert caught.value.code == -32602


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("protocolVersion", 7, "is a string"),
        ("protocolVersion", None, "is a string"),
        ("clientCapabilities", [], "is an object"),
        ("clientCapabilities", None, "is an object"),
        ("logLevel", "loud", "is one of debug, info, notice"),
        ("logLevel", 3, "is one of debug, info, notice"),
    ],
)
def test_envelope_keys_of_the_wrong_shape(key: str, value: object, why: str) -> None:
    with pytest.raises(Rejection, match=why) as caught:
        meta.take({"_meta": {P + key: value}})
    assert caught.value.code == -32602
    params: dict[str, object] = {"_meta": {P + key: value, "v": 1}}
    assert meta.take(params, strict=False) == Envelope()
    assert params == {"_meta": {"v": 1}}


@pytest.mark.parametrize("info", [None, [], "x", {}, {"name": 1, "version": []}])
def test_who_the_client_is_never_refuses(info: object) -> None:
    assert meta.take({"_meta": {P + "clientInfo": info}}).client == Client()


def test_who_the_client_is_has_a_length() -> None:
    client = meta.client_of({"name": "n" * 1000, "version": "v" * 1000})
    assert client == Client("n" * 128, "v" * 64)


@pytest.mark.parametrize(
    "parent",
    [
        PARENT,
        PARENT.replace("00-", "01-", 1),
        PARENT.replace("00-", "cc-", 1) + "-more.of-it",
        PARENT[:-2] + "ff",
    ],
)
def test_a_trace_goes_on(parent: str) -> None:
    params: dict[str, object] = {"_meta": {"traceparent": parent, "tracestate": "a=1,b=2"}}
    assert meta.take(params).trace == TraceContext(parent, "a=1,b=2", "")
    assert params == {}


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT.replace("00-", "ff-", 1),
        PARENT + "-00",
        PARENT + "\n",
        " " + PARENT,
        PARENT[:-1],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + "-01",
        "cc" + PARENT[2:] + "x",
        "cc" + PARENT[2:] + "-" + "x" * 9000,
        "cc" + PARENT[2:] + "-a b",
        7,
        None,
        [PARENT],
    ],
)
def test_a_trace_that_is_none_starts_anew(parent: object) -> None:
    params: dict[str, object] = {
        "_meta": {"traceparent": parent, "tracestate": "a=1", "baggage": "k=v", "keep": 1}
    }
    assert meta.take(params).trace == TraceContext("", "", "k=v")
    assert params == {"_meta": {"keep": 1}}


@pytest.mark.parametrize("text", ["a\r\nb", "ä", "x" * 9000, 7, None, {}])
def test_trace_texts_cannot_smuggle(text: object) -> None:
    params: dict[str, object] = {
        "_meta": {"traceparent": PARENT, "tracestate": text, "baggage": text}
    }
    assert meta.take(params).trace == TraceContext(PARENT, "", "")


def test_what_a_modern_leg_sends() -> None:
    keys = meta.envelope(client=Client("sidecar", "1"), capabilities={}, log_level="info")
    assert keys == {
        P + "protocolVersion": "2026-07-28",
        P + "clientCapabilities": {},
        P + "clientInfo": {"name": "sidecar", "version": "1"},
        P + "logLevel": "info",
    }
    params: dict[str, object] = {"name": "x", "_meta": {"vendor": 1, "progressToken": "old"}}
    before = copy.deepcopy(params)
    sent = meta.put(params, envelope=keys, progress=9, trace=TraceContext(PARENT, "a=b", "k=v"))
    assert params == before
    assert sent == {
        "name": "x",
        "_meta": {
            "vendor": 1,
            "progressToken": 9,
            **keys,
            "traceparent": PARENT,
            "tracestate": "a=b",
            "baggage": "k=v",
        },
    }
    taken = meta.take(sent)
    assert taken == Envelope(
        "2026-07-28", {}, Client("sidecar", "1"), "info", 9, TraceContext(PARENT, "a=b", "k=v")
    )
    assert sent == {"name": "x", "_meta": {"vendor": 1}}


def test_nothing_to_add_adds_nothing() -> None:
    params: dict[str, object] = {"name": "x"}
    assert meta.put(params) is params
    assert meta.put(params, trace=NO_TRACE) is params
    assert meta.put({}, progress=0) == {"_meta": {"progressToken": 0}}
    assert meta.put({}, trace=TraceContext("", "a=b", "")) == {}
    assert "io.modelcontextprotocol/logLevel" not in meta.envelope(client=Client(), capabilities={})
