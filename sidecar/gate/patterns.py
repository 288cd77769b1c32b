"""Taking what patterns match out of texts: in linear time, within a budget.

What the budget does not reach is taken out whole: too much, never too little.
"""

from __future__ import annotations

import functools
import re
import time
from typing import Final, cast

import re2  # type: ignore[import-untyped]

from sidecar.wire import json

MOST_MATCHES: Final = 10_000
"""Matches in all texts of one result."""
MOST_SECONDS: Final = 0.25
"""Processor time for all of them."""
_MAX_MEMORY: Final = 8 << 20
_LOOK_EVERY: Final = 64


_DOCUMENT: Final = re.compile(r"[ \t\r\n]*[\[{]")


def is_document(text: str) -> bool:
    """Whether the text may be JSON that holds other texts."""
    return _DOCUMENT.match(text) is not None


class Budget:
    """What is left for one result."""

    def __init__(self) -> None:
        self._matches = MOST_MATCHES
        self._until = time.thread_time() + MOST_SECONDS

    def spent(self) -> bool:
        """Count one match; whether that was one too many."""
        self._matches -= 1
        if self._matches <= 0:
            return True
        return self._matches % _LOOK_EVERY == 0 and self.late()

    def late(self) -> bool:
        """Whether the time is over."""
        return self._matches <= 0 or time.thread_time() > self._until


@functools.lru_cache(maxsize=256)
def _compiled(pattern: str) -> re2._Regexp:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = _MAX_MEMORY
    return re2.compile(pattern, options)


class Patterns:
    """Some patterns and what is put in the place of what they match."""

    def __init__(self, patterns: tuple[str, ...], replacement: str, budget: Budget) -> None:
        """Raises re2.error for a pattern that is none: files are checked before."""
        self._patterns = [_compiled(pattern) for pattern in patterns]
        self._replacement = replacement
        self._octets = replacement.encode()
        self._budget = budget

    def text(self, text: str) -> str:
        """A text without what matches, the very same where nothing does.

        A text that is JSON stays JSON where that can be: its own strings are looked at first,
        so that nothing hides behind an escape.
        """
        if is_document(text):
            try:
                value = json.decode(text.encode())
            except (json.BadJson, UnicodeEncodeError):
                pass
            else:
                cleaned = self.value(value)
                if cleaned is not value:
                    text = json.encode(cleaned).decode()
        return self._plain(text)

    def _plain(self, text: str) -> str:
        octets = text.encode("utf-8", "surrogatepass")
        before = octets
        for pattern in self._patterns:
            octets = self._without(pattern, octets)
        return text if octets is before else octets.decode("utf-8", "surrogatepass")

    def _without(self, pattern: re2._Regexp, octets: bytes) -> bytes:
        parts: list[bytes] = []
        end = 0
        if self._budget.late():
            return self._octets
        for match in pattern.finditer(octets):
            if match.start() == match.end():
                continue
            if self._budget.spent():
                return self._octets
            parts += (octets[end : match.start()], self._octets)
            end = match.end()
        if not parts:
            return octets
        parts.append(octets[end:])
        return b"".join(parts)

    def value(self, value: object, *, keys: bool = True) -> object:
        """A JSON value without what matches in its strings, the very same where nothing does.

        ``keys``: names of an object's members are strings like any other.
        """
        if type(value) is str:
            return self._plain(value)
        if type(value) is list:
            items = [self.value(item, keys=keys) for item in value]
            return items if any(map(_differ, items, value)) else value
        if type(value) is dict:
            return self._object(cast("dict[str, object]", value), keys=keys)
        return value

    def _object(self, value: dict[str, object], *, keys: bool) -> dict[str, object]:
        found: dict[str, object] = {}
        same = True
        for key, item in value.items():
            name = self._plain(key) if keys else key
            cleaned = self.value(item, keys=keys)
            same = same and name is key and cleaned is item
            while name in found:
                name += "+"
            found[name] = cleaned
        return value if same else found


def _differ(one: object, other: object) -> bool:
    return one is not other
