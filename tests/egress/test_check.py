"""The full check: verdict and rules of phase connect, for every case and every reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import ServerConfig
from sidecar.egress import lines
from sidecar.egress.check import NOBODY, REASONS, About, Denied, told
from sidecar.egress.follow import NotFollowed, next_hop
from sidecar.model import Decision, JsonObject, Phase
from sidecar.policy.guard import Guarded
from tests.egress.kit import CASES, RUNTIME, Answers, Bench, policy

ADDED = About.of(RUNTIME)
PUBLIC = {"a.example.com": ["93.184.216.34"], "b.example.com": ["10.0.0.7"]}


@pytest.fixture
def plain(tmp_path: Path) -> Guarded:
    return policy(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
async def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    bench = Bench(policy(tmp_path), resolver=Answers(case["dns"], case.get("dns_second")))
    about = About.of(RUNTIME)
    checked = await bench.check.url(case["url"], "added", about)
    dials = 1
    for location in case.get("chain", ()):
        try:
            found = next_hop(checked.target, "GET", 302, location)
        except NotFollowed:
            assert case["verdict"] == "deny"
            return
        checked = await bench.check.target(found, "redirect", about)
        dials += 1
        if not checked.ok:
            break
    assert checked.ok == (case["verdict"] == "allow"), checked
    assert len(bench.decided) == dials
    assert checked.ok == bool(checked.addresses)
    if "must_dial" in case:
        assert list(checked.addresses) == case["must_dial"]


async def test_no_rule_the_verdict_decides(plain: Guarded) -> None:
    bench = Bench(plain, PUBLIC)
    allowed = await bench.check.url("https://a.example.com/mcp", "added")
    assert (allowed.decision.rule, allowed.addresses) == ("egress/public", ("93.184.216.34",))
    denied = await bench.check.url("https://b.example.com/mcp", "added")
    assert denied.decision.rule == "egress/private"
    assert denied.decision.message == "the address is private: it is in a private network"
    assert denied.addresses == ()
    with pytest.raises(Denied, match="denied by rule egress/private: the address is private"):
        _ = denied.target


async def test_decisions_are_published_without_what_may_be_secret(plain: Guarded) -> None:
    bench = Bench(plain, PUBLIC)
    await bench.check.url("https://a.example.com/tenant-key/mcp?token=s3cret", "added")
    (decided,) = bench.decided
    assert (decided.call, decided.phase, decided.target) == (
        "",
        "connect",
        "https://a.example.com:443",
    )
    assert "s3cret" not in repr(decided)
    assert "tenant-key" not in repr(decided)
    assert decided.decision.revision == plain.revision
    await bench.check.url("https://a.example.com/", "added", asked=True)
    assert len(bench.decided) == 1


async def test_what_cannot_be_read_is_not_repeated(plain: Guarded) -> None:
    bench = Bench(plain)
    checked = await bench.check.url("http://user:s3cret@a.example.com/", "added")
    assert checked.decision.rule == "egress/userinfo"
    assert "s3cret" not in repr(bench.decided) + str(checked.as_json())
    assert bench.decided[0].target == ""


async def test_deny_beats_allow_beats_verdict(tmp_path: Path) -> None:
    rules = """
- id: office
  on: connect
  effect: allow
  when: 'addresses.all(a, cidr("10.0.0.0/8").containsIP(a.ip))'
  message: '"the office network, ticket 12"'
- id: never
  on: connect
  effect: deny
  when: 'url.host == "b.example.com" && url.path.startsWith("/private")'
  message: '"not this one"'
"""
    bench = Bench(policy(tmp_path, rules), {**PUBLIC, "m.example.com": ["10.1.1.1", "192.168.0.1"]})
    about = About.of(RUNTIME)
    lifted = await bench.check.url("https://b.example.com/mcp", "dial", about)
    assert (lifted.decision.rule, lifted.addresses) == ("op/office", ("10.0.0.7",))
    assert lifted.decision.message == "the office network, ticket 12"
    denied = await bench.check.url("https://b.example.com/private", "dial", about)
    assert (denied.decision.rule, denied.decision.rules) == ("op/never", ("op/never", "op/office"))
    assert told(denied.decision) == "denied by rule op/never: not this one"
    # One address outside of what the rule allows is enough.
    mixed = await bench.check.url("https://m.example.com/", "dial", about)
    assert mixed.decision.rule == "egress/private"
    assert (await bench.check.url("https://a.example.com/", "dial", about)).ok


async def test_an_operator_allows_one_network_with_a_reason(tmp_path: Path) -> None:
    """P8: the shared network of a provider, which is no more sacred than another."""
    rules = """
