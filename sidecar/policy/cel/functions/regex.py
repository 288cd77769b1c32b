"""Regular expressions in linear time (RE2), compiled once where the pattern is constant."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final, TypeAlias

import re2  # type: ignore[import-untyped]

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import BOOL, STRING

MAX_PATTERN: Final = 4_000
MAX_MEMORY: Final = 8 << 20
_COMPILING: Final = 20
Test: TypeAlias = Callable[[str], bool]


class BadPattern(ValueError):
    """The text is no RE2 pattern; the message says why."""


@functools.lru_cache(maxsize=256)
def pattern(text: str) -> Test:
    """A pattern as a test: whether it matches anywhere in a string.

    Raises:
        BadPattern: RE2 does not take it, or it is too large.
    """
    if len(text) > MAX_PATTERN:
        raise BadPattern(f"a pattern has at most {MAX_PATTERN} characters")
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_MEMORY
    try:
        search = re2.compile(text, options).search
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be compiled"
        raise BadPattern(reason.decode() if isinstance(reason, bytes) else str(reason)) from None
    except UnicodeEncodeError:
        raise BadPattern("a pattern has to be valid Unicode") from None

    def test(subject: str) -> bool:
        # Octets in, octets out: for text the wrapper would count characters up to the match.
        try:
            return search(subject.encode()) is not None
        except UnicodeEncodeError:
            raise EvalError("invalid_argument", "a string is not valid Unicode") from None

    return test


def _matches(budget: Budget, subject: str, text: str) -> bool:
    # A pattern that is not constant is compiled here, which costs as much as many iterations.
    budget.charge(_COMPILING + len(text))
    budget.text(2 * len(subject))
    try:
        return pattern(text)(subject)
    except BadPattern:
        # What RE2 says quotes the pattern, which may come from the input.
        raise EvalError("invalid_argument", "a string is no regular expression") from None


FUNCTIONS: Final = (
    Function(
        "matches",
        Overload((STRING, STRING), BOOL, _matches),
        Overload((STRING, STRING), BOOL, _matches, member=True),
    ),
)
