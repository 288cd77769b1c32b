"""The files of the trail: what is written stays a chain, whoever writes and whatever happens."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from sidecar.telemetry import audit_file
from sidecar.telemetry.audit_chain import Head, rotated, verify
from sidecar.telemetry.audit_file import ChainFile, NotATrail
from sidecar.wire.json import encode

BIG = 1 << 30


def record(number: int, size: int = 0) -> bytes:
    return encode({"kind": "decision", "call": f"c{number}", "pad": "x" * size})


def kinds(file: Path) -> list[str]:
    return [json.loads(line)["kind"] for line in file.read_bytes().splitlines()]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "audit.jsonl"


def test_it_makes_its_folder_and_a_file_that_nobody_else_reads(file: Path) -> None:
    trail = ChainFile(file, BIG)
    head = trail.append([record(1), record(2)])
    trail.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    report = verify([file])
    assert (report.ok, report.records, report.head) == (True, 2, head)


def test_a_file_that_others_could_read_is_closed_to_them(file: Path) -> None:
    file.parent.mkdir()
    file.touch(0o644)
    ChainFile(file, BIG).append([record(1)])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_next_process_goes_on(file: Path) -> None:
    first = ChainFile(file, BIG)
    first.append([record(1)])
    first.close()
    second = ChainFile(file, BIG)
    second.append([record(2), record(3)])
    report = verify([file])
    assert (report.ok, report.records, report.head.seq) == (True, 3, 3)


def test_a_link_is_not_followed(file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    (tmp_path / "elsewhere").touch()
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError) as caught:
        ChainFile(file, BIG).append([record(1)])
    assert caught.value.errno == errno.ELOOP
    assert (tmp_path / "elsewhere").read_bytes() == b""


@pytest.mark.parametrize("what", [b"some: yaml\n", b"no newline", b"{}\n", b"x" * (5 << 20)])
def test_a_file_of_something_else_is_left_alone(file: Path, what: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(what)
    with pytest.raises(NotATrail, match="move it away"):
        ChainFile(file, BIG).append([record(1)])
    assert file.read_bytes() == what


# ------------------------------------------------------------------------------- rotation


def test_full_files_are_set_aside_and_the_chain_goes_on_through_them(file: Path) -> None:
    trail = ChainFile(file, 1000)
    for number in range(40):
        trail.append([record(number, 100)])
    archives = rotated(file)
    assert [each.name for each in archives][:2] == [
        "audit.jsonl.0000000001",
        "audit.jsonl.0000000006",
    ]
    assert all(stat.S_IMODE(each.stat().st_mode) == 0o600 for each in archives)
    assert all(1000 <= each.stat().st_size < 1300 for each in archives)
    report = verify([*archives, file])
    assert (report.ok, report.records) == (True, 40)
    # One of them gone is a gap; all of them gone is told.
    assert [str(each) for each in verify([archives[0], *archives[2:], file]).breaks] == [
        f"{archives[2]}:1: records 6 to 10 should stand before this one"
    ]
    assert "begins with record" in verify([file]).notices[0]


def test_one_batch_may_fill_several_files(file: Path) -> None:
    trail = ChainFile(file, 1000)
    trail.append([record(number, 400) for number in range(10)])
    assert len(rotated(file)) == 4
    assert verify([*rotated(file), file]).records == 10


def test_an_archive_is_never_written_over(file: Path) -> None:
    trail = ChainFile(file, 100)
    trail.append([record(1, 100)])
    taken = file.with_name("audit.jsonl.0000000001")
    taken.write_text("precious")
    with pytest.raises(FileExistsError):
        trail.append([record(2)])
    assert taken.read_text() == "precious"
    taken.unlink()
    trail.append([record(3)])
    assert verify([*rotated(file), file]).ok


def test_a_process_that_died_between_two_files(file: Path) -> None:
    trail = ChainFile(file, BIG)
    trail.append([record(1), record(2)])
    trail.close()
    file.rename(file.with_name("audit.jsonl.0000000001"))
    ChainFile(file, BIG).append([record(3)])
    report = verify([*rotated(file), file])
    assert (report.ok, report.records) == (True, 3)


# --------------------------------------------------------------------------- what was done


@pytest.mark.parametrize("half", [b"{", b'{"seq":3,"prev":"00', b'{"seq":'])
def test_half_a_record_goes_and_is_told(file: Path, half: bytes) -> None:
    trail = ChainFile(file, BIG)
    trail.append([record(1), record(2)])
    trail.close()
    with file.open("ab") as end:
        end.write(half)
    ChainFile(file, BIG, {"run": "x"}).append([record(3)])
    assert kinds(file) == ["decision", "decision", "torn", "decision"]
    told = json.loads(file.read_bytes().splitlines()[2])
    assert (told["bytes"], told["run"]) == (len(half), "x")
    assert verify([file]).ok


def test_half_of_the_very_first_record(file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b'{"seq":1,"pr')
    ChainFile(file, BIG).append([record(1)])
    assert kinds(file) == ["torn", "decision"]
    assert verify([file]).ok


def test_records_that_are_cut_off_while_it_runs_are_missed(file: Path) -> None:
    trail = ChainFile(file, BIG)
    trail.append([record(number) for number in range(5)])
    kept = b"".join(file.read_bytes().splitlines(keepends=True)[:2])
    os.truncate(file, len(kept))
    trail.append([record(6)])
    told = json.loads(file.read_bytes().splitlines()[2])
    assert (told["kind"], told["found"], told["written"]) == ("cut", 2, 5)
    assert [str(each) for each in verify([file]).breaks] == [
        f"{file}:3: records 3 to 5 should stand before this one"
    ]


@pytest.mark.parametrize("how", ["deleted", "moved", "emptied"])
def test_a_file_that_is_taken_away_while_it_runs(file: Path, how: str) -> None:
    trail = ChainFile(file, BIG)
    trail.append([record(1), record(2)])
    if how == "deleted":
        file.unlink()
    elif how == "moved":
        file.rename(file.with_name("elsewhere"))
    else:
        os.truncate(file, 0)
    trail.append([record(3)])
    assert kinds(file) == ["cut", "decision"]
    report = verify([file])
    assert (report.first, report.head.seq) == (3, 4)


# ----------------------------------------------------------------------------- full disks


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to write beyond; what fits is written, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_what_does_not_fit_is_not_written_at_all(file: Path) -> None:
    trail = ChainFile(file, BIG)
    head = trail.append([record(1)])
    size = file.stat().st_size
    with no_file_larger_than(size + 300):
        with pytest.raises(OSError) as caught:
            trail.append([record(2, 100), record(3, 100)])
        assert caught.value.errno == errno.EFBIG
        assert file.stat().st_size == size
    assert trail.head == head
    trail.append([record(4)])
    report = verify([file])
    assert (report.ok, report.records) == (True, 2)


# ------------------------------------------------------------------------ several writers


def test_who_holds_the_lock_for_too_long_is_told(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_file, "LOCK_WAIT", 0.05)
    trail = ChainFile(file, BIG)
    trail.append([record(1)])
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another process holds"):
            trail.append([record(2)])
    trail.append([record(3)])
    assert verify([file]).records == 2


WRITER = """
import sys
import time
from pathlib import Path
from sidecar.telemetry.audit_file import ChainFile
from sidecar.wire.json import encode
name, count = sys.argv[2], int(sys.argv[3])
trail = ChainFile(Path(sys.argv[1]), int(sys.argv[4]))
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    trail.append([encode({"kind": "decision", "by": name, "n": number, "pad": "x" * 50})])
    print(number, flush=True)
    time.sleep(float(sys.argv[5]))
