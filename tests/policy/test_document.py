"""What is wrong with a file is told all at once, each at its place, with the rule's id."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.policy import PolicyErrors
from sidecar.policy.document import read
from sidecar.policy.paths import parse_path
from tests.policy.kit import Folder, policy, rule

Told = Callable[[str], list[str]]


@pytest.fixture
def told(folder: Folder) -> Told:
    """Every fault of a file as ``line:column: rule: message``."""

    def faults(text: str) -> list[str]:
        try:
            found = folder.load(text).warnings
        except PolicyErrors as errors:
            found = errors.faults
        return [str(fault).partition("policy0.yaml:")[2] for fault in found]

    return faults


def test_everything_at_once(told: Told) -> None:
    text = """\
apiVersion: sidecar/v1
kind: Policy
name: bad
match: {server: github, tols: x}
variables:
  - {name: v, expr: "args.x =="}
  - {name: w, expr: "argz.x == 1"}
rules:
  - id: a
    on: list
    effect: ask
    when: session.labels == args.x
  - id: b
    on: [list, call]
    effect: deny
    when: 'tool.nam == "x" && "a" in tool.name'
    message: hello world
  - id: c
    on: call
    effect: deny
    when: >-
      args.?path.orValue("").matches("(")
        || variables.q
        || variables.v
        || variables.w
  - id: c
    on: connect
    effect: allow
    when: verdict.ok ==
