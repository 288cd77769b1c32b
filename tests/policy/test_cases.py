"""Cases on policies: failures fail closed, audit, hints, names behind names.

The cases come from issues of other gateways. Here the policy and the catalog are under test; the
same cases are run through the whole gateway elsewhere.
"""

from __future__ import annotations

import msgspec
import pytest

from sidecar.catalog.tools import build
from sidecar.config import AnnotationOverride, ServerConfig
from sidecar.model import Definition, JsonObject, Phase, Tool
from sidecar.policy import PolicyErrors, load
from sidecar.policy.guard import Guarded
from sidecar.policy.inputs import known, tool_input
from sidecar.policy.suites import merged
from tests.policy.kit import GIVEN, SERVER, Folder, decide, policy, rule

# --------------------------------------------------------------- P1: failures fail closed

STARTS = 'args.path.startsWith("/etc")'
BIG = {"path": "/tmp", "l": list(range(20_000))}


@pytest.mark.parametrize("engine", ["cel", "celpy"])
@pytest.mark.parametrize("special", [False, True], ids=["whole", "specialised"])
@pytest.mark.parametrize(
    ("args", "denied", "kind"),
    [
        ({"path": "/tmp"}, False, None),
        ({"path": "/etc/passwd"}, True, None),
        ({}, True, "missing"),
        ({"path": 7}, True, "type"),
        ({"path": None}, True, "type"),
        ({"path": ["/tmp"]}, True, "type"),
        ({"path": {"startsWith": True}}, True, "type"),
        ({"Path": "/tmp"}, True, "missing"),
    ],
)
def test_p1_an_argument_that_is_not_as_expected(
    folder: Folder,
    engine: str,
    special: bool,
    args: JsonObject,
    denied: bool,
    kind: str | None,
) -> None:
    loaded = folder.load(policy(rule("no-etc", "deny", STARTS)), engine=engine)
    if special:
        loaded = loaded.specialise(known(dict(GIVEN["tool"]), SERVER))  # type: ignore[call-overload]
    found = decide(loaded, args=args)
    assert found.decision == ("deny" if denied else "allow")
    assert found.rule == ("p/no-etc" if denied else "default")
    assert (found.error is not None) is (kind is not None)
    if denied:
        assert "no-etc" in found.message


def test_p1_a_rule_beyond_its_budget(folder: Folder) -> None:
    text = policy(rule("scan", "deny", "args.l.exists(x, args.l.exists(y, x + y == -1))"))
    found = decide(folder.load(text), args=BIG)
    assert (found.decision, found.rule) == ("deny", "p/scan")
    assert found.error is not None
    assert (found.error.kind, found.error.rule) == ("budget", "p/scan")
    # Nothing absorbs it: neither an operator beside it nor a default.
    for when in (
        "args.l.exists(x, x == -1) || tool.gated",
        "args.l.exists(x, x == -1) && !tool.gated",
        "!args.l.exists(x, x == -1) ? false : false || args.never",
    ):
        found = decide(folder.load(policy(rule("scan", "deny", when))), args=BIG)
        assert found.decision == "deny"


@pytest.mark.parametrize("effect", ["deny", "ask", "allow"])
def test_p1_an_unknown_variable_is_refused_at_load(folder: Folder, effect: str) -> None:
    with pytest.raises(PolicyErrors, match="unknown variable argz"):
        folder.load(policy(rule("r", effect, 'argz.path == "/etc"')))


def test_p1_what_is_not_there_in_a_phase_is_refused_at_load(folder: Folder) -> None:
    """A rule that could only ever fail in its phase would deny everything there, silently."""
    for on, when in (
        ("list", "args.x == 1"),
        ("list", '"outside" in session.labels'),
        ("list", "now > timestamp(0)"),
        ("call", "result.is_error"),
        ("call", 'url.host == "x"'),
        ("connect", "tool.gated"),
        ("connect", "session.calls > 1"),
    ):
        with pytest.raises(PolicyErrors, match="it is there at"):
            folder.load(policy(rule("r", "deny", when, on=on)))


# ----------------------------------------------------------------------------- P4: audit

CASES = """\
apiVersion: sidecar/v1
kind: PolicyTest
input: {tool: {name: up__drop, gated: true}}
tests:
  - {name: dropping is denied, expect: {decision: deny, rule: no-drop}}
"""


@pytest.mark.parametrize("mode", ["audit", "enforce"])
def test_p4_the_call_runs_in_audit_mode_and_the_verdict_is_told(folder: Folder, mode: str) -> None:
    from sidecar.policy.testing import Runner, find_tests

    text = policy(rule("no-drop", "deny", 'tool.name == "up__drop"'), more=f"mode: {mode}")
    found = decide(folder.load(text), tool={"name": "up__drop"})
    if mode == "audit":
        assert (found.decision, found.mode, found.would) == ("allow", "audit", "deny")
        assert (found.would_rule, found.audited) == ("p/no-drop", ("p/no-drop",))
    else:
        assert (found.decision, found.mode, found.would) == ("deny", "enforce", None)
    # The same test file holds for both.
    folder.write("p_test.yaml", CASES)
    report = Runner().run(find_tests([folder.path]))
    assert (len(report.outcomes), report.as_faults(), report.faults) == (1, [], [])


def test_p4_what_no_rule_allows_would_be_denied_too(folder: Folder) -> None:
    """An allow rule that is only audited does not allow, and it is told that it would."""
    text = policy(rule("reads", "allow", "!tool.gated"), more="mode: audit")
    found = decide(folder.load(text, default="deny"), tool={"gated": False})
    assert (found.decision, found.rule) == ("deny", "default")
    assert (found.would, found.would_rule) == ("allow", "p/reads")