- id: tailnet
  on: connect
  effect: allow
  when: 'addresses.all(a, cidr("100.64.0.0/10").containsIP(a.ip)) && url.port in [443, 9000]'
  message: '"the tailnet, NET-7"'
- id: who-may-add
  on: connect
  effect: deny
  when: 'reason == "added" && agent.principal != "alice" && url.host.startsWith("100.64.9.")'
  message: '"only alice adds these"'
"""
    bench = Bench(policy(tmp_path, rules), {"in.example.com": ["100.64.0.9", "10.0.0.1"]})
    for url, rule in (
        ("http://100.64.0.1:9000/mcp", "op/tailnet"),
        ("http://100.127.255.255:443/", "op/tailnet"),
        ("http://100.64.0.1:8080/mcp", "egress/shared"),
        ("http://10.0.0.1:9000/mcp", "egress/private"),
        ("http://100.100.100.200:9000/", "op/tailnet"),  # what the rule says is what holds
        ("http://in.example.com:9000/", "egress/private"),
        ("http://[::ffff:100.64.0.1]:9000/", "egress/ipv6"),
        ("http://100.64.9.1:9000/", "op/who-may-add"),
    ):
        found = await bench.check.url(url, "added", About.of(RUNTIME, "bob"))
        assert found.decision.rule == rule, url
    found = await bench.check.url("http://100.64.9.1:9000/", "added", About.of(RUNTIME, "alice"))
    assert (found.ok, found.decision.message) == (True, "the tailnet, NET-7")


EVERYTHING = """
- id: all
  on: connect
  effect: allow
  when: "true"
  message: '"anything goes"'
"""


async def test_no_rule_lifts_what_is_ambiguous(tmp_path: Path) -> None:
    bench = Bench(policy(tmp_path, EVERYTHING), {"b.example.com": ["10.0.0.7"]})
    for case in CASES:
        bench.resolver = bench.check._resolver = Answers(case["dns"])
        checked = await bench.check.url(case["url"], "added", About.of(RUNTIME))
        if checked.verdict.class_ == "ambiguous":
            assert not checked.ok, case
            assert checked.decision.rule == f"egress/{checked.verdict.why}"
        elif checked.verdict.addresses:
            assert checked.decision.rule == "op/all", case


async def test_an_answer_that_is_no_address_is_not_lifted(tmp_path: Path) -> None:
    bench = Bench(policy(tmp_path, EVERYTHING), {"z.example.com": ["fe80::1%eth0"]})
    checked = await bench.check.url("https://z.example.com/", "added")
    assert (checked.ok, checked.decision.rule) == (False, "egress/ambiguous")


async def test_a_name_without_an_address_is_not_lifted(tmp_path: Path) -> None:
    bench = Bench(policy(tmp_path, EVERYTHING))
    checked = await bench.check.url("https://nowhere.example.com/", "added")
    assert checked.decision.rule == "egress/unresolved"
    assert checked.decision.message == "the host name cannot be resolved"


@pytest.mark.parametrize(
    ("address", "host"),
    [("10.0.0.7", "db.example.com"), ("127.0.0.1", "localhost"), ("10.0.0.8", "mcp")],
)
async def test_rules_alone_decide_about_configured_servers(
    plain: Guarded, address: str, host: str
) -> None:
    """No verdict, also for names and addresses that a stranger could not use."""
    bench = Bench(plain, {host: [address]})
    config = ServerConfig("own", "http", url=f"http://{host}:9000/mcp")
    checked = await bench.check.url(config.url, "dial", About.of(config))
    assert (checked.decision.rule, checked.addresses) == ("egress/configured", (address,))
    refused = await bench.check.url(config.url, "dial", About.of(replace(config, runtime=True)))
    assert not refused.ok
    assert refused.addresses == ()


async def test_search_domains_complete_no_strangers_name(plain: Guarded) -> None:
    bench = Bench(plain, {"a.example.com": ["93.184.216.34"], "mcp": ["10.0.0.1"]})
    config = ServerConfig("own", "http", url="http://a.example.com/mcp")
    await bench.check.url("http://a.example.com/mcp", "added")
    await bench.check.url("http://a.example.com/mcp", "dial", About.of(config))
    await bench.check.url("http://mcp/", "added")
    # A single label is refused by the verdict; where a rule allows it, it is meant as it stands.
    assert bench.resolver.asked == ["a.example.com.", "a.example.com", "mcp"]


async def test_what_rules_can_read(tmp_path: Path) -> None:
    rules = """
