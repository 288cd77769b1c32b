"""What is wrong with a configuration: every fault at once, each at its place."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_FAULTS = 500


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to fix.

    ``line`` and ``column`` are 1-based; both are 0 where the fault is not in a file's text (the
    file is missing, a command-line option). ``path`` is the setting, such as
    ``servers.github.only[1]``, or empty for the file as a whole. ``message`` says what to do and
    holds no secret.
    """

    file: str
    line: int
    column: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return f"{where}: {self.path}: {self.message}" if self.path else f"{where}: {self.message}"


class ConfigErrors(Exception):
    """A configuration that cannot be used, with everything that is wrong with it."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults: tuple[Fault, ...] = tuple(faults)


class Faults:
    """Collects faults of all files of one load, in the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Keep it; the same fault told twice (an anchor used twice) is kept once.

        What a file says (a path, a variable's name) may be in the message, so that nothing in
        it may steer a terminal.
        """
        fault = dataclasses.replace(fault, message=printable(fault.message))
        if len(self.found) < MOST_FAULTS and fault not in self.found:
            self.found.append(fault)

    def raise_any(self) -> None:
        """Raise all of them, ordered by place within each file."""
        if self.found:
            files = list(dict.fromkeys(fault.file for fault in self.found))
            self.found.sort(key=lambda fault: (files.index(fault.file), fault.line, fault.column))
            raise ConfigErrors(self.found)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``; did you mean "x"?``, or nothing when no known word is near."""
    import difflib

    folded = {name.lower().replace("-", "_"): name for name in known}
    near = difflib.get_close_matches(word[:64].lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return f'; did you mean "{folded[near[0]]}"?' if near else ""


def shown(word: str) -> str:
    """A key of a stranger's file, cut and with nothing that could steer a terminal."""
    return printable(word if len(word) <= 60 else word[:60] + "…")


def printable(text: str) -> str:
    """The text with ``?`` for what is no visible character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)
