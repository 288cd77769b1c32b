"""Single values: what each form means, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import Listen, values


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30.0),
        ("5m", 300.0),
        ("24h", 86400.0),
        ("200ms", 0.2),
        ("1.5s", 1.5),
        ("1h30m", 5400.0),
        ("0s", 0.0),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert values.duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "30", "s", "-1s", "1 s", "1d", "1e3s", "٣s", "1s\n", "9" * 40 + "s"]
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 30s, 5m, 24h"):
        values.duration(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4MiB", 4 << 20),
        ("64KiB", 65536),
        ("10MB", 10_000_000),
        ("123", 123),
        ("1.5KiB", 1536),
        ("2GiB", 2 << 30),
        ("7B", 7),
    ],
)
def test_sizes(text: str, number: int) -> None:
    assert values.size(text) == number


@pytest.mark.parametrize("text", ["", "MiB", "4Mi", "4 MiB", "-1", "0.3B", "1TiB", "4mib"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|whole number"):
        values.size(text)


@pytest.mark.parametrize(
    ("text", "listen"),
    [
        ("127.0.0.1:8808", Listen("127.0.0.1", 8808)),
        ("[::1]:8808", Listen("::1", 8808)),
        ("localhost:0", Listen("localhost", 0)),
        ("0.0.0.0:65535", Listen("0.0.0.0", 65535)),
        ("unix:/run/a.sock", Listen(path=Path("/run/a.sock"))),
        ("unix:///run/a.sock", Listen(path=Path("/run/a.sock"))),
    ],
)
def test_addresses(text: str, listen: Listen) -> None:
    assert values.listen(text) == listen


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (":8808", "names no address; write 127.0.0.1:8808"),
        ("*:8808", "names no address"),
        ("127.0.0.1", "has no port"),
        ("8808", "has no port"),
        ("127.0.0.1:99999", "between 0 and 65535"),
        ("127.0.0.1:x", "between 0 and 65535"),
        ("127.0.0.1:-1", "between 0 and 65535"),
        ("::1:8808", "brackets"),
        ("[127.0.0.1]:80", "brackets"),
        ("127.1:80", "not an address"),
        ("0177.0.0.1:80", "not an address"),
        ("2130706433:80", "not an address"),
        ("a b:80", "not an address"),
        ("http://127.0.0.1:80", "is a URL"),
        ("unix:run/a.sock", "absolute path"),
        ("unix:/" + "a" * 107, "at most 107 bytes"),
    ],
)
def test_what_is_no_address(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        values.listen(text)


@pytest.mark.parametrize(
    ("text", "local"),
    [
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("localhost:1", True),
        ("unix:/a", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
        ("localhost.example:1", False),
    ],
)
def test_what_only_this_machine_reaches(text: str, local: bool) -> None:
    assert values.is_local(values.listen(text)) is local


@pytest.mark.parametrize(
    ("text", "store"),
    [
        ("memory", "memory"),
        ("sqlite:/var/a.db", "sqlite:/var/a.db"),
        ("sqlite:///var/a.db", "sqlite:/var/a.db"),
        ("sqlite:////var//lib/../a.db", "sqlite:/var/a.db"),
    ],
)
def test_stores(text: str, store: str) -> None:
    assert values.store(text) == store


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("sqlite:a.db", "absolute path"),
        ("sqlite::memory:", "write memory"),
        ("sqlite:", "absolute path"),
        ("sqlite:///", "names a folder"),
        ("sqlite:///var/", "names a folder"),
        ("sqlite:///a.db?mode=ro", "absolute path"),
        ("redis://x", "is not a store"),
        ("Memory", "is not a store"),
    ],
)
def test_what_is_no_store(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        values.store(text)


@pytest.mark.parametrize("name", ["a", "7", "a-b", "a_b", "A--b", "a_-b", "x" * 32])
def test_names(name: str) -> None:
    values.server_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "_a", "a_", "a__b", "a.b", "a b", "ä", "x" * 33, "sidecar", "a\n"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="name"):
        values.server_name(name)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://a/", "http:// or https://"),
        ("a.example/mcp", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("http://:80/", "http:// or https://"),
        ("http://u:p@a/", "user or password"),
        ("http://a@/", "http:// or https://"),
        ("http://a/#x", "fragment"),
        ("http://a/ b", "space"),
        ("http://a/\nb", "space"),
        ("http://a:99999/", "cannot be read"),
        ("http://a:0/", "http:// or https://"),
        ("http://[::1/", "cannot be read"),
    ],
)
def test_what_is_no_url(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        values.url(url)


@pytest.mark.parametrize("name", ["Content-Length", "mcp-session-id", "a b", "", "ä", "a:"])
def test_headers_that_nobody_may_set(name: str) -> None:
    with pytest.raises(ValueError, match=r"header name|written by the sidecar"):
        values.header_name(name)


@pytest.mark.parametrize("value", ["a\r\nbc", "xyz\n", "xyz\0", "xyz\x1b", " xyz", "xyz "])
def test_values_that_no_header_may_have(value: str) -> None:
    with pytest.raises(ValueError, match="no header") as caught:
        values.header_value(value)
    assert value.strip() not in str(caught.value)