"""
    assert told(text) == [
        '4:25: match.tols: unknown key "tols"; did you mean "tool"?',
        "6:30: bad: the expression ends too early",
        "7:22: bad: unknown variable argz; did you mean args?",
        "11:13: bad/a: rules[0].effect: ask is nothing for list; there it is deny, allow",
        "12:11: bad/a: unknown variable session; it is there at call and result, not at list",
        "12:29: bad/a: unknown variable args; it is there at call and result, not at list",
        "16:17: bad/b: there is no field nam; did you mean name?",
        "16:35: bad/b: 'in' does not look into strings; write text.contains(part)",
        "17:20: bad/b: unexpected 'world'; a message is an expression: its text stands in "
        "quotes, as in '\"no\"'",
        "22:38: bad/c: bad regular expression: missing ): (",
        "26:5: bad/c: rules[3]: an allow rule at connect needs a message: the reason, as "
        "plain text",
        '26:5: bad/c: rules[3]: there is a rule "c" already; give each its own name',
        "29:23: bad/c: the expression ends too early",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1:1: is empty; a policy has apiVersion, kind, name and rules"]),
        ("[]", ["1:1: expected a policy, got a list"]),
        ("a: [", ["2:1: not valid YAML: did not find expected node content while parsing a "
                  "flow node"]),
        ("kind: PolicyTest", ["1:1: kind: is a test of policies; call the file *_test.yaml"]),
    ],
)  # fmt: skip
def test_files_that_are_no_policies(told: Told, text: str, expected: list[str]) -> None:
    assert told(text) == expected


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        ("{id: r, on: call, effect: redact, when: x}", "rules[0].effect: redact is nothing for "
         "call; there it is deny, ask, allow"),
        ("{id: r, on: result, effect: redact, when: x}", "rules[0]: effect redact needs redact: "
         "With effect redact: what is taken out."),
        ("{id: r, on: result, effect: label, when: x}", "rules[0]: effect label needs label: "
         "With effect label: the label, or labels."),
        ("{id: r, on: call, effect: deny, when: x, label: y}", "rules[0].label: stands beside "
         "effect deny; it belongs to effect label"),
        ("{id: r, on: result, effect: label, when: x, label: Out}", 'rules[0].label: "Out" is '
         "not a label; use up to 64 of a-z 0-9 . _ : - and begin with a letter or digit"),
        ("{id: r, on: result, effect: redact, when: x, redact: {}}", "rules[0].redact: needs "
         "paths or patterns: what is to be taken out"),
        ("{id: r, on: result, effect: redact, when: x, redact: {paths: [.a]}}",
         'rules[0].redact.paths[0]: ".a" is not a path; write it like structuredContent.token, '
         'content[*].text or structuredContent["a key"]'),
        ("{id: r, on: [call, call], effect: deny, when: x}", "rules[0].on: names a phase twice"),
        ("{id: r, on: calls, effect: deny, when: x}", 'rules[0].on: "calls" is not one of '
         "connect, list, call, result"),
        ("{id: a b, on: call, effect: deny, when: x}", 'rules[0].id: "a b" is not an id; use up '
         "to 64 of A-Z a-z 0-9 . _ - and begin with a letter or digit"),
        ("{id: r, on: call, effect: deny}", "rules[0]: when is missing: Its condition, in CEL."),
        ("{id: r, on: call, effect: deny, when: [x]}", "rules[0].when: expected a CEL "
         "expression, got a list"),
        ("{id: r, on: call, effect: deny, if: x}", "rules[0].if: unknown key; write when"),
        ("{id: r, on: call, effect: deny, when: x, mode: dry}", 'rules[0].mode: "dry" is not one '
         "of enforce, audit"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be(told: Told, one: str, expected: str) -> None:
    text = f"apiVersion: sidecar/v1\nkind: Policy\nname: p\nrules:\n  - {one}\n"
    assert expected in [line.partition(": ")[2].removeprefix("p/r: ").removeprefix("p/a b: ")
                        for line in told(text)]  # fmt: skip


def test_conditions_that_yaml_reads_as_something_else(folder: Folder) -> None:
    text = "apiVersion: sidecar/v1\nkind: Policy\nname: p\nrules:\n"
    loaded = folder.load(text + "  - {id: r, on: call, effect: deny, when: true}\n")
    assert loaded.policy.all_rules()[0].when.constant  # type: ignore[attr-defined]
    with pytest.raises(PolicyErrors, match="5:43: p/r: this has to be a bool, it is an int"):
        folder.load(text + "  - {id: r, on: call, effect: deny, when: 7}\n")


def test_a_redact_pattern_is_checked(told: Told) -> None:
    text = policy(rule("r", "redact", "true", on="result", more="redact: {patterns: ['ok', '(']}"))
    assert told(text) == ["10:31: p/r: bad regular expression: missing ): ("]


@pytest.mark.parametrize(
    ("match", "why"),
    [("tool: x", "a connection has no tool"), ("kind: mcp", "a connection has no kind")],
)
def test_match_of_what_a_connection_has_not(told: Told, match: str, why: str) -> None:
    text = policy(rule("r", "deny", "true", on="connect"), more=f"match: {{{match}}}")
    (line,) = told(text)
    assert why in line


def test_a_reason_has_to_be_constant(told: Told) -> None:
    text = policy(rule("r", "allow", "true", on="connect", message='"to " + url.host'))
    assert told(text) == [
        "10:14: p/r: an allow rule at connect needs a constant message: the reason"
    ]


def test_a_variable_is_known_where_all_that_it_reads_is(told: Told) -> None:
    more = "variables:\n  - {name: v, expr: size(session.labels) > 0}"
    assert told(policy(rule("r", "deny", "variables.v"), more=more)) == []
    (line,) = told(policy(rule("r", "deny", "variables.v", on="list"), more=more))
    assert line.startswith("11:7: p/r: ")
    assert "session" in line


def test_a_variable_reads_those_above_it_only(told: Told) -> None:
    more = (
        "variables:\n  - {name: a, expr: variables.b}\n  - {name: b, expr: 'tool.gated'}\n"
        "  - {name: c, expr: variables.c}"
    )
    lines = told(policy(rule("r", "deny", "variables.b"), more=more))
    assert lines == [
        "5:21: p: unknown variable variables.b; a variable reads those above it: none",
        "7:21: p: unknown variable variables.c; a variable reads those above it: variables.a, "
        "variables.b",
    ]
    more = "variables:\n  - {name: q, expr: '1'}"
    (line,) = told(policy(rule("r", "deny", "variables.z.y == 1"), more=more))
    assert line == "11:7: p/r: unknown variable variables.z; there are variables.q"


def test_functions_of_a_space_of_names(told: Told) -> None:
    for when, name in (("lists.range(3) == []", "lists.range"), ("args.x.sort()", "sort")):
        (line,) = [each for each in told(policy(rule("r", "deny", when))) if "absent" not in each]
        assert f"p/r: unknown function {name}" in line


def test_a_name_is_taken_once_beside_other_faults(told: Told) -> None:
    text = policy(
        rule("a", "deny", "tool.gated"),
        rule("a", "deny", "tool.gated", on="calls"),
        more="variables:\n  - {name: v, expr: '1'}\n  - {name: v, expr: }",
    )
    assert told(text) == [
        '6:5: variables[1]: there is a variable "v" already; give each its own name',
        "6:15: variables[1].expr: has no value; give it one or remove the key",
        '13:5: p/a: rules[1]: there is a rule "a" already; give each its own name',
        '14:9: p/a: rules[1].on: "calls" is not one of connect, list, call, result',
    ]


@given(st.text(alphabet=st.sampled_from("apiVersonkd:[]{}-\n '\"|>#&*! 0x.\t,"), max_size=200))
def test_no_file_breaks_the_reader(text: str) -> None:
    document, faults = read("p.yaml", text)
    assert document is None or faults
    assert all(fault.line >= 1 and fault.column >= 1 for fault in faults)


# ------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("structuredContent.token", ("structuredContent", "token")),
        ("$.structuredContent.token", ("structuredContent", "token")),
        ("content[*].text", ("content", None, "text")),
        ("content[0].text", ("content", 0, "text")),
        ("content[-1]", ("content", -1)),
        ('a["b c"].d', ("a", "b c", "d")),
        ('$["a\\"b"]', ('a"b',)),
        ("a.*.b", ("a", None, "b")),
        ("*", (None,)),
        ("a-b._c", ("a-b", "_c")),
    ],
)
def test_paths(text: str, path: tuple[object, ...]) -> None:
    assert parse_path(text) == path


@pytest.mark.parametrize(
    "text", ["", "$", ".a", "a..b", "a b", "a[", "a[x]", "a]", "$a b", "a[1]b", 'a["x]', "a['b']"]
)
def test_texts_that_are_no_paths(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a path|is the whole|without a dot"):
        parse_path(text)
