"""``glob``: whole-string patterns for names and paths, matched in linear time.

``*`` is any run of characters within one segment (between slashes), ``?`` one character of a
segment, ``**`` any run over segments; ``**/`` may also be nothing, so that ``**/.env`` takes
``.env``. ``[abc]``, ``[a-z]`` and ``[!abc]`` are one character; ``\\`` takes the next one as
it is.
"""

from __future__ import annotations

import functools
from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.regex import MAX_PATTERN, BadPattern, Test, pattern
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import BOOL, STRING

_COMPILING: Final = 10
_SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")


@functools.lru_cache(maxsize=256)
def glob(text: str) -> Test:
    """A glob as a test of whole strings.

    Raises:
        BadPattern: a bracket is not closed, or the glob is too large.
    """
    if len(text) > MAX_PATTERN // 8:
        raise BadPattern(f"a glob has at most {MAX_PATTERN // 8} characters")
    return pattern(rf"\A(?s:{_translate(text)})\z")


def _translate(text: str) -> str:
    out: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        if text.startswith("**", at):
            at += 2
            if text.startswith("/", at) and (at == 2 or text[at - 3] == "/"):
                out.append("(?:.*/)?")
                at += 1
            else:
                out.append(".*")
            continue
        if character == "*":
            out.append("[^/]*")
        elif character == "?":
            out.append("[^/]")
        elif character == "[":
            members, at = _bracket(text, at)
            out.append(members)
        elif character == "\\":
            at += 1
            if at == len(text):
                raise BadPattern("a glob cannot end in a backslash")
            out.append(_literal(text[at]))
        else:
            out.append(_literal(character))
        at += 1
    return "".join(out)


def _bracket(text: str, at: int) -> tuple[str, int]:
    """The set that starts at ``at``, and where its closing bracket is."""
    start = at + 1
    negated = text.startswith("!", start)
    if negated:
        start += 1
    end = text.find("]", start + 1)
    if end < 0:
        raise BadPattern("a bracket of the glob is not closed")
    members = "".join(f"\\{c}" if c in "\\]^[" else c for c in text[start:end])
    return (f"[^/{members}]" if negated else f"[{members}]"), end


def _literal(character: str) -> str:
    return f"\\{character}" if character in _SPECIAL else character


def _glob(budget: Budget, subject: str, text: str) -> bool:
    budget.charge(_COMPILING)
    budget.text(2 * len(subject))
    try:
        return glob(text)(subject)
    except BadPattern:
        raise EvalError("invalid_argument", "a string is no glob") from None


FUNCTIONS: Final = (
    Function(
        "glob",
        Overload((STRING, STRING), BOOL, _glob),
        Overload((STRING, STRING), BOOL, _glob, member=True),
    ),
)
