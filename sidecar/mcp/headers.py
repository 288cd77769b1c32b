"""The HTTP headers that repeat parts of a request's body (2026-07-28, transports).

Whatever stands between client and server may route by them without reading the body, so a
header that says something else than the body is refused, and towards a server they are written
anew from the body that is sent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Final, Protocol, TypeAlias, cast

from sidecar.mcp.errors import Rejection, header_mismatch
from sidecar.mcp.methods import NAME_PARAM
from sidecar.mcp.versions import MODERN_VERSION
from sidecar.model import JsonObject

VERSION_HEADER: Final = "MCP-Protocol-Version"
METHOD_HEADER: Final = "Mcp-Method"
NAME_HEADER: Final = "Mcp-Name"
PARAM_PREFIX: Final = "Mcp-Param-"
SESSION_HEADER: Final = "Mcp-Session-Id"

ANNOTATION: Final = "x-mcp-header"
"""The key of a property's schema that asks for a header."""

ArgumentPath: TypeAlias = tuple[str, ...]
"""Keys from ``arguments`` down to the value: ``("region",)``, ``("filter", "id")``."""
ParamHeaders: TypeAlias = Mapping[ArgumentPath, str]
"""Where an argument is → the full name of its header, ``Mcp-Param-Region``."""


class Headers(Protocol):
    """A request's headers, names without regard to case, every copy kept (aiohttp's are)."""

    def getall(self, key: str, default: list[str]) -> list[str]:
        """Every value of a header, in order."""
        ...


class BadParamHeader(ValueError):
    """A tool's ``x-mcp-header`` annotations break the rules; such a tool is not to be offered."""


# ------------------------------------------------------------------------------- one value

_WRAPPED = re.compile(r"=\?base64\?(.*)\?=", re.S)


def encode_value(value: str) -> str:
    """Text as a header value: as it is when that is safe, else ``=?base64?…?=`` of its UTF-8.

    Safe is printable ASCII without space at its ends that does not look wrapped itself.
    """
    if _safe(value) and value == value.strip(" ") and not _WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """The text that a header value stands for, or ``None`` if it stands for none.

    None: base64 that is malformed or not in its one canonical spelling, bytes that are not
    UTF-8, and unwrapped text outside of printable ASCII, which readers decode differently.
    """
    value = value.strip(" \t")
    if not _safe(value):
        return None
    wrapped = _WRAPPED.fullmatch(value)
    if wrapped is None:
        return value
    try:
        raw = base64.b64decode(wrapped[1], validate=True)
        if base64.b64encode(raw).decode() != wrapped[1]:
            return None
        return raw.decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _safe(value: str) -> bool:
    """Printable ASCII, 0x20 to 0x7e."""
    return value.isascii() and value.isprintable()


# --------------------------------------------------------------------- x-mcp-header in schemas

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
_TYPES = ("string", "integer", "boolean")
_SCHEMA_IN = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_SCHEMAS_IN_LIST = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_SCHEMAS_IN_MAP = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})


def param_headers(input_schema: object) -> dict[ArgumentPath, str]:
    """Which arguments a tool wants repeated as headers: the path of each → the header's name.

    Raises:
        BadParamHeader: an annotation that is not on a property reached from the root through
            ``properties`` alone, whose value is not an HTTP token, whose property is not a
            string, an integer or a boolean, or whose name is taken already.
    """
    found: dict[ArgumentPath, str] = {}
    names: set[str] = set()
    for path, schema in _schemas(input_schema):
        if ANNOTATION not in schema:
            continue
        if not path:
            raise BadParamHeader(
                f"{ANNOTATION} stands where properties alone do not lead; "
                "move it to a property of the root or of a nested object"
            )
        where = ".".join(path)[:128]
        token = schema[ANNOTATION]
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise BadParamHeader(f"property {where!r}: {ANNOTATION} is not a header name")
        if schema.get("type") not in _TYPES:
            raise BadParamHeader(
                f"property {where!r}: {ANNOTATION} needs the type string, integer or boolean"
            )
        if token.lower() in names:
            raise BadParamHeader(f"property {where!r}: {ANNOTATION} {token!r} is used twice")
        names.add(token.lower())
        found[path] = PARAM_PREFIX + token
    return found


def _schemas(root: object) -> Iterator[tuple[ArgumentPath | None, JsonObject]]:
    """Every schema in ``root``: the properties that lead to it, or ``None`` if others do too.

    References are not followed and examples, defaults and enums not entered, so it ends.
    """
    waiting: list[tuple[ArgumentPath | None, object]] = [((), root)]
    while waiting:
        path, found = waiting.pop()
        if not isinstance(found, dict):
            continue
        schema = cast("JsonObject", found)
        yield path, schema
        for key, value in schema.items():
            if key == "properties" and isinstance(value, dict):
                for name, below in cast("JsonObject", value).items():
                    waiting.append((None if path is None else (*path, name), below))
            elif key in _SCHEMAS_IN_MAP and isinstance(value, dict):
                waiting.extend((None, below) for below in cast("JsonObject", value).values())
            elif key in _SCHEMAS_IN_LIST and isinstance(value, list):
                waiting.extend((None, below) for below in value)
            elif key in _SCHEMA_IN:
                waiting.append((None, value))


