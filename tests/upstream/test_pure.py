"""The parts without I/O: backoff, watches, verdicts, lost sessions, differences, complaints."""

from __future__ import annotations

import asyncio
import errno
import json

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from sidecar.config import Limits, SecretRef, ServerConfig
from sidecar.mcp.errors import MODERN_CODES
from sidecar.model import Definition, Era, Fields, JsonObject, RpcError, Unavailable
from sidecar.upstream import era, faults, listing, lost
from sidecar.upstream.backoff import HEALTHY, Backoff
from sidecar.upstream.complaints import Complaints
from sidecar.upstream.faults import HttpStatus
from sidecar.upstream.tasks import Tasks
from sidecar.upstream.watches import Watches

# --------------------------------------------------------------------------------- backoff


def test_waits_double_up_to_the_cap_and_start_short() -> None:
    tops: list[float] = []
    backoff = Backoff(uniform=lambda low, top: tops.append(top) or top)
    waits = [backoff.failed() for _ in range(100)]
    assert waits[:4] == [0.5, 1.0, 2.0, 4.0]
    assert max(waits) == waits[-1] == 60.0
    assert tops == waits


def test_jitter_is_full_and_never_nothing() -> None:
    waits = [Backoff().failed() for _ in range(500)]
    assert 0.05 <= min(waits) < 0.15
    assert 0.4 < max(waits) <= 0.5


def test_only_a_healthy_run_wipes_the_slate() -> None:
    backoff = Backoff(uniform=lambda low, top: top)
    for _ in range(5):
        backoff.failed()
        backoff.ran(HEALTHY - 0.1)
    assert backoff.failed() == 16.0
    backoff.ran(HEALTHY)
    assert backoff.failed() == 0.5


# --------------------------------------------------------------------------- what is told


@pytest.mark.parametrize(
    ("status", "headers", "runtime", "told"),
    [
        (401, True, False, "refuses our credentials (HTTP 401); see headers of server up"),
        (403, True, False, "refuses our credentials (HTTP 403); see headers of server up"),
        (401, False, False, "wants credentials, and has none (HTTP 401); see headers of server up"),
        (403, False, False, "refuses us (HTTP 403); see headers of server up"),
        (401, True, True, "refuses our credentials (HTTP 401); add server up again with a cred"),
        (401, False, True, "wants credentials, and has none (HTTP 401); add server up again with"),
    ],
)
def test_refused_credentials_are_told_with_their_place(
    status: int, headers: bool, runtime: bool, told: str
) -> None:
    """sidecar.yaml has no headers of a server that was added, so nobody is sent there."""
    given = {"authorization": SecretRef(literal="s3cr3t")} if headers else {}
    config = ServerConfig("up", "http", url="http://up/mcp", headers=given, runtime=runtime)
    error = faults.refused(config, HttpStatus(status))
    assert error.why.startswith(told)
    assert (error.ran, error.permanent) == ("no", True)


# --------------------------------------------------------------------------------- watches


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("ab"), st.sampled_from(["x", "y", "z"])),
        max_size=40,
    )
)
def test_a_server_is_asked_at_the_first_and_the_last(steps: list[tuple[bool, str, str]]) -> None:
    watches, counts = Watches(), {}
    for add, uri, who in steps:
        before = sum(count for (u, _), count in counts.items() if u == uri)
        had = counts.get((uri, who), 0)
        if add:
            counts[uri, who] = had + 1
            assert watches.add(uri, who) is (before == 0)
        else:
            counts[uri, who] = max(0, had - 1)
            assert watches.remove(uri, who) is (had > 0 and before == 1)
        watched = {u for (u, _), count in counts.items() if count}
        assert set(watches.uris()) == watched
    gone = watches.forget("x")
    left = {u for (u, w), count in counts.items() if count and w != "x"}
    assert set(watches.uris()) == left
    assert set(gone) == {u for (u, w), c in counts.items() if c and w == "x"} - left


