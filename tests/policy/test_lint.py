"""Warnings across rules: what never matches, what never decides, arguments that a tool lacks."""

from __future__ import annotations

import pytest

from sidecar.model import JsonObject
from sidecar.policy import EngineOptions, PolicyErrors, load
from sidecar.policy.cel import parse
from sidecar.policy.document import Globs, Match
from sidecar.policy.findings import pinned
from tests.policy.kit import Folder, policy, rule


def warned(folder: Folder, *texts: str) -> list[str]:
    return [f"{fault.rule}: {fault.message}" for fault in folder.load(*texts).warnings]


# ------------------------------------------------------------------------------- unreachable


@pytest.mark.parametrize(
    ("when", "match", "why"),
    [
        ('tool.name == "a" && tool.name == "b"', "", "tool.name cannot be 'a' and 'b'"),
        ('tool.gated && ("a" == tool.name && tool.name == "b")', "", "tool.name cannot be"),
        ('tool.server == "gitlab"', "server: git*b", None),
        ('tool.server == "linear"', "server: git*", "tool.server is 'linear', which match"),
        ('tool.upstream_name == "x"', "tool: [a, b]", "tool.upstream_name is 'x', which match"),
        ('tool.kind == "prompt"', "kind: mcp", "tool.kind is 'prompt', which match"),
        ('tool.name == "a" || tool.name == "b"', "", None),
        ('tool.name == "a" && tool.server == "b"', "", None),
        ('args.x == "a" && args.x == "b"', "", "args.x cannot be 'a' and 'b'"),
    ],
)
def test_rules_that_never_match(folder: Folder, when: str, match: str, why: str | None) -> None:
    more = f"match: {{{match}}}" if match else ""
    told = warned(folder, policy(rule("r", "deny", when), more=more))
    told = [line for line in told if "may be absent" not in line]
    if why is None:
        assert told == []
    else:
        (line,) = told
        assert line.startswith(f"p/r: it never matches: {why}")


def test_a_contradiction_behind_a_variable(folder: Folder) -> None:
    more = "variables:\n  - {name: v, expr: 'tool.name == \"a\"'}"
    (line,) = warned(
        folder, policy(rule("r", "deny", 'variables.v && tool.name == "b"'), more=more)
    )
    assert line == "p/r: it never matches: tool.name cannot be 'a' and 'b'"


def test_a_condition_that_is_constant(folder: Folder) -> None:
    (line,) = warned(folder, policy(rule("r", "deny", "tool.gated && 1 == 2")))
    assert line == "p/r: this is always false"


# ---------------------------------------------------------------------------------- shadowed

GATED = "tool.gated"
BOTH = "agent.principal == 'x' && tool.gated"


@pytest.mark.parametrize(
    ("first", "second", "shadowed"),
    [
        (("deny", GATED), ("deny", GATED), "b"),
        (("deny", GATED), ("ask", BOTH), "b"),
        (("ask", BOTH), ("deny", GATED), "a"),
        (("deny", BOTH), ("ask", GATED), None),
        (("ask", GATED), ("deny", BOTH), None),
        (("allow", GATED), ("ask", GATED), "a"),
        (("deny", "true"), ("allow", "tool.changed"), "b"),
        (("deny", GATED), ("deny", "tool.changed"), None),
        (("deny", "tool.gated && args.?n.orValue(0) == 1"),
         ("ask", "args.?n.orValue(0) == 1.0 && tool.gated"), None),
        (("deny", "( tool.gated )"), ("ask", "tool . gated && tool.changed"), "b"),
    ],
)  # fmt: skip
def test_rules_that_never_decide(
    folder: Folder, first: tuple[str, str], second: tuple[str, str], shadowed: str | None
) -> None:
    told = warned(folder, policy(rule("a", *first), rule("b", *second)))
    told = [line for line in told if "never decides" in line]
    if shadowed is None:
        assert told == []
        return
    other = {"a": ("b", second[0]), "b": ("a", first[0])}[shadowed]
    assert told == [
        f"p/{shadowed}: it never decides: whenever it matches, p/{other[0]} ({other[1]}) does too"
    ]


