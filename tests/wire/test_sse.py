"""SSE as the WHATWG standard reads it, whatever the chunks."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.wire.ndjson import ENDS, Oversize
from sidecar.wire.sse import KEEP_ALIVE, SseEvent, SseParser, encode_event
from tests.wire.test_ndjson import cut

Found = list[SseEvent | Oversize]


def read(chunks: list[bytes], limit: int = 1000) -> tuple[Found, str, int | None]:
    parser = SseParser(limit)
    found = [event for chunk in chunks for event in parser.feed(chunk)]
    return found, parser.last_event_id, parser.retry


def events(text: str | bytes) -> Found:
    return read([text.encode() if isinstance(text, str) else text])[0]


LINES = st.sampled_from(
    [
        "data",
        "data:",
        "data: x",
        "data:  y",
        "event: e",
        "id: 1",
        "id",
        "retry: 5",
        ": c",
        "",
        "",
        "?",
    ]
)
STREAMS = st.lists(
    st.tuples(LINES, st.sampled_from(["\n", "\r", "\r\n"])).map("".join), max_size=12
).map("".join)


@given(
    STREAMS.map(str.encode) | st.text("data: \r\n\ufeff", max_size=30).map(str.encode),
    st.lists(st.integers(0, 90), max_size=12),
    st.integers(0, 25),
)
@example(b"\xef\xbb\xbfdata: 1\r\n\r\n", [1, 2, 11, 13], 100)
@example(b"data: 1\r\n\r\ndata: 2\n\n", list(range(22)), 100)
def test_chunks_make_no_difference(data: bytes, at: list[int], limit: int) -> None:
    assert read(cut(data, at), limit) == read([data], limit)


def reference(stream: str) -> list[tuple[str, str, str]]:
    """The standard's algorithm, word for word and slowly: (data, event, last event id)."""
    lines, rest = [], stream.removeprefix("\ufeff")
    while True:
        ends = [i for i in (rest.find("\r"), rest.find("\n")) if i >= 0]
        if not ends:
            break
        at = min(ends)
        lines.append(rest[:at])
        rest = rest[at + (2 if rest[at : at + 2] == "\r\n" else 1) :]
    found, data, event, last = [], "", "", ""
    for line in lines:
        if line == "":
            if data != "":
                found.append((data.removesuffix("\n"), event or "message", last))
            data = event = ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "event":
                event = value
            elif name == "data":
                data += value + "\n"
            elif name == "id" and "\0" not in value:
                last = value
    return found


@given(STREAMS | st.text("data:id evnt\r\n\0\ufeffä", max_size=40))
def test_the_standards_own_algorithm_agrees(stream: str) -> None:
    found = [
        (event.data.decode(), event.event, event.id)
        for event in events(stream)
        if isinstance(event, SseEvent)
    ]
    assert found == reference(stream)


def test_lines_end_in_three_ways() -> None:
    for end in ("\n", "\r", "\r\n"):
        assert events(f"data: a{end}data: b{end}{end}data: c{end}{end}") == [
            SseEvent(b"a\nb"),
            SseEvent(b"c"),
        ]


def test_fields() -> None:
    assert events("event: e\nid: 7\nretry: 3000\ndata: x\n\ndata: y\n\n") == [
        SseEvent(b"x", "e", "7", 3000),
        SseEvent(b"y", "message", "7", None),
    ]
    # Space is dropped once; a field without a colon is empty; names have their case.
    assert events("data:  x\n\ndata\n\nDATA: z\n\n") == [SseEvent(b" x"), SseEvent(b"")]
    assert events('data: {"a":"b: c"}\n\n') == [SseEvent(b'{"a":"b: c"}')]


def test_a_priming_event_has_an_id_and_no_data() -> None:
    """SEP-1699: where to come back to, before there is anything to say."""
    assert read([b"id: 1\nretry: 500\ndata:\n\n"]) == (
        [SseEvent(b"", "message", "1", 500)],
        "1",
        500,
    )
    assert read([b"id: 2\nretry: 500\n\n"]) == ([], "2", 500)


def test_ids_and_delays_that_are_none() -> None:
    assert read([b"id: a\n\nid: b\0\n\nretry: 1.5\nretry: -1\nretry: x\nretry:\n\n"]) == (
        [],
        "a",
        None,
    )
    assert read([b"retry: " + b"9" * 5000 + b"\n\n"])[2] is None
    assert read(["retry: ٣\n\n".encode()])[2] is None
    assert read([b"id: a\n\nid\n\n"])[1] == ""


