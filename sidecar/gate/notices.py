"""Words of a server that are no result: errors, progress, log messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec

from sidecar.gate.content import plain
from sidecar.gate.patterns import Budget, Patterns
from sidecar.model import JsonObject, Redaction, RpcError
from sidecar.wire import json


def words(value: object) -> str:
    """Every text in a value, one a line; empty when it holds none."""
    found: list[str] = []
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, msgspec.Raw):
            try:
                left.append(plain(each))
            except json.BadJson:
                found.append(bytes(each).decode("utf-8", "replace"))
        elif isinstance(each, str):
            found.append(each)
        elif isinstance(each, dict):
            items = cast("JsonObject", each)
            left += [part for item in reversed(items.items()) for part in reversed(item)]
        elif isinstance(each, list | tuple):
            left += reversed(each)
    return "\n".join(found)


def _patterns(redactions: Sequence[Redaction]) -> list[Patterns]:
    budget = Budget()
    return [Patterns(r.patterns, r.replacement, budget) for r in redactions if r.patterns]


def in_notice(params: JsonObject, redactions: Sequence[Redaction]) -> JsonObject:
    """A notification without what the patterns of rules match. Paths lead into results only;
    a rule that takes all of a result takes the text of a notification too."""
    everything = [r for r in redactions if not r.patterns and not r.paths]
    found = dict(params)
    for key in ("message", "data"):
        if key in found:
            if everything:
                found[key] = everything[0].replacement
            for patterns in _patterns(redactions):
                found[key] = patterns.value(plain(found[key]))
    return found


def in_error(error: RpcError, redactions: Sequence[Redaction]) -> RpcError:
    """The error without what the rules take out; its code stays."""
    everything = [r for r in redactions if not r.patterns and not r.paths]
    if everything:
        return RpcError(error.code, everything[0].replacement)
    message, data = error.message, error.data
    for patterns in _patterns(redactions):
        message = patterns.text(message)
        if data is not None:
            try:
                data = patterns.value(plain(data))
            except json.BadJson:
                data = None
    return RpcError(error.code, message, data)
