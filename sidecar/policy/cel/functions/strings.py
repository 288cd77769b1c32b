"""The standard string functions and CEL's strings extension (``format`` is in ``format``)."""

from __future__ import annotations

from typing import Final

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Implementation, Overload
from sidecar.policy.cel.limits import Budget, check_list, check_string
from sidecar.policy.cel.types import BOOL, INT, STRING, Type, list_of
from sidecar.policy.cel.values import Value, no_overload

_WHITE: Final = (
    "\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_QUOTED: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)
_STRINGS: Final = list_of(STRING)


def _outside() -> EvalError:
    return EvalError("index_out_of_bounds", "an index is out of the range of a string")


def _starts_with(budget: Budget, text: str, prefix: str) -> bool:
    budget.text(len(prefix))
    return text.startswith(prefix)


def _ends_with(budget: Budget, text: str, suffix: str) -> bool:
    budget.text(len(suffix))
    return text.endswith(suffix)


def _contains(budget: Budget, text: str, part: str) -> bool:
    budget.text(len(text))
    return part in text


def _char_at(_: Budget, text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _outside()
    return text[index : index + 1]


def _index_of(budget: Budget, text: str, part: str, offset: int = 0) -> int:
    budget.text(len(text))
    if not 0 <= offset <= len(text):
        raise _outside()
    return text.find(part, offset)


def _last_index_of(budget: Budget, text: str, part: str, offset: int | None = None) -> int:
    budget.text(len(text))
    if offset is None:
        return text.rfind(part)
    if not 0 <= offset <= len(text):
        raise _outside()
    return text.rfind(part, 0, offset + len(part))


def _lower(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text.lower() if text.isascii() else text.translate(_LOWER)


def _upper(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text.upper() if text.isascii() else text.translate(_UPPER)


def _replace(budget: Budget, text: str, old: str, new: str, limit: int = -1) -> str:
    budget.text(len(text))
    count = text.count(old)
    if 0 <= limit < count:
        count = limit
    length = len(text) + count * (len(new) - len(old))
    check_string(length)
    budget.text(length)
    return text.replace(old, new, count)


def _split(budget: Budget, text: str, separator: str, limit: int = -1) -> list[str]:
    budget.text(len(text))
    if limit == 0:
        return []
    pieces = text.count(separator) + 1 if separator else max(len(text), 1)
    if 0 < limit < pieces:
        pieces = limit
    check_list(pieces)
    budget.items(2 * pieces)
    if separator:
        return text.split(separator, pieces - 1)
    return [*text[: pieces - 1], text[pieces - 1 :]]


def _substring(budget: Budget, text: str, start: int, end: int | None = None) -> str:
    if end is None:
        end = len(text)
    if not 0 <= start <= len(text):
        raise _outside()
    if not 0 <= end <= len(text):
        raise _outside()
    if start > end:
        raise EvalError("invalid_argument", "a substring ends before it starts")
    budget.text(end - start)
    return text[start:end]


def _trim(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text.strip(_WHITE)


def _join(budget: Budget, parts: list[Value], separator: str = "") -> str:
    budget.items(len(parts))
    for part in parts:
        if type(part) is not str:
            raise no_overload("join", part)
    length = sum(map(len, parts)) + len(separator) * max(len(parts) - 1, 0)
    check_string(length)
    budget.text(length)
    return separator.join(parts)


def _reverse(budget: Budget, text: str) -> str:
    budget.text(len(text))
    return text[::-1]


def _quote(budget: Budget, text: str) -> str:
    check_string(2 * len(text))
    budget.text(len(text))
    return f'"{text.translate(_QUOTED)}"'


def _method(
    name: str, result: Type, call: Implementation, *signatures: tuple[Type, ...]
) -> Function:
    return Function(name, *(Overload(params, result, call, member=True) for params in signatures))


FUNCTIONS: Final = (
    _method("startsWith", BOOL, _starts_with, (STRING, STRING)),
    _method("endsWith", BOOL, _ends_with, (STRING, STRING)),
    _method("contains", BOOL, _contains, (STRING, STRING)),
    _method("charAt", STRING, _char_at, (STRING, INT)),
    _method("indexOf", INT, _index_of, (STRING, STRING), (STRING, STRING, INT)),
    _method("lastIndexOf", INT, _last_index_of, (STRING, STRING), (STRING, STRING, INT)),
    _method("lowerAscii", STRING, _lower, (STRING,)),
    _method("upperAscii", STRING, _upper, (STRING,)),
    _method("replace", STRING, _replace, (STRING, STRING, STRING), (STRING, STRING, STRING, INT)),
    _method("split", _STRINGS, _split, (STRING, STRING), (STRING, STRING, INT)),
    _method("substring", STRING, _substring, (STRING, INT), (STRING, INT, INT)),
    _method("trim", STRING, _trim, (STRING,)),
    _method("join", STRING, _join, (_STRINGS,), (_STRINGS, STRING)),
    _method("reverse", STRING, _reverse, (STRING,)),
    Function("strings.quote", Overload((STRING,), STRING, _quote)),
)
