"""The chain of an audit trail: how a record becomes a line, and whether lines are a chain.

A line is one JSON object that ends in a newline. Its first two keys are ``seq``, which grows by
one from record to record and never begins anew, and ``prev``, the sha256 (hex) of the line
before without its newline. Whoever changes, removes, adds or moves a line breaks the chain
there, unless every line after it is made anew; against that, and against cutting off the end,
helps a head (``seq:sha256`` of the last record) that is kept elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

LONGEST: Final = 1 << 20
"""Bytes of one line, newline included. What is longer is none of ours."""
GENESIS: Final = "0" * 64
"""``prev`` of the very first record."""
_ROTATED: Final = re.compile(r"\.[0-9]{10,}$")
_MOST_BREAKS: Final = 1000


@dataclass(frozen=True, slots=True)
class Head:
    """The last record of a chain: its number, and the sha256 of its line in hex."""

    seq: int = 0
    hash: str = GENESIS

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """``SEQ:SHA256``. Raises ValueError with what is wrong."""
        seq, _, digest = text.partition(":")
        if not re.fullmatch(r"[0-9]{1,18}", seq) or not re.fullmatch(r"[0-9a-f]{64}", digest):
            raise ValueError("is not a head; it is SEQ:SHA256, as the log and `verify` print it")
        return cls(int(seq), digest)


class Link(msgspec.Struct, frozen=True):
    """What a line says of its place, and what kind of record it is."""

    seq: int
    prev: str
    kind: str = ""


_decode: Final = msgspec.json.Decoder(Link).decode


def chained(head: Head, record: bytes) -> tuple[bytes, Head]:
    """The line (newline included) that follows ``head``, and the head that it makes.

    ``record`` is a JSON object with at least one key, as ``wire.json.encode`` writes it.
    """
    seq = head.seq + 1
    line = b'{"seq":%d,"prev":"%b",%b' % (seq, head.hash.encode(), record[1:])
    return line + b"\n", Head(seq, hashlib.sha256(line).hexdigest())


def link_of(line: bytes) -> Link | None:
    """A line's link (without the newline); ``None`` for what is no record of ours."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def rotated(path: Path) -> list[Path]:
    """The files that ``path`` became when it was full, oldest first.

    Raises:
        OSError: the folder cannot be read.
    """
    if not path.parent.is_dir():
        return []
    start = path.name
    found = [
        (int(each.name.rpartition(".")[2]), each)
        for each in path.parent.iterdir()
        if each.name.startswith(start) and _ROTATED.fullmatch(each.name, len(start))
    ]
    return [each for _, each in sorted(found)]


def archive(path: Path, first: int) -> Path:
    """What a full file is renamed to: the number of its first record stands at the end."""
    return path.with_name(f"{path.name}.{first:010d}")


# -------------------------------------------------------------------------------- checking


@dataclass(frozen=True, slots=True)
class Break:
    """A place where the chain does not hold. ``line`` counts from 1."""

    file: str
    line: int
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}"


@dataclass(slots=True)
class Report:
    """What was found. ``first`` is the number of the first record, 0 when there is none.

    ``notices`` are not breaks: what one should know all the same.
    """

    files: list[str] = field(default_factory=list)
    records: int = 0
    first: int = 0
    head: Head = Head()
    breaks: list[Break] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    more: int = 0
    """Breaks beyond those that are listed."""

    @property
    def ok(self) -> bool:
        """Whether the chain holds."""
        return not self.breaks

    def broken(self, file: str, line: int, why: str) -> None:
        if len(self.breaks) < _MOST_BREAKS:
            self.breaks.append(Break(file, line, why))
        else:
            self.more += 1


def verify(files: Iterable[Path], head: Head | None = None) -> Report:
    """Check files in their order, as one chain; ``head`` is one that must be in it.

    Raises:
        OSError: a file cannot be read.
    """
    walk = _Walk(Report(), head)
    for path in files:
        walk.file(path)
    return walk.end()


