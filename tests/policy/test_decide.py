"""What rules come to: the phase table, errors, audit mode, messages."""

from __future__ import annotations

import pytest

from sidecar.model import Decision, Phase
from sidecar.policy import PolicyErrors
from tests.policy.kit import DIAL, GIVEN, Folder, decide, policy, rule

ENGINES = ("cel", "celpy")


def outcome(decision: Decision) -> tuple[str, str]:
    return decision.decision, decision.rule


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("effects", "expected"),
    [
        ((), ("allow", "default")),
        (("allow",), ("allow", "p/allow")),
        (("ask",), ("ask", "p/ask")),
        (("deny",), ("deny", "p/deny")),
        (("allow", "ask"), ("ask", "p/ask")),
        (("ask", "allow"), ("ask", "p/ask")),
        (("allow", "ask", "deny"), ("deny", "p/deny")),
    ],
)
def test_the_strongest_effect_of_a_call_decides(
    folder: Folder, engine: str, effects: tuple[str, ...], expected: tuple[str, str]
) -> None:
    rules = [rule(effect, effect, 'args.x == "y"') for effect in effects]
    loaded = folder.load(policy(rule("never", "deny", "false"), *rules), engine=engine)
    found = decide(loaded, args={"x": "y"})
    assert outcome(found) == expected
    assert set(found.rules) == {f"p/{effect}" for effect in effects}
    assert found.revision == loaded.revision
    assert outcome(decide(loaded, args={"x": "z"})) == ("allow", "default")


@pytest.mark.parametrize(
    ("phase", "default", "expected"),
    [
        (Phase.CALL, "allow", "allow"),
        (Phase.CALL, "deny", "deny"),
        (Phase.LIST, "allow", "allow"),
        (Phase.LIST, "deny", "deny"),
        (Phase.RESULT, "deny", "allow"),
    ],
)
def test_where_no_rule_matches(folder: Folder, phase: Phase, default: str, expected: str) -> None:
    loaded = folder.load(policy(rule("x", "deny", "args.no == 1")), default=default)
    assert outcome(decide(loaded, phase, args={"no": 2})) == (expected, "default")


def test_an_allow_rule_lifts_the_default(folder: Folder) -> None:
    text = policy(rule("reads", "allow", "tool.hints.read_only", on="[list, call]"))
    loaded = folder.load(text, default="deny")
    for phase in (Phase.LIST, Phase.CALL):
        assert decide(loaded, phase).decision == "deny"
        found = decide(loaded, phase, tool={"hints": {"read_only": True}})
        assert outcome(found) == ("allow", "p/reads")


def test_of_one_strength_the_first_in_the_files_is_told(folder: Folder) -> None:
    loaded = folder.load(
        policy(rule("a", "deny", "false"), rule("b", "deny", "tool.gated"), name="one"),
        policy(rule("c", "deny", "tool.gated"), name="two"),
    )
    found = decide(loaded)
    assert (found.rule, found.rules, found.policy) == ("one/b", ("one/b", "two/c"), "one")


# ----------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("effect", "expected"), [("deny", "deny"), ("ask", "ask"), ("allow", "allow")]
)
def test_an_error_counts_as_a_match_unless_it_would_allow(
    folder: Folder, engine: str, effect: str, expected: str
) -> None:
    text = policy(rule("r", effect, 'args.path.startsWith("/etc")'))
    loaded = folder.load(text, default="allow", engine=engine)
    for args in ({}, {"path": 7}, {"path": None}):
        found = decide(loaded, args=args)
        assert found.decision == expected
        if effect == "allow":
            assert (found.rule, found.error) == ("default", None)
        else:
            assert found.rule == "p/r"
            assert found.error is not None
            assert (found.error.rule, found.error.line) == ("p/r", 9)
            assert found.error.file.endswith("policy0.yaml")


def test_an_error_is_told_at_its_place_in_the_file(folder: Folder) -> None:
    text = policy(rule("r", "deny", 'tool.gated && (false ||\n        args.path == "x")'))
    found = decide(folder.load(text))
    assert found.error is not None
    lines = (folder.path / "policy0.yaml").read_text().splitlines()
    assert lines[found.error.line - 1][found.error.column - 1 :].startswith("path ==")
    assert found.error.kind == "no_such_key"
    assert found.error.message != ""


