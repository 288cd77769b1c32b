"""JSON: what two parsers could read differently is refused, everything else survives."""

from __future__ import annotations

import json as stdlib
import math
import time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.wire import json
from sidecar.wire.json import BadJson

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


def same(left: object, right: object) -> bool:
    """Equal in value and in type all the way down: 1, 1.0 and true are three things."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return math.copysign(1, left) == math.copysign(1, right) and left == right
    return left == right


@given(VALUES)
@example({"n": 12345678901234567890123, "s": "\U0001f600\u2028\x00", "": [[], {}]})
def test_what_is_written_is_read_back(value: object) -> None:
    written = json.encode(value)
    assert same(json.decode(written), value)
    assert same(json.decode_request(written), value)


@given(VALUES)
def test_another_writer_is_read_like_our_own(value: object) -> None:
    for written in (
        stdlib.dumps(value, ensure_ascii=True),
        stdlib.dumps(value, ensure_ascii=False, indent=1),
    ):
        assert same(json.decode_request(written.encode()), value)


@given(st.binary(max_size=60) | st.text('{}[]":,0159eE+-.\\udD8 \nanltrfs', max_size=60))
def test_garbage_is_bad_json_or_json(data: bytes | str) -> None:
    raw = data.encode() if isinstance(data, str) else data
    try:
        value = json.decode_request(raw)
    except BadJson:
        return
    # What we accept, the standard library accepts too, with the same meaning.
    assert same(stdlib.loads(raw), value) or b"-0" in raw


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"NaN", "malformed at byte 0"),
        (b'{"a":Infinity}', "malformed at byte 5"),
        (b"-Infinity", "malformed at byte 1"),
        (b"1e400", "a number is too large"),
        (b"[-1e400]", "a number is too large"),
        (b"9" * 4301, "a number is too large"),
        (b'"\\ud800"', "half of a surrogate pair"),
        (b'"\\udc00\\ud800"', "half of a surrogate pair"),
        (b'{"\\uD800":1}', "half of a surrogate pair"),
        (b'"\xff"', "not UTF-8"),
        (b'"\xed\xa0\x80"', "not UTF-8"),
        (b"\xef\xbb\xbf{}", "malformed at byte 0"),
        (b'{"a":1} {}', "malformed at byte"),
        (b"", "ends too early"),
        (b'{"a":', "ends too early"),
        (b"[1,]", "malformed"),
        (b"[01]", "malformed"),
        (b"{'a':1}", "malformed"),
        (b'"\n"', "malformed"),
    ],
)
def test_what_is_not_strict_json_is_refused(data: bytes, why: str) -> None:
    for read in (json.decode, json.decode_request):
        with pytest.raises(BadJson, match=why):
            read(data)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"a" : 1}',
        b'{"a":1,"\\u0061":2}',
        b'[{"x":{"b":[{"k":":","c":1,"k":2}]}}]',
        b'{"params":{"name":"echo","arguments":{},"name":"whoami"}}',
        b'{"":1,"":2}',
        '{"ä":1,"\\u00e4":2}'.encode(),
        # A colon too few by the duplicate, and one too many by a string.
        b'{"a":1,"a":2,"b":":"}',
        b'{"a":{"b":":"},"a":{}}',
    ],
)
def test_a_key_twice_is_refused_at_every_level(data: bytes) -> None:
    with pytest.raises(BadJson, match="the same key twice"):
        json.decode_request(data)
    json.decode(data)


@given(st.data())
def test_a_key_twice_is_refused_wherever_it_is(data: st.DataObject) -> None:
    value = data.draw(st.dictionaries(TEXT, VALUES, min_size=1, max_size=4))
    key = data.draw(st.sampled_from(sorted(value)))
    again = stdlib.dumps(key) + ":" + stdlib.dumps(data.draw(VALUES))
    text = stdlib.dumps(value)[:-1] + "," + again + "}"
    depth = data.draw(st.integers(0, 5))
    text = '[{"in":' * depth + text + "}]" * depth
    with pytest.raises(BadJson, match="the same key twice"):
        json.decode_request(text.encode())


class KeyTwice(Exception):
    pass


def pairs(found: list[tuple[str, object]]) -> dict[str, object]:
    if len(dict(found)) != len(found):
        raise KeyTwice
    return dict(found)


# Few keys, full of what a reader of strings could trip over, so that many come twice.
TRICKY = st.sampled_from(["a", ":", '"', '":', "\\", '\\"', '\\\\":', "a:b", "{", "", "\u00e4"])


def spelled(value: Any) -> st.SearchStrategy[str]:
    """JSON texts in which objects are lists of pairs, so that keys can come twice."""
    pair = st.tuples(TRICKY, value)
    listed = st.lists(pair, max_size=3).map(
        lambda found: "{" + ",".join(f"{stdlib.dumps(k)} :{v}" for k, v in found) + "}"
    )
    return listed | st.lists(value, max_size=3).map(lambda found: "[" + ", ".join(found) + "]")


@given(st.recursive(TRICKY.map(stdlib.dumps) | st.just("1"), spelled, max_leaves=12))
def test_a_key_twice_is_found_like_by_one_who_reads_every_pair(text: str) -> None:
    try:
        expected = stdlib.loads(text, object_pairs_hook=pairs)
    except KeyTwice:
        with pytest.raises(BadJson, match="the same key twice"):
            json.decode_request(text.encode())
    else:
        assert same(json.decode_request(text.encode()), expected)


def test_the_same_key_in_two_objects_is_fine() -> None:
    data = b'{"a":{"a":[{"a":1},{"a":2}]},"b":{"a":"a:a:"}}'
    assert json.decode_request(data) == {"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": "a:a:"}}


def test_depth_is_counted_in_containers() -> None:
    for depth in (1, 2, 64):
        inside = b'{"a":' * (depth - 1) + b"[]" + b"}" * (depth - 1)
        for read in (json.decode, json.decode_request):
            read(inside, depth)
            with pytest.raises(BadJson, match="too deep"):
                read(b"[" + inside + b"]", depth)
    assert json.decode(b"1", 0) == 1


@pytest.mark.parametrize("levels", [300, 990, 1_000, 5_000, 1_000_000])
def test_no_depth_escapes_as_anything_else(levels: int) -> None:
    for data in (
        b"[" * levels + b"]" * levels,
        b'{"a":' * levels + b"1" + b"}" * levels,
        b"[" * levels,
    ):
        for read in (json.decode, json.decode_request):
            with pytest.raises(BadJson):
                read(data)
        # Splitting an object reads no deeper than it must, and refuses only what it cannot read.
        try:
            found = json.fields(data)
        except BadJson:
            continue
        assert b"".join(map(bytes, found.values())) == data[5:-1]  # type: ignore[arg-type]


def test_depth_within_a_deep_stack_is_still_bad_json() -> None:
    def dive(levels: int) -> None:
        if levels:
            dive(levels - 1)
            return
        with pytest.raises(BadJson):
            json.decode_request(b"[" * 500 + b"]" * 500, 1000)

    dive(700)


@pytest.mark.parametrize("digits", [19, 20, 40, 4299])
def test_integers_keep_their_digits(digits: int) -> None:
    data = b'{"n":' + b"9" * digits + b',"m":-' + b"8" * digits + b"}"
    assert json.encode(json.decode_request(data)) == data
    assert json.canonical(json.decode_request(data)) == b'{"m":-%b,"n":%b}' % (
        b"8" * digits,
        b"9" * digits,
    )


def test_what_it_says_never_quotes_the_input() -> None:
    secret = "hunter2"
    for data in (
        '{"hunter2":NaN}',
        '{"hunter2":1,"hunter2":2}',
        '"hunter2\\ud800"',
        'hunter2{"hunter2":1}',
        '{"hunter2":' + "[" * 70 + "]" * 70 + "}",
        '{"hunter2" 1}',
        '{"a":"\\hunter2"}',
        '["hunter2"',
        '"hunter2"',
    ):
        for read in (json.decode, json.decode_request, json.fields):
            try:
                read(data.encode())
            except BadJson as error:
                assert secret not in str(error)
                assert error.__cause__ is None


def test_fields_are_the_bytes_that_came() -> None:
    data = b' {"b" : {"x": 1.10, "x": 2} ,"a":[1,\n2],"n":null, "big":1e400} '
    found = json.fields(data)
    assert list(found) == ["b", "a", "n", "big"]
    assert [bytes(value) for value in found.values()] == [  # type: ignore[arg-type]
        b'{"x": 1.10, "x": 2}',
        b"[1,\n2]",
        b"null",
        b"1e400",
    ]
    assert json.encode(found) == b'{"b":{"x": 1.10, "x": 2},"a":[1,\n2],"n":null,"big":1e400}'


def test_fields_of_fields() -> None:
    outer = json.fields(b'{"result":{"content":[1],"_meta":{"k":"v"}}}')
    inner = json.fields(outer["result"])  # type: ignore[arg-type]
    assert json.decode(inner["_meta"]) == {"k": "v"}  # type: ignore[arg-type]


def test_detached_fields_do_not_keep_the_rest_alive() -> None:
    import sys

    data = b'{"small":1,"large":"' + b"x" * 100_000 + b'"}'
    before = sys.getrefcount(data)
    kept = json.fields(data, detach=True)["small"]
    assert sys.getrefcount(data) == before
    attached = json.fields(data)["small"]
    assert sys.getrefcount(data) == before + 1
    assert bytes(kept) == bytes(attached) == b"1"  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"[1]", b"1", b'"x"', b"null", b'{"a":"\xff"}', b'{"a":1}x', b""])
def test_fields_of_what_is_no_object(data: bytes) -> None:
    with pytest.raises(BadJson):
        json.fields(data)


def shuffled(value: Any) -> Any:
    """The same value with every object's keys the other way round."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_canonical_knows_no_order(value: object) -> None:
    assert json.canonical(shuffled(value)) == json.canonical(value)
    assert json.digest(shuffled(value)) == json.digest(value)
    assert json.decode(json.canonical(value)) == value
    assert json.canonical(json.decode(json.canonical(value))) == json.canonical(value)