@pytest.mark.parametrize(
    ("wide", "narrow", "shadows"),
    [
        ("", "match: {server: up}", True),
        ("match: {server: up}", "", False),
        ("match: {server: 'u*'}", "match: {server: [up, us]}", True),
        ("match: {server: 'u*'}", "match: {server: [up, github]}", False),
        ("match: {server: 'u*'}", "match: {server: 'up*'}", False),
        ("match: {tool: '*'}", "match: {tool: 'a*'}", True),
        ("match: {kind: [mcp, acp]}", "match: {kind: acp}", True),
    ],
)
def test_shadows_across_files(folder: Folder, wide: str, narrow: str, shadows: bool) -> None:
    texts = (
        policy(rule("r", "deny", GATED), name="wide", more=wide),
        policy(rule("r", "ask", BOTH), name="narrow", more=narrow),
    )
    assert bool(warned(folder, *texts)) is shadows
    assert bool(warned(folder, *reversed(texts))) is shadows


def test_variables_of_two_files_are_compared_by_what_they_say(folder: Folder) -> None:
    def text(name: str, effect: str, expr: str) -> str:
        more = f"variables:\n  - {{name: v, expr: {expr}}}"
        return policy(rule("r", effect, "variables.v"), name=name, more=more)

    assert warned(folder, text("a", "deny", "tool.gated"), text("b", "ask", "tool.gated")) != []
    assert warned(folder, text("a", "deny", "tool.gated"), text("b", "ask", "tool.changed")) == []


def test_what_is_only_recorded_shadows_nothing(folder: Folder) -> None:
    audit = policy(rule("r", "deny", GATED), name="a", more="mode: audit")
    live = policy(rule("r", "ask", GATED), name="b")
    assert warned(folder, audit, live) == []
    assert warned(folder, audit.replace("mode: audit\n", ""), live) != []


def test_result_rules_add_up(folder: Folder) -> None:
    def label(id: str, name: str) -> str:
        return rule(id, "label", "true", on="result", more=f"label: {name}")

    redact = rule("red", "redact", "true", on="result", more="redact: {patterns: [x]}")
    always = "this is always true"
    told = warned(folder, policy(label("a", "one"), label("b", "two"), redact, redact.replace(
        "id: red", "id: blue")))  # fmt: skip
    assert [line for line in told if always not in line] == []
    told = warned(folder, policy(label("a", "one"), label("b", "one")))
    assert [line for line in told if always not in line] == [
        "p/b: it never decides: whenever it matches, p/a (label) does too"
    ]


def test_many_rules_are_compared_in_no_time(folder: Folder) -> None:
    rules = [rule(f"r{i}", "deny", f'tool.name == "t{i}" && tool.gated') for i in range(300)]
    assert warned(folder, policy(*rules)) == []


# --------------------------------------------------------------------------------- arguments

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "count": {"type": "integer"},
        "tags": {"type": "array"},
    },
    "required": ["path"],
}


def argument_warnings(folder: Folder, schema: JsonObject, when: str, more: str = "") -> list[str]:
    file = folder.write("p.yaml", policy(rule("r", "deny", when), more=more))
    options = EngineOptions(
        schemas=lambda server, tool: schema if (server, tool) == ("up", "write") else None
    )
    found = load([file], shipped=(), options=options).warnings
    return [fault.message for fault in found if fault.code == "unknown-argument"]


UNKNOWN = "argument: there is no field pth; did you mean path?"


@pytest.mark.parametrize(
    ("when", "more"),
    [
        ('tool.name == "up__write" && has(args.pth)', ""),
        ('tool.server == "up" && "write" == tool.upstream_name && has(args.pth)', ""),
        ("has(args.pth)", "match: {server: up, tool: write}"),
        ('tool.upstream_name == "write" && has(args.pth)', "match: {server: [up]}"),
    ],
)
def test_arguments_of_the_one_tool_that_a_rule_is_about(
    folder: Folder, when: str, more: str
) -> None:
    assert argument_warnings(folder, SCHEMA, when, more) == [UNKNOWN]