def test_an_error_of_a_variable_is_told_where_the_variable_stands(folder: Folder) -> None:
    more = "variables:\n  - {name: v, expr: 'args.missing > 1'}"
    found = decide(folder.load(policy(rule("r", "deny", "variables.v"), more=more)))
    assert found.decision == "deny"
    assert found.error is not None
    lines = (folder.path / "policy0.yaml").read_text().splitlines()
    assert lines[found.error.line - 1][found.error.column - 1 :].startswith("missing > 1")


def test_a_rule_that_matches_is_told_before_one_that_fails(folder: Folder) -> None:
    text = policy(rule("fails", "deny", "args.x == 1"), rule("holds", "deny", "tool.gated"))
    found = decide(folder.load(text))
    assert (found.rule, found.rules) == ("p/holds", ("p/fails", "p/holds"))
    assert found.error is not None
    assert found.error.rule == "p/fails"


def test_a_value_that_is_no_boolean_fails_closed(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "args.flag")))
    assert outcome(decide(loaded, args={"flag": True})) == ("deny", "p/r")
    assert outcome(decide(loaded, args={"flag": False})) == ("allow", "default")
    found = decide(loaded, args={"flag": "false"})
    assert outcome(found) == ("deny", "p/r")
    assert found.error is not None
    assert found.error.kind == "not_boolean"


def test_the_budget_is_one_for_all_enforced_rules(folder: Folder) -> None:
    heavy = "args.l.all(x, x >= 0) && args.never"
    loaded = folder.load(policy(rule("one", "deny", heavy), rule("two", "deny", heavy)))
    fits = decide(loaded, args={"l": list(range(4_000)), "never": False})
    assert outcome(fits) == ("allow", "default")
    beyond = decide(loaded, args={"l": list(range(8_000)), "never": False})
    assert outcome(beyond) == ("deny", "p/two")
    assert beyond.error is not None
    assert beyond.error.kind == "budget"


def test_what_an_allow_rule_costs_cannot_keep_a_deny_rule_from_its_answer(folder: Folder) -> None:
    text = policy(
        rule("costly", "allow", "args.l.all(x, x >= 0)"),
        rule("guard", "deny", "args.l.exists(x, x == 7)"),
    )
    loaded = folder.load(text, default="deny")
    found = decide(loaded, args={"l": list(range(10, 9_000))})
    # The guard was asked first; the allow rule then ran out of steps, and does not match.
    assert outcome(found) == ("deny", "default")
    found = decide(loaded, args={"l": [7, *range(9_000)]})
    assert (found.rule, found.error) == ("p/guard", None)


# ------------------------------------------------------------------------------------ audit


def test_audit_tells_what_would_be(folder: Folder) -> None:
    text = policy(rule("r", "deny", "tool.gated"), more="mode: audit")
    found = decide(folder.load(text))
    assert (found.decision, found.rule, found.rules) == ("allow", "default", ())
    assert (found.mode, found.would, found.would_rule) == ("audit", "deny", "p/r")
    assert found.audited == ("p/r",)


def test_audit_that_changes_nothing_is_not_told_as_a_mode(folder: Folder) -> None:
    loaded = folder.load(
        policy(rule("r", "ask", "tool.gated"), name="watching", more="mode: audit"),
        policy(rule("d", "deny", "tool.gated"), name="live"),
    )
    found = decide(loaded)
    assert (found.decision, found.mode, found.would) == ("deny", "enforce", None)
    assert found.audited == ("watching/r",)


def test_audit_of_one_rule_in_a_policy_that_is_enforced(folder: Folder) -> None:
    text = policy(
        rule("watched", "deny", "tool.gated", more="mode: audit"),
        rule("asks", "ask", "tool.gated"),
    )
    found = decide(folder.load(text))
    assert (found.decision, found.rule, found.would, found.would_rule) == (
        "ask",
        "p/asks",
        "deny",
        "p/watched",
    )


def test_an_error_in_audit_mode_is_only_recorded(folder: Folder) -> None:
    text = policy(rule("r", "deny", "args.x == 1"), more="mode: audit")
    found = decide(folder.load(text))
    assert (found.decision, found.would) == ("allow", "deny")
    assert found.error is not None
    assert found.error.rule == "p/r"


def test_audit_rules_have_a_budget_of_their_own(folder: Folder) -> None:
    heavy = "args.l.all(x, x >= 0) && args.never"
    loaded = folder.load(
        policy(rule("watch", "deny", heavy), name="a", more="mode: audit"),
        policy(rule("guard", "deny", heavy), name="b"),
    )
    found = decide(loaded, args={"l": list(range(8_000)), "never": False})
    assert (outcome(found), found.error) == (("allow", "default"), None)


