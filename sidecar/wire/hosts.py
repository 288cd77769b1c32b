"""Which ``Host`` and ``Origin`` headers may reach us: the guard against DNS rebinding.

A web page can make a browser send requests to a loopback address, also under a name of the
page's own that it has pointed there. Such a request shows the foreign name in ``Host`` and the
page in ``Origin``; so only names and addresses that are ours are let through. Pure.

Grammar: RFC 3986 section 3.2.2 and RFC 9110 section 7.2 for ``Host``, RFC 6454 section 7 for
``Origin``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from sidecar.config.types import Listen

_AUTHORITY = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9._~-]{1,255}))(?::(?P<port>[0-9]{0,5}))?"
)
_ORIGIN = re.compile(r"(?i:https?)://(?P<authority>[^/?#@\s]+)")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_WILDCARDS = ("0.0.0.0", "::")
_REMEMBERED = 64


class HostVerdict(enum.Enum):
    """What to do with a request by its ``Host``: serve, refuse (421), or call malformed (400)."""

    OURS = "ours"
    FOREIGN = "foreign"
    MALFORMED = "malformed"


class HostRules:
    """The names and addresses that are ours: loopback, the listen address, and ``extra``.

    Any port passes: a forwarded port shows the forwarder's. An address counts only as a literal
    in its usual notation (``127.1`` is a name to us, and foreign). ``extra`` are bare host names
    or address literals.

    Raises:
        ValueError: names the entry of ``extra`` that is neither.
    """

    def __init__(self, listen: Listen, extra: Iterable[str] = ()) -> None:
        hosts = {_normal(host) for host in _LOOPBACK}
        if listen.host:
            hosts.add(_normal(listen.host))
        for entry in extra:
            literal = entry[1:-1] if entry.startswith("[") and entry.endswith("]") else entry
            if not re.fullmatch(r"[A-Za-z0-9._~:-]{1,255}", literal):
                raise ValueError(f"not a host name or an IP address: {entry!r}")
            hosts.add(_normal(literal))
        self._hosts = frozenset(hosts)
        self._wildcard = listen.host in _WILDCARDS
        # Clients repeat the same few values; only those that passed are kept.
        self._good: set[str] = set()

    def host(self, values: Sequence[str], local: str | None = None) -> HostVerdict:
        """Judge the ``Host`` header lines of one request (RFC 9112 section 3.2: exactly one).

        ``local`` is the address at which the connection arrived. When we listen on every
        address, its literal is ours as well: what names an address cannot have been rebound.
        """
        if len(values) != 1:
            return HostVerdict.MALFORMED
        value = values[0]
        if value in self._good:
            return HostVerdict.OURS
        host = _host_of(value)
        if host is None:
            return HostVerdict.MALFORMED
        if host not in self._hosts:
            own = self._wildcard and local is not None and host == _normal(local)
            return HostVerdict.OURS if own else HostVerdict.FOREIGN
        if len(self._good) < _REMEMBERED:
            self._good.add(value)
        return HostVerdict.OURS

    def origin(self, values: Sequence[str]) -> bool:
        """Whether the ``Origin`` header lines may pass: none, or one that is a page of ours."""
        if not values:
            return True
        if len(values) != 1:
            return False
        matched = _ORIGIN.fullmatch(values[0])
        return matched is not None and _host_of(matched["authority"]) in self._hosts


def _host_of(authority: str) -> str | IPv4Address | IPv6Address | None:
    matched = _AUTHORITY.fullmatch(authority)
    if matched is None:
        return None
    if matched["port"] and int(matched["port"]) > 65535:
        return None
    if matched["v6"] is not None:
        try:
            return IPv6Address(matched["v6"])
        except ValueError:
            return None
    return _normal(matched["name"])


def _normal(host: str) -> str | IPv4Address | IPv6Address:
    """Lower case, without the root's dot; a literal becomes its address, however it is spelt."""
    name = host.lower().removesuffix(".")
    try:
        return ip_address(name)
    except ValueError:
        return name