"""


def writer(
    file: Path, name: str, count: int, rotate: int, pause: float = 0.0
) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(file), name, str(count), str(rotate), str(pause)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_several_processes_write_one_chain_through_several_files(file: Path) -> None:
    count, names = 150, ("a", "b", "c")
    # With pauses, so that none has ended before the others begin.
    writers = [writer(file, name, count, 8 << 10, pause=0.005) for name in names]
    for each in writers:
        go(each)
    for each in writers:
        each.communicate(timeout=50)
        assert each.returncode == 0
    files = [*rotated(file), file]
    assert len(files) > 5
    report = verify(files)
    assert (report.breaks, report.records) == ([], count * len(names))
    told = [json.loads(line) for each in files for line in each.read_bytes().splitlines()]
    for name in names:
        assert [each["n"] for each in told if each["by"] == name] == list(range(count))
    # They took turns: the lock is not one process's until it ends.
    turns = sum(a["by"] != b["by"] for a, b in pairwise(told))
    assert turns > 2


def test_killed_while_it_writes_all_that_it_told_of_is_there(file: Path) -> None:
    process = writer(file, "a", 1_000_000, 64 << 10)
    try:
        go(process)
        assert process.stdout is not None
        for _ in range(500):
            process.stdout.readline()
    finally:
        process.kill()
    last = 500
    for line in process.stdout:
        last = int(line) + 1 if line.endswith("\n") else last
    process.wait(30)
    report = verify([*rotated(file), file])
    assert report.breaks == []
    assert report.records >= last
    ChainFile(file, BIG).append([record(1)])
    after = verify([*rotated(file), file])
    assert after.breaks == []
    assert after.records in (report.records + 1, report.records + 2)


def test_reading_the_end_of_a_large_file_is_quick(file: Path) -> None:
    """It is read from its end: an hour's records are not, at each start."""
    trail = ChainFile(file, BIG)
    trail.append([record(number, 800) for number in range(20_000)])
    trail.close()
    other = ChainFile(file, BIG)
    began = time.process_time()
    other.append([record(1)])
    # Two hundredths of a second, or less; all of it took half of one.
    assert time.process_time() - began < 0.2
    assert other.head.seq == 20_001
    assert other.head != Head()