def test_an_event_without_its_blank_line_never_happened() -> None:
    assert events("data: x\n") == []
    assert events("data: x") == []


def test_comments_and_keep_alives_are_silent() -> None:
    assert events(KEEP_ALIVE + b": x\ndata: 1\n:\n\n" + KEEP_ALIVE * 3) == [SseEvent(b"1")]


def test_comments_never_add_up_to_a_limit() -> None:
    parser = SseParser(50)
    for _ in range(100):
        assert parser.feed(b": still here, still working\n") == []
    assert parser.feed(b"data: 1\n\n") == [SseEvent(b"1")]


def test_too_long_an_event_costs_itself() -> None:
    body = bytes(97 + i % 26 for i in range(1000))
    line = b'data: {"jsonrpc":"2.0","id":5,"result":"' + body + b'"}'
    stream = b"id: 1\ndata: a\n\nid: 2\n" + line + b"\n\ndata: b\n\n"
    expected = [
        SseEvent(b"a", id="1"),
        Oversize(len(line) + 5, line[:ENDS], line[-ENDS:]),
        SseEvent(b"b", id="2"),
    ]
    for size in (1, 7, 100, 5000):
        chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
        assert read(chunks, 500)[0] == expected


def test_many_lines_are_too_long_as_well() -> None:
    found, _, _ = read([b"data: 0123456789\n" * 100 + b"\ndata: b\n\n"], 200)
    assert found[1:] == [SseEvent(b"b")]
    (over,) = found[:1]
    assert isinstance(over, Oversize)
    assert over.size == 1600
    assert over.tail.endswith(b"0123456789")


@given(
    st.binary(max_size=200).map(lambda data: data.replace(b"\r", b"").replace(b"\n", b"")),
    st.sampled_from(["message", "endpoint"]),
    st.none() | st.text("a0 :", min_size=1, max_size=5).map(str.strip),
)
def test_what_is_written_is_read_back(data: bytes, event: str, id: str | None) -> None:
    written = encode_event(data, event=event, id=id)
    assert read([written]) == ([SseEvent(data, event, id or "")], id or "", None)


def test_line_ends_in_data_survive_as_lf() -> None:
    written = encode_event(b'{\r\n "a":\r 1\n}', id="x")
    assert written == b'event: message\nid: x\ndata: {\ndata:  "a":\ndata:  1\ndata: }\n\n'
    assert events(written) == [SseEvent(b'{\n "a":\n 1\n}', id="x")]
    for end in (b"\n", b"\r", b"\r\n"):
        assert events(encode_event(b"a" + end + b"b")) == [SseEvent(b"a\nb")]


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "a\n"])
def test_names_cannot_smuggle_lines(bad: str) -> None:
    with pytest.raises(ValueError, match="one line each"):
        encode_event(b"", event=bad)
    with pytest.raises(ValueError, match="one line each"):
        encode_event(b"", id=bad)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_memory_is_bounded_by_the_limit(end: bytes) -> None:
    parser = SseParser(1 << 16)
    chunk = b"data: " + b"x" * (1 << 12) + end
    tracemalloc.start()
    for _ in range(4096):
        assert parser.feed(chunk) == []
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 16
    (over,) = parser.feed(b"\n\n")
    assert isinstance(over, Oversize)
    assert over.size == 4096 * (len(chunk) - len(end))


@pytest.mark.parametrize(
    "piece", [b"x" * 64, b"data: x\n", b"\r", b"\r\n", b": comment\n", b"id\n"]
)
@pytest.mark.parametrize("limit", [1 << 30, 1 << 10])
def test_time_is_linear_in_chunks(piece: bytes, limit: int) -> None:
    def seconds(chunks: int) -> float:
        parser = SseParser(limit)
        start = time.process_time()
        for _ in range(chunks):
            parser.feed(piece)
        parser.feed(b"\n\n")
        return time.process_time() - start

    seconds(1_000)
    # Eight times as much may take up to four times eight: quadratic would be sixty-four. Both are
    # taken in the same moment, and again when the machine was busy with others in one of them.
    assert any(seconds(40_000) < 32 * seconds(5_000) + 0.05 for _ in range(10))
