"""Host and Origin: what is ours, what is foreign, what is no host at all."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.types import Listen
from sidecar.wire.hosts import HostRules, HostVerdict

OURS, FOREIGN, MALFORMED = HostVerdict.OURS, HostVerdict.FOREIGN, HostVerdict.MALFORMED
LOOPBACK = HostRules(Listen("127.0.0.1", 8808))


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        ("127.0.0.1:8808", OURS),
        ("127.0.0.1", OURS),
        ("127.0.0.1:", OURS),
        ("127.0.0.1.", OURS),
        ("127.0.0.1:9999", OURS),  # a forwarded port
        ("localhost:8808", OURS),
        ("LocalHost:8808", OURS),
        ("LOCALHOST", OURS),
        ("localhost.", OURS),
        ("localhost.:8808", OURS),
        ("[::1]", OURS),
        ("[::1]:8808", OURS),
        ("[0:0:0:0:0:0:0:1]:8808", OURS),
        ("evil.example", FOREIGN),
        ("evil.example:8808", FOREIGN),
        ("localhost.evil.example", FOREIGN),
        ("127.0.0.1.evil.example", FOREIGN),
        ("127.0.0.1.nip.io:8808", FOREIGN),
        ("evil-localhost", FOREIGN),
        ("localhost..", FOREIGN),
        ("127.1", FOREIGN),
        ("0x7f.1", FOREIGN),
        ("2130706433", FOREIGN),
        ("127.0.0.01", FOREIGN),
        ("127.0.0.2", FOREIGN),
        ("0.0.0.0:8808", FOREIGN),
        ("[::ffff:127.0.0.1]", FOREIGN),
        ("[::]", FOREIGN),
        ("10.0.0.1", FOREIGN),
        ("", MALFORMED),
        (" ", MALFORMED),
        (":8808", MALFORMED),
        ("::1", MALFORMED),
        ("[::1", MALFORMED),
        ("[::1].", MALFORMED),
        ("[fe80::1%25lo]", MALFORMED),
        ("[localhost]", MALFORMED),
        ("localhost:65536", MALFORMED),
        ("localhost:-1", MALFORMED),
        ("localhost:80:80", MALFORMED),
        ("localhost:http", MALFORMED),
        ("user@localhost", MALFORMED),
        ("localhost@evil.example", MALFORMED),
        ("localhost/evil.example", MALFORMED),
        ("localhost,evil.example", MALFORMED),
        ("localhost evil.example", MALFORMED),
        ("localhost\n", MALFORMED),
        ("http://localhost", MALFORMED),
        ("löcalhost", MALFORMED),
        ("localhoſt", MALFORMED),  # casefolds to an s
        ("１２７.0.0.1", MALFORMED),
        ("a" * 300, MALFORMED),
    ],
)
def test_host(value: str, verdict: HostVerdict) -> None:
    assert LOOPBACK.host([value]) is verdict
    assert LOOPBACK.host([value]) is verdict  # the second time comes from what is remembered


def test_exactly_one_host_line() -> None:
    assert LOOPBACK.host([]) is MALFORMED
    assert LOOPBACK.host(["localhost", "localhost"]) is MALFORMED
    assert LOOPBACK.host(["localhost", "evil.example"]) is MALFORMED


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        ("http://localhost", True),
        ("http://localhost:6274", True),
        ("https://localhost:8808", True),
        ("HTTP://LOCALHOST", True),
        ("http://127.0.0.1:8808", True),
        ("http://[::1]:8808", True),
        ("http://localhost.", True),
        ("http://evil.example", False),
        ("http://localhost.evil.example", False),
        ("http://evil.example:8808", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://[::ffff:127.0.0.1]", False),
        ("null", False),
        ("", False),
        ("localhost", False),
        ("//localhost", False),
        ("file://", False),
        ("file://localhost", False),
        ("chrome-extension://localhost", False),
        ("http://localhost/", False),
        ("http://localhost/path", False),
        ("http://localhost#x", False),
        ("http://localhost?x", False),
        ("http://user@localhost", False),
        ("http://localhost@evil.example", False),
        ("http://localhost http://evil.example", False),
        ("http://localhost, http://evil.example", False),
        ("http://localhost:99999", False),
        ("http:localhost", False),
    ],
)
def test_origin(value: str, passes: bool) -> None:
    assert LOOPBACK.origin([value]) is passes


def test_no_origin_passes_and_two_do_not() -> None:
    assert LOOPBACK.origin([]) is True
    assert LOOPBACK.origin(["http://localhost", "http://localhost"]) is False


def test_the_listen_address_is_ours_and_so_is_what_the_operator_adds() -> None:
    rules = HostRules(Listen("Sidecar.Internal", 80), ["mcp.example.", "10.1.2.3", "[fd00::1]"])
    assert rules.host(["sidecar.internal"]) is OURS
    assert rules.host(["mcp.example:443"]) is OURS
    assert rules.host(["10.1.2.3"]) is OURS
    assert rules.host(["[fd00:0::1]:80"]) is OURS
    assert rules.host(["localhost"]) is OURS
    assert rules.host(["mcp.example.evil"]) is FOREIGN
    assert rules.origin(["https://mcp.example"]) is True
    assert HostRules(Listen("::1", 1)).host(["[::1]:1"]) is OURS
    assert HostRules(Listen("127.0.0.2", 1)).host(["127.0.0.2"]) is OURS


@pytest.mark.parametrize("entry", ["", "http://x", "x/y", "a b", "*", "x@y"])
def test_what_the_operator_adds_is_checked(entry: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        HostRules(Listen("127.0.0.1", 1), [entry])


def test_on_every_address_the_literal_the_connection_came_to_is_ours() -> None:
    rules = HostRules(Listen("0.0.0.0", 8808))
    assert rules.host(["10.1.2.3:8808"], "10.1.2.3") is OURS
    assert rules.host(["10.1.2.4:8808"], "10.1.2.3") is FOREIGN
    assert rules.host(["evil.example:8808"], "10.1.2.3") is FOREIGN
    assert rules.host(["10.1.2.3:8808"]) is FOREIGN
    assert rules.host(["0.0.0.0:8808"]) is OURS
    assert HostRules(Listen("::", 1)).host(["[fd00::1]"], "fd00::1") is OURS
    # Not on every address: what came in elsewhere stays foreign.
    assert LOOPBACK.host(["10.1.2.3:8808"], "10.1.2.3") is FOREIGN


@given(st.text(string.printable + "ſＫ。", max_size=40))
def test_whatever_is_let_through_names_a_host_of_ours(value: str) -> None:
    if LOOPBACK.host([value]) is OURS:
        bare = value.lower().rsplit(":", 1)[0] if value.rsplit(":", 1)[-1].isdigit() else value
        assert bare.lower().rstrip(":").removesuffix(".") in ("localhost", "127.0.0.1") or (
            bare.startswith("[") and ":1]" in value
        )
