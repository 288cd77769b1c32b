"""Text of strangers in a line of plain text: what cannot be seen stands as its escape.

A terminal obeys control characters, and everything that draws text obeys those that turn its
direction around; letters that are drawn as nothing make two names look like one.
"""

from __future__ import annotations

import json
import re
from typing import Final
from unicodedata import category

# Not printable, for Python, are controls, format characters, surrogates, what is private or
# unassigned, and every space but the space. These are letters and marks, and not drawn either.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0"
    "\U000e0100-\U000e01ef]"
)
MOST_MARKS: Final = 3
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    """The text with the escapes of JSON (RFC 8259 §7) in place of what cannot be seen.

    JSON stays JSON with the same meaning, and is escaped no further. ``keep``: characters that
    stay as they are. Of marks piled up on a letter, over the lines around, three stay.
    """
    if text.isascii() and text.isprintable():
        return text
    found: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if char > "\x7f" and category(char)[0] == "M" else 0
        seen = char in keep or (char.isprintable() and not _BLANK.match(char))
        found.append(char if seen and marks <= MOST_MARKS else _escape(char))
    return "".join(found)


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