# --------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize("code", sorted(MODERN_CODES))
def test_modern_codes_are_evidence(code: int) -> None:
    assert era.of_error(RpcError(code, "x")) is Era.MODERN


@given(st.integers(-33000, 0).filter(lambda code: code not in MODERN_CODES))
def test_no_other_code_is(code: int) -> None:
    assert era.of_error(RpcError(code, "x", {"supported": ["2026-07-28"]})) is None


@pytest.mark.parametrize(
    ("supported", "verdict"),
    [
        (["2026-07-28"], Era.MODERN),
        (["2025-11-25", "2026-07-28"], Era.MODERN),
        (["2025-06-18"], Era.LEGACY),
        (["2031-01-01"], None),
        ([], Era.MODERN),
        ("nonsense", Era.MODERN),
    ],
)
def test_an_unsupported_version_names_what_is(supported: object, verdict: Era | None) -> None:
    data = msgspec.Raw(json.dumps({"supported": supported}).encode())
    assert era.of_error(RpcError(-32022, "x", data)) is verdict


def raw(value: object) -> Fields:
    return {k: msgspec.Raw(json.dumps(v).encode()) for k, v in dict(value).items()}  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"supportedVersions": "2026-07-28"},
        {"supportedVersions": ["2025-11-25"]},
        {"protocolVersion": "2025-11-25", "capabilities": {}},
    ],
)
def test_what_is_no_discovery(answer: JsonObject) -> None:
    with pytest.raises(era.NotSpoken):
        era.of_discover(raw(answer))


@pytest.mark.parametrize("version", [None, 1, "2026-07-28", "1999-01-01"])
def test_what_is_no_handshake(version: object) -> None:
    with pytest.raises(era.NotSpoken):
        era.of_initialize(raw({"protocolVersion": version, "capabilities": {}}))


def test_a_handshake_with_odd_extras_is_one() -> None:
    hello = era.of_initialize(
        raw({"protocolVersion": "2024-11-05", "capabilities": [], "instructions": 5})
    )
    assert (hello.version, hello.capabilities, hello.instructions) == ("2024-11-05", {}, "")


# ------------------------------------------------------------------------------------- lost


@pytest.mark.parametrize(
    ("status", "code", "text", "had_id", "answers", "is_lost"),
    [
        (404, None, "", True, False, True),
        (404, None, "", False, False, False),
        (410, None, "", True, False, True),
        (404, -32601, "Method not found", True, True, False),
        (404, -32600, "Session not found", False, False, True),
        (400, -32000, "Bad Request: No valid session ID provided", True, False, True),
        (400, -32000, "Bad Request: Mcp-Session-Id header is required", False, False, True),
        (400, -32600, "Bad Request: Missing session ID", True, False, True),
        (400, -32000, "Bad Request: Server not initialized", True, False, True),
        (400, -32001, "Session terminated", True, True, True),
        (400, -32602, "the session is expired, log in again", True, True, False),
        (400, -32602, "bad argument", True, True, False),
        (400, None, "", True, False, False),
        (500, -32603, "session not found", True, False, False),
        (401, -32001, "Session not found", True, False, False),
    ],
)
def test_how_servers_say_that_a_session_is_gone(
    status: int, code: int | None, text: str, had_id: bool, answers: bool, is_lost: bool
) -> None:
    error = None if code is None else RpcError(code, text)
    assert lost.by_status(HttpStatus(status, error, answers=answers), had_id=had_id) is is_lost


def test_in_a_200_only_the_common_words_with_the_common_code() -> None:
    assert lost.by_error(RpcError(-32001, "Session not found"))
    assert not lost.by_error(RpcError(-32001, "Request timed out"))
    assert not lost.by_error(RpcError(-32603, "Session not found"))


# ------------------------------------------------------------------------------- differences


def entry(key: str, **more: object) -> Definition:
    return Definition(key, json.dumps({"name": key, **more}).encode())