- id: seen
  on: connect
  effect: deny
  when: >-
    url.scheme == "https" && url.host == "a.example.com" && url.port == 8443 && url.path == "/mcp"
    && addresses[0].ip == "93.184.216.34" && addresses[0].class == "public"
    && verdict.ok && verdict.why == "public" && verdict.class == "public"
    && reason == "redirect" && server.name == "added" && server.transport == "http"
    && server.url == "https://added.example.com/mcp" && !server.trusted && server.runtime
    && agent.principal == "sidecar"
  message: '"seen"'
"""
    bench = Bench(policy(tmp_path, rules), PUBLIC)
    about = About.of(RUNTIME)
    checked = await bench.check.url("https://A.example.com:8443/mcp?q", "redirect", about)
    assert (checked.decision.rule, checked.decision.error) == ("op/seen", None)


@pytest.mark.parametrize("reason", REASONS)
async def test_every_variable_is_there_for_every_reason(tmp_path: Path, reason: Any) -> None:
    """A rule that reads all of them has no error, and errors of a deny rule are denials."""
    rules = """
- id: reads
  on: connect
  effect: deny
  when: >-
    url.scheme + url.host + string(url.port) + url.path + reason + server.name + server.transport
    + string(server.trusted) + string(server.runtime) + agent.principal + verdict.why
    + verdict.class + string(verdict.ok) == "x"
"""
    bench = Bench(policy(tmp_path, rules), PUBLIC)
    for about in (NOBODY, About.of(RUNTIME)):
        assert (await bench.check.url("https://a.example.com/", reason, about)).ok
    checked = await bench.check.url("nonsense", reason)
    assert (checked.decision.rule, checked.decision.error) == ("egress/scheme", None)


async def test_an_error_in_a_deny_rule_denies(tmp_path: Path) -> None:
    rules = """
- id: broken
  on: connect
  effect: deny
  when: 'addresses[9].ip == "10.0.0.1"'
"""
    bench = Bench(policy(tmp_path, rules), PUBLIC)
    checked = await bench.check.url("https://a.example.com/", "added")
    assert (checked.ok, checked.decision.rule) == (False, "op/broken")
    assert checked.decision.error is not None


# ---------------------------------------------------------------------------------- the log

AUDITED = """
- id: plain
  on: connect
  effect: deny
  mode: audit
  when: 'url.scheme == "http" && server.name == "added"'
- id: odd
  on: connect
  effect: deny
  when: 'url.port == 444 && addresses[9].ip == "10.0.0.1"'
"""


async def test_what_a_person_finds_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A client of the proxy that is denied, what an audited rule would do, rules that fail."""
    caplog.set_level("INFO", "sidecar.egress")
    bench = Bench(policy(tmp_path, AUDITED), PUBLIC)
    app = About(NOBODY.server, "app")
    for _ in range(2):
        await bench.check.url("https://b.example.com/a?key=s3cret", "proxy", app)
    denied = "connect to https://b.example.com:443 for app: denied by egress/private"
    assert caplog.messages == [denied, denied]
    caplog.clear()
    for reason in ("added", "dial", "dial", "dial"):
        assert (await bench.check.url("http://a.example.com/?key=s3cret", reason, ADDED)).ok
    would = "connect to http://a.example.com:80 for server added: in force it would be deny by "
    assert caplog.messages == [would + "op/plain"] * 2, "told once, not at every connection"
    caplog.clear()
    for _ in range(2):
        await bench.check.url("https://a.example.com:444/", "dial", ADDED)
    [failed] = caplog.messages
    assert failed.startswith(f"rule op/odd failed at {tmp_path}/rules.yaml:")
    caplog.clear()
    # Told elsewhere, or only asked.
    await bench.check.url("https://b.example.com/", "added", ADDED)
    await bench.check.url("https://b.example.com/", "proxy", app, asked=True)
    await bench.check.url("https://a.example.com/", "proxy", app)
    assert caplog.messages == []


