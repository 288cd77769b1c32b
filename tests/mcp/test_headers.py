"""Headers that repeat the body, beside the reference SDK's codec and checks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp.shared import inbound as reference
from multidict import CIMultiDict

from sidecar.mcp import headers
from sidecar.mcp.headers import BadParamHeader
from sidecar.model import RpcError
from tests.wire.test_json import TEXT

# ------------------------------------------------------------------------------- the codec


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" x")
@example("x ")
@example("=?base64?eA==?=")
@example("=?base64??=")
@example("tab\there")
@example("\x7f")
@example("")
def test_any_text_comes_back(value: str) -> None:
    written = headers.encode_value(value)
    assert written.isascii()
    assert written.isprintable() or written == ""
    assert written == written.strip()
    assert headers.decode_value(written) == value
    assert reference.decode_header_value(written) == value


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x2FF)))
@example(" x")
@example("=?base64?eA==?=")
def test_the_reference_writes_the_same(value: str) -> None:
    assert headers.encode_value(value) == reference.encode_header_value(value)


@given(
    st.text("=?base64ABCeA+/ -", max_size=24)
    | st.text("ABCxyz0189+/=", max_size=12).map(lambda payload: f"=?base64?{payload}?=")
)
@example("=?base64?eA==?=")
@example("=?base64?eB==?=")
@example("=?base64?/w==?=")
@example("=?base64?eA?=")
def test_the_reference_reads_the_same(value: str) -> None:
    assert headers.decode_value(value) == reference.decode_header_value(value.strip(" \t"))


@pytest.mark.parametrize("value", ["ä", "\x80", "a\x00b", "a\nb", "\udce4", "=?base64?ä?="])
def test_what_readers_decode_differently_is_nothing(value: str) -> None:
    assert headers.decode_value(value) is None


# ------------------------------------------------------------------------------- annotations


def schema(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties}


def test_arguments_that_want_headers() -> None:
    found = headers.param_headers(
        schema(
            region={"type": "string", "x-mcp-header": "Region"},
            plain={"type": "string"},
            filter=schema(
                id={"type": "integer", "x-mcp-header": "Filter-Id"},
                deep=schema(on={"type": "boolean", "x-mcp-header": "on"}),
            ),
        )
    )
    assert found == {
        ("region",): "Mcp-Param-Region",
        ("filter", "id"): "Mcp-Param-Filter-Id",
        ("filter", "deep", "on"): "Mcp-Param-on",
    }
    assert headers.param_headers({}) == {}
    assert headers.param_headers(None) == {}
    assert headers.param_headers(True) == {}


@pytest.mark.parametrize(
    "bad",
    [
        {"x-mcp-header": "Root"},
        schema(a={"type": "number", "x-mcp-header": "A"}),
        schema(a={"type": ["string", "null"], "x-mcp-header": "A"}),
        schema(a={"x-mcp-header": "A"}),
        schema(a={"type": "object", "x-mcp-header": "A"}),
        schema(a={"type": "string", "x-mcp-header": ""}),
        schema(a={"type": "string", "x-mcp-header": "no space"}),
        schema(a={"type": "string", "x-mcp-header": "a\r\nb"}),
        schema(a={"type": "string", "x-mcp-header": "ä"}),
        schema(a={"type": "string", "x-mcp-header": 7}),
        schema(a={"type": "string", "x-mcp-header": None}),
        schema(
            a={"type": "string", "x-mcp-header": "Same"},
            b=schema(c={"type": "string", "x-mcp-header": "sAME"}),
        ),
        schema(a={"type": "array", "items": {"type": "string", "x-mcp-header": "A"}}),
        schema(a={"anyOf": [{"type": "string", "x-mcp-header": "A"}]}),
        {"$defs": {"d": {"type": "string", "x-mcp-header": "A"}}},
        {"allOf": [schema(a={"type": "string", "x-mcp-header": "A"})]},
        {"if": schema(a={"type": "string", "x-mcp-header": "A"})},
        {"additionalProperties": {"type": "string", "x-mcp-header": "A"}},
        {"patternProperties": {".": {"type": "string", "x-mcp-header": "A"}}},
    ],
)
def test_annotations_that_break_the_rules(bad: object) -> None:
    assert reference.find_invalid_x_mcp_header(bad) is not None
    with pytest.raises(BadParamHeader):
        headers.param_headers(bad)


KEYWORDS = st.sampled_from(
    ["properties", "$defs", "patternProperties", "dependentSchemas", "default", "const", "examples"]
)
NODES: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["string", "integer", "boolean", "number", "object", 7]),
            "x-mcp-header": st.sampled_from(["A", "a", "B", "C-1", "", "x y", 3]),
        },
    )
    | st.booleans(),
    lambda below: (
        st.fixed_dictionaries(
            {},
            optional={
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from(["p", "q", "r"]), below, max_size=3),
                "items": below,
                "anyOf": st.lists(below, max_size=2),
                "not": below,
                "default": below,
            },
        )
        | st.dictionaries(KEYWORDS, st.dictionaries(st.sampled_from(["p", "q"]), below, max_size=2))
    ),
    max_leaves=8,
)


@given(NODES)
def test_the_reference_finds_the_same(node: object) -> None:
    invalid = reference.find_invalid_x_mcp_header(node)
    try:
        found = headers.param_headers(node)
    except BadParamHeader:
        assert invalid is not None
        return
    assert invalid is None
    assert found == {
        path: f"Mcp-Param-{token}" for path, token in reference.x_mcp_header_map(node).items()
    }


def test_a_schema_without_end_ends() -> None:
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"properties": {"p": deep}}
    assert headers.param_headers(deep) == {}


# ------------------------------------------------------------------------------- what we send

MAPPING = {
    ("region",): "Mcp-Param-Region",
    ("filter", "id"): "Mcp-Param-Id",
    ("dry",): "Mcp-Param-Dry",
}
MAPPED = schema(
    region={"type": "string", "x-mcp-header": "Region"},
    filter=schema(id={"type": "integer", "x-mcp-header": "Id"}),
    dry={"type": "boolean", "x-mcp-header": "Dry"},
)


def call(**arguments: object) -> dict[str, object]:
    return {"name": "echo", "arguments": arguments}


def test_headers_of_a_request() -> None:
    assert headers.request_headers("tools/list", {}) == {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/list",
    }
    assert headers.request_headers(
        "tools/call", call(region="us-west1", filter={"id": 10**30}, dry=True), MAPPING
    ) == {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "echo",
        "Mcp-Param-Region": "us-west1",
        "Mcp-Param-Id": "1" + "0" * 30,
        "Mcp-Param-Dry": "true",
    }
    assert headers.request_headers("resources/read", {"uri": "file:///ä"})["Mcp-Name"] == (
        "=?base64?ZmlsZTovLy/DpA==?="
    )
    assert "Mcp-Name" not in headers.request_headers("tools/call", {"name": 7})


def test_arguments_without_a_value_have_no_header() -> None:
    for arguments in (
        call(region=None, filter=None),
        call(filter=[1], region={"a": 1}, dry=[]),
        call(filter={"id": {}}),
        {"name": "echo"},
        {"name": "echo", "arguments": None},
    ):
        sent = headers.request_headers("tools/call", arguments, MAPPING)
        assert set(sent) == {"MCP-Protocol-Version", "Mcp-Method", "Mcp-Name"}


@pytest.mark.parametrize(("value", "text"), [(42.0, "42"), (1e16, "1" + "0" * 16), (0.5, "0.5")])
def test_numbers_are_sent_in_plain_digits(value: float, text: str) -> None:
    sent = headers.request_headers("tools/call", call(filter={"id": value}), MAPPING)
    assert sent["Mcp-Param-Id"] == text


VALUES = st.none() | TEXT | st.booleans() | st.integers() | st.floats(-1e20, 1e20) | st.just([1])
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "region": TEXT,
        "filter": st.none() | st.fixed_dictionaries({}, optional={"id": VALUES}),
        "dry": st.none() | st.booleans(),
    },
)


@given(ARGUMENTS)
def test_what_we_send_passes_our_check_and_the_references(arguments: dict[str, Any]) -> None:
    params = call(**arguments)
    sent = headers.request_headers("tools/call", params, MAPPING)
    assert headers.check(CIMultiDict(sent), "tools/call", params, MAPPING, required=True) is None
    assert reference.validate_mcp_param_headers(MAPPED, arguments, sent) is None


# ------------------------------------------------------------------------------- what we check

GOOD = {
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "echo",
    "Mcp-Param-Region": "us",
}


def told(changes: dict[str, str | None], *more: tuple[str, str]) -> CIMultiDict[str]:
    kept = {**GOOD, **changes}
    return CIMultiDict([*((k, v) for k, v in kept.items() if v is not None), *more])


def refused(rejection: RpcError | None) -> str:
    assert rejection is not None
    assert rejection.code == -32020
    return rejection.message


def test_headers_that_say_what_the_body_says() -> None:
    for sent in (
        told({}),
        told({"Mcp-Name": "=?base64?ZWNobw==?="}),
        told({"Mcp-Name": "  echo\t"}),
        CIMultiDict({name.upper(): value for name, value in GOOD.items()}),
        told({"Mcp-Param-Other": "anything"}),
    ):
        assert headers.check(sent, "tools/call", call(region="us"), MAPPING, required=True) is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"Mcp-Method": "tools/list"}, "Mcp-Method is not the body's method"),
        ({"Mcp-Method": "TOOLS/CALL"}, "Mcp-Method is not the body's method"),
        ({"Mcp-Method": ""}, "Mcp-Method is not the body's method"),
        ({"Mcp-Name": "whoami"}, "Mcp-Name is not the body's params.name"),
        ({"Mcp-Name": "ECHO"}, "Mcp-Name is not the body's params.name"),
        ({"Mcp-Name": "=?base64?ZWNobx==?="}, "Mcp-Name is not the body's params.name"),
        ({"Mcp-Param-Region": "eu"}, "Mcp-Param-Region is not the body's region"),
        ({"Mcp-Param-Region": "=?base64?!?="}, "Mcp-Param-Region is not the body's region"),
        ({"Mcp-Param-Id": "7"}, "Mcp-Param-Id is there, but filter.id has no value"),
        ({"Mcp-Param-Dry": "false"}, "Mcp-Param-Dry is there, but dry has no value"),
    ],
)
@pytest.mark.parametrize("required", [True, False])
def test_a_header_that_says_something_else(
    changes: dict[str, str | None], why: str, required: bool
) -> None:
    rejection = headers.check(
        told(changes), "tools/call", call(region="us"), MAPPING, required=required
    )
    assert why in refused(rejection)


@pytest.mark.parametrize("missing", ["Mcp-Method", "Mcp-Name", "Mcp-Param-Region"])
def test_a_header_that_is_missing_is_missed_in_the_modern_era_only(missing: str) -> None:
    sent = told({missing: None})
    params = call(region="us")
    assert headers.check(sent, "tools/call", params, MAPPING, required=False) is None
    assert f"{missing} is missing" in refused(
        headers.check(sent, "tools/call", params, MAPPING, required=True)
    )


@pytest.mark.parametrize(
    "name", ["MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Param-Region"]
)
@pytest.mark.parametrize("required", [True, False])
def test_a_header_twice_is_refused_even_if_both_agree(name: str, required: bool) -> None:
    sent = told({}, (name.lower(), GOOD[name]))
    rejection = headers.check(sent, "tools/call", call(region="us"), MAPPING, required=required)
    assert f"{name} came more than once" in refused(rejection)


def test_a_name_over_a_body_without_one() -> None:
    assert "params.name" in refused(headers.check(told({}), "tools/call", {}))
    # Other methods have no name that the header could repeat.
    assert headers.check(told({"Mcp-Method": None}), "tools/list", {}) is None


@pytest.mark.parametrize(
    ("header", "value", "agree"),
    [
        ("42", 42, True),
        ("42.0", 42, True),
        ("42.000", 42.0, True),
        ("42", 42.0, True),
        ("-7", -7, True),
        ("042", 42, True),
        ("42.5", 42, False),
        ("4.2e1", 42, False),
        ("42", "42", True),
        ("42.0", "42", False),
        ("1", True, False),
        ("true", True, True),
        ("9007199254740993", 9007199254740993, True),
        ("9007199254740992", 9007199254740993, False),
        ("9007199254740993", 9007199254740992.0, False),
        ("9" * 5000, 42, False),
        ("4_2", 42, False),
        ("٤٢", 42, False),
    ],
)
def test_integers_are_compared_as_numbers(header: str, value: object, agree: bool) -> None:
    sent = told({"Mcp-Param-Id": header, "Mcp-Param-Region": None})
    rejection = headers.check(sent, "tools/call", call(filter={"id": value}), MAPPING)
    assert (rejection is None) == agree


@given(
    ARGUMENTS,
    st.dictionaries(
        st.sampled_from(["Mcp-Param-Region", "Mcp-Param-Id", "Mcp-Param-Dry"]),
        st.text("0123456789.-truefals=?base64", max_size=6),
    ),
)
def test_the_reference_decides_the_same(arguments: dict[str, Any], sent: dict[str, str]) -> None:
    sent = {name: value.strip() for name, value in sent.items()}
    own = headers.check_params(CIMultiDict(sent), call(**arguments), MAPPING)
    theirs = reference.validate_mcp_param_headers(MAPPED, arguments, sent)
    assert (own is None) == (theirs is None)
