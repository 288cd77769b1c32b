"""What every store refuses or compares in the same way."""

from __future__ import annotations

import math

from sidecar.ports.store import ANY, Conflict, Record, StoreError

KEY_LIMIT = 1024
"""Characters of a key."""
VALUE_LIMIT = 64 << 20
"""Bytes of a value."""


def check_prefix(prefix: str) -> None:
    """Raises ValueError for what cannot be the beginning of a key."""
    if len(prefix) > KEY_LIMIT:
        raise ValueError(f"a key has at most {KEY_LIMIT} characters, not {len(prefix)}")
    if "\0" in prefix:
        raise ValueError("a key holds no NUL")
    try:
        prefix.encode()
    except UnicodeEncodeError:
        raise ValueError("a key holds no lone surrogates") from None


def check_key(key: str) -> None:
    """Raises ValueError for what cannot be a key."""
    if not key:
        raise ValueError("a key is not empty")
    check_prefix(key)


def check_write(key: str, value: bytes, expires: float | None) -> None:
    """Raises ValueError, or StoreError for a value that is too large."""
    check_key(key)
    if expires is not None and not math.isfinite(expires):
        raise ValueError("expires is a finite time or None")
    if len(value) > VALUE_LIMIT:
        raise StoreError(f"{key}: a value has at most {VALUE_LIMIT} bytes, not {len(value)}")


def check_version(key: str, expected: int, found: int) -> None:
    """Raises Conflict. ``found`` is ABSENT when there is no live record."""
    if expected not in (ANY, found):
        raise conflict(key, expected, found)


def conflict(key: str, expected: int, found: int) -> Conflict:
    """For a store that compares by itself."""
    return Conflict(f"{key}: changed by somebody else (expected {expected}, is {found})")


def live(record: Record | None, now: float) -> Record | None:
    """The record unless it has expired."""
    if record is None or (record.expires is not None and record.expires <= now):
        return None
    return record


def after(prefix: str) -> str | None:
    """The first text that sorts after everything with this prefix, ``None`` when there is none.

    Keys sort by code point, which is also the order of their UTF-8 bytes.
    """
    while prefix:
        last = ord(prefix[-1]) + 1
        if 0xD800 <= last <= 0xDFFF:
            last = 0xE000
        if last <= 0x10FFFF:
            return prefix[:-1] + chr(last)
        prefix = prefix[:-1]
    return None
