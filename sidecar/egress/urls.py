"""One strict reading of a URL. What two parsers could read differently is refused.

Parsers of URLs disagree on user names, backslashes, short and octal IPv4, percent signs and
Unicode in hosts (WHATWG URL, RFC 3986, and what libraries make of both). An address that was
checked under one reading and dialled under another is not checked, so nothing of the kind passes.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 8192
"""Characters of a URL."""

DEFAULT_PORT: Final = {"http": 80, "https": 443}

# ASCII: without it U+017F, the long s, counts as another case of s.
_URL = re.compile(
    r"(https?)://([^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", re.ASCII | re.IGNORECASE | re.DOTALL
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]+)(?::([0-9]{1,5}))?", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# WHATWG URL, "ends in a number": such a host is an IPv4 address or nothing.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Ambiguous(ValueError):
    """Not a URL that everybody reads alike. ``why`` is one of ``REASONS``; it quotes nothing."""

    def __init__(self, why: str) -> None:
        super().__init__(REASONS[why])
        self.why = why


REASONS: Final[dict[str, str]] = {
    "too-long": f"the URL is longer than {LONGEST} characters",
    "characters": "the URL holds a space, a backslash, a control character or, outside of the "
    "host, a character that is not ASCII; percent-encode it",
    "scheme": "the URL does not begin with http:// or https://",
    "host": "the URL has no host",
    "userinfo": "the URL has a user name or password in it; send credentials in a header",
    "authority": "the host and port cannot be read",
    "port": "the port is not a number from 1 to 65535",
    "percent": "the host has a percent sign in it",
    "ipv4": "the host ends in a number and is not an IPv4 address in its one plain spelling",
    "ipv6": "the host in brackets is not an IPv6 address, or stands for an IPv4 address",
    "name": "the host is not a name that DNS can have",
    "unicode": "the host has characters that are read as others; write the host as it is in DNS",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What is dialled. ``host`` is in lower case, a name without a trailing dot, in A-labels.

    ``address`` is set where the host is an IP address. ``path`` begins with ``/``; ``query``
    with ``?`` where there is one. The fragment is left out: it is never sent.
    """

    scheme: str
    host: str
    port: int
    path: str = "/"
    query: str = ""
    address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = None

    @property
    def authority(self) -> str:
        """``host:port``, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def origin(self) -> str:
        """``scheme://host:port``: what may be told, since paths and queries may hold keys."""
        return f"{self.scheme}://{self.authority}"

    @property
    def canonical(self) -> str:
        """The URL as it was read: what is handed on, in place of the text that was given."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if DEFAULT_PORT.get(self.scheme) == self.port else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}{self.query}"


def parse(text: str) -> Target:
    """Read a URL.

    Raises:
        Ambiguous: it is not http or https, or not everybody reads it alike.
    """
    if len(text) > LONGEST:
        raise Ambiguous("too-long")
    if any(c <= " " or c in "\\\x7f" for c in text):
        raise Ambiguous("characters")
    parts = _URL.fullmatch(text)
    if parts is None:
        raise Ambiguous("scheme")
    scheme, authority, path, query, fragment = parts.groups(default="")
    if not (path + query + fragment).isascii():
        raise Ambiguous("characters")
    scheme = scheme.lower()
    host, port, address = _authority(authority, DEFAULT_PORT[scheme])
    return Target(scheme, host, port, path or "/", query, address)


def parse_authority(text: str, default_port: int | None = None) -> Target:
    """Read ``host:port``, as CONNECT names its target (RFC 9110 section 9.3.6).

    The scheme of the result is ``connect`` and its path is empty.

    Raises:
        Ambiguous: not everybody reads it alike, or it has no port and there is no default.
    """
    if len(text) > LONGEST:
        raise Ambiguous("too-long")
    if any(c <= " " or c in "\\\x7f" for c in text):
        raise Ambiguous("characters")
    if any(c in "/?#" for c in text):
        raise Ambiguous("authority")
    host, port, address = _authority(text, default_port)
    return Target("connect", host, port, "", "", address)


def join(base: Target, location: str) -> Target:
    """Where a ``Location`` leads from ``base`` (RFC 3986 section 5.2).

    Raises:
        Ambiguous: as :func:`parse`.
    """
    from urllib.parse import urljoin

    if len(location) > LONGEST:
        raise Ambiguous("too-long")
    # Looked at before it is joined: joining drops some of what must be refused.
    if any(c <= " " or c in "\\\x7f" for c in location):
        raise Ambiguous("characters")
    if _SCHEME.match(location):
        return parse(location)
    if location.startswith("//"):
        return parse(f"{base.scheme}:{location}")
    try:
        return parse(urljoin(base.canonical, location))
    except Ambiguous:
        raise
    except ValueError:
        raise Ambiguous("authority") from None


def _authority(
    text: str, default_port: int | None
) -> tuple[str, int, ipaddress.IPv4Address | ipaddress.IPv6Address | None]:
    if not text:
        raise Ambiguous("host")
    if "@" in text:
        raise Ambiguous("userinfo")
    if "%" in text:
        raise Ambiguous("percent")
    parts = _AUTHORITY.fullmatch(text)
    if parts is None:
        raise Ambiguous("authority")
    host, digits = parts.groups()
    port = default_port if digits is None else int(digits)
    if port is None or not 1 <= port <= 65535:
        raise Ambiguous("port")
    if host.startswith("["):
        address6 = _ipv6(host[1:-1])
        return str(address6), port, address6
    name = host.lower() if host.isascii() else _alabels(host)
    labels = name.removesuffix(".").split(".")
    if _NUMBER.fullmatch(labels[-1]):
        address4 = _ipv4(name)
        return name, port, address4
    return _name(labels), port, None


def _ipv4(text: str) -> ipaddress.IPv4Address:
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise Ambiguous("ipv4") from None
    if str(address) != text:
        raise Ambiguous("ipv4")
    return address


def _ipv6(text: str) -> ipaddress.IPv6Address:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise Ambiguous("ipv6") from None
    if address.ipv4_mapped is not None:
        raise Ambiguous("ipv6")
    return address


def _name(labels: list[str]) -> str:
    name = ".".join(labels)
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise Ambiguous("name")
    for label in labels:
        if label.startswith("xn--"):
            _round_trip(label)
    return name


def _alabels(host: str) -> str:
    """A host with other characters than ASCII as it is in DNS (RFC 5891, non-transitional)."""
    import idna

    lower = host.lower()
    dot = "." if lower.endswith(".") else ""
    try:
        # What UTS 46 maps to something else (full-width digits, soft hyphens, other dots) is
        # read differently by those who map and those who do not.
        if idna.uts46_remap(lower, std3_rules=False, transitional=False) != lower:
            raise Ambiguous("unicode")
        return idna.encode(lower.removesuffix(".")).decode("ascii") + dot
    except (idna.IDNAError, UnicodeError):
        raise Ambiguous("unicode") from None


def _round_trip(label: str) -> None:
    import idna

    try:
        same = idna.alabel(idna.ulabel(label)) == label.encode("ascii")
    except (idna.IDNAError, UnicodeError):
        same = False
    if not same:
        raise Ambiguous("unicode")