# ---------------------------------------------------------------------------------- messages


def test_messages(folder: Folder) -> None:
    text = policy(
        rule("said", "deny", 'args.a == "said"', message='"no: " + tool.name'),
        rule("constant", "deny", 'args.a == "constant"', message='"never"'),
        rule("silent", "deny", 'args.a == "silent"'),
        rule("fails", "deny", 'args.a == "fails"', message='"no: " + args.missing'),
        rule("number", "deny", 'args.a == "number"', message="args.a + args.b"),
        rule("long", "deny", 'args.a == "long"', message="args.b"),
    )
    loaded = folder.load(text)

    def said(**args: object) -> tuple[str, bool]:
        found = decide(loaded, args=args)
        assert found.decision == "deny"
        return found.message, found.message_constant

    assert said(a="said") == ("no: up__write", False)
    assert said(a="constant") == ("never", True)
    assert said(a="silent") == ("denied by rule p/silent", True)
    assert said(a="fails") == ("p/fails", False)
    assert said(a="number", b=1) == ("p/number", False)
    assert said(a="long", b="x" * 5000)[0] == "x" * 2000


@pytest.mark.parametrize("engine", ENGINES)
def test_where_several_rules_ask_each_says_why(folder: Folder, engine: str) -> None:
    loaded = folder.load(
        policy(
            rule("first", "ask", "args.n > 0", message='"one"'),
            rule("let", "allow", "args.n > 0"),
            rule("second", "ask", "args.n > 1", message='"two of " + args.who'),
            rule("fails", "ask", "args.n > 2", message='"three of " + args.missing'),
            rule("watch", "ask", "args.n > 0", message='"never"', more="mode: audit"),
        ),
        engine=engine,
    )

    def why(n: int) -> list[tuple[str, str, bool]]:
        found = decide(loaded, args={"n": n, "who": "up"})
        assert (found.rule, found.message) == ("p/first", "one")
        return [(each.rule, each.message, each.constant) for each in found.reasons]

    # A rule that allows is not one that asks.
    assert why(1) == [("p/first", "one", True)]
    assert why(2)[1:] == [("p/second", "two of up", False)]
    assert why(3)[2:] == [("p/fails", "p/fails", False)]
    # One alone has said why already, and to deny needs one reason.
    alone = folder.load(policy(rule("r", "ask", "true"), rule("other", "deny", "args.n > 1")))
    assert decide(alone, args={"n": 1}).reasons == ()
    assert decide(alone, args={"n": 2}).reasons == ()


def test_a_message_known_for_a_tool_may_be_recorded(folder: Folder) -> None:
    loaded = folder.load(policy(rule("r", "deny", "tool.gated", message='"no " + tool.name')))
    special = loaded.specialise({"tool.gated": True, "tool.name": "up__write"})
    assert special.always(Phase.CALL) == decide(special)
    assert decide(special).message == "no up__write"
    assert decide(special).message_constant


# --------------------------------------------------------------------------- variables, now


def test_variables_are_the_policys_own(folder: Folder) -> None:
    """Two policies may give one name to different things."""
    one = "variables:\n  - {name: v, expr: 'args.n > 1'}"
    two = "variables:\n  - {name: v, expr: 'args.n > 10'}\n  - {name: w, expr: '!variables.v'}"
    loaded = folder.load(
        policy(rule("r", "ask", "variables.v"), name="one", more=one),
        policy(rule("r", "deny", "!variables.w"), name="two", more=two),
    )
    assert outcome(decide(loaded, args={"n": 1})) == ("allow", "default")
    assert outcome(decide(loaded, args={"n": 5})) == ("ask", "one/r")
    assert outcome(decide(loaded, args={"n": 50})) == ("deny", "two/r")


@pytest.mark.parametrize("engine", ENGINES)
def test_variables_are_evaluated_once_and_only_when_read(folder: Folder, engine: str) -> None:
    more = "variables:\n  - {name: big, expr: 'args.l.all(x, x >= 0)'}"
    rules = [rule(f"r{i}", "deny", "tool.gated && !variables.big") for i in range(5)]
    loaded = folder.load(policy(*rules, more=more), engine=engine)
    # Five times 4,000 steps are beyond the budget; once is not. cel-python has a clock instead.
    many = 4_000 if engine == "cel" else 50
    assert decide(loaded, args={"l": list(range(many))}).decision == "allow"
    unread = decide(loaded, tool={"gated": False}, args={})
    assert (unread.decision, unread.error) == (
        ("allow", None) if engine == "cel" else ("deny", unread.error)
    )


