"""The verdict on URLs and addresses: our cases, and spellings that nobody thought of."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from sidecar.egress.addresses import CLASSES, class_of, classify
from sidecar.egress.urls import Ambiguous, join, parse, parse_authority
from sidecar.egress.verdict import MOST_ADDRESSES, verdict
from tests.egress.kit import CASES
from tests.kit.examples import examples

PUBLIC = "93.184.216.34"


def answers(case: dict[str, Any], url: str) -> list[str]:
    try:
        return list(case["dns"].get(parse(url).host, []))
    except Ambiguous:
        return [PUBLIC]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    found = verdict(case["url"], answers(case, case["url"]))
    ok = found.ok
    for location in case.get("chain", ()):
        assert found.target is not None
        try:
            reached = join(found.target, location)
        except Ambiguous:
            ok = False
            break
        found = verdict(reached.canonical, answers(case, reached.canonical))
        ok = ok and found.ok
    assert ok == (case["verdict"] == "allow"), found
    assert found.host != case.get("not_equal")
    if "must_dial" in case:
        assert [address.text for address in found.addresses] == case["must_dial"]


def test_the_cases_are_all_there() -> None:
    assert len(CASES) == 258
    assert sum(case["verdict"] == "deny" for case in CASES) > 200


@pytest.mark.parametrize(
    ("text", "class_"),
    [
        ("1.1.1.1", "public"),
        ("127.8.8.8", "loopback"),
        ("169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("168.63.129.17", "public"),
        ("169.254.1.1", "link-local"),
        ("10.1.2.3", "private"),
        ("100.64.0.1", "shared"),
        ("100.100.100.200", "metadata"),
        ("0.0.0.0", "unspecified"),
        ("224.0.0.251", "multicast"),
        ("198.18.0.1", "benchmark"),
        ("203.0.113.9", "documentation"),
        ("192.88.99.1", "tunnel"),
        ("255.255.255.255", "reserved"),
        ("2606:4700::1111", "public"),
        ("::1", "loopback"),
        ("::", "unspecified"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "metadata"),
        ("::ffff:8.8.8.8", "translated"),
        ("::8.8.8.8", "translated"),
        ("::ffff:0:10.0.0.1", "private"),
        ("64:ff9b::8.8.8.8", "public"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b:1::8.8.8.8", "reserved"),
        ("2002:808:808::", "tunnel"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "tunnel"),
        ("2001:20::1", "reserved"),
        ("2001:200::1", "public"),
        ("fd00:ec2::254", "metadata"),
        ("fd00::1", "private"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "ambiguous"),
        ("fec0::1", "private"),
        ("ff02::1", "multicast"),
        ("4000::1", "reserved"),
        ("not an address", "ambiguous"),
        ("127.1", "ambiguous"),
        ("", "ambiguous"),
    ],
)
def test_class(text: str, class_: str) -> None:
    found = classify(text)
    assert found.class_ == class_
    assert found.ok == (class_ == "public")


@given(st.ip_addresses())
def test_what_is_public_here_is_public_for_the_library_too(ip: Any) -> None:
    """Ours is stricter, never laxer, but for NAT64, whose inside counts."""
    if class_of(ip) == "public" and ip not in ipaddress.IPv6Network("64:ff9b::/96"):
        assert not ip.is_private
        assert not ip.is_multicast
        assert not ip.is_reserved
        assert not ip.is_loopback


def test_the_strictest_address_is_told() -> None:
    found = verdict("https://a.example.com/", [PUBLIC, "10.0.0.1", "169.254.169.254"])
    assert (found.ok, found.why, found.class_) == (False, "metadata", "metadata")
    assert found.as_input() == {"ok": False, "why": "metadata", "class": "metadata"}
    assert "metadata service" in found.text


def test_too_many_addresses() -> None:
    assert verdict("https://a.example.com/", [PUBLIC] * MOST_ADDRESSES).ok
    found = verdict("https://a.example.com/", [PUBLIC] * (MOST_ADDRESSES + 1))
    assert (found.ok, found.why) == (False, "too-many")


def test_canonical() -> None:
    assert parse("hTTp://EXAMPLE.com.:80?x#f").canonical == "http://example.com/?x"
    assert parse("https://bücher.example:8443/a?b").canonical == (
        "https://xn--bcher-kva.example:8443/a?b"
    )
    assert parse("https://[2606:4700:0:0::1111]/").canonical == "https://[2606:4700::1111]/"
    assert parse("https://u.example/secret?key=1").origin == "https://u.example:443"


@pytest.mark.parametrize(
    "text", ["example.com:443", "[2606:4700::1111]:443", "1.1.1.1:1", "EXAMPLE.com.:65535"]
)
def test_authority(text: str) -> None:
    found = parse_authority(text)
    assert (found.scheme, found.path, found.authority) == (
        "connect",
        "",
        text.lower().replace(".:", ":"),
    )


@pytest.mark.parametrize(
    "text",
    ["example.com", "example.com:", ":443", "a@b:443", "a/b:443", "127.1:80", "a:0", "a b:1", ""],
)
def test_bad_authority(text: str) -> None:
    with pytest.raises(Ambiguous):
        parse_authority(text)


def test_messages_quote_nothing() -> None:
    for case in CASES:
        found = verdict(case["url"], ["10.0.0.1"])
        assert len(found.text) > 10
        if len(found.host) > 4:
            assert found.host not in found.text


# ------------------------------------------------------------------- spellings of what is blocked

BLOCKED4 = st.sampled_from(
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "192.168.1.1",
        "172.16.0.1",
        "100.64.0.1",
        "0.0.0.0",
    ]
).map(ipaddress.IPv4Address) | st.ip_addresses(v=4).filter(lambda ip: class_of(ip) != "public")
BLOCKED6 = st.ip_addresses(v=6).filter(lambda ip: class_of(ip) != "public")
DOTS = st.sampled_from([".", ".", ".", "。", "．", "｡", "%2e", "%2E"])
WIDE = str.maketrans("0123456789", "０１２３４５６７８９")
CIRCLED = {"1": "①", "2": "②", "7": "⑦", "0": "⓪", "9": "⑨"}


@st.composite
def spelled4(draw: st.DrawFn) -> str:
    """An IPv4 address in one of the ways in which parsers have read one."""
    value = int(draw(BLOCKED4))
    count = draw(st.integers(1, 4))
    sizes = [8] * (count - 1) + [8 * (5 - count)]
    parts, left = [], 32
    for size in sizes:
        left -= size
        parts.append((value >> left) & ((1 << size) - 1))
    written = []
    for part in parts:
        form = draw(st.sampled_from(["d", "d", "o", "x", "X", "zeros", "over"]))
        written.append(
            {
                "d": str(part),
                "o": f"0{part:o}",
                "x": f"0x{part:x}",
                "X": f"0X{part:X}",
                "zeros": f"{part:04d}",
                "over": str(part + 256 * draw(st.integers(0, 2))),
            }[form]
        )
    text = written[0]
    for part in written[1:]:
        text += draw(DOTS) + part
    shape = draw(st.sampled_from(["", "", "wide", "circled", "percent", "dot", "hyphen"]))
    if shape == "wide":
        text = text.translate(WIDE)
    elif shape == "circled":
        text = "".join(CIRCLED.get(c, c) for c in text)
    elif shape == "percent":
        text = "".join(f"%{ord(c):02x}" if c.isdigit() else c for c in text)
    elif shape == "dot":
        text += "."
    elif shape == "hyphen":
        text = text[:1] + "\u00ad" + text[1:]
    return text


@st.composite
def spelled6(draw: st.DrawFn) -> str:
    """An IPv6 address, or an IPv4 address dressed as one."""
    four = draw(BLOCKED4)
    six = draw(BLOCKED6)
    text = draw(
        st.sampled_from(
            [
                str(six),
                six.exploded,
                f"::ffff:{four}",
                f"::FFFF:{int(four) >> 16:x}:{int(four) & 0xFFFF:x}",
                f"0:0:0:0:0:ffff:{four}",
                f"::{four}",
                f"::ffff:0:{four}",
                f"64:ff9b::{four}",
                f"64:ff9b:1::{four}",
                f"2002:{int(four) >> 16:x}:{int(four) & 0xFFFF:x}::1",
                f"2001:0:1:2:3:4:{int(four) >> 16 ^ 0xFFFF:x}:{int(four) & 0xFFFF ^ 0xFFFF:x}",
                f"fe80::5efe:{four}",
            ]
        )
    )
    zone = draw(st.sampled_from(["", "", "%25eth0", "%lo"]))
    return f"[{text.upper() if draw(st.booleans()) else text}{zone}]"


FRAMES = st.sampled_from(
    [
        "{s}://{h}/",
        "{s}://{h}",
        "{s}://{h}:8080/x?y#z",
        "{s}://{h}?@example.com",
        "{s}://example.com@{h}/",
        "{s}://example.com\\@{h}/",
        "{s}://{h}#@example.com/",
        "{s}:\\\\{h}\\",
        "{s}:/{h}/",
        "{s}:{h}",
        "{s}:///{h}/",
        "{s}://{h}%2f.example.com/",
        "{s}://\t{h}/",
        "{s}://{h}\n/",
        " {s}://{h}/",
    ]
)
SCHEMES = st.sampled_from(["http", "https", "HTTP", "hTTps"])


@settings(max_examples=examples(200))
@given(st.one_of(spelled4(), spelled6()), FRAMES, SCHEMES)
def test_no_spelling_of_a_blocked_address_passes(host: str, frame: str, scheme: str) -> None:
    """Not even where somebody's resolver says that the host is a public name."""
    url = frame.format(s=scheme, h=host)
    found = verdict(url, [PUBLIC])
    if found.ok:
        # Only what is a public address after all: 010 + an overflow, a part that grew.
        assert found.target is not None
        assert found.target.address is not None
        assert class_of(found.target.address) == "public"
        assert str(found.target.address) == URL(url).host