def test_a_difference_is_by_value_not_by_spelling() -> None:
    before = (entry("a", x=1, y=[2]), entry("b"), entry("c", v=1))
    after = (
        Definition("a", b'{"y" : [2], "x": 1, "name": "a"}'),
        entry("c", v=1.5),
        entry("d"),
    )
    found = listing.difference(before, after)
    assert (found.added, found.removed, found.changed) == (("d",), ("b",), ("c",))
    assert not listing.difference(before, before)
    assert listing.difference(before, tuple(reversed(before))).moved


# ------------------------------------------------------------------------------------ pages

BOUNDS = listing.Bounds(pages=50, size=1 << 20, depth=20)


async def read(pages: list[JsonObject | Exception], **more: object) -> list[str]:
    asked: list[object] = []

    async def ask(method: str, params: JsonObject) -> Fields:
        asked.append(params.get("cursor"))
        page = pages[min(len(asked), len(pages)) - 1]
        if isinstance(page, Exception):
            raise page
        return raw(page)

    found = await listing.read("tools", ask, BOUNDS, Complaints("up"), **more)  # type: ignore[arg-type]
    assert len(asked) <= BOUNDS.pages
    return [definition.key for definition in found]


def page(*names: str, cursor: object = None) -> JsonObject:
    found: JsonObject = {"tools": [{"name": name} for name in names]}
    return found if cursor is None else {**found, "nextCursor": cursor}


async def test_all_pages_are_read() -> None:
    pages: list[JsonObject | Exception] = [
        page("a", "b", cursor="2"),
        page(cursor="3"),
        page("c", cursor=""),
    ]
    assert await read(pages) == ["a", "b", "c"]


async def test_a_cursor_that_comes_back_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    pages: list[JsonObject | Exception] = [
        page("a", cursor="x"),
        page("b", cursor="y"),
        page("c", cursor="x"),
        page("d"),
    ]
    assert await read(pages) == ["a", "b", "c"]
    assert caplog.text.count("repeats a cursor") == 1


async def test_too_many_pages_end_it(caplog: pytest.LogCaptureFixture) -> None:
    pages: list[JsonObject | Exception] = [page(f"t{n}", cursor=f"c{n}") for n in range(200)]
    assert len(await read(pages)) == 50
    assert "limits.list_pages" in caplog.text


async def test_too_many_bytes_end_it(caplog: pytest.LogCaptureFixture) -> None:
    big = "x" * 300_000
    pages: list[JsonObject | Exception] = [
        {"tools": [{"name": f"t{n}", "d": big}], "nextCursor": f"c{n}"} for n in range(20)
    ]
    assert len(await read(pages)) == 4
    assert "limits.result" in caplog.text


@pytest.mark.parametrize(
    "bad",
    [
        RpcError(-32603, "boom"),
        RpcError(-32601, "only the first page may say so"),
        Unavailable("up", "gone", ran="maybe"),
        {},
        {"tools": {}},
        {"tools": [], "nextCursor": 5},
    ],
)
async def test_a_page_that_fails_fails_the_list(bad: JsonObject | Exception) -> None:
    with pytest.raises(listing.Failed):
        await read([page("a", cursor="2"), bad])


async def test_a_method_that_does_not_exist_is_an_empty_list() -> None:
    assert await read([RpcError(-32601, "Method not found")]) == []


async def test_bad_entries_are_left_out_and_the_others_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    deep: object = 1
    for _ in range(30):
        deep = [deep]
    entries = [
        {"name": "good"},
        "text",
        None,
        {"description": "no name"},
        {"name": ""},
        {"name": 5},
        {"name": "deep", "x": deep},
        {"name": "good", "description": "again"},
        {"name": "ref used", "x": 1},
        {"name": "last", "inputSchema": None},
    ]
    refuse = {"refuse": lambda tool: "no" if tool["name"] == "ref used" else None}
    assert await read([{"tools": entries}], **refuse) == ["good", "last"]
    assert caplog.text.count("8 of its tools left out") == 1


