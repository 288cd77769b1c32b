"""Lines: the same whatever the chunks, bounded in memory and linear in time."""

from __future__ import annotations

import time
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire import ndjson
from sidecar.wire.ndjson import ENDS, Lines, Oversize


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """``data`` in pieces that end at these offsets."""
    edges = [0, *sorted(min(offset, len(data)) for offset in at), len(data)]
    return [data[left:right] for left, right in pairwise(edges)]


def read(chunks: list[bytes], limit: int) -> tuple[list[bytes | Oversize], bytes | Oversize | None]:
    lines = Lines(limit)
    return [line for chunk in chunks for line in lines.feed(chunk)], lines.finish()


@given(
    st.text("ab \r\n", max_size=60).map(str.encode),
    st.lists(st.integers(0, 60), max_size=12),
    st.integers(0, 8),
)
def test_chunks_make_no_difference(data: bytes, at: list[int], limit: int) -> None:
    assert read(cut(data, at), limit) == read([data], limit)


@given(
    st.lists(st.integers(0, 700) | st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 2000), max_size=9),
    st.integers(0, 600),
    st.sampled_from([b"\n", b"\r\n"]),
)
def test_long_lines_cost_themselves(
    lengths: list[int], at: list[int], limit: int, end: bytes
) -> None:
    sent = [bytes(97 + (i * 7 + n) % 26 for i in range(n)) for n in lengths]
    expected: list[bytes | Oversize] = [
        line if len(line) <= limit else Oversize(len(line), line[:ENDS], line[-ENDS:])
        for line in sent
        if line
    ]
    data = b"".join(line + end for line in sent)
    assert read(cut(data, at), limit) == (expected, None)
    if sent and sent[-1]:
        *before, last = expected
        assert read(cut(data.removesuffix(end), at), limit) == (before, last)


def test_line_ends() -> None:
    found, rest = read([b'{"a":1}\r\n\n \t\r\n{"b":2}\n{"c"'], 100)
    assert found == [b'{"a":1}', b'{"b":2}']
    assert rest == b'{"c"'
    assert read([b"abc\rdef\n"], 100) == ([b"abc\rdef"], None)


def test_a_line_of_exactly_the_limit() -> None:
    for end in (b"\n", b"\r\n"):
        assert read([b"12345" + end], 5) == ([b"12345"], None)
        assert read([b"1234", b"5", end[:1], end[1:]], 5) == ([b"12345"], None)
        assert read([b"123456" + end], 5) == ([Oversize(6, b"123456", b"123456")], None)


def test_finishing_starts_anew() -> None:
    lines = Lines(4)
    lines.feed(b"123456789")
    assert lines.finish() == Oversize(9, b"123456789", b"123456789")
    assert lines.finish() is None
    assert lines.feed(b"1234\n") == [b"1234"]


def test_memory_is_bounded_by_the_limit() -> None:
    lines = Lines(1 << 16)
    chunk = b"x" * (1 << 12)
    tracemalloc.start()
    for _ in range(4096):
        assert lines.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 16
    assert lines.feed(b"\n") == [Oversize(1 << 24, b"x" * ENDS, b"x" * ENDS)]


@pytest.mark.parametrize("limit", [1 << 30, 1 << 10])
def test_time_is_linear_in_chunks(limit: int) -> None:
    def seconds(chunks: int) -> float:
        lines = Lines(limit)
        start = time.process_time()
        for _ in range(chunks):
            lines.feed(b"x" * 64)
        lines.feed(b"\n")
        return time.process_time() - start

    seconds(1_000)
    # Eight times as much may take up to four times eight: quadratic would be sixty-four. Both are
    # taken in the same moment, and again when the machine was busy with others in one of them.
    assert any(seconds(64_000) < 32 * seconds(8_000) + 0.02 for _ in range(10))


def test_a_message_is_written_as_one_line() -> None:
    assert ENDS == 256
    assert ndjson.line(b'{"a":1}') == b'{"a":1}\n'
    assert ndjson.line(b'{"a":\n1}') == b'{"a": 1}\n'
    assert ndjson.line(b'{"a":\r1}') == b'{"a": 1}\n'
    pretty = b'{\r\n "a": "\\n",\n "b": 1\r}'
    assert ndjson.line(pretty) == b'{   "a": "\\n",  "b": 1 }\n'
