"""Bounds of the engine: on texts at load, and on work and growth while evaluating."""

from __future__ import annotations

from sidecar.policy.cel.errors import Stopped

MAX_SOURCE = 20_000
"""Characters of one expression."""
MAX_DEPTH = 64
"""Levels of one expression's tree; chains of ``&&`` and ``||`` count as one level."""
MAX_STRING = 8 * 1024 * 1024
"""Characters (or bytes) of a string that an expression makes."""
MAX_LIST = 100_000
"""Elements of a list that an expression makes."""
DEFAULT_BUDGET = 10_000
"""Steps of one decision: an iteration is one, a kilobyte of text searched is one, and what costs
as much as several iterations (reading an address, a pattern that is not constant) is several.
A step is about a microsecond, three at worst."""

# Work is charged when it is worth a step; below this, strings and lists are free.
FREE_TEXT = 1024
FREE_ITEMS = 64


class Budget:
    """Steps left for one decision, shared by all its expressions."""

    __slots__ = ("left", "total")

    def __init__(self, steps: int = DEFAULT_BUDGET) -> None:
        self.total = steps
        self.left = steps

    @property
    def used(self) -> int:
        """Steps taken so far."""
        return self.total - self.left

    def charge(self, steps: int) -> None:
        """Take that many steps.

        Raises:
            Stopped: there are not so many left.
        """
        self.left -= steps
        if self.left < 0:
            self.left = 0
            raise Stopped("budget", f"the evaluation takes more than {self.total} steps")

    def text(self, length: int) -> None:
        """Charge for reading or writing that many characters or bytes once."""
        if length > FREE_TEXT:
            self.charge(length >> 10)

    def items(self, count: int) -> None:
        """Charge for looking at that many elements once, without evaluating anything."""
        if count > FREE_ITEMS:
            self.charge(count >> 4)


def check_string(length: int) -> None:
    """Refuse to make a string or bytes of that length."""
    if length > MAX_STRING:
        raise Stopped("limit", f"a string would grow beyond {MAX_STRING} characters")


def check_list(length: int) -> None:
    """Refuse to make a list of that length."""
    if length > MAX_LIST:
        raise Stopped("limit", f"a list would grow beyond {MAX_LIST} elements")
