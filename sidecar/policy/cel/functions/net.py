"""Addresses and networks under the names Kubernetes gave them (CEL's network extension).

An address is read strictly: no zone, no leading zeros, no IPv4 dotted inside IPv6. A mapped
address in hexadecimal (``::ffff:a00:1``) is the IPv4 address that it reaches.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv6Address,
    IPv6Interface,
    ip_address,
    ip_interface,
)
from typing import Final, TypeAlias

from sidecar.policy.cel.errors import EvalError
from sidecar.policy.cel.functions.registry import Function, Overload
from sidecar.policy.cel.limits import Budget
from sidecar.policy.cel.types import BOOL, CIDR, INT, IP, STRING

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Interface | IPv6Interface

_LONGEST: Final = 64
_READING: Final = 5
_PREFIX: Final = re.compile(r"0|[1-9][0-9]{0,2}", re.ASCII)
_BROADCAST: Final = IPv4Address("255.255.255.255")


def parse_address(text: str) -> Address:
    """An address.

    Raises:
        EvalError: the text is none, or one of the forms that are not taken.
    """
    if len(text) > _LONGEST or "%" in text:
        raise EvalError("invalid_argument", "a string is not an IP address (zones are refused)")
    if ":" in text and "." in text:
        raise EvalError("invalid_argument", "an IPv4-mapped IPv6 address is not allowed")
    try:
        address = ip_address(text)
    except ValueError:
        raise EvalError("invalid_argument", "a string is not an IP address") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def parse_network(text: str) -> Network:
    """An address with the length of its network's prefix, ``10.1.2.3/8``.

    Raises:
        EvalError: the text is none, or one of the forms that are not taken.
    """
    head, slash, length = text[: _LONGEST + 1].partition("/")
    if not slash or _PREFIX.fullmatch(length) is None:
        raise EvalError("invalid_argument", "a string is not a network such as 10.0.0.0/8")
    address = parse_address(head)
    if isinstance(address, IPv4Address) and ":" in head:
        raise EvalError("invalid_argument", "an IPv4-mapped IPv6 address is not allowed")
    try:
        return ip_interface((address, int(length)))
    except ValueError:
        raise EvalError("invalid_argument", "a network's prefix is too long") from None


def _address(budget: Budget, text: str) -> Address:
    budget.charge(_READING)
    return parse_address(text)


def _network(budget: Budget, text: str) -> Network:
    budget.charge(2 * _READING)
    return parse_network(text)


def _is(read: Callable[[Budget, str], object]) -> Callable[[Budget, str], bool]:
    def run(budget: Budget, text: str) -> bool:
        try:
            read(budget, text)
        except EvalError:
            return False
        return True

    return run


def _is_canonical(budget: Budget, text: str) -> bool:
    return str(_address(budget, text)) == text


def _is_global_unicast(_: Budget, address: Address) -> bool:
    return not (
        address.is_multicast
        or address.is_unspecified
        or address.is_loopback
        or address.is_link_local
        or address == _BROADCAST
    )


def _is_link_local_multicast(_: Budget, address: Address) -> bool:
    network = _LINK_LOCAL_4 if isinstance(address, IPv4Address) else _LINK_LOCAL_6
    return address in network.network


_LINK_LOCAL_4: Final = IPv4Interface("224.0.0.0/24")
_LINK_LOCAL_6: Final = IPv6Interface("ff02::/16")


def _contains_ip(_: Budget, network: Network, address: Address) -> bool:
    return address in network.network


def _contains_text_ip(budget: Budget, network: Network, text: str) -> bool:
    return _address(budget, text) in network.network


def _contains_text_cidr(budget: Budget, network: Network, text: str) -> bool:
    return _contains(network, _network(budget, text))


def _contains(network: Network, other: Network) -> bool:
    return (
        network.network.prefixlen <= other.network.prefixlen
        and other.network.network_address in network.network
    )


def _bare(network: Network) -> Address:
    return network.ip


def _masked(_: Budget, network: Network) -> Network:
    return ip_interface(network.network)


def _test(name: str, call: Callable[[Budget, Address], bool]) -> Function:
    return Function(name, Overload((IP,), BOOL, call, member=True))


FUNCTIONS: Final = (
    Function("isIP", Overload((STRING,), BOOL, _is(_address))),
    Function("isCIDR", Overload((STRING,), BOOL, _is(_network))),
    Function(
        "ip",
        Overload((STRING,), IP, _address),
        Overload((IP,), IP, lambda _, address: address),
        Overload((CIDR,), IP, lambda _, network: _bare(network), member=True),
    ),
    Function(
        "cidr",
        Overload((STRING,), CIDR, _network),
        Overload((CIDR,), CIDR, lambda _, network: network),
    ),
    Function("ip.isCanonical", Overload((STRING,), BOOL, _is_canonical)),
    Function("family", Overload((IP,), INT, lambda _, address: address.version, member=True)),
    _test("isUnspecified", lambda _, address: address.is_unspecified),
    _test("isLoopback", lambda _, address: address.is_loopback),
    _test("isLinkLocalUnicast", lambda _, address: address.is_link_local),
    _test("isLinkLocalMulticast", _is_link_local_multicast),
    _test("isGlobalUnicast", _is_global_unicast),
    Function(
        "containsIP",
        Overload((CIDR, IP), BOOL, _contains_ip, member=True),
        Overload((CIDR, STRING), BOOL, _contains_text_ip, member=True),
    ),
    Function(
        "containsCIDR",
        Overload((CIDR, CIDR), BOOL, lambda _, a, b: _contains(a, b), member=True),
        Overload((CIDR, STRING), BOOL, _contains_text_cidr, member=True),
    ),
    Function("masked", Overload((CIDR,), CIDR, _masked, member=True)),
    Function(
        "prefixLength",
        Overload((CIDR,), INT, lambda _, network: network.network.prefixlen, member=True),
    ),
)
