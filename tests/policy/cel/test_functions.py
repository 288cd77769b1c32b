"""Functions where strictness, bounds or our own meaning matter; cel-spec's files do the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.policy.cel import CelError, compile_text
from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.glob import glob
from sidecar.policy.cel.functions.regex import BadPattern
from sidecar.policy.cel.functions.time import (
    format_duration,
    format_timestamp,
    parse_duration,
    parse_timestamp,
)
from sidecar.policy.cel.values import INT_MAX, INT_MIN, Duration, Timestamp


def run(text: str, **given_values: Any) -> Any:
    return compile_text(text)(given_values)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("delete_*", ["delete_", "delete_repo"], ["delete", "x_delete_y", "Delete_x"]),
        ("*", ["", "a", ".env"], ["a/b"]),
        ("**", ["", "a/b/c", "a\nb"], []),
        ("**/.env", [".env", "a/.env", "/a/b/.env"], ["x.env", "a/.env/b", ".envx"]),
        ("/srv/**/*.py", ["/srv/a.py", "/srv/a/b.py"], ["/srv/a.pyc", "/srva.py", "srv/a.py"]),
        ("/etc/**", ["/etc/", "/etc/a/b"], ["/etc", "/etcetera"]),
        ("a**b", ["ab", "a/x/b"], ["a", "abc"]),
        ("?", ["a", "é", "\n"], ["", "/", "ab"]),
        ("[a-c]x", ["ax", "cx"], ["dx", "x", "[a-c]x"]),
        ("[!a-c]x", ["dx", "!x"], ["ax", "/x"]),
        ("[]]", ["]"], ["a"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)", "a.bb(c)"]),
        ("\\*\\[", ["*["], ["a["]),
        ("^a$", ["^a$"], ["a"]),
    ],
)
def test_globs_match_whole_strings(pattern: str, yes: list[str], no: list[str]) -> None:
    test = glob(pattern)
    assert [text for text in yes if not test(text)] == []
    assert [text for text in no if test(text)] == []


@pytest.mark.parametrize("pattern", ["[a", "a\\", "a" * 1000, "[z-a]"])
def test_bad_globs_are_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        glob(pattern)


@given(st.text(alphabet="ab*?[]!\\/.-^é\n", max_size=12), st.text(alphabet="ab/.é\n", max_size=12))
def test_any_glob_is_a_test_or_refused(pattern: str, subject: str) -> None:
    try:
        assert type(glob(pattern)(subject)) is bool
    except BadPattern:
        return


@given(st.text(alphabet="ab/.é*?[", max_size=12))
def test_an_escaped_text_matches_itself_alone(text: str) -> None:
    escaped = "".join(f"\\{character}" for character in text)
    assert glob(escaped)(text) is True
    assert glob(escaped)(text + "a") is False


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("https://a.example:8443/x/y?q=1&q=2&r=a%20b#f", ("https", "a.example:8443", "a.example")),
        ("HTTP://A.example", ("http", "A.example", "A.example")),
        ("https://user:pw@a.example/", ("https", "a.example", "a.example")),
        ("https://[2001:db8::1]:80/", ("https", "[2001:db8::1]:80", "2001:db8::1")),
        ("/only/a/path?x=1", ("", "", "")),
    ],
)
def test_urls(text: str, parts: tuple[str, str, str]) -> None:
    assert run("isURL(u)", u=text) is True
    got = run("[url(u).getScheme(), url(u).getHost(), url(u).getHostname()]", u=text)
    assert tuple(got) == parts


def test_more_of_a_url() -> None:
    url = "https://a.example:8443/x/%2e?q=1&q=2&r=a%20b#f"
    assert run("url(u).getPort()", u=url) == "8443"
    assert run("url(u).getEscapedPath()", u=url) == "/x/%2e"
    assert run("url(u).getQuery()", u=url) == {"q": ["1", "2"], "r": ["a b"]}
    assert run("string(url(u)) == u && url(u) == url(u)", u=url) is True


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.example",
        "a/b",
        "https://",
        "https:///x",
        "https:a.example",
        "https://a b/",
        "https://a.example/\n",
        "https://a.example\\@b/",
        "https://a.example:80a/",
        "https://a.example:99999/",
        "https://a@b@c/",
        "https://[::1/",
        "https://a.example/%zz",
        "https://é.example/",
        "javascript:alert(1)",
        "//a.example/x" * 1000,
    ],
)
def test_what_is_no_url(text: str) -> None:
    assert run("isURL(u)", u=text) is False
    assert run("url(u)", u=text).kind == "invalid_argument"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "010.0.0.1",
            "10.0.0.1 ",
            "10.0.0",
            "10.0.0.256",
            "１.1.1.1",
            "::ffff:10.0.0.1",
            "fe80::1%1",
        ),
        *("10.0.0.1/8", "[::1]", "", "1" * 100),
    ],
)
def test_what_is_no_address(text: str) -> None:
    assert run("isIP(a)", a=text) is False
    assert run("ip(a)", a=text).kind == "invalid_argument"


@pytest.mark.parametrize(
    "text",
    ["10.0.0.0", "10.0.0.0/33", "10.0.0.0/08", "10.0.0.0/255.0.0.0", "::/129", "::ffff:a00:1/120"],
)
def test_what_is_no_network(text: str) -> None:
    assert run("isCIDR(a)", a=text) is False
    assert run("cidr(a)", a=text).kind == "invalid_argument"


def test_a_mapped_address_is_the_one_it_reaches() -> None:
    assert run("ip('::ffff:a9fe:a9fe').isLinkLocalUnicast()") is True
    assert run("cidr('10.0.0.0/8').containsIP('::ffff:a00:1')") is True
    assert run("ip('::ffff:a00:1').family()") == 4


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("0", 0),
        ("1h30m", 5400 * 10**9),
        ("-1.5s", -1_500_000_000),
        (".5ms", 500_000),
        ("+2us", 2_000),
        ("3µs", 3_000),
        ("1h0.000000001s", 3600 * 10**9 + 1),
        ("9223372036.854775807s", INT_MAX),
    ],
)
def test_durations(text: str, nanos: int) -> None:
    assert parse_duration(text) == Duration(nanos)


@pytest.mark.parametrize("text", ["", "-", "1", "1x", "1h-30m", "s", ".s", "1.s.", " 1s", "1e3s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(EvalError):
        parse_duration(text)


@given(st.integers(INT_MIN, INT_MAX))
def test_durations_are_read_as_they_are_written(nanos: int) -> None:
    assert parse_duration(format_duration(Duration(nanos))) == Duration(nanos)


@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_800 * 10**9 - 1))
def test_timestamps_are_read_as_they_are_written(nanos: int) -> None:
    assert parse_timestamp(format_timestamp(Timestamp(nanos))) == Timestamp(nanos)


@pytest.mark.parametrize(
    "text",
    [
        *("2024-02-30T00:00:00Z", "2024-01-01", "2024-01-01T00:00:00", "2024-01-01 00:00:00Z"),
        *("2024-01-01T24:00:00Z", "2024-01-01T00:00:60Z", "2024-01-01T00:00:00+25:00"),
        *("0001-01-01T00:00:00+00:01", "２024-01-01T00:00:00Z", "2024-01-01T00:00:00.0000000001Z"),
    ],
)
def test_what_is_no_timestamp(text: str) -> None:
    with pytest.raises(EvalError):
        parse_timestamp(text)


@pytest.mark.parametrize(
    "zone", ["../../etc/passwd", "/etc/localtime", "Nowhere", "+25:00", "", "é"]
)
def test_zones_are_names_and_offsets_alone(zone: str) -> None:
    value = run("timestamp(0).getHours(z)", z=zone)
    assert isinstance(value, CelError)
    assert value.kind == "invalid_argument"


def test_zones_at_the_ends_of_time() -> None:
    assert run("timestamp('0001-01-01T00:00:00Z').getHours('-02:00')").kind == "overflow"
    assert run("timestamp('9999-12-31T23:59:59Z').getFullYear('+02:00')").kind == "overflow"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("string(123456.0)", "123456"),
        ("string(1234567.0)", "1.234567e+06"),
        ("string(0.0001)", "0.0001"),
        ("string(0.00001)", "1e-05"),
        ("string(1e300)", "1e+300"),
        ("string(0.1 + 0.2)", "0.30000000000000004"),
        ("'%s'.format([1e21])", "1000000000000000000000"),
        ("'%.0f|%.2e|%x|%X'.format([0.5, 1234.5, -255, 'é'])", "0|1.23e+03|-ff|C3A9"),
        ("' a '.trim() + 'b'.upperAscii() + 'Éa'.upperAscii()", "aBÉA"),
        ("'a,b,c'.split(',', 2).join('|')", "a|b,c"),
        ("'abc'.substring(1) + 'abc'.charAt(3) + 'äbc'.reverse()", "bccbä"),
    ],
)
def test_texts(text: str, value: str) -> None:
    assert run(text) == value


def test_sets() -> None:
    assert run("sets.contains([1, 2, 'a'], [2.0, 'a'])") is True
    assert run("sets.equivalent([1, 1, 2], [2u, 1])") is True
    assert run("sets.intersects(a, ['x'])", a=["y", "x"]) is True
    assert run("sets.contains([], [1])") is False
