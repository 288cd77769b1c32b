"""Policy tests: tables of inputs and expectations, and what of the rules they reach."""

from __future__ import annotations

import pytest

from sidecar.policy import SHIPPED
from sidecar.policy.suites import merged
from sidecar.policy.testing import Report, Runner, check, find_tests
from tests.policy.kit import Folder, policy, rule

POLICY = policy(
    rule("asks", "ask", "tool.gated", message='"ask about " + tool.name'),
    rule("etc", "deny", 'args.path.startsWith("/etc")'),
    rule("mark", "label", "!server.trusted", on="result", more="label: [outside]"),
    rule("never", "deny", "tool.changed", on="list"),
)
HEAD = "apiVersion: sidecar/v1\nkind: PolicyTest\n"


def run(folder: Folder, tests: str, *, head: str = HEAD, text: str = POLICY) -> Report:
    folder.write("p.yaml", text)
    folder.write("p_test.yaml", head + tests)
    return Runner().run(find_tests([folder.path]))


def problems(folder: Folder, expect: str, given: str = "") -> list[str]:
    given = given or "{tool: {name: a, gated: true}, args: {path: /tmp}}"
    report = run(folder, f"tests:\n  - {{name: x, input: {given}, expect: {{{expect}}}}}\n")
    assert report.faults == []
    (outcome,) = report.outcomes
    return list(outcome.problems)


@pytest.mark.parametrize(
    ("expect", "told"),
    [
        ("decision: ask", []),
        ("decision: ask, rule: asks, rules: [asks], error: false, labels: []", []),
        ("rule: p/asks, rules: [p/asks]", []),
        ('message: "ask about a"', []),
        ("happens: ask, mode: enforce", []),
        ("decision: deny", ["decision is ask (by p/asks), expected deny"]),
        ("rule: etc", ["rule is p/asks, expected etc"]),
        ("rule: q/asks", ["rule is p/asks, expected q/asks"]),
        ("rules: []", ["rules are p/asks, expected none"]),
        ("rules: [asks, etc]", ["rules are p/asks, expected asks, etc"]),
        ("message: ask", ["message is 'ask about a', expected 'ask'"]),
        ("labels: [outside]", ["labels are none, expected outside"]),
        ("error: true", ["no rule fails, expected an error"]),
        ("happens: allow", ["what happens is ask, expected allow"]),
        ("mode: audit", ["mode is enforce, expected audit"]),
        (
            "decision: deny, rule: etc",
            ["decision is ask (by p/asks), expected deny", "rule is p/asks, expected etc"],
        ),
    ],
)
def test_expectations(folder: Folder, expect: str, told: list[str]) -> None:
    assert problems(folder, expect) == told


def test_expected_errors(folder: Folder) -> None:
    given = "{tool: {name: a, gated: false}, args: {path: 7}}"
    assert problems(folder, "decision: deny, error: true", given) == []
    assert problems(folder, "error: no_such_overload", given) == []
    (told,) = problems(folder, "error: no_such_key", given)
    assert told.startswith("error is no_such_overload (p/etc fails at 15:")
    (told,) = problems(folder, "error: false", given)
    assert told.endswith("; expected no error")


def test_the_same_file_holds_in_audit_mode(folder: Folder) -> None:
    tests = """\
input: {tool: {name: a, gated: true}, args: {path: /etc/x}, server: {trusted: false}}
tests:
  - {name: call, expect: {decision: deny, rule: etc, rules: [etc, asks]}}
  - {name: result, phase: result, expect: {decision: allow, labels: [outside], rules: [mark]}}
"""
    assert run(folder, tests).failed == []
    audit = POLICY.replace("name: p\n", "name: p\nmode: audit\n")
    report = run(folder, tests, text=audit)
    assert report.failed == []
    assert [outcome.decision.decision for outcome in report.outcomes] == ["allow", "allow"]
    live = tests.replace("decision: deny,", "decision: deny, happens: deny, mode: enforce,")
    (failed,) = run(folder, live, text=audit).failed
    assert failed.problems == (
        "what happens is allow, expected deny",
        "mode is audit, expected enforce",
    )


def test_inputs_are_laid_over_one_another(folder: Folder) -> None:
    tests = """\
input: {tool: {name: a, gated: false}, args: {path: /tmp}}
inputs:
  gated: {tool: {gated: true}}
  etc: {args: {path: /etc/x}}
tests:
  - {name: plain, expect: {decision: allow}}
  - {name: one, use: [gated], expect: {decision: ask}}
  - {name: two, use: [gated, etc], expect: {decision: deny}}
  - {name: over, use: [gated, etc], input: {args: {path: /}}, expect: {decision: ask}}
"""
    report = run(folder, tests)
    assert (len(report.outcomes), report.failed) == (4, [])


