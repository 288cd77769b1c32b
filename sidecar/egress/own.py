"""What the forward proxy never dials, whatever a rule allows: this machine, and its node."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from sidecar.egress.addresses import IP, Address
from sidecar.egress.check import Never

NODE_VARIABLE: Final = "SIDECAR_NODE_IP"
"""Where a pod is told its node's addresses (the downward API's ``status.hostIPs``), by commas."""

_ROUTES = Path("/proc/net/route")
_ROUTES6 = Path("/proc/net/ipv6_route")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def never(networks: Iterable[str], environ: Mapping[str, str] = os.environ) -> Never:
    """Tells why an address is this machine's or its node's, or one of ``networks``."""
    told = [each.strip() for each in environ.get(NODE_VARIABLE, "").split(",") if each.strip()]
    nodes = frozenset(_stated(each) for each in told)
    refused = tuple(map(ipaddress.ip_network, networks))

    def why(address: Address) -> str | None:
        if address.ip is None or address.class_ in ("loopback", "unspecified", "ambiguous"):
            return "this machine"
        for ip in _meant(address.ip):
            if any(ip in network for network in refused):
                return "what egress.proxy.never lists"
            if ip in nodes or ip in gateways():
                return "the node"
            if is_own(ip):
                return "this machine"
        return None

    return why


def _stated(text: str) -> IP:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"${NODE_VARIABLE} does not hold addresses, by commas") from None


def _meant(ip: IP) -> list[IP]:
    """The address, and the IPv4 address that it stands for."""
    if isinstance(ip, ipaddress.IPv4Address):
        return [ip]
    inside = ip.ipv4_mapped
    if inside is None and ip in _NAT64:
        inside = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return [ip] if inside is None else [ip, inside]


def is_own(ip: IP) -> bool:
    """Whether it is an address of this machine: only such a one can be bound.

    Where the kernel lets anything be bound (ip_nonlocal_bind) everything counts as own.
    """
    family = socket.AF_INET if isinstance(ip, ipaddress.IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(ip), 0))
    except OSError:
        return False
    return True


def gateways() -> frozenset[IP]:
    """Where the default routes lead: in a pod, mostly to its node (proc_pid_net(5))."""
    found: set[IP] = set()
    for line in _read(_ROUTES)[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == "00000000" and fields[7] == "00000000":
            # The kernel writes the bytes of the address in the order of the machine.
            found.add(ipaddress.IPv4Address(struct.pack("=I", int(fields[2], 16))))
    for line in _read(_ROUTES6):
        fields = line.split()
        if len(fields) > 4 and fields[0] == "0" * 32 and fields[1] == "00":
            found.add(ipaddress.IPv6Address(int(fields[4], 16)))
    return frozenset(ip for ip in found if int(ip))


def _read(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