# ---------------------------------------------------------------- P5: hints only restrict

Claims = dict[str, bool]


def offered(claims: Claims, **config: object) -> Tool:
    definition = {"name": "act", "annotations": claims, "inputSchema": {"type": "object"}}
    server = ServerConfig("up", "stdio", command=("up",), **config)  # type: ignore[arg-type]
    return build(Definition("act", msgspec.json.encode(definition)), server, "__")


def asked(shipped: Guarded, tool: Tool, *labels: str) -> str:
    given = merged(
        GIVEN,
        {"tool": {**tool_input(tool), "changed": False}, "session": {"labels": list(labels)}},
    )
    found = shipped.specialise(known(tool_input(tool), SERVER)).decide(Phase.CALL, given)
    assert found.error is None
    assert found.decision == shipped.decide(Phase.CALL, given).decision
    return found.decision


@pytest.fixture(scope="module")
def shipped() -> Guarded:
    return load()


READS = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False}
OPEN = {"readOnlyHint": True, "openWorldHint": True}
CLOSED = {"readOnlyHint": True, "openWorldHint": False}


@pytest.mark.parametrize(
    ("claims", "config", "expected"),
    [
        # Nobody says anything: it may destroy.
        ({}, {}, "ask"),
        # A server that is believed.
        (READS, {}, "allow"),
        (WRITES, {}, "ask"),
        # One that is not: its word counts only where it makes the tool stricter.
        (READS, {"hints": "restrict"}, "ask"),
        (WRITES, {"hints": "restrict"}, "ask"),
        ({}, {"hints": "restrict"}, "ask"),
        ({"destructiveHint": False}, {"hints": "restrict"}, "ask"),
        # The operator's word wins, both ways.
        (READS, {"annotations": (("*", AnnotationOverride(read_only=False)),)}, "ask"),
        (WRITES, {"annotations": (("*", AnnotationOverride(read_only=True)),)}, "allow"),
        (
            WRITES,
            {"hints": "restrict", "annotations": (("*", AnnotationOverride(read_only=True)),)},
            "allow",
        ),
        (READS, {"gated": True}, "ask"),
        (WRITES, {"gated": False}, "allow"),
        (WRITES, {"gated": ("other",)}, "allow"),
        (READS, {"gated": ("a*",)}, "ask"),
    ],
)
def test_p5_gating(
    shipped: Guarded, claims: Claims, config: dict[str, object], expected: str
) -> None:
    assert asked(shipped, offered(claims, **config)) == expected


@pytest.mark.parametrize(
    ("claims", "config", "expected"),
    [
        (READS, {}, "allow"),
        (OPEN, {}, "ask"),
        (CLOSED, {}, "allow"),
        (WRITES, {}, "ask"),
        # Not gated by the operator's word: never asked.
        (WRITES, {"gated": False}, "allow"),
        (OPEN, {"gated": False}, "allow"),
        # Left out by globs is nobody's word.
        (WRITES, {"gated": ("other",)}, "ask"),
        # A claim of an unbelieved server still restricts.
        (OPEN, {"hints": "restrict", "annotations": (("*", AnnotationOverride(read_only=True)),)},
         "ask"),
    ],
)  # fmt: skip
def test_p5_after_outside(
    shipped: Guarded, claims: Claims, config: dict[str, object], expected: str
) -> None:
    assert asked(shipped, offered(claims, **config), "outside") == expected


def test_p5_missing_hints_are_the_strict_ones() -> None:
    hints = tool_input(offered({}, hints="restrict"))["hints"]
    assert hints == {
        "read_only": False,
        "destructive": True,
        "idempotent": False,
        "open_world": True,
    }
    destructive = tool_input(offered({"destructiveHint": True}, hints="restrict"))
    assert destructive["annotations"] == {"destructive": True}


# ------------------------------------------------------ P7: names do not hide the target

WHOAMI = {"server": "up", "upstream_name": "whoami", "kind": "mcp"}


@pytest.mark.parametrize(
    "deny",
    [
        policy(rule("r", "deny", 'tool.name == "up__whoami"')),
        policy(rule("r", "deny", 'tool.server == "up" && tool.upstream_name == "whoami"')),
        policy(rule("r", "deny", "true"), more="match: {server: up, tool: whoami}"),
    ],
    ids=["name", "own name", "match"],
)
@pytest.mark.parametrize("session", ["s1", "s2", ""])
def test_p7_the_target_is_decided_upon_however_it_is_reached(
    folder: Folder, deny: str, session: str
) -> None:
    """A wrapper, an alias or another session: the input names what is really called."""
    loaded = folder.load(deny)
    target = {**WHOAMI, "name": "up__whoami"}
    found = decide(loaded, tool=target, session={"id": session}, args={"name": "harmless"})
    assert (found.decision, found.rule) == ("deny", "p/r")
    other = decide(loaded, tool={**WHOAMI, "name": "up__run", "upstream_name": "run"})
    assert other.decision == "allow"


@pytest.mark.parametrize("alias", ["me", "up-whoami", "other__whoami", "up__whoami2"])
def test_p7_match_does_not_look_at_the_advertised_name(folder: Folder, alias: str) -> None:
    text = policy(rule("r", "deny", "true"), more="match: {server: up, tool: whoami}")
    assert decide(folder.load(text), tool={**WHOAMI, "name": alias}).decision == "deny"


def test_p7_a_name_in_an_argument_is_no_target(folder: Folder) -> None:
    text = policy(rule("r", "deny", "true"), more="match: {server: up, tool: whoami}")
    found = decide(
        folder.load(text),
        tool={"name": "up__run", "upstream_name": "run"},
        args={"tool": {"server": "up", "upstream_name": "whoami"}},
    )
    assert found.decision == "allow"
