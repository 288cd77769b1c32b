"""Bytes to messages and back, whatever the bytes are."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sidecar.harness.protocol import Answer, Failure, Garbage, Incoming, Notification, Peer, Request


def peer(line: int = 4096, open_requests: int = 4) -> Peer:
    return Peer(line=line, depth=16, open_requests=open_requests)


def heard(peer: Peer, *lines: object) -> list[Incoming]:
    data = b"".join(
        (item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n" for item in lines
    )
    return list(peer.feed(data))


def rpc(**fields: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", **fields}


def test_a_call_and_its_answer() -> None:
    one = peer()
    id_, data = one.request("session/new", {"cwd": "/w"})
    assert json.loads(data) == rpc(id=id_, method="session/new", params={"cwd": "/w"})
    answer = heard(one, rpc(id=id_, result={"sessionId": "s"}))
    assert answer == [Answer(id_, "session/new", {"sessionId": "s"})]
    # Once only.
    assert heard(one, rpc(id=id_, result={})) == [Garbage("an answer that nobody asked for")]


def test_an_error_is_a_failure() -> None:
    one = peer()
    id_, _ = one.request("session/load", {})
    [failure] = heard(one, rpc(id=id_, error={"code": -32002, "message": "gone", "data": {"a": 1}}))
    assert isinstance(failure, Failure)
    assert (failure.error.code, failure.error.message, failure.error.data) == (
        -32002,
        "gone",
        {"a": 1},
    )


def test_an_id_that_only_looks_like_ours_answers_nothing() -> None:
    one = peer()
    id_, _ = one.request("session/new", {})
    for other in (str(id_), float(id_) + 0.5, True, None, [id_]):
        [found] = heard(one, rpc(id=other, result={}))
        assert isinstance(found, Garbage)
    [answer] = heard(one, rpc(id=id_, result=None, error=None) | {"result": {}})
    assert isinstance(answer, Answer)


def test_results_that_are_no_objects_are_empty() -> None:
    one = peer()
    for result in (7, "x", [1], True):
        id_, _ = one.request("m", {})
        assert heard(one, rpc(id=id_, result=result)) == [Answer(id_, "m", {})]


def test_bad_lines_cost_themselves() -> None:
    one = peer()
    good = rpc(method="session/update", params={"sessionId": "s", "update": {}})
    bad: list[object] = [b"not json", b"42", b"[]", b'"x"', b"null", b"\xff\xfe", b"{", [good]]
    bad += [{"jsonrpc": "1.0", "method": "x"}, rpc(), rpc(method=3), rpc(method="x", params=[1])]
    for line in bad:
        found = heard(one, line, good)
        assert [type(item) for item in found] == [Garbage, Notification], line
    assert one.frames == 2 * len(bad)


def test_a_request_waits_until_it_is_answered_once() -> None:
    one = peer()
    [request] = heard(one, rpc(id="a-1", method="x", params={"k": 1}))
    assert request == Request("a-1", "x", {"k": 1})
    assert json.loads(one.answer("a-1", {"ok": True})) == rpc(id="a-1", result={"ok": True})
    assert one.answer("a-1", {"ok": True}) == b""
    assert one.refuse("a-1", -32601, "no") == b""


def test_two_requests_with_one_id_are_not_mixed_up() -> None:
    one = peer()
    [first, second] = heard(one, rpc(id=0, method="x"), rpc(id=0, method="y"))
    assert isinstance(first, Request)
    assert isinstance(second, Garbage)
    assert json.loads(second.reply)["error"]["code"] == -32600
    assert json.loads(one.answer(0, {}))["result"] == {}
    # Free again.
    assert isinstance(heard(one, rpc(id=0, method="y"))[0], Request)


def test_only_so_many_requests_wait() -> None:
    one = peer(open_requests=2)
    found = heard(one, *[rpc(id=n, method="x") for n in range(4)])
    assert [type(item) for item in found] == [Request, Request, Garbage, Garbage]
    assert json.loads(found[2].reply)["id"] == 2  # type: ignore[union-attr]
    one.answer(0, {})
    assert isinstance(heard(one, rpc(id=9, method="x"))[0], Request)


def test_a_request_that_two_parsers_could_read_differently_is_refused() -> None:
    line = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"toolCall":{"a":1},"toolCall":{"a":2}}}'
    [found] = heard(peer(), line)
    assert isinstance(found, Garbage)
    assert json.loads(found.reply)["error"]["code"] == -32600


def test_long_lines_are_told_by_their_ends() -> None:
    one = peer(line=1000)
    id_, _ = one.request("session/prompt", {})
    big = "x" * 5000
    [failure] = heard(one, rpc(id=id_, result={"big": big}))
    assert isinstance(failure, Failure)
    [request] = heard(one, rpc(id=7, method="session/request_permission", params={"big": big}))
    assert isinstance(request, Garbage)
    assert json.loads(request.reply)["id"] == 7
    [update] = heard(one, rpc(method="session/update", params={"big": big}))
    assert update == Garbage(f"a line of {len(big) + 69} bytes is too long")


def test_deep_lines_are_refused() -> None:
    deep = b"[" * 50 + b"]" * 50
    note, request = peer(), peer()
    [found] = heard(note, b'{"jsonrpc":"2.0","method":"m","params":{"a":' + deep + b"}}")
    assert isinstance(found, Garbage)
    [found] = heard(request, b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":' + deep + b"}}")
    assert json.loads(found.reply)["error"]["message"] == "the JSON is nested too deeply"  # type: ignore[union-attr]


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    one = peer(line=200)
    id_, _ = one.request("m", {})
    for piece in pieces:
        list(one.feed(piece))
    list(one.feed(b"\n"))
    answer = json.dumps(rpc(id=id_, result={"after": 1})).encode()
    assert list(one.feed(answer + b"\n"))[-1] == Answer(id_, "m", {"after": 1})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "method", "params", "result", "error", "jsonrpc", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=5))
def test_no_json_breaks_it(values: list[object]) -> None:
    one = peer()
    for value in values:
        for found in heard(one, value):
            if isinstance(found, Request):
                assert one.answer(found.id, {})
    assert isinstance(heard(one, rpc(id="z", method="m"))[0], Request)
