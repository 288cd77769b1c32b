"""The chain: whatever is done to its lines is found, and found where it was done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sidecar.telemetry.audit_chain import (
    GENESIS,
    LONGEST,
    Head,
    Report,
    archive,
    chained,
    rotated,
    verify,
)
from sidecar.wire.json import encode
from tests.kit.examples import examples

NOTHING = Head()


def lines(count: int, head: Head = NOTHING, last: str = "stop") -> list[bytes]:
    """``count`` lines behind ``head``; the last record is of the kind ``last``."""
    made = []
    for number in range(count):
        kind = last if number == count - 1 else "decision"
        line, head = chained(head, encode({"kind": kind, "call": f"c{number}"}))
        made.append(line)
    return made


def heads(made: list[bytes]) -> list[Head]:
    """The head behind each line."""
    head, found = Head(), []
    for line in made:
        record = json.loads(line)
        record.pop("seq"), record.pop("prev")
        _, head = chained(head, encode(record))
        found.append(head)
    return found


def checked(tmp_path: Path, made: list[bytes], head: Head | None = None) -> Report:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b"".join(made))
    return verify([file], head)


def breaks(report: Report) -> list[tuple[int, str]]:
    return [(each.line, each.why) for each in report.breaks]


def test_a_line_is_json_that_says_its_number_and_the_hash_of_the_line_before() -> None:
    import hashlib

    first, second = lines(2)
    assert json.loads(first) == {"seq": 1, "prev": GENESIS, "kind": "decision", "call": "c0"}
    told = json.loads(second)
    assert (told["seq"], told["prev"]) == (2, hashlib.sha256(first[:-1]).hexdigest())


def test_what_was_written_holds(tmp_path: Path) -> None:
    made = lines(50)
    report = checked(tmp_path, made)
    assert (report.ok, report.records, report.first, report.notices) == (True, 50, 1, [])
    assert report.head == heads(made)[-1]
    assert checked(tmp_path, made, heads(made)[20]).ok


def test_nothing_at_all_holds_and_has_no_head(tmp_path: Path) -> None:
    report = checked(tmp_path, [])
    assert (report.ok, report.records, report.first, report.head) == (True, 0, 0, Head())


def test_an_edit_is_found_at_the_line_that_was_edited(tmp_path: Path) -> None:
    made = lines(5)
    made[2] = made[2].replace(b'"c2"', b'"x2"')
    assert breaks(checked(tmp_path, made)) == [
        (3, "record 3 is not what it was when line 4 followed it")
    ]


def test_lines_that_were_taken_out_are_missed(tmp_path: Path) -> None:
    made = lines(6)
    assert breaks(checked(tmp_path, made[:2] + made[4:])) == [
        (3, "records 3 to 4 should stand before this one")
    ]
    assert breaks(checked(tmp_path, made[:2] + made[3:])) == [
        (3, "record 3 should stand before this one")
    ]


def test_lines_in_another_order(tmp_path: Path) -> None:
    made = lines(5)
    made[1], made[2] = made[2], made[1]
    assert breaks(checked(tmp_path, made)) == [
        (2, "record 2 should stand before this one"),
        (3, "record 2 stands after record 3"),
        (4, "record 3 should stand before this one"),
    ]


def test_a_line_that_was_put_in(tmp_path: Path) -> None:
    made = lines(4)
    forged, _ = chained(heads(made)[1], encode({"kind": "answer", "by": "nobody"}))
    assert breaks(checked(tmp_path, [*made[:2], forged, *made[2:]])) == [
        (4, "record 3 stands after record 3")
    ]
    # In place of another, with the right number and the right hash: the next one knows.
    assert breaks(checked(tmp_path, [*made[:2], forged, made[3]])) == [
        (3, "record 3 is not what it was when line 4 followed it")
    ]


def test_a_part_of_another_chain(tmp_path: Path) -> None:
    ours = lines(6)
    head, theirs = Head(), []
    for number in range(6):
        line, head = chained(head, encode({"kind": "decision", "call": f"other{number}"}))
        theirs.append(line)
    found = breaks(checked(tmp_path, ours[:3] + theirs[3:5] + ours[5:]))
    assert found == [
        (3, "record 3 is not what it was when line 4 followed it"),
        (5, "record 5 is not what it was when line 6 followed it"),
    ]


def test_an_end_that_was_cut_off_is_found_by_its_head_alone(tmp_path: Path) -> None:
    made = lines(5)
    assert checked(tmp_path, made[:3]).ok
    assert "the last record is no stop" in checked(tmp_path, made[:3]).notices[0]
    assert breaks(checked(tmp_path, made[:3], heads(made)[4])) == [
        (3, "the chain ends with record 3, before 5 of the head")
    ]


def test_a_chain_that_was_written_anew_is_found_by_a_head(tmp_path: Path) -> None:
    made = lines(5)
    anew = [line.replace(b"c1", b"x1") for line in made]
    head, forged = Head(), []
    for line in anew:
        record = json.loads(line)
        record.pop("seq"), record.pop("prev")
        made_anew, head = chained(head, encode(record))
        forged.append(made_anew)
    assert checked(tmp_path, forged).ok
    assert breaks(checked(tmp_path, forged, heads(made)[3])) == [
        (4, "record 4 is not the one of the given head")
    ]


def test_a_line_without_its_end_is_told_and_is_a_break_only_inside(tmp_path: Path) -> None:
    made = lines(3, last="decision")
    report = checked(tmp_path, [*made, b'{"seq":4,"pre'])
    assert report.ok
    assert "audit.jsonl:4: the last line is cut off" in report.notices[0]
    file, next_file = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"".join(made) + b'{"seq"')
    next_file.write_bytes(b"".join(lines(2, heads(made)[-1])))
    inside = verify([file, next_file])
    assert breaks(inside) == [(4, "the line is cut off, and others follow it")]


@pytest.mark.parametrize("junk", [b"\n", b"{}\n", b"\xff\xfe\n", b'{"seq":"2","prev":""}\n'])
def test_what_is_no_record_is_a_break_of_its_own_and_no_other(tmp_path: Path, junk: bytes) -> None:
    made = lines(4)
    assert breaks(checked(tmp_path, [*made[:2], junk, *made[2:]])) == [
        (3, "the line is not a record")
    ]
    # In place of a record, that record is missed as well.
    assert [line for line, _ in breaks(checked(tmp_path, [*made[:2], junk, *made[3:]]))] == [3, 4]


def test_a_line_longer_than_any_of_ours(tmp_path: Path) -> None:
    made = lines(3)
    long = b'{"seq":2,"' + b"x" * (2 * LONGEST) + b"\n"
    found = breaks(checked(tmp_path, [made[0], long, *made[1:]]))
    assert found == [(2, f"the line is longer than {LONGEST} bytes")]


def test_a_chain_that_begins_later_is_told(tmp_path: Path) -> None:
    made = lines(6)
    report = checked(tmp_path, made[3:])
    assert (report.ok, report.first) == (True, 4)
    assert "begins with record 4" in report.notices[0]
    assert breaks(checked(tmp_path, made[3:], heads(made)[1])) == [
        (3, "record 2 of the given head is not here")
    ]


def test_a_first_record_that_follows_something(tmp_path: Path) -> None:
    forged, _ = chained(Head(0, "1" * 64), encode({"kind": "start"}))
    assert breaks(checked(tmp_path, [forged])) == [(1, "the first record does not begin a chain")]


def test_breaks_are_listed_up_to_a_bound(tmp_path: Path) -> None:
    report = checked(tmp_path, [b"x\n"] * 1500)
    assert (len(report.breaks), report.more) == (1000, 500)


def test_full_files_are_found_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    assert archive(file, 12) == tmp_path / "audit.jsonl.0000000012"
    for first in (12, 3, 123_456_789_012):
        archive(file, first).touch()
    for other in ("audit.jsonl.1", "audit.jsonl.gz", "other.jsonl.0000000001", "audit.jsonl"):
        (tmp_path / other).touch()
    assert rotated(file) == [archive(file, n) for n in (3, 12, 123_456_789_012)]
    assert rotated(tmp_path / "absent" / "audit.jsonl") == []


@pytest.mark.parametrize("text", ["", "12", "12:abc", "x:" + "0" * 64, "1:" + "G" * 64])
def test_a_head_that_cannot_be_read(text: str) -> None:
    with pytest.raises(ValueError, match="SEQ:SHA256"):
        Head.parse(text)


def test_a_head_reads_as_it_is_written() -> None:
    head = heads(lines(3))[2]
    assert Head.parse(str(head)) == head


_MADE = lines(12)
_HEADS = heads(_MADE)


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_change_of_any_byte_goes_unseen(tmp_path: Path, data: st.DataObject) -> None:
    """With the last head in hand, whatever is done to the bytes breaks the chain."""
    whole = b"".join(_MADE)
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start, min(start + 400, len(whole))))
    put = data.draw(st.binary(max_size=40))
    changed = whole[:start] + put + whole[end:]
    file = tmp_path / "audit.jsonl"
    file.write_bytes(changed)
    assert verify([file], _HEADS[-1]).ok == (changed == whole or changed == whole + put)
