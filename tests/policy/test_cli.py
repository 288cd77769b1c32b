"""``sidecar policy``: what it prints, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from sidecar.cli import main
from sidecar.cli.policy_scope import USAGE
from sidecar.model import Phase
from sidecar.policy.replay import record
from sidecar.policy.report import sarif
from sidecar.ports.policy import PolicyFault
from tests.policy.kit import GIVEN, Folder, decide, policy, rule

GOOD = policy(
    rule("asks", "ask", "tool.gated", message='"ask about " + tool.name'),
    rule("etc", "deny", 'has(args.path) && args.path.startsWith("/etc")'),
)
WARNS = policy(rule("etc", "deny", 'args.path.startsWith("/etc")'))
BAD = policy(rule("etc", "deny", 'argz.path == "/etc"'))
TEST = """\
apiVersion: sidecar/v1
kind: PolicyTest
tests:
  - name: etc is denied
    input: {tool: {gated: false}, args: {path: /etc/passwd}}
    expect: {decision: deny, rule: etc}
  - name: tmp passes
    input: {tool: {gated: false}, args: {path: /tmp}}
    expect: {decision: allow}
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """One verb, in the folder: its exit code, standard output and error."""
    monkeypatch.chdir(folder.path)
    for name in ("SIDECAR_CONFIG", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str, stdin: str | None = None) -> tuple[int, str, str]:
        if stdin is not None:
            (folder.path / "stdin").write_text(stdin)
            monkeypatch.setattr("sys.stdin", (folder.path / "stdin").open())
        code = main(["policy", *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


# ------------------------------------------------------------------------------------ check


def test_check_lists_the_rules(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    code, out, err = run("check", "p.yaml")
    assert (code, err) == (0, "")
    first, *rows = out.splitlines()
    assert first.startswith("ok: 1 policy, 2 rules, default allow, revision ")
    assert [row.split()[:4] for row in rows] == [
        ["RULE", "ON", "EFFECT", "MODE"],
        ["p/asks", "call", "ask", "enforce"],
        ["p/etc", "call", "deny", "enforce"],
    ]


def test_check_without_paths_is_of_the_configuration(run: Run, folder: Folder) -> None:
    folder.write("mine/p.yaml", GOOD)
    folder.write("sidecar.yaml", "policies: [mine]\npolicy: {default: deny, shipped: [gating]}\n")
    code, out, _ = run("check")
    assert code == 0
    assert "ok: 2 policies, 4 rules, default deny" in out
    assert "gating/gated" in out
    assert "p/etc" in out
    folder.write("sidecar.yaml", "policies: [other]\n")
    code, out, _ = run("check")
    assert code == 3
    assert "other: is not there; name a file or a folder" in out


def test_check_with_a_configuration_that_is_faulty(run: Run, folder: Folder) -> None:
    folder.write("sidecar.yaml", "policy: {default: maybe}\n")
    code, _, err = run("check")
    assert code == 3
    assert 'policy.default: "maybe" is not one of allow, deny' in err


def test_check_of_errors_and_warnings(run: Run, folder: Folder) -> None:
    folder.write("bad.yaml", BAD)
    folder.write("warns.yaml", WARNS)
    code, out, _ = run("check", "bad.yaml")
    assert (code, out) == (
        3,
        "bad.yaml:9:7: p/etc: unknown variable argz; did you mean args?\n",
    )
    code, out, _ = run("check", "warns.yaml")
    assert code == 0
    assert out.startswith("warns.yaml:9:12: warning: p/etc: args.path may be absent; guard it")
    assert "ok: 1 policy, 1 rule" in out
    assert run("check", "--strict", "warns.yaml")[0] == 4
    assert run("check", "--strict", "bad.yaml")[0] == 3


def test_check_reads_the_tests_as_well(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    folder.write("p_test.yaml", TEST.replace("tests:", "test:"))
    code, out, _ = run("check", str(folder.path))
    assert code == 3
    assert 'unknown key "test"; did you mean "tests"?' in out


def test_check_runs_the_tests_as_a_load_does(run: Run, folder: Folder) -> None:
    """What it calls ok has to be what the sidecar takes over."""
    folder.write("p.yaml", GOOD.replace("/etc", "/opt"))
    folder.write("p_test.yaml", TEST)
    code, out, _ = run("check", ".")
    assert code == 4
    assert "ok:" not in out
    assert out.startswith("p_test.yaml:4:5: default: test 'etc is denied': decision is allow")
    code, out, _ = run("check", ".", "--json")
    assert (code, json.loads(out)["ok"]) == (4, False)
    code, out, _ = run("check", ".", "--format", "junit")
    suites = ElementTree.fromstring(out).findall("testsuite")
    assert {each.get("name"): each.get("failures") for each in suites} == {
        "p.yaml": "0",
        "p_test.yaml": "1",
    }
    folder.write("p.yaml", GOOD)
    assert run("check", ".")[0] == 0


def test_check_as_json(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    folder.write("bad.yaml", BAD)
    code, out, _ = run("check", "p.yaml", "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["faults"]) == (0, True, [])
    assert len(told["revision"]) == 64
    assert told["rules"][1] == {
        "rule": "p/etc",
        "on": "call",
        "effect": "deny",
        "mode": "enforce",
        "file": "p.yaml:11",
    }
    code, out, _ = run("check", "bad.yaml", "--json")
    told = json.loads(out)
    assert (code, told["ok"], told["revision"]) == (3, False, None)
    assert told["faults"] == [
        {
            "file": "bad.yaml",
            "line": 9,
            "column": 7,
            "rule": "p/etc",
            "message": "unknown variable argz; did you mean args?",
            "warning": False,
            "code": "unknown-variable",
        }
    ]


def test_check_as_sarif(run: Run, folder: Folder) -> None:
    folder.write("bad.yaml", BAD)
    folder.write("warns.yaml", WARNS.replace("name: p", "name: q"))
    code, out, _ = run("check", "bad.yaml", "warns.yaml", "--format", "sarif")
    assert code == 3
    log = json.loads(out)
    assert log["version"] == "2.1.0"
    (one,) = log["runs"]
    assert {each["id"] for each in one["tool"]["driver"]["rules"]} == {
        "unknown-variable",
        "unguarded",
    }
    error, warning = one["results"]
    assert error["level"] == "error"
    assert error["message"]["text"].startswith("p/etc: unknown variable argz")
    assert error["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "bad.yaml"},
        "region": {"startLine": 9, "startColumn": 7},
    }
    assert (warning["level"], warning["ruleId"]) == ("warning", "unguarded")
    code, out, _ = run("check", "warns.yaml", "--format", "sarif")
    assert (code, len(json.loads(out)["runs"][0]["results"])) == (0, 1)


@pytest.mark.parametrize(
    ("file", "uri"),
    [
        ("a b/é#1%.yaml", "a%20b/%C3%A9%231%25.yaml"),
        ("a:b.yaml", "./a:b.yaml"),
        ("/x/y z.yaml", "file:///x/y%20z.yaml"),
        ("shipped:gating.yaml", "shipped:gating.yaml"),
    ],
)
def test_files_in_sarif_are_uris(file: str, uri: str) -> None:
    log = sarif([PolicyFault(file, 1, 1, "", "no", code="file")])
    (place,) = log["runs"][0]["results"][0]["locations"]  # type: ignore[index,call-overload]
    assert place["physicalLocation"]["artifactLocation"] == {"uri": uri}


def test_check_as_junit(run: Run, folder: Folder) -> None:
    folder.write("bad.yaml", BAD.replace("argz", "a<&z"))
    code, out, _ = run("check", "bad.yaml", "--format", "junit")
    assert code == 3
    root = ElementTree.fromstring(out)
    (suite,) = root.findall("testsuite")
    assert (suite.get("name"), suite.get("failures")) == ("bad.yaml", "1")
    folder.write("p.yaml", GOOD)
    code, out, _ = run("check", "p.yaml", "--format", "junit")
    (suite,) = ElementTree.fromstring(out).findall("testsuite")
    assert (code, suite.get("tests"), suite.get("failures")) == (0, "1", "0")


def test_check_with_the_tools_there_are(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", policy(rule("r", "deny", 'tool.name == "up__w" && has(args.pth)')))
    tools = [{"name": "up__w", "inputSchema": {"properties": {"path": {}}}}]
    for shape in (tools, {"tools": tools}):
        folder.write("tools.json", json.dumps(shape))
        code, out, _ = run("check", "p.yaml", "--tools", "tools.json", "--strict")
        assert code == 4
        assert "argument: there is no field pth; did you mean path?" in out
    folder.write("tools.json", "[")
    code, _, err = run("check", "p.yaml", "--tools", "tools.json")
    assert code == USAGE
    assert "the list of tools is not JSON" in err


# ------------------------------------------------------------------------------------- test


def test_test(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    folder.write("p_test.yaml", TEST)
    for words in (["p_test.yaml"], ["p.yaml"], ["."]):
        assert run("test", *words)[:2] == (0, "2 passed, 0 failed\n")
    assert run("test", ".", "--run", "etc*")[1] == "1 passed, 0 failed\n"
    code, out, _ = run("test", ".", "--coverage")
    assert code == 0
    assert out.splitlines()[1:] == [
        "1 of 2 rules matched in a test",
        "p.yaml:5: p/asks (call) matches in no test",
    ]
    assert run("test", ".", "--strict")[0] == 4


def test_test_that_fails(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD.replace("/etc", "/srv"))
    folder.write("p_test.yaml", TEST)
    code, out, _ = run("test", ".")
    assert (code, out.splitlines()) == (
        4,
        [
            "p_test.yaml:4:5: default: test 'etc is denied': decision is allow (by default), "
            "expected deny; rule is default, expected etc",
            "1 passed, 1 failed",
        ],
    )
    code, out, _ = run("test", ".", "--json")
    told = json.loads(out)
    assert (code, told["passed"], told["failed"]) == (4, 1, 1)
    assert told["tests"][0]["problems"][1] == "rule is default, expected etc"
    assert told["tests"][0]["decision"]["decision"] == "allow"
    code, out, _ = run("test", ".", "--format", "junit")
    (suite,) = ElementTree.fromstring(out).findall("testsuite")
    assert (code, suite.get("tests"), suite.get("failures")) == (4, "2", "1")
    assert suite.findall("testcase")[0].get("name") == "etc is denied"
    assert suite.findall("testcase")[0].find("failure") is not None
    code, out, _ = run("test", ".", "--format", "sarif")
    (result,) = json.loads(out)["runs"][0]["results"]
    assert (code, result["ruleId"]) == (4, "test")


def test_test_of_what_does_not_load(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", BAD)
    folder.write("p_test.yaml", TEST)
    code, out, _ = run("test", ".")
    assert code == 3
    assert "unknown variable argz" in out
    assert run("test", "gone")[0] == 3


def test_test_without_tests_is_no_success(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    code, _, err = run("test", ".")
    assert (code, err) == (4, "sidecar policy test: no tests were found\n")


def test_test_without_paths_runs_the_sidecars_own(run: Run, folder: Folder) -> None:
    folder.write("mine/p.yaml", GOOD)
    folder.write("mine/p_test.yaml", TEST)
    folder.write("sidecar.yaml", "policies: [mine]\npolicy: {shipped: [gating, labels]}\n")
    code, out, _ = run("test", "--json")
    told = json.loads(out)
    assert (code, told["failed"]) == (0, 0)
    assert {each["file"].rpartition("/")[2] for each in told["tests"]} == {
        "shipped:gating_test.yaml",
        "shipped:labels_test.yaml",
        "p_test.yaml",
    }


# ------------------------------------------------------------------------------------- eval

DECISION = {
    "type": "object",
    "required": [
        "decision", "rule", "rules", "policy", "revision", "message", "mode", "would", "error",
        "labels",
    ],
    "properties": {
        "decision": {"enum": ["allow", "deny", "ask"]},
        "rule": {"type": "string"},
        "rules": {"type": "array", "items": {"type": "string"}},
        "policy": {"type": "string"},
        "revision": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "message": {"type": "string"},
        "mode": {"enum": ["enforce", "audit"]},
        "would": {"enum": ["allow", "deny", "ask", None]},
        "error": {
            "type": ["object", "null"],
            "required": ["kind", "line", "column", "message"],
        },
        "labels": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip


def test_eval(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    given = folder.write("in.json", json.dumps({"phase": "call", **GIVEN}))
    code, out, _ = run("eval", "--policies", "p.yaml", "--input", str(given))
    assert code == 0
    assert out.splitlines()[:3] == [
        "ask  by p/asks",
        "message:  ask about up__write",
        "matched:  p/asks",
    ]
    code, out, _ = run("eval", "--policies", "p.yaml", "--input", "-", "--json", stdin="{}")
    told = json.loads(out)
    jsonschema.validate(told, DECISION)
    # What is absent is absent: the rule that reads it fails, and asks.
    assert (code, told["decision"], told["rule"]) == (0, "ask", "p/asks")
    assert told["error"]["line"] == 9
    assert told["error"]["rule"] == "p/asks"


def test_eval_is_of_these_files_alone_unless_asked(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", policy(rule("r", "deny", "tool.changed")))
    folder.write("sidecar.yaml", "policy: {default: deny}\n")
    folder.write("in.json", json.dumps(GIVEN))
    words = ["eval", "--input", "in.json", "--json"]

    def decided(*more: str) -> tuple[str, str]:
        code, out, _ = run(*words, *more)
        assert code == 0
        told = json.loads(out)
        return told["decision"], told["rule"]

    assert decided("--policies", "p.yaml") == ("allow", "default")
    assert decided("--policies", "p.yaml", "--shipped") == ("ask", "gating/gated")
    assert decided() == ("ask", "gating/gated")
    folder.write("sidecar.yaml", "policy: {default: deny, shipped: []}\n")
    assert decided() == ("deny", "default")


def test_eval_explains(run: Run, folder: Folder) -> None:
    more = "variables:\n  - {name: hot, expr: '\"outside\" in session.labels'}"
    text = policy(
        rule("hot", "deny", "variables.hot && !tool.hints.read_only"),
        rule("fails", "deny", "args.x == 1 && tool.gated"),
        more=more,
    )
    folder.write("p.yaml", text)
    other = policy(rule("r", "deny", "true"), name="q", more="match: {server: other}")
    folder.write("q.yaml", other)
    folder.write("in.json", json.dumps({**GIVEN, "session": {"labels": ["outside"]}}))
    words = ["eval", "--policies", "p.yaml", "q.yaml", "--input", "in.json", "--explain"]
    code, out, _ = run(*words)
    assert code == 0
    explained = out[out.index("\n\n") + 2 :].splitlines()
    assert explained == [
        "p/hot (deny) matches  p.yaml:7",
        "    variables.hot && !tool.hints.read_only = true",
        "      variables.hot = true",
        "      !tool.hints.read_only = true",
        "        tool.hints.read_only = false",
        "    where variables.hot is",
        '      "outside" in session.labels = true',
        '        session.labels = ["outside"]',
        "p/fails (deny) FAILS  p.yaml:12",
        "    16:12: no such key: x",
        "    args.x == 1 && tool.gated = error: no such key: x",
        "      args.x == 1 = error: no such key: x",
        "        args.x = error: no such key: x",
        "      tool.gated = true",
        "q/r (deny) not about this  q.yaml:6",
    ]
    code, out, _ = run(*words, "--json")
    told = json.loads(out)["explain"]
    assert [(each["rule"], each["outcome"]) for each in told] == [
        ("p/hot", "matches"),
        ("p/fails", "fails"),
        ("q/r", "other"),
    ]
    assert told[0]["parts"][3] == {
        "text": "tool.hints.read_only",
        "line": 11,
        "column": 36,
        "values": [False],
        "times": 1,
    }
    assert told[0]["variables"]["hot"][1]["values"] == [["outside"]]
    assert told[1]["error"]["kind"] == "no_such_key"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "the input has to be a JSON object"),
        ("{", "the input is not JSON"),
        ('{"now": "noon"}', "now has to be a time such as 2026-01-31T12:00:00Z"),
        (
            '{"phase": "result", "result": {"content": []}, "session": {"labels": [1]}}',
            "result.content is no field there; there are is_error, size, text, structured, meta; "
            "session.labels[0] has to be a text",
        ),
        ('{"phase": "calls"}', "phase has to be one of connect, list, call, result"),
        ('{"tols": {}}', "an input has no 'tols'; did you mean \"tool\"?"),
        ('{"tool": 7}', "tool has to be an object"),
        ('{"args": [1]}', "args has to be an object"),
    ],
)
def test_eval_of_what_is_no_input(run: Run, folder: Folder, text: str, why: str) -> None:
    folder.write("p.yaml", GOOD)
    folder.write("in.json", text)
    code, out, err = run("eval", "--policies", "p.yaml", "--input", "in.json")
    assert (code, out) == (USAGE, "")
    assert why in err
    assert run("eval", "--policies", "p.yaml", "--input", "gone.json")[0] == USAGE


def test_eval_of_policies_that_do_not_load(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", BAD)
    code, out, err = run("eval", "--policies", "p.yaml", "--input", "-", stdin="{}")
    assert (code, out) == (3, "")
    assert "unknown variable argz" in err


def test_eval_of_every_phase(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", policy(*(rule(f"r-{on}", "deny", "true", on=on) for on in Phase)))
    for phase in Phase:
        code, out, _ = run(
            "eval", "--policies", "p.yaml", "--input", "-", "--json",
            stdin=json.dumps({"phase": phase}),
        )  # fmt: skip
        assert (code, json.loads(out)["rule"]) == (0, f"p/r-{phase}")


# ----------------------------------------------------------------------------------- replay


def test_replay(run: Run, folder: Folder) -> None:
    old = folder.load(policy(rule("r", "deny", 'args.path == "/etc" && now.getHours() == 3')))
    at = "2026-01-01T03:00:00Z"
    lines = []
    for path in ("/etc", "/tmp"):
        given = {**GIVEN, "args": {"path": path}, "now": at}
        decision = old.decide(Phase.CALL, given)
        lines.append(record(Phase.CALL, decision, given=given, at=at, call="c", target="up__write"))
    small = {"args": {"path": "/etc"}, "now": at}
    lines.append(record(Phase.CALL, old.decide(Phase.CALL, small), given=small, at=at))
    lines.append(record(Phase.CALL, decide(old, args={"path": "/x"}), given=None, at=at))
    (folder.path / "records").write_bytes(b"\n".join([*lines, b"", b"nonsense", b"{}"]) + b"\n")

    folder.write("new.yaml", policy(rule("r", "deny", 'args.path == "/tmp"')))
    code, out, _ = run("replay", "records", "--policies", "new.yaml")
    assert code == 4
    assert out.splitlines() == [
        "1: call up__write: was deny by p/r, would be allow by default",
        "2: call up__write: was allow by default, would be deny by p/r",
        "3: call: was deny by p/r, would be allow by default",
        "4: call: unknown: its input was not recorded; set policy.record to inputs",
        "6: unknown: no record: it is not JSON",
        "7: unknown: no record: it has no phase",
        "0 same, 3 changed, 3 unknown",
    ]
    code, out, _ = run("replay", "records", "--policies", "policy0.yaml")
    assert (code, out.splitlines()[-1]) == (0, "3 same, 0 changed, 3 unknown")

    folder.write("more.yaml", policy(rule("r", "deny", "tool.gated && session.calls > 1")))
    code, out, _ = run("replay", "records", "--policies", "more.yaml", "--json")
    told = json.loads(out)
    assert code == 4
    assert told[2]["outcome"] == "unknown"
    assert told[2]["why"] == "a rule reads what was not recorded: session, tool"
    assert told[0]["now"]["decision"] == "allow"
    assert told[0]["before"]["decision"] == "deny"
    assert run("replay", "gone", "--policies", "more.yaml")[0] == USAGE


def test_replay_tells_labels_and_redactions(run: Run, folder: Folder) -> None:
    """A result that would be redacted no more is the difference that matters most."""
    mark = rule("mark", "label", "true", on="result", more="label: [outside]")
    keys = rule("keys", "redact", "true", on="result", more="redact: {patterns: [AKIA]}")
    old = folder.load(policy(mark, keys))
    given = {**GIVEN, "result": {"is_error": False, "size": 2, "text": "ok"}}
    line = record(
        Phase.RESULT, old.decide(Phase.RESULT, given), given=given, at="2026-01-01T00:00:00Z"
    )
    folder.write("records", line.decode())
    assert run("replay", "records", "--policies", "policy0.yaml")[0] == 0
    folder.write("less.yaml", policy(mark))
    code, out, _ = run("replay", "records", "--policies", "less.yaml")
    was = "1: result: was allow by p/keys; labels outside; redacts by p/keys, would be "
    assert (code, out.splitlines()[0]) == (4, was + "allow by p/mark; labels outside")
    folder.write("other.yaml", policy(mark, keys.replace("AKIA", "BKIA")))
    code, out, _ = run("replay", "records", "--policies", "other.yaml")
    assert code == 4
    assert out.startswith(was + "the same with other things redacted (allow by p/keys; ")


def test_replay_of_something_else_is_no_success(run: Run, folder: Folder) -> None:
    folder.write("p.yaml", GOOD)
    folder.write("records", "nonsense\n{}\n")
    code, out, err = run("replay", "records", "--policies", "p.yaml")
    assert (code, out.splitlines()[-1]) == (USAGE, "0 same, 0 changed, 2 unknown")
    assert err == "sidecar policy replay: records holds no records of decisions\n"
    folder.write("records", "")
    assert run("replay", "records", "--policies", "p.yaml")[0] == 0


def test_a_record_without_inputs_holds_none_of_them(folder: Folder) -> None:
    text = policy(rule("r", "deny", 'args.key != ""', message='"no: " + args.key'))
    given = {**GIVEN, "args": {"key": "s3cret"}}
    decision = folder.load(text).decide(Phase.CALL, given)
    assert decision.message == "no: s3cret"
    assert b"s3cret" not in record(Phase.CALL, decision, given=None, at="2026-01-01T00:00:00Z")
    assert b"s3cret" in record(Phase.CALL, decision, given=given, at="2026-01-01T00:00:00Z")


# -------------------------------------------------------------------------------- fmt, vars


def test_fmt(run: Run, folder: Folder) -> None:
    file = folder.write("p.yaml", "kind: Policy   \napiVersion: sidecar/v1\nname: p\nrules: []")
    tidy = "apiVersion: sidecar/v1\nkind: Policy\nname: p\nrules: []\n"
    assert run("fmt", "--check", ".") == (4, "p.yaml would change\n", "")
    assert file.read_text() != tidy
    file.chmod(0o640)
    assert run("fmt", ".") == (0, "p.yaml changed\n", "")
    assert file.read_text() == tidy
    assert file.stat().st_mode & 0o777 == 0o640
    assert run("fmt", "--check", ".") == (0, "", "")
    assert [path.name for path in folder.path.iterdir()] == ["p.yaml"]


def test_vars(run: Run) -> None:
    code, out, _ = run("vars")
    assert code == 0
    for line in ("connect  effects: deny, allow", "result  effects: deny, redact, label"):
        assert line in out
    assert "  tool.annotations.read_only?" in out
    assert "containsIP" in out
    code, out, _ = run("vars", "--phase", "list")
    assert "session" not in out.split("functions:")[0]
    code, out, _ = run("vars", "--json")
    told = json.loads(out)
    assert set(told["phases"]) == {"connect", "list", "call", "result"}
    schema = told["phases"]["call"]["variables"]
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(GIVEN, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"tool": {"gated": "yes"}}, schema)


def test_a_path_is_a_file_name_and_nothing_else(run: Run, folder: Folder) -> None:
    folder.write("a b ü.yaml", GOOD)
    code, out, _ = run("check", "a b ü.yaml")
    assert code == 0
    assert "a b ü.yaml:5" in out


def test_the_input_is_not_told_twice(run: Run, folder: Folder, tmp_path: Path) -> None:
    """A decision's error never quotes the input, whatever it is."""
    folder.write("p.yaml", policy(rule("r", "deny", "int(args.x) == 1 || args.x + 1 == 2")))
    code, out, _ = run(
        "eval", "--policies", "p.yaml", "--input", "-", "--json",
        stdin=json.dumps({"args": {"x": "s3cret"}}),
    )  # fmt: skip
    assert (code, json.loads(out)["decision"]) == (0, "deny")
    assert "s3cret" not in out