class _Walk:
    """One pass over all lines."""

    def __init__(self, report: Report, wanted: Head | None) -> None:
        self._report = report
        self._wanted = wanted
        self._met = wanted is None
        self._at = ("", 0)
        self._torn: tuple[str, int] | None = None
        self._last = Link(0, "")
        self._broke = False

    def file(self, path: Path) -> None:
        name = str(path)
        self._report.files.append(name)
        with path.open("rb") as stream:
            for number, line in enumerate(_lines(stream), 1):
                self._line(name, number, line)

    def _line(self, name: str, number: int, line: bytes) -> None:
        report = self._report
        if self._torn is not None:
            report.broken(*self._torn, "the line is cut off, and others follow it")
            self._torn = None
        if not line.endswith(b"\n"):
            if len(line) >= LONGEST:
                report.broken(name, number, f"the line is longer than {LONGEST} bytes")
            else:
                self._torn = (name, number)
            return
        body = line[:-1]
        link = link_of(body)
        if link is None:
            report.broken(name, number, "the line is not a record")
            self._broke = True
            return
        report.records += 1
        if not report.first:
            self._begin(name, number, link)
        else:
            self._follow(name, number, link)
        hashed = hashlib.sha256(body).hexdigest()
        report.head = Head(link.seq, hashed)
        self._last, self._at, self._broke = link, (name, number), False
        if self._wanted is not None and link.seq == self._wanted.seq:
            self._met = True
            if hashed != self._wanted.hash:
                report.broken(name, number, f"record {link.seq} is not the one of the given head")

    def _begin(self, name: str, number: int, link: Link) -> None:
        report = self._report
        report.first = link.seq
        if link.seq == 1 and link.prev != GENESIS:
            report.broken(name, number, "the first record does not begin a chain")
        elif link.seq != 1:
            report.notices.append(
                f"{name}:{number}: begins with record {link.seq}; "
                f"those before it are in no file that was given"
            )

    def _follow(self, name: str, number: int, link: Link) -> None:
        report, before = self._report, self._report.head
        if link.seq == before.seq + 1:
            if link.prev == before.hash or self._broke:
                return
            # The record before says what it says now; its successor remembers what it said.
            file, line = self._at
            where = f"line {number}" if file == name else f"{name}:{number}"
            why = f"record {before.seq} is not what it was when {where} followed it"
            report.broken(file, line, why)
            return
        if link.seq > before.seq + 1:
            gone = f"record {before.seq + 1}"
            if link.seq > before.seq + 2:
                gone = f"records {before.seq + 1} to {link.seq - 1}"
            report.broken(name, number, f"{gone} should stand before this one")
        else:
            why = f"record {link.seq} stands after record {before.seq}"
            report.broken(name, number, why)

    def end(self) -> Report:
        report = self._report
        if self._torn is not None:
            file, line = self._torn
            report.notices.append(
                f"{file}:{line}: the last line is cut off: it is being written, or whoever wrote "
                "it was killed; nobody was answered on its word"
            )
        if self._wanted is not None and not self._met:
            file, line = self._at
            wanted = self._wanted.seq
            if wanted > report.head.seq:
                why = f"the chain ends with record {report.head.seq}, before {wanted} of the head"
            else:
                why = f"record {wanted} of the given head is not here"
            report.broken(file or (report.files or [""])[0], line, why)
        if not report.records and not report.breaks:
            report.notices.append(
                "there is no record: none was ever written, or somebody has emptied the file "
                "(a head that is kept elsewhere tells)"
            )
        if report.records and self._last.kind != "stop":
            report.notices.append(
                f"{self._at[0]}:{self._at[1]}: the last record is no stop: the sidecar runs, "
                "was killed, or the end is cut off (a head that is kept elsewhere tells)"
            )
        return report


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    """Lines with their newline; one that is too long ends without, and its rest is passed over."""
    while line := stream.readline(LONGEST):
        yield line
        if len(line) >= LONGEST and not line.endswith(b"\n"):
            while (rest := stream.readline(LONGEST)) and not rest.endswith(b"\n"):
                pass
