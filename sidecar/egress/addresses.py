"""What an IP address stands for, by ranges of our own.

``ipaddress.is_global`` is not asked: its answer depends on the interpreter, it calls multicast,
6to4 relays and translated addresses global, and it knows nothing of platforms' own services.
The ranges are IANA's special-purpose registries (RFC 6890 and what was added since), and the
addresses at which platforms serve credentials.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

IP: TypeAlias = IPv4Address | IPv6Address

CLASSES: Final[dict[str, str]] = {
    "ambiguous": "it can be read in more than one way",
    "metadata": "it is a platform's metadata service, which gives out credentials",
    "loopback": "it is this machine itself",
    "unspecified": "it stands for this machine",
    "link-local": "it is on the local link",
    "cluster": "it is a name inside a cluster",
    "private": "it is in a private network",
    "shared": "it is in a provider's shared network (100.64.0.0/10)",
    "local": "it is a name of a local network",
    "tunnel": "it belongs to an obsolete tunnel (6to4, Teredo)",
    "translated": "it stands for an IPv4 address in a spelling that is not dialled",
    "multicast": "it is a multicast address",
    "benchmark": "it is reserved for benchmarks",
    "documentation": "it is reserved for documentation",
    "reserved": "it is reserved",
    "unresolved": "the host name cannot be resolved",
    "public": "it is public",
}
"""Every class, the strictest first, and what is told of it. Only ``public`` may be dialled."""

RANK: Final = {name: at for at, name in enumerate(CLASSES)}

_METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, Oracle, DigitalOcean and others
            "169.254.170.2",  # ECS tasks
            "169.254.170.23",  # EKS pod identity
            "169.254.42.42",  # Scaleway
            "169.254.0.23",  # Tencent
            "168.63.129.16",  # Azure's wire server, which looks public
            "100.100.100.200",  # Alibaba
            "192.0.0.192",  # Oracle, before
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # EKS pod identity
            "fd20:ce::254",  # Google
            "fd00:c1::a9fe:a9fe",  # Oracle
            "fe80::a9fe:a9fe",  # OpenStack
        ),
    )
)
_V4: Final = tuple(
    (ipaddress.IPv4Network(network), name)
    for network, name in (
        ("0.0.0.0/8", "unspecified"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved"),
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "tunnel"),
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "benchmark"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
)
_V6: Final = tuple(
    (ipaddress.IPv6Network(network), name)
    for network, name in (
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("2001::/32", "tunnel"),
        ("2001::/23", "reserved"),
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "tunnel"),
        ("3fff::/20", "documentation"),
        ("2000::/3", "public"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "private"),
        ("ff00::/8", "multicast"),
    )
)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# IPv4-mapped (RFC 4291), IPv4-translated (RFC 2765), IPv4-compatible (RFC 4291, deprecated).
_STAND_INS: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "::ffff:0:0:0/96", "::/96")))


@dataclass(frozen=True, slots=True)
class Address:
    """One address and what it stands for. ``ip`` is ``None`` for text that is no address."""

    text: str
    class_: str
    ip: IP | None = None

    @property
    def ok(self) -> bool:
        """Whether it is public."""
        return self.class_ == "public"


def classify(text: str) -> Address:
    """What an address stands for. Total: what is no address is ``ambiguous``."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        return Address(text[:64], "ambiguous")
    if isinstance(ip, IPv6Address) and ip.scope_id is not None:
        return Address(str(ip), "ambiguous", ip)
    return Address(str(ip), class_of(ip), ip)


def class_of(ip: IP) -> str:
    """One of ``CLASSES``. An address that stands for an IPv4 address has that one's class."""
    if ip in _METADATA:
        return "metadata"
    if isinstance(ip, IPv4Address):
        return next((name for network, name in _V4 if ip in network), "public")
    if ip in _NAT64:
        # RFC 6052: where a network has IPv6 alone, this is how it reaches IPv4.
        return class_of(_embedded(ip))
    for network, name in _V6:
        if ip in network:
            return name
    if any(ip in network for network in _STAND_INS):
        inside = class_of(_embedded(ip))
        return inside if inside != "public" else "translated"
    return "reserved"


def _embedded(ip: IPv6Address) -> IPv4Address:
    return IPv4Address(int(ip) & 0xFFFFFFFF)