@pytest.mark.parametrize(
    "when",
    [
        "has(args.pth)",
        'tool.name == "up__read" && has(args.pth)',
        '(tool.name == "up__write" || tool.gated) && has(args.pth)',
        'tool.name == "up__write" && has(args.path) && args.?count.orValue(1) > 2',
        'tool.name == "up__write" && args.path.size() > 3',
    ],
)
def test_no_warning_where_it_is_not_certain(folder: Folder, when: str) -> None:
    assert argument_warnings(folder, SCHEMA, when) == []


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {**SCHEMA, "additionalProperties": True},
        {**SCHEMA, "additionalProperties": {"type": "string"}},
        {**SCHEMA, "allOf": [{"properties": {"pth": {}}}]},
        {"$ref": "#/$defs/x", **SCHEMA},
    ],
)
def test_a_schema_that_leaves_names_open(folder: Folder, schema: JsonObject) -> None:
    when = 'tool.name == "up__write" && has(args.pth)'
    assert argument_warnings(folder, schema, when) == []


def test_which_tool_a_rule_is_about() -> None:
    nothing = Match()
    assert pinned(parse('tool.name == "up__a__b" && x'), nothing) == ("up", "a__b")
    assert pinned(parse('!(tool.name == "up__a")'), nothing) is None
    assert pinned(parse("x"), Match(Globs(("up",)), Globs(("a",)))) == ("up", "a")
    assert pinned(parse("x"), Match(Globs(("up",)), Globs(("a*",)))) is None
    assert pinned(parse("x"), Match(Globs(("up", "us")), Globs(("a",)))) is None


# -------------------------------------------------------------------- comments in folded values

FOLDED = {
    "folded": "when: >-\n      has(args.a)  // why\n      && args.a != ''\n",
    "plain": "when: has(args.a) // why\n      && args.a != ''\n",
    "quoted": "when: \"has(args.a) // why\n      && args.a != ''\"\n",
    "escapes": "when: \"has(args.a) \\u002f/ wh\\x79\n      && args.a != ''\"\n",
    "anchored": "when: &w >\n      has(args.a)  // why\n      && args.a != ''\n",
    "open": "when: >-\n      has(args.a) && (  // why\n      args.a != '')\n",
}


@pytest.mark.parametrize("when", FOLDED.values(), ids=FOLDED)
def test_a_comment_that_hides_the_lines_below(folder: Folder, when: str) -> None:
    """YAML makes one line of them, and half of the condition would be gone."""
    file = folder.write("p.yaml", policy(f"  - id: r\n    on: call\n    effect: deny\n    {when}"))
    with pytest.raises(PolicyErrors) as caught:
        load([file], shipped=())
    (fault,) = caught.value.faults
    assert fault.message.startswith("YAML makes one line of these, so this comment hides")
    assert fault.rule == "p/r"
    lines = file.read_text().split("\n")
    assert "why" in lines[fault.line - 1] or "wh\\x79" in lines[fault.line - 1]
    assert lines[fault.line - 1][fault.column - 1 :].startswith(("// wh", "\\u002f/"))


@pytest.mark.parametrize(
    "when",
    [
        "when: |\n      has(args.a)  // why\n      && args.a != ''\n",
        "when: >-\n      has(args.a)\n      && args.a != ''  // why\n",
        "when: >-\n      has(args.a)\n      && args.a != 'http://x'\n      && args.a != r'\\'\n",
        "when: >-\n      args.?a.orValue('') == '''//''' // \n",
        "when: 'has(args.a) // why'\n",
    ],
)
def test_a_comment_that_hides_nothing(folder: Folder, when: str) -> None:
    text = policy(f"  - id: r\n    on: call\n    effect: deny\n    {when}")
    assert warned(folder, text) == []