def test_now(folder: Folder) -> None:
    loaded = folder.load(policy(rule("night", "deny", "now.getHours() < 6")))
    assert "now" in loaded.refs(Phase.CALL)
    assert decide(loaded, now="2026-01-01T03:00:00Z").decision == "deny"
    assert decide(loaded, now="2026-01-01T09:00:00Z").decision == "allow"
    assert decide(loaded, now=9 * 3600).decision == "allow"
    for bad in ("yesterday", [], float("inf"), 1e300):
        found = decide(loaded, now=bad)
        assert (found.decision, found.rule) == ("deny", "p/night")
        assert found.error is not None
        assert found.error.kind == "no_such_variable"


def test_now_is_the_clock_where_it_is_absent(folder: Folder) -> None:
    text = policy(rule("r", "deny", 'now < timestamp("2020-01-01T00:00:00Z")'))
    found = decide(folder.load(text))
    assert (found.decision, found.error) == ("allow", None)


def test_what_is_absent_is_empty_where_it_is_said_to_be(folder: Folder) -> None:
    text = policy(
        rule("args", "deny", "has(args.x)"),
        rule("permission", "deny", "has(permission.kind)"),
        rule("work", "deny", "has(work.name)"),
    )
    loaded = folder.load(text)
    given = {name: value for name, value in GIVEN.items() if name != "args"}
    found = loaded.decide(Phase.CALL, given)
    assert (found.decision, found.error) == ("allow", None)


# ----------------------------------------------------------------------------------- connect


@pytest.mark.parametrize(
    ("rules", "verdict", "expected"),
    [
        ((), {"ok": True, "why": "public", "class": "public"}, ("allow", "egress/public")),
        ((), {"ok": False, "why": "private", "class": "private"}, ("deny", "egress/private")),
        (("allow",), {"ok": False, "why": "private", "class": "private"}, ("allow", "p/allow")),
        (("deny",), {"ok": True, "why": "public", "class": "public"}, ("deny", "p/deny")),
        (
            ("deny", "allow"),
            {"ok": True, "why": "public", "class": "public"},
            ("deny", "p/deny"),
        ),
        (
            ("allow",),
            {"ok": False, "why": "two hosts", "class": "ambiguous"},
            ("deny", "egress/two hosts"),
        ),
        (
            ("deny", "allow"),
            {"ok": False, "why": "two hosts", "class": "ambiguous"},
            ("deny", "p/deny"),
        ),
        ((), {"why": "broken"}, ("deny", "egress/broken")),
        ((), {"ok": "yes"}, ("deny", "egress/verdict")),
    ],
)
def test_connect(
    folder: Folder, rules: tuple[str, ...], verdict: object, expected: tuple[str, str]
) -> None:
    message = '"because"'
    made = [
        rule(effect, effect, 'url.host == "api.example"', on="connect", message=message)
        for effect in rules
    ]
    never = rule("never", "deny", "false", on="connect")
    loaded = folder.load(policy(never, *made))
    found = loaded.decide(Phase.CONNECT, {**DIAL, "verdict": verdict})
    assert outcome(found) == expected
    if found.rule.startswith("p/"):
        assert found.message == "because"


def test_a_configured_server_is_dialled_without_a_verdict(folder: Folder) -> None:
    text = policy(rule("r", "deny", 'verdict.class == "private"', on="connect"))
    loaded = folder.load(text)
    given = {name: value for name, value in DIAL.items() if name != "verdict"}
    configured = {**given, "server": {**DIAL["server"], "runtime": False}}  # type: ignore[dict-item]
    found = loaded.decide(Phase.CONNECT, configured)
    assert (found.decision, found.rule, found.error) == ("allow", "egress/configured", None)
    # Whatever else has no verdict was not checked.
    assert outcome(loaded.decide(Phase.CONNECT, given)) == ("deny", "p/r")
    bare = folder.load(policy(rule("r", "deny", "false", on="connect")))
    assert outcome(bare.decide(Phase.CONNECT, given)) == ("deny", "egress/no-verdict")
    assert outcome(bare.decide(Phase.CONNECT, {})) == ("deny", "egress/no-verdict")


# ------------------------------------------------------------------------------------ result