@given(VALUES, VALUES)
def test_canonical_tells_values_apart(left: object, right: object) -> None:
    assert (json.canonical(left) == json.canonical(right)) == same(
        json.decode(json.canonical(left)), json.decode(json.canonical(right))
    )


def test_canonical_spelling() -> None:
    value = {"b": 1, "a": {"z": [{"d": 1, "c": "ä\n"}], "B": None}, "ä": True, "Z": 10**25}
    assert (
        json.canonical(value)
        == '{"Z":10000000000000000000000000,"a":{"B":null,"z":[{"c":"ä\\n","d":1}]},'
        '"b":1,"ä":true}'.encode()
    )
    assert json.canonical(1) != json.canonical(1.0)
    assert json.canonical(True) != json.canonical(1)
    assert json.canonical(2**53) != json.canonical(2**53 + 1)
    assert json.digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_canonical_reads_raw_values() -> None:
    spelled = msgspec.Raw(b'{ "b": 1,  "a": [ ] }')
    assert json.canonical({"x": spelled}) == json.canonical({"x": {"a": [], "b": 1}})
    assert json.canonical(spelled) == b'{"a":[],"b":1}'


def seconds(call: Any, *arguments: Any) -> float:
    start = time.process_time()
    call(*arguments)
    return time.process_time() - start


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b'{"a":[' + b",".join(b'{"k":%d,"v":":"}' % i for i in range(n)) + b"]}",
        lambda n: b'{"a":"' + b":" * (16 * n) + b'"}',
        lambda n: b'{"a":"' + b'\\"' * (8 * n) + b'"}',
        lambda n: b"{" + b",".join(b'"k%012d":1' % i for i in range(n)) + b"}",
        lambda n: b"[" + b",".join([b"9" * 4300] * (n // 256)) + b"]",
    ],
    ids=["objects", "colons", "escapes", "keys", "integers"],
)
def test_time_is_linear_in_the_body(make: Any) -> None:
    small, large = make(8_000), make(64_000)
    # Eight times as much may take up to four times eight: quadratic would be sixty-four. Both are
    # taken in the same moment, and again when the machine was busy with others in one of them.
    assert any(
        seconds(json.decode_request, large) < 32 * seconds(json.decode_request, small) + 0.05
        for _ in range(10)
    )