# ----------------------------------------------------------------------------- towards a server


def request_headers(
    method: str,
    params: JsonObject,
    mapping: ParamHeaders | None = None,
    *,
    version: str = MODERN_VERSION,
) -> dict[str, str]:
    """The headers of a modern request, from the body that is sent with them."""
    headers = {VERSION_HEADER: version, METHOD_HEADER: encode_value(method)}
    name = _name(method, params)
    if name is not None:
        headers[NAME_HEADER] = encode_value(name)
    if mapping:
        for path, header in mapping.items():
            text = _text(_argument(params, path))
            if text is not None:
                headers[header] = encode_value(text)
    return headers


# ----------------------------------------------------------------------------- from a client


def duplicated(headers: Headers) -> Rejection | None:
    """Refuse a routing header that came twice: the first reader and the last would disagree."""
    for header in (VERSION_HEADER, METHOD_HEADER, NAME_HEADER):
        if len(headers.getall(header, [])) > 1:
            return header_mismatch(f"the header {header} came more than once")
    return None


def check(
    headers: Headers,
    method: str,
    params: JsonObject,
    mapping: ParamHeaders | None = None,
    *,
    required: bool = False,
) -> Rejection | None:
    """Compare the routing headers, and with ``mapping`` the arguments' headers, to the body.

    A header that is there equals the body in either era. With ``required`` (the modern era)
    one that the body calls for is there. The rejection has no id: the caller knows it.
    """
    rejection = duplicated(headers) or check_routing(headers, method, params, required=required)
    if rejection is None and mapping:
        rejection = check_params(headers, params, mapping, required=required)
    return rejection


def check_routing(
    headers: Headers, method: str, params: JsonObject, *, required: bool
) -> Rejection | None:
    """``Mcp-Method`` and ``Mcp-Name`` against the body. Values are compared with their case."""
    said = headers.getall(METHOD_HEADER, [])
    if said:
        if decode_value(said[0]) != method:
            return header_mismatch(f"the header {METHOD_HEADER} is not the body's method")
    elif required:
        return header_mismatch(f"the header {METHOD_HEADER} is missing")
    key = NAME_PARAM.get(method)
    if key is None:
        return None
    name = params.get(key)
    said = headers.getall(NAME_HEADER, [])
    if said:
        if name is None or decode_value(said[0]) != name:
            return header_mismatch(f"the header {NAME_HEADER} is not the body's params.{key}")
    elif required and name is not None:
        return header_mismatch(f"the header {NAME_HEADER} is missing")
    return None


def check_params(
    headers: Headers, params: JsonObject, mapping: ParamHeaders, *, required: bool = True
) -> Rejection | None:
    """``Mcp-Param-*`` against ``params.arguments``. Integers are compared as numbers.

    A header whose argument is absent or ``null`` is refused like one that differs: something
    on the way may have routed by it.
    """
    for path, header in mapping.items():
        said = headers.getall(header, [])
        value = _argument(params, path)
        where = ".".join(path)
        if len(said) > 1:
            return header_mismatch(f"the header {header} came more than once")
        text = _text(value)
        if not said:
            if required and text is not None:
                return header_mismatch(f"the header {header} is missing: {where} has a value")
            continue
        if text is None:
            return header_mismatch(f"the header {header} is there, but {where} has no value")
        decoded = decode_value(said[0])
        if decoded is None or not (decoded == text or _same_number(decoded, value)):
            return header_mismatch(f"the header {header} is not the body's {where}")
    return None


_DECIMAL = re.compile(r"(-?[0-9]{1,4000})(?:\.0+)?")


def _same_number(text: str, value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    number = _DECIMAL.fullmatch(text)
    # Exact on both sides: Python compares integers and floats without rounding either.
    return number is not None and int(number[1]) == value


def _name(method: str, params: JsonObject) -> str | None:
    key = NAME_PARAM.get(method)
    name = None if key is None else params.get(key)
    return name if isinstance(name, str) else None


def _argument(params: JsonObject, path: ArgumentPath) -> object:
    found: object = params.get("arguments")
    for key in path:
        if not isinstance(found, dict):
            return None
        found = cast("JsonObject", found).get(key)
    return found


def _text(value: object) -> str | None:
    """A scalar as a header says it; ``None`` for what has no header."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return str(value) if isinstance(value, int) else None
