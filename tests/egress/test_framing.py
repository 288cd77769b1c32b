"""Heads and bodies as the proxy reads them: what comes out is what went in, or nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.egress import heads
from sidecar.egress.framing import MOST_LINE, BadBody, Body
from sidecar.egress.heads import BadHead


def head(*lines: str) -> bytes:
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def test_request() -> None:
    found = heads.request(head("POST http://a/b HTTP/1.1", "Host: a", "X:  y \t", "X: z"))
    assert (found.method, found.target, found.minor) == ("POST", "http://a/b", 1)
    assert heads.values(found.headers, "x") == ["y", "z"]
    assert found.framing == 0


@pytest.mark.parametrize(
    ("fields", "framing"),
    [
        (["Content-Length: 5"], 5),
        (["Content-Length: 5", "content-length: 5"], 5),
        (["Transfer-Encoding: chunked"], "chunked"),
        (["TRANSFER-ENCODING: Chunked"], "chunked"),
        ([], 0),
    ],
)
def test_framing(fields: list[str], framing: object) -> None:
    assert heads.request(head("POST http://a/ HTTP/1.1", *fields)).framing == framing


@pytest.mark.parametrize(
    "fields",
    [
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: 5, 5"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length: "],
        ["Content-Length: 99999999999999999999"],
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: xchunked"],
    ],
)
def test_two_ways_to_read_a_length_are_none(fields: list[str]) -> None:
    with pytest.raises(BadHead):
        _ = heads.request(head("POST http://a/ HTTP/1.1", *fields)).framing


@pytest.mark.parametrize(
    "data",
    [
        b"GET http://a/ HTTP/1.1\nHost: a\n\n",
        b"GET http://a/ HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nHost : a\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\n Host: a\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nX: a\r\n folded\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nX: a\rb\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\n: a\r\n\r\n",
        b"GET  http://a/ HTTP/1.1\r\n\r\n",
        b"GET http://a/ b HTTP/1.1\r\n\r\n",
        b"get http://a/ HTTP/1.1\r\n\r\n",
        b"GET http://a/ HTTP/2.0\r\n\r\n",
        b"GET http://a/\r\n\r\n",
        b"\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    ],
)
def test_heads_that_are_none(data: bytes) -> None:
    with pytest.raises(BadHead):
        heads.request(data)


def test_what_belongs_to_the_connection_stays_here() -> None:
    found = heads.request(
        head(
            "GET http://a/ HTTP/1.1",
            "Proxy-Authorization: Basic s3cret",
            "Proxy-Connection: keep-alive",
            "Connection: X-Mine, content-length, close",
            "X-Mine: 1",
            "Keep-Alive: 5",
            "Upgrade: h2c",
            "TE: trailers",
            "Content-Length: 0",
            "X-Other: 2",
        )
    )
    assert heads.end_to_end(found.headers) == (("Content-Length", "0"), ("X-Other", "2"))


@pytest.mark.parametrize(
    ("method", "line", "fields", "framing"),
    [
        ("GET", "HTTP/1.1 200 OK", ["Content-Length: 3"], 3),
        ("HEAD", "HTTP/1.1 200 OK", ["Content-Length: 3"], 0),
        ("GET", "HTTP/1.1 304 Not Modified", ["Content-Length: 3"], 0),
        ("GET", "HTTP/1.0 200", [], "close"),
        ("GET", "HTTP/1.1 200 ", ["Transfer-Encoding: chunked"], "chunked"),
    ],
)
def test_response(method: str, line: str, fields: list[str], framing: object) -> None:
    assert heads.response(head(line, *fields)).framing(method) == framing


@given(st.binary(max_size=200))
def test_heads_are_total(data: bytes) -> None:
    for read in (heads.request, heads.response):
        try:
            read(data + b"\r\n\r\n")
        except BadHead:
            continue


# -------------------------------------------------------------------------------------- bodies


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = sorted({min(each, len(data)) for each in at} | {0, len(data)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(st.binary(max_size=100), st.binary(max_size=20), st.lists(st.integers(0, 120), max_size=8))
def test_so_many_bytes(body: bytes, rest: bytes, at: list[int]) -> None:
    reader = Body(len(body))
    out = b"".join(reader.feed(part) for part in cut(body + rest, at))
    assert (out, reader.done) == (body, True)


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=5)


@given(
    CHUNKS,
    st.sampled_from([b"", b"Trailer: x\r\n", b"A: 1\r\nB: 2\r\n"]),
    st.sampled_from([b"", b";x=y", b" ; a"]),
    st.binary(max_size=30),
    st.lists(st.integers(0, 400), max_size=12),
)
def test_chunks(
    chunks: list[bytes], trailer: bytes, extension: bytes, rest: bytes, at: list[int]
) -> None:
    """The body to its last byte, however it is cut, and nothing of what follows."""
    body = b"".join(b"%X%s\r\n%s\r\n" % (len(each), extension, each) for each in chunks)
    body += b"0\r\n" + trailer + b"\r\n"
    reader = Body("chunked")
    out = b"".join(reader.feed(part) for part in cut(body + rest, at))
    assert (out, reader.done) == (body, True)
    short = Body("chunked")
    short.feed(body[:-1])
    assert not short.done


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n",
        b"x\r\n",
        b"-1\r\n",
        b"0x5\r\nabcde\r\n",
        b"5\nabcde\r\n",
        b"5\r\nabcdef\r\n",
        b"5\r\nabcde\n",
        b"1_0\r\n",
        b" 5\r\n",
        b"FFFFFFFFFFFFFFFFFF\r\n",
        b"5;" + b"x" * MOST_LINE + b"\r\n",
        b"0\r\n" + b"A: " + b"x" * 4000 + b"\r\n" + (b"B: " + b"y" * 4000 + b"\r\n") * 5,
    ],
)
def test_chunks_that_are_none(data: bytes) -> None:
    with pytest.raises(BadBody):
        Body("chunked").feed(data)


def test_until_the_connection_ends() -> None:
    reader = Body("close")
    assert reader.feed(b"abc") == b"abc"
    assert (reader.done, reader.until_close) == (False, True)
