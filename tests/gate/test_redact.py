"""What is taken out is gone, and what is left is still a result."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import Limits
from sidecar.gate import patterns as patterns_module
from sidecar.gate.redact import TooLarge, redact
from sidecar.model import Caller, JsonObject, Redaction, RpcError
from sidecar.policy.paths import parse_path
from sidecar.wire.json import encode, fields
from tests.gate.conftest import Begin
from tests.gate.kit import denial, plain, rules
from tests.gateway.scripted import ALL, caller, offers, prompt, resource, result, tool


def raw(value: object) -> Any:
    return fields(json.dumps(value).encode())


def done(value: object, *redactions: Redaction, **how: Any) -> Any:
    return json.loads(encode(redact(raw(value), redactions, **how)))


def paths(*texts: str, replacement: str = "[redacted]") -> Redaction:
    return Redaction("p/r", tuple(map(parse_path, texts)), (), replacement)


def matching(*expressions: str, replacement: str = "[redacted]") -> Redaction:
    return Redaction("p/r", (), expressions, replacement)


def text(value: str, **rest: object) -> JsonObject:
    return {"type": "text", "text": value, **rest}


KEY = r"AKIA[0-9A-Z]{16}"
SECRET = "AKIAABCDEFGHIJKLMNOP"

# --------------------------------------------------------------------------------- paths


def test_a_path_takes_out_one_value_and_leaves_the_rest_as_it_was() -> None:
    before = {
        "content": [text("hello")],
        "structuredContent": {"token": "t0k3n-value", "n": 2**70, "f": [1, {"token": "b"}]},
        "vendor": {"x": 1.50},
    }
    after = redact(raw(before), [paths("structuredContent.token")])
    assert bytes(after["content"]) == bytes(raw(before)["content"])  # type: ignore[arg-type, call-overload]
    assert bytes(after["vendor"]) == b'{"x": 1.5}'  # type: ignore[arg-type, call-overload]
    assert json.loads(encode(after["structuredContent"])) == {
        "token": "[redacted]",
        "n": 2**70,
        "f": [1, {"token": "b"}],
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (
            "structuredContent.rows[*].pin",
            {"rows": [{"pin": "X"}, {"pin": "X", "a": 1}], "k": [1, 2]},
        ),
        (
            "structuredContent.rows[-1].pin",
            {"rows": [{"pin": 1}, {"pin": "X", "a": 1}], "k": [1, 2]},
        ),
        ("structuredContent.rows[0]", {"rows": ["X", {"pin": 2, "a": 1}], "k": [1, 2]}),
        ("structuredContent.*", {"rows": "X", "k": "X"}),
        ("structuredContent.k[9]", None),
        ("structuredContent.none.more", None),
        ("structuredContent.k.name", None),
        ("nowhere.at.all", None),
    ],
)
def test_paths_lead_where_they_say(path: str, expected: object) -> None:
    before = {
        "content": [],
        "structuredContent": {"rows": [{"pin": 1}, {"pin": 2, "a": 1}], "k": [1, 2]},
    }
    unread = raw(before)
    after = redact(unread, [paths(path, replacement="X")])
    if expected is None:
        assert json.loads(encode(after)) == before
    else:
        assert json.loads(encode(after))["structuredContent"] == expected


@pytest.mark.parametrize("path", ["priority", "audience", "audience[0]", "*"])
def test_annotations_stay_annotations(path: str) -> None:
    """Their fields are a number and two roles: a text in their place is no block any more."""
    from mcp.types import CallToolResult

    before = {"content": [text("x", annotations={"priority": 0.5, "audience": ["user"]})]}
    after = done(before, paths(f"content[*].annotations.{path}"))
    CallToolResult.model_validate(after)
    left = {"priority": {"audience": ["user"]}, "*": {}}.get(path, {"priority": 0.5})
    assert after["content"][0] == text("x", annotations=left)
    icons = {"icons": [{"src": "https://h/x"}]}
    link = {"type": "resource_link", "uri": "file:///x", "name": "n", **icons}
    assert "icons" not in done({"content": [link]}, paths("content[0].icons[0].src"))["content"][0]


def test_text_that_repeats_structured_content_says_the_same_afterwards() -> None:
    structured = {"token": "t0k3n/value", "name": "ann"}
    before = {
        "content": [
            text(json.dumps(structured, indent=2).replace("/", "\\/")),
            text("your token is t0k3n/value, ann"),
            text('{"other": 1}'),
        ],
        "structuredContent": structured,
    }
    after = done(before, paths("structuredContent.token"))
    first, second, third = (block["text"] for block in after["content"])
    assert json.loads(first) == after["structuredContent"] == {"token": "[redacted]", "name": "ann"}
    assert second == "your token is [redacted], ann"
    assert third == '{"other": 1}'


def test_structured_content_that_repeats_a_text_says_the_same_afterwards() -> None:
    structured = {"token": "t0k3n"}
    before = {"content": [text(json.dumps(structured))], "structuredContent": structured}
    after = done(before, paths("content[*].text"))
    assert after == {"content": [text("[redacted]")]}
    typed = done(before, paths("content[0]"), schema={})
    assert typed == {
        "content": [text("[redacted]")],
        "structuredContent": {"token": "[redacted]"},
    }


def test_types_stay_where_the_tool_declares_them() -> None:
    value = {
        "s": "secret",
        "n": 5,
        "f": 1.5,
        "b": True,
        "z": None,
        "l": [1],
        "o": {"n": 7, "s": "x"},
    }
    after = done(
        {"content": [], "structuredContent": value}, paths("structuredContent.*"), schema={}
    )
    assert after["structuredContent"] == {
        "s": "[redacted]",
        "n": 0,
        "f": 0,
        "b": False,
        "z": None,
        "l": [],
        "o": {"n": 0, "s": "[redacted]"},
    }


def test_without_a_path_all_of_it_goes() -> None:
    before = {
        "content": [text("a"), text("b")],
        "structuredContent": {"n": 1},
        "isError": True,
        "vendor": "secret",
        "_meta": {"vendor": "secret", "ifc": {"integrity": "untrusted"}},
    }
    received = raw(before)
    received["_meta"] = {"vendor": "secret", "ifc": {"integrity": "untrusted"}}
    after = json.loads(encode(redact(received, [Redaction("p/r")])))
    assert after == {
        "content": [text("[redacted]")],
        "isError": True,
        "_meta": {"ifc": {"integrity": "untrusted"}},
    }
    typed = done(before, Redaction("p/r"), schema={})
    assert typed["structuredContent"] == {"n": 0}


# ------------------------------------------------------------------------------- patterns


def test_patterns_are_taken_out_of_every_string() -> None:
    before = {
        "content": [text(f"a {SECRET} b {SECRET}"), text("none")],
        "structuredContent": {"deep": [{"k": SECRET}], SECRET: 1},
        "vendor": [SECRET],
    }
    after = done(before, matching(KEY))
    assert SECRET not in json.dumps(after)
    assert after["content"] == [text("a [redacted] b [redacted]"), text("none")]
    assert after["structuredContent"] == {"deep": [{"k": "[redacted]"}], "[redacted]": 1}


@pytest.mark.parametrize(
    "hidden",
    [
        json.dumps({"k": SECRET}),
        json.dumps({"k": SECRET}).replace("AKIA", "\\u0041KIA"),
        "\n " + json.dumps({"k": SECRET}).replace("AKIA", "\\u0041KIA"),
        f'[1, "{SECRET}"]'.replace("K", "\\u004B"),
    ],
)
def test_nothing_hides_behind_an_escape_and_json_stays_json(hidden: str) -> None:
    after = done({"content": [text(hidden)]}, matching(KEY, replacement='"quoted"\\'))
    told = json.loads(after["content"][0]["text"])
    assert SECRET not in json.dumps(told)
    assert '"quoted"\\' in (told["k"] if isinstance(told, dict) else told[1])


def test_a_replacement_is_taken_as_it_is() -> None:
    after = done({"content": [text("ab")]}, matching("(a)(b)", replacement="\\1\\g<0>$1"))
    assert after["content"][0]["text"] == "\\1\\g<0>$1"


def test_what_matches_nothing_changes_nothing() -> None:
    before = raw({"content": [text("x")], "structuredContent": {"a": "b"}})
    after = redact(before, [matching("zzz", "q*")])
    assert after is before


def test_letters_of_any_script_are_matched_as_letters() -> None:
    after = done({"content": [text("é日本é")]}, matching("日.", "^é"))
    assert after["content"][0]["text"] == "[redacted][redacted]é"


def test_too_many_matches_take_out_the_whole_text() -> None:
    after = done({"content": [text("ab" * 20_000)]}, matching("a"))
    assert after["content"][0]["text"] == "[redacted]"


def test_a_pattern_that_is_slow_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns_module, "MOST_SECONDS", 0.1)
    began = time.process_time()
    after = done({"content": [text("x" * 400_000)]}, matching("x.*y|x"))
    assert time.process_time() - began < 3
    assert "x" not in after["content"][0]["text"]


def test_a_result_does_not_grow_beyond_its_bound() -> None:
    value = raw({"content": [text("a" * 9000)]})
    with pytest.raises(TooLarge):
        redact(value, [matching("a", replacement="b" * 2000)], limit=1 << 20)


def test_paths_come_before_patterns() -> None:
    before = {"content": [text("x")], "structuredContent": {"a": "keep me", "b": "keep"}}
    after = done(before, matching("keep", replacement="K"), paths("structuredContent.b"))
    assert after["structuredContent"] == {"a": "K me", "b": "[redacted]"}


# ---------------------------------------------------------------------------- still valid

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-9, 10**12), st.text(max_size=8), st.just(f"a {SECRET} b")
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "token", SECRET]), inner, max_size=3)
    ),
    max_leaves=8,
)
uris = st.sampled_from(["file:///x", f"https://h/?k={SECRET}"])
words = st.sampled_from(["plain", f"it is {SECRET}!", json.dumps({"k": SECRET}), ""])
optional = st.fixed_dictionaries(
    {},
    optional={
        "annotations": st.fixed_dictionaries(
            {"priority": st.just(0.5), "audience": st.just(["user"])}
        ),
        "_meta": st.fixed_dictionaries({"v": words}),
    },
)


def with_optional(block: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda one, more: {**one, **more}, block, optional)


texts = st.fixed_dictionaries({"type": st.just("text"), "text": words})
contents = st.one_of(
    st.fixed_dictionaries({"uri": uris, "text": words, "mimeType": st.just("text/plain")}),
    st.fixed_dictionaries({"uri": uris, "blob": st.sampled_from(["QUtJQQ==", SECRET + "AA=="])}),
)
blocks = st.one_of(
    with_optional(texts),
    with_optional(
        st.fixed_dictionaries(
            {
                "type": st.sampled_from(["image", "audio"]),
                "data": st.sampled_from(["QUtJQQ==", SECRET]),
                "mimeType": st.just("image/png"),
            }
        )
    ),
    with_optional(
        st.fixed_dictionaries({"type": st.just("resource_link"), "uri": uris, "name": words})
    ),
    with_optional(st.fixed_dictionaries({"type": st.just("resource"), "resource": contents})),
)
results = st.fixed_dictionaries(
    {"content": st.lists(blocks, max_size=4)},
    optional={
        "structuredContent": st.dictionaries(
            st.sampled_from(["a", "b", "token"]), values, max_size=3
        ),
        "isError": st.booleans(),
    },
)
redactions = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "content",
                "content[*]",
                "content[0].text",
                "content[*].data",
                "content[*].uri",
                "content[*].resource",
                "content[*].resource.text",
                "content[*].resource.blob",
                "content[*].type",
                "content[*].annotations",
                "content[*].annotations.priority",
                "content[*]._meta",
                "structuredContent",
                "structuredContent.token",
                "structuredContent.*",
                "structuredContent.a[*].b",
                "isError",
                "*",
                "*[*].*",
                "*.*.*",
            ]
        ).map(paths),
        st.sampled_from([KEY, "[a-z]+", ".", "text|image", "(?s).+", "plain"]).map(matching),
        st.just(Redaction("p/r")),
    ),
    min_size=1,
    max_size=3,
)


@given(results, redactions, st.booleans())
def test_whatever_is_taken_out_a_result_is_left(
    value: JsonObject, chosen: list[Redaction], typed: bool
) -> None:
    from mcp.types import CallToolResult

    CallToolResult.model_validate(value)
    after = done(value, *chosen, schema={} if typed else None)
    CallToolResult.model_validate(after)
    assert after.get("isError") == value.get("isError")
    if typed and "structuredContent" in value:
        assert "structuredContent" in after


@given(results)
def test_a_secret_is_nowhere_afterwards(value: JsonObject) -> None:
    after = done(value, matching(KEY))
    assert SECRET not in json.dumps(after)


@given(st.dictionaries(st.sampled_from(["a", "token"]), values, max_size=2), st.booleans())
def test_text_and_structure_never_disagree(structured: JsonObject, spaced: bool) -> None:
    told = json.dumps(structured, indent=1 if spaced else None)
    before = {"content": [text(told)], "structuredContent": structured}
    for chosen in (paths("structuredContent.token"), matching(KEY)):
        after = done(before, chosen)
        assert json.loads(after["content"][0]["text"]) == after["structuredContent"]


# ----------------------------------------------------------------------- through a gateway

RULE = (
    "id: keys, on: result, effect: redact, when: 'true', "
    f"redact: {{patterns: ['{KEY}'], with: '***'}}"
)


async def test_a_rule_redacts_what_a_server_answers(begin: Begin) -> None:
    world = await begin(rules(RULE), shipped=("labels",))
    server = world.serve("s", offers([tool("x", annotations={"readOnlyHint": True})]))
    server.answers["tools/call"] = result(f"key {SECRET}", structuredContent={"k": SECRET})
    answer = await world.call("s__x", caller())
    assert answer["content"] == [text("key ***")]
    assert answer["structuredContent"] == {"k": "***"}
    meta: Any = answer["_meta"]
    assert meta["sidecar/redacted"] == ["p0/keys"]
    assert meta["sidecar/labels"] == ["outside"]
    assert world.decided[-1].decision.redactions[0].rule == "p0/keys"
    server.answers["tools/call"] = result("nothing")
    assert "sidecar/redacted" not in (await world.call("s__x", caller()))["_meta"]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("method", "params", "answered"),
    [
        (
            "resources/read",
            {"uri": "f:///x"},
            {"contents": [{"uri": "f:///x", "text": SECRET}, {"uri": "f:///x", "blob": SECRET}]},
        ),
        (
            "prompts/get",
            {"name": "s__p"},
            {"description": SECRET, "messages": [{"role": "user", "content": text(SECRET)}]},
        ),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "s__p"}, "argument": {"name": "a", "value": ""}},
            {"completion": {"values": [SECRET, "b"], "total": 2}},
        ),
    ],
)
async def test_every_kind_of_result_is_redacted(
    begin: Begin, method: str, params: JsonObject, answered: JsonObject
) -> None:
    from mcp.types import CompleteResult, GetPromptResult, ReadResourceResult

    world = await begin(rules(RULE))
    server = world.serve(
        "s", offers([], ALL, prompts=(prompt("p"),), resources=(resource("f:///x"),))
    )
    server.answers[method] = raw(answered)
    answer = plain(await world.gateway.request(method, params, caller()))
    assert SECRET not in json.dumps(answer)
    assert "***" in json.dumps(answer)
    types = {
        "resources/read": ReadResourceResult,
        "prompts/get": GetPromptResult,
        "completion/complete": CompleteResult,
    }
    types[method].model_validate(answer)


async def test_errors_and_words_on_the_way_are_redacted_too(begin: Begin) -> None:
    world = await begin(rules(RULE))
    server = world.serve("s", offers(["x"]))
    told: list[Any] = []
    who = caller()
    who.notify = lambda method, params: told.append(params)

    async def talk(method: str, params: JsonObject, sender: Caller) -> Any:
        sender.notify("notifications/progress", {"progressToken": SECRET, "message": SECRET})
        sender.notify("notifications/message", {"level": "info", "data": {"k": [SECRET]}})
        raise RpcError(-32050, f"no {SECRET}", {"k": SECRET})

    server.answer = talk
    with pytest.raises(RpcError) as failed:
        await world.call("s__x", who)
    assert failed.value.code == -32050
    assert failed.value.message == "no ***"
    assert failed.value.data == {"k": "***"}
    assert told == [
        {"progressToken": SECRET, "message": "***"},
        {"level": "info", "data": {"k": ["***"]}},
    ]


async def test_a_result_that_cannot_be_redacted_does_not_leave(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: a, on: result, effect: redact, when: 'true', "
            f"redact: {{patterns: ['a'], with: '{'b' * 400}'}}"
        ),
        limits=Limits(result=1 << 20),
    )
    server = world.serve("s", offers(["x"]))
    server.answers["tools/call"] = result("a" * 9000)
    refused = denial(await world.call("s__x", caller()))
    assert refused["rule"] == "p0/a"
    assert "limits.result" in refused["message"]
    assert world.decided[-1].decision.decision == "deny"
    deep: object = "x"
    for _ in range(300):
        deep = [deep]
    server.answers["tools/call"] = result("y", vendor=deep)
    assert "nested too deeply" in denial(await world.call("s__x", caller()))["message"]


async def test_a_denied_result_says_nothing_of_what_it_was(begin: Begin) -> None:
    world = await begin(
        rules(
            "id: d, on: result, effect: deny, when: 'result.text.contains(\"KEY\")', "
            "message: '\"it held a key\"'"
        )
    )
    server = world.serve("s", offers(["x"]))
    server.answers["tools/call"] = result("KEY", structuredContent={"a": "KEY"})
    answer = await world.call("s__x", caller())
    assert "KEY" not in json.dumps(answer)
    assert denial(answer) == {"rule": "p0/d", "message": "it held a key"}
    told: Any = answer["content"]
    assert told[0]["text"].endswith("the call itself has run, its answer is withheld")
