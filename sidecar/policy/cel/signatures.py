"""The types of operators: what an operation gives, or that it cannot be for these types."""

from __future__ import annotations

from typing import Final

from sidecar.policy.cel.nodes import BinaryOp
from sidecar.policy.cel.types import (
    BOOL,
    DURATION,
    DYN,
    NUMERIC,
    TIMESTAMP,
    Kind,
    Type,
    joined,
)

_ORDERED: Final = frozenset(("bool", "string", "bytes", "timestamp", "duration"))
_SUMS: Final = frozenset(("int", "uint", "double", "string", "bytes", "list", "duration"))
_MAPS: Final = frozenset(("map", "object"))
_TIMES: Final[dict[tuple[str, Kind, Kind], Type]] = {
    ("+", "timestamp", "duration"): TIMESTAMP,
    ("+", "duration", "timestamp"): TIMESTAMP,
    ("-", "timestamp", "duration"): TIMESTAMP,
    ("-", "timestamp", "timestamp"): DURATION,
    ("-", "duration", "duration"): DURATION,
}


def may_equal(a: Type, b: Type) -> bool:
    """Whether values of two types can be equal; null may stand for any of them."""
    if "dyn" in (a.kind, b.kind) or "null" in (a.kind, b.kind):
        return True
    if a.kind in NUMERIC and b.kind in NUMERIC:
        return True
    if a.kind in _MAPS and b.kind in _MAPS:
        return True
    if a.kind != b.kind:
        return False
    return a.element is None or b.element is None or may_equal(a.element, b.element)


def result_of(op: BinaryOp, a: Type, b: Type) -> Type | None:
    """What ``a op b`` gives, or ``None`` when there is no such operation."""
    if op in ("==", "!="):
        return BOOL
    if op == "in":
        return BOOL if b.kind in ("list", "map", "object", "dyn") else None
    if op in ("<", "<=", ">", ">="):
        return BOOL if _comparable(a, b) else None
    return _arithmetic(op, a, b)


def _comparable(a: Type, b: Type) -> bool:
    if a.kind == "dyn":
        return b.kind in _ORDERED | NUMERIC | {"dyn"}
    if b.kind == "dyn":
        return a.kind in _ORDERED | NUMERIC
    if a.kind in NUMERIC and b.kind in NUMERIC:
        return True
    return a.kind == b.kind and a.kind in _ORDERED


def _arithmetic(op: BinaryOp, a: Type, b: Type) -> Type | None:
    time = _TIMES.get((op, a.kind, b.kind))
    if time is not None:
        return time
    kinds = {"+": _SUMS, "%": NUMERIC - {"double"}}.get(op, NUMERIC)
    if op in ("+", "-"):
        kinds = kinds | {"duration", "timestamp"}
    if a.kind == "dyn" or b.kind == "dyn":
        known = b if a.kind == "dyn" else a
        if known.kind == "dyn":
            return DYN
        if known.kind not in kinds:
            return None
        return DYN if known.kind in ("duration", "timestamp") else known
    if a.kind != b.kind or a.kind not in kinds or a.kind == "timestamp":
        return None
    return joined(a, b)
