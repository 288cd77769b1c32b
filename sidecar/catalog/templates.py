"""Does a URI belong to a URI template (RFC 6570)? Answered in time linear in the URI.

Only routing needs the answer, so it errs on the side of yes: a variable takes whatever the
forms of RFC 6570 §3.2 could put there, encoded or not, and nobody needs the values.

A template becomes a row of atoms, each one character or a repeatable class of characters. The
set of atoms that may come next is one integer; the transitions between such sets are found when
they are first needed and kept, so that most characters cost one dictionary look-up.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

URI_LIMIT = 4096
"""A longer URI matches no template, so that matching stays cheap whatever is asked."""
_ATOMS = 512
_STATES = 512
_EXPRESSION = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
_OTHER = "\0"


@dataclass(frozen=True, slots=True)
class _Atom:
    """One character (``char``) or, when empty, any character not in ``without``, repeatable.

    ``skip`` is how many atoms from this one on may be left out together.
    """

    char: str = ""
    without: str = ""
    skip: int = 0


def _expression(operator: str, variables: str) -> list[_Atom]:
    many = "," in variables or "*" in variables
    if operator == "":
        return [_Atom(without="/")]
    if operator in "+":
        return [_Atom()]
    if operator in "#?&":
        # An expression whose variables are all undefined leaves nothing behind.
        return [_Atom(char=operator, skip=2), _Atom(skip=1)]
    return [
        _Atom(char=operator, skip=2),
        _Atom(without="" if operator == "/" and many else "/", skip=1),
    ]


@dataclass(slots=True)
class Template:
    """A compiled URI template."""

    text: str
    prefix: str = ""
    _atoms: list[_Atom] = field(default_factory=list)
    _alphabet: frozenset[str] = frozenset()
    _moves: dict[tuple[int, str], int] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        position = 0
        for found in _EXPRESSION.finditer(self.text):
            self._atoms += [_Atom(char=c) for c in self.text[position : found.start()]]
            if position == 0:
                self.prefix = self.text[: found.start()]
            self._atoms += _expression(found[1], found[2])
            position = found.end()
        if position == 0:
            self.prefix = self.text
        self._atoms += [_Atom(char=c) for c in self.text[position:]]
        self._alphabet = frozenset(
            {a.char for a in self._atoms} | {c for a in self._atoms for c in a.without}
        )

    def matches(self, uri: str) -> bool:
        """Whether the template could have made this URI."""
        if not uri.startswith(self.prefix) or len(uri) > URI_LIMIT or len(self._atoms) > _ATOMS:
            return False
        moves, alphabet = self._moves, self._alphabet
        states = self._skip(1)
        for char in uri:
            key = (states, char if char in alphabet else _OTHER)
            after = moves.get(key)
            if after is None:
                after = self._step(*key)
                if len(moves) >= _STATES:
                    moves.clear()
                moves[key] = after
            if not after:
                return False
            states = after
        return bool(states >> len(self._atoms) & 1)

    def _step(self, states: int, char: str) -> int:
        """Where one more character leads. Bit ``i`` stands for: the first ``i`` atoms are done.

        A class that has begun stays open: its own bit (before it) is kept set.
        """
        after = 0
        for index, atom in enumerate(self._atoms):
            if not states >> index & 1:
                continue
            if atom.char:
                if atom.char == char:
                    after |= 1 << index + 1
            elif char not in atom.without:
                after |= 1 << index | 1 << index + 1
        return self._skip(after)

    def _skip(self, states: int) -> int:
        """Add what is reached without a character, over what may be left out."""
        for index, atom in enumerate(self._atoms):
            if atom.skip and states >> index & 1:
                states |= 1 << index + atom.skip
        return states