def test_merging() -> None:
    assert merged({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": None}) == {
        "a": {"b": 1, "c": [3]},
        "d": None,
    }


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ("tests: []\n", "3:8: tests: expected a list of tests, got an empty one"),
        ("tests:\n  - {name: x, expect: {}}\n", "4:23: tests[0].expect: expects nothing; name a "
         "decision, a rule, a message, labels or an error"),
        ("tests:\n  - {name: x, use: [y], expect: {decision: ask}}\n", "4:20: tests[0].use: "
         'there is no "y" in inputs; there are: none'),
        ("tests:\n  - {name: x, expected: {decision: ask}}\n", "4:15: tests[0].expected: unknown "
         "key; write expect"),
        ("tests:\n  - {name: x, input: {tol: {}}, expect: {decision: ask}}\n", "4:23: "
         "tests[0].input.tol: there is no such variable"),
        ("tests:\n  - {name: x, phase: calls, expect: {decision: ask}}\n", '4:22: tests[0].phase: '
         '"calls" is not one of connect, list, call, result'),
        ("policies: [gone.yaml]\ntests:\n  - {name: x, expect: {decision: ask}}\n",
         "gone.yaml: is not there; name a file or a folder"),
        ("tests:\n" + "  - {name: x, expect: {decision: ask}}\n" * 2, "5:12: tests[1].name: is "
         "the name of another test of this file"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_test_file(folder: Folder, tests: str, told: str) -> None:
    report = run(folder, tests)
    assert report.outcomes == []
    assert any(told in str(fault) for fault in report.errors), [str(f) for f in report.errors]


def test_tests_without_a_policy_beside_them(folder: Folder) -> None:
    folder.write("a/p_test.yaml", HEAD + "tests:\n  - {name: x, expect: {decision: allow}}\n")
    report = Runner().run(find_tests([folder.path]))
    (fault,) = report.errors
    assert fault.message == "no policy is in this folder; name the files in `policies`"


def test_which_policies_a_test_is_about(folder: Folder) -> None:
    """Those beside it, of no folder below; or those it names; the sidecar's own when it says so."""
    folder.write("sub/other.yaml", policy(rule("r", "deny", "true"), name="other"))
    given = "input: {tool: {name: a, kind: mcp, gated: false}, server: {runtime: false}}\n"
    case = "tests:\n  - {name: x, expect: {decision: %s}}\n"
    text = policy(rule("r", "allow", "tool.gated"))

    def decided(more: str, expected: str) -> bool:
        report = run(folder, given + more + case % expected, text=text)
        assert report.errors == []
        return not report.failed

    assert decided("", "allow")
    assert decided("default: deny\n", "deny")
    assert decided("policies: [sub]\n", "deny")
    assert decided("policies: [p.yaml, sub/other.yaml]\n", "deny")
    gated = given.replace("gated: false", "gated: true")
    report = run(folder, gated + "shipped: [gating]\n" + case % "ask", text=text)
    assert report.failed == []


def test_coverage_is_of_rules_in_their_phases(folder: Folder) -> None:
    tests = "tests:\n  - {name: x, input: {tool: {gated: true, name: a}, args: {path: /}}, expect: {decision: ask}}\n"  # noqa: E501
    report = run(folder, tests)
    assert [(each.id, each.phase, each.matched) for each in report.coverage] == [
        ("p/asks", "call", 1),
        ("p/etc", "call", 0),
        ("p/mark", "result", 0),
        ("p/never", "list", 0),
    ]


def test_checks_of_a_load(folder: Folder) -> None:
    tests = "tests:\n  - {name: x, input: {args: {path: /etc}}, expect: {decision: allow}}\n"
    run(folder, tests)
    (fault,) = check([folder.path])
    assert (fault.code, fault.rule, fault.line) == ("test", "p/etc", 4)
    assert fault.message.startswith("test 'x': decision is deny")


@pytest.mark.parametrize("engine", ["cel", "celpy"])
def test_the_shipped_policies_pass_theirs(engine: str) -> None:
    report = Runner(engine).run(find_tests([], SHIPPED))
    assert [str(fault) for fault in (*report.faults, *report.as_faults())] == []
    assert len(report.outcomes) >= 30
    assert {outcome.file for outcome in report.outcomes} == {
        f"shipped:{name}_test.yaml" for name in SHIPPED
    }
    assert [each.id for each in report.coverage if not each.matched] == []


def test_inputs_that_no_call_has(folder: Folder) -> None:
    """A misspelt field, or a result as MCP has it, would test something else or nothing."""
    tests = """\
input: {now: noon, agent: {client: {nam: x}}}
inputs:
  wide: {addresses: [{ip: 7}], session: {labels: outside, calls: true}}
tests:
  - name: x
    phase: result
    input:
      result: {content: [], text: 7, structured: {any: 1}, meta: {any: 1}}
      args: {any: {thing: 1}}
      tool: {hints: {readOnlyHint: true}}
    expect: {decision: allow}
"""
    report = run(folder, tests)
    assert [str(each).partition("p_test.yaml:")[2] for each in report.faults] == [
        "3:14: input.now: has to be a time such as 2026-01-31T12:00:00Z",
        '3:37: input.agent.client.nam: is no field there; did you mean "name"?',
        "5:23: inputs.wide.addresses[0].ip: has to be a text",
        "5:42: inputs.wide.session.labels: has to be a list",
        "5:59: inputs.wide.session.calls: has to be a whole number",
        "10:16: tests[0].input.result.content: is no field there; there are is_error, size, text, "
        "structured, meta",
        "10:29: tests[0].input.result.text: has to be a text",
        "12:22: tests[0].input.tool.hints.readOnlyHint: is no field there; "
        'did you mean "read_only"?',
    ]
    assert report.outcomes == []