def test_all_result_rules_that_match_apply(folder: Folder) -> None:
    text = policy(
        rule("outside", "label", "!server.trusted", on="result", more="label: [outside, web]"),
        rule("big", "label", "result.size > 1", on="result", more="label: web"),
        rule(
            "keys",
            "redact",
            "true",
            on="result",
            more='redact: {paths: ["content[*].text"], patterns: ["k-[0-9]+"], with: "*"}',
        ),
        rule("other", "redact", "false", on="result", more="redact: {patterns: [x]}"),
    )
    found = decide(folder.load(text), Phase.RESULT)
    assert (found.decision, found.labels) == ("allow", ("outside", "web"))
    assert set(found.rules) == {"p/outside", "p/big", "p/keys"}
    (redaction,) = found.redactions
    assert redaction.rule == "p/keys"
    assert redaction.paths == (("content", None, "text"),)
    assert (redaction.patterns, redaction.replacement) == (("k-[0-9]+",), "*")


def test_a_denied_result_carries_nothing(folder: Folder) -> None:
    text = policy(
        rule("label", "label", "true", on="result", more="label: outside"),
        rule("secret", "deny", 'result.text.contains("secret")', on="result"),
    )
    loaded = folder.load(text)
    found = decide(loaded, Phase.RESULT, result={"text": "a secret"})
    assert (outcome(found), found.labels) == (("deny", "p/secret"), ())
    assert decide(loaded, Phase.RESULT).labels == ("outside",)


@pytest.mark.parametrize("effect", ["label", "redact"])
def test_an_error_in_a_result_rule_denies_the_result(folder: Folder, effect: str) -> None:
    more = "label: outside" if effect == "label" else "redact: {patterns: [x]}"
    text = policy(rule("r", effect, "result.structured.x == 1", on="result", more=more))
    found = decide(folder.load(text), Phase.RESULT)
    assert (outcome(found), found.labels, found.redactions) == (("deny", "p/r"), (), ())
    assert found.error is not None


def test_result_rules_in_audit_mode_do_nothing(folder: Folder) -> None:
    text = policy(
        rule("r", "label", "true", on="result", more="label: outside"), more="mode: audit"
    )
    found = decide(folder.load(text), Phase.RESULT)
    assert (found.decision, found.labels, found.mode) == ("allow", (), "audit")
    assert (found.would, found.would_rule, found.audited) == ("allow", "p/r", ("p/r",))


# ------------------------------------------------------------------------------------- match


MATCH = policy(
    rule("r", "deny", "true"),
    more='match: {server: [git*, up], tool: ["delete_*"], kind: [mcp, prompt]}',
)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        ({"server": "up", "upstream_name": "delete_x", "kind": "mcp"}, "deny"),
        ({"server": "github", "upstream_name": "delete_x", "kind": "prompt"}, "deny"),
        ({"server": "up", "upstream_name": "Delete_x", "kind": "mcp"}, "allow"),
        ({"server": "up", "upstream_name": "undelete_x", "kind": "mcp"}, "allow"),
        ({"server": "upper", "upstream_name": "delete_x", "kind": "mcp"}, "allow"),
        ({"server": "up", "upstream_name": "delete_x", "kind": "resource"}, "allow"),
    ],
)
def test_match_is_about_the_servers_own_names(
    folder: Folder, tool: dict[str, object], expected: str
) -> None:
    loaded = folder.load(MATCH)
    assert decide(loaded, tool={"name": "anything", **tool}).decision == expected


def test_an_input_without_the_servers_own_name_has_it_in_the_advertised_one(
    folder: Folder,
) -> None:
    loaded = folder.load(MATCH)
    written = {"tool": {"name": "up__delete_x", "server": "up"}}
    assert loaded.decide(Phase.CALL, written).decision == "deny"  # type: ignore[arg-type]
    assert loaded.decide(Phase.CALL, {}).decision == "allow"


def test_match_at_connect_is_about_the_server(folder: Folder) -> None:
    text = policy(rule("r", "deny", "true", on="connect"), more="match: {server: up}")
    loaded = folder.load(text)
    assert loaded.decide(Phase.CONNECT, DIAL).rule == "p/r"
    other = {**DIAL, "server": {"name": "down", "runtime": True}}
    assert loaded.decide(Phase.CONNECT, other).rule == "egress/public"


def test_unreadable_policies_do_not_load(folder: Folder) -> None:
    with pytest.raises(PolicyErrors):
        folder.load("nothing: true")