async def test_the_log_forgets_what_it_told_before_it_grows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MOST", 2)
    caplog.set_level("INFO", "sidecar.egress")
    bench = Bench(policy(tmp_path, AUDITED), PUBLIC)
    for port in (1, 2, 3, 3, 1):
        await bench.check.url(f"http://a.example.com:{port}/", "dial", ADDED)
    assert len(caplog.messages) == 4


# -------------------------------------------------------------------------------- fail closed


class Odd:
    """A policy that does not keep its promise."""

    revision = "odd"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def decide(self, phase: Phase, given: JsonObject) -> Decision:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]

    def refs(self, phase: Phase) -> frozenset[str]:
        return frozenset()

    def specialise(self, known: Any) -> Odd:
        return self


ALLOW = Decision("allow", "x/y")


@pytest.mark.parametrize(
    ("answer", "url", "rule"),
    [
        (RuntimeError("no"), "https://a.example.com/", "egress/error"),
        (None, "https://a.example.com/", "egress/error"),
        (replace(ALLOW, decision="ask"), "https://a.example.com/", "egress/no-answer"),
        (ALLOW, "http://127.1/", "egress/ipv4"),
        (ALLOW, "https://nowhere.example.com/", "egress/unresolved"),
    ],
)
async def test_whatever_an_engine_does_wrong_is_a_deny(answer: Any, url: str, rule: str) -> None:
    bench = Bench(Odd(answer), PUBLIC)  # type: ignore[arg-type]
    checked = await bench.check.url(url, "added")
    assert (checked.ok, checked.decision.rule, checked.addresses) == (False, rule, ())
    assert bench.decided[0].decision == checked.decision


async def test_a_resolver_that_fails_is_a_deny(plain: Guarded) -> None:
    class Broken:
        async def addresses(self, host: str) -> Sequence[str]:
            raise ValueError(host)

    bench = Bench(plain, resolver=Broken())
    checked = await bench.check.url("https://a.example.com/", "added")
    assert checked.decision.rule == "egress/unresolved"


# ------------------------------------------------------------------------------------- proxy


async def test_the_proxy_dials_two_ports_unless_a_rule_says_more(tmp_path: Path) -> None:
    rules = """
- id: db
  on: connect
  effect: allow
  when: 'url.host == "a.example.com" && url.port == 5432'
  message: '"the hosted database"'
"""
    bench = Bench(policy(tmp_path, rules), {**PUBLIC, "c.example.com": ["93.184.216.35"]})
    ports = {}
    for port in (80, 443, 5432, 8443):
        checked = await bench.check.url(f"http://a.example.com:{port}/", "proxy")
        ports[port] = checked.decision.rule
    assert ports == {
        80: "egress/public",
        443: "egress/public",
        5432: "op/db",
        8443: "egress/port",
    }
    refused = await bench.check.url("http://c.example.com:5432/", "proxy")
    assert refused.decision.message == "the port is neither 80 nor 443, and no rule allows it"
    # Ports are the proxy's alone.
    assert (await bench.check.url("http://c.example.com:5432/", "added")).ok


async def test_what_the_proxy_never_dials(tmp_path: Path) -> None:
    bench = Bench(
        policy(tmp_path, EVERYTHING),
        {"me.example.com": ["93.184.216.34", "10.0.0.7"]},
        never=lambda address: "this machine" if address.text == "10.0.0.7" else None,
    )
    refused = await bench.check.url("http://me.example.com/", "proxy")
    assert refused.decision.rule == "egress/own"
    assert refused.decision.message == "the forward proxy never dials this machine"
    assert (await bench.check.url("http://me.example.com/", "dial")).ok


async def test_shipped_rules(tmp_path: Path) -> None:
    """Metadata stays denied whatever a rule allows; plain http is only recorded."""
    bench = Bench(
        policy(tmp_path, EVERYTHING, shipped=["egress"]), {"a.example.com": ["93.184.216.34"]}
    )
    about = About.of(RUNTIME)
    for host in ("169.254.169.254", "[fd00:ec2::254]", "168.63.129.16"):
        checked = await bench.check.url(f"http://{host}/", "added", about)
        assert checked.decision.rule == "egress/metadata", host
    plain = await bench.check.url("http://a.example.com/", "added", about)
    assert (plain.ok, plain.decision.mode, plain.decision.would) == (True, "audit", "deny")
