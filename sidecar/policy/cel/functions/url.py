"""``url()`` and its getters, under Kubernetes' names.

The text is read strictly, so that it means one thing: printable ASCII without spaces or
backslashes, a scheme and a host (or a path alone, as Kubernetes allows), a port of digits, no
broken percent escapes. User names and passwords are taken and not shown by any getter.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_plus

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import BOOL, STRING, URL, list_of, map_of
from sidecar.policy.cel.values import Url, Value

_LONGEST: Final = 8192
_READING: Final = 10
_URL: Final = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]*)://(?:[^/?#@\[\]]*@)?"
    r"(?P<host>(?P<hostname>\[[0-9A-Fa-f:.]+\]|[^/?#@:\[\]]*)(?::(?P<port>[0-9]*))?))?"
    r"(?P<path>(?:/[^?#]*)?)(?:\?(?P<query>[^#]*))?(?:#.*)?",
    re.ASCII,
)
_PLAIN: Final = re.compile(r"[!-\[\]^-~]*", re.ASCII)
_BROKEN_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})", re.ASCII)


def parse_url(text: str) -> Url:
    """A URL.

    Raises:
        EvalError: the text is none.
    """
    match = None
    if 0 < len(text) <= _LONGEST and _PLAIN.fullmatch(text) and not _BROKEN_ESCAPE.search(text):
        match = _URL.fullmatch(text)
    if match is None or (match["scheme"] and not match["hostname"]) or "[" in match["path"]:
        raise EvalError("invalid_argument", "a string is not an absolute URL")
    port = match["port"] or ""
    if port and int(port[:6]) > 65535:
        raise EvalError("invalid_argument", "a URL's port is out of range")
    return Url(
        text,
        (match["scheme"] or "").lower(),
        match["host"] or "",
        (match["hostname"] or "").strip("[]"),
        port,
        match["path"],
        match["query"] or "",
    )


def _url(budget: Budget, text: str) -> Url:
    budget.charge(_READING + (len(text) >> 6))
    return parse_url(text)


def _is_url(budget: Budget, text: str) -> bool:
    try:
        _url(budget, text)
    except EvalError:
        return False
    return True


def _query(budget: Budget, url: Url) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for part in url.query.split("&"):
        if not part:
            continue
        budget.charge(1)
        key, _, value = part.partition("=")
        found.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return found


def _getter(name: str, read: Callable[[Url], Value]) -> Function:
    def run(_: Budget, url: Url) -> Value:
        return read(url)

    return Function(name, Overload((URL,), STRING, run, member=True))


FUNCTIONS: Final = (
    Function("isURL", Overload((STRING,), BOOL, _is_url)),
    Function(
        "url",
        Overload((STRING,), URL, _url),
        Overload((URL,), URL, lambda _, url: url),
    ),
    _getter("getScheme", lambda url: url.scheme),
    _getter("getHost", lambda url: url.host),
    _getter("getHostname", lambda url: url.hostname),
    _getter("getPort", lambda url: url.port),
    _getter("getEscapedPath", lambda url: url.path),
    Function("getQuery", Overload((URL,), map_of(list_of(STRING)), _query, member=True)),
)