@settings(max_examples=examples(100))
@given(st.lists(st.ip_addresses().map(str), max_size=3), BLOCKED4 | BLOCKED6, st.integers(0, 3))
def test_one_blocked_address_blocks_all(others: list[str], blocked: Any, at: int) -> None:
    others.insert(at, str(blocked))
    assert not verdict("https://a.example.com/", others).ok


TEXT = st.text(
    st.sampled_from("aZ0127.:/@?#[]%\\-_ \t\n\x00\u00ad。．ａ１ﬀ①ßĀＥx~'\"") | st.characters(),
    max_size=24,
)


# U+017F is a lower case of S, for patterns that look at Unicode.
SPELLINGS = ["http://", "https://", "HttpS://", "http\u017f://", "HTTP\u017f://", "http:", "//", ""]


@pytest.mark.parametrize("scheme", ["http\u017f", "HTTP\u017f", "\uff48ttp", "http\u0455"])
def test_a_scheme_in_other_letters_is_none(scheme: str) -> None:
    assert verdict(f"{scheme}://1.1.1.1/", ["1.1.1.1"]).why == "scheme"
    with pytest.raises(Ambiguous):
        join(parse("https://example.com/a"), f"{scheme}://1.1.1.1/")


@settings(max_examples=examples(400))
@given(TEXT, TEXT, st.sampled_from(SPELLINGS))
def test_total_and_of_one_mind_with_other_parsers(before: str, after: str, scheme: str) -> None:
    """Whatever passes is read alike by urllib and yarl: same host, same port."""
    url = f"{scheme}{before}.example.com{after}"
    found = verdict(url, [PUBLIC])
    assert found.class_ in CLASSES
    if not found.ok:
        return
    assert found.target is not None
    yarl = URL(url)
    # yarl's own IDNA may refuse what ours encodes, never read it as another.
    assert (yarl.raw_host or "").removesuffix(".") == found.host
    assert yarl.explicit_port in (None, found.port)
    parts = urlsplit(url)
    if url.isascii():
        assert (parts.hostname or "").removesuffix(".") == found.host
        assert (parts.port or found.port) == found.port
    again = parse(found.target.canonical)
    assert again == found.target


@given(st.text(max_size=40))
def test_join_is_total(location: str) -> None:
    base = parse("https://example.com/a/b?c")
    try:
        found = join(base, location)
    except Ambiguous:
        return
    assert parse(found.canonical) == found


@pytest.mark.parametrize(
    ("location", "reached"),
    [
        ("/x", "https://example.com/x"),
        ("x", "https://example.com/a/x"),
        ("?q", "https://example.com/a/b?q"),
        ("//example.org/x", "https://example.org/x"),
        ("../../../x", "https://example.com/x"),
        ("http://example.org", "http://example.org/"),
        ("", "https://example.com/a/b?c"),
    ],
)
def test_join(location: str, reached: str) -> None:
    assert join(parse("https://example.com/a/b?c"), location).canonical == reached


def test_long_input_is_refused_quickly() -> None:
    assert verdict("http://" + "a." * 100_000).why == "too-long"