async def test_entries_are_kept_byte_for_byte() -> None:
    text = (
        '{"name": "a", "n":12345678901234567890123, "u":"\\u00e9", "z":{"b":1,"a":1.50},'
        ' "inputSchema": {"type": "object"}}'
    )

    async def ask(method: str, params: JsonObject) -> Fields:
        return {"tools": msgspec.Raw(f"[ {text} ]".encode())}

    found = await listing.read("tools", ask, BOUNDS, Complaints("up"))
    assert found[0].json.decode() == text


async def test_one_bad_entry_costs_at_most_itself(caplog: pytest.LogCaptureFixture) -> None:
    """The official clients refuse a whole list for any of these."""
    tools = [
        '{"name": "null", "n": 1.50, "description": null, "inputSchema": {"type": "object"}}',
        '{"name": "bare"}',
        '{"name": "array", "inputSchema": []}',
    ]

    async def ask(method: str, params: JsonObject) -> Fields:
        return {"tools": msgspec.Raw(f"[{','.join(tools)}]".encode())}

    found = await listing.read("tools", ask, BOUNDS, Complaints("up"))
    assert [entry.json.decode() for entry in found] == [
        '{"name":"null","n":1.50,"inputSchema":{"type": "object"}}',
        '{"name":"bare","inputSchema":{"type":"object"}}',
    ]
    assert "1 of its tools left out; the first because its inputSchema" in caplog.text
    assert "2 of its tools are not as the protocol has them" in caplog.text


def test_bounds_come_from_the_limits() -> None:
    assert listing.Bounds.of(Limits(result=10, list_pages=3, depth=7)) == (
        listing.Bounds(pages=3, size=40, depth=7)
    )


def test_only_declared_lists_are_asked_for() -> None:
    assert listing.declared({}) == frozenset()
    assert listing.declared({"tools": {}, "prompts": None}) == {"tools"}
    assert listing.declared({"resources": {"subscribe": True}}) == {"resources", "templates"}


# ------------------------------------------------------------------------- tasks, complaints


async def test_tasks_are_bounded_and_awaited() -> None:
    tasks, ran = Tasks(limit=2), []

    async def job(n: int, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
        finally:
            ran.append(n)

    assert tasks.spawn(job(1, 0), name="1")
    assert tasks.spawn(job(2, 60), name="2")
    assert not tasks.spawn(job(3, 0), name="3")
    await tasks.end(0.05)
    assert sorted(ran) == [1, 2]
    assert not tasks.spawn(job(4, 0), name="4")


async def test_a_failed_job_is_told(caplog: pytest.LogCaptureFixture) -> None:
    tasks = Tasks()

    async def job() -> None:
        raise ValueError("broken")

    tasks.spawn(job(), name="the job")
    await tasks.end(1)
    assert "the job" in caplog.text


def test_each_kind_is_told_once_until_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("up")
    for _ in range(3):
        complaints.warn("a", "first")
        complaints.warn("b", "second")
    complaints.forgive("a")
    complaints.warn("a", "first")
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert warnings == ["server up: first", "server up: second", "server up: first"]


def test_what_a_library_says_of_a_broken_connection_is_not_repeated() -> None:
    """It quotes the address, in whose query there may be a key."""
    url = URL("http://a.example/mcp?api_key=s3cret")
    for error in (
        aiohttp.ClientOSError(None, f"Can not write request body for {url}"),
        aiohttp.ClientConnectionResetError(f"Cannot write to {url}"),
        aiohttp.ClientPayloadError(f"{url}"),
        aiohttp.InvalidURL(url),
        aiohttp.ClientOSError(errno.EPIPE, f"Can not write request body for {url}"),
    ):
        found = faults.of("up", url, error)
        assert "s3cret" not in found.why
        assert found.ran == ("no" if isinstance(error, aiohttp.InvalidURL) else "maybe")
