"""Text of strangers in a line of plain text: what cannot be seen stands as its escape.

A terminal obeys control characters, and everything that draws text obeys those that turn its
direction around; letters that are drawn as nothing make two names look like one.
"""

from __future__ import annotations

import json
import re
from typing import Final

# Not printable, for Python, are controls, format characters, surrogates, what is private or
# unassigned, and every space but the space. These are letters and marks, and not drawn either.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0e\uffa0"
    "\U000e0100-\U000e01ef]"
)
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, keep: str = "") -> str:
    """The text with the escapes of JSON (RFC 8259 §7) in place of what cannot be seen.

    JSON stays JSON with the same meaning, and is escaped no further. ``keep``: characters that
    stay as they are. Other marks are left alone, however many are piled up.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or _seen(c) else _escape(c) for c in text)


def _seen(char: str) -> bool:
    return char.isprintable() and not _BLANK.match(char)


def _escape(char: str) -> str:
    if char in _SHORT:
        return _SHORT[char]
    return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"
