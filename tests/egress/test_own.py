"""What the forward proxy never dials, whatever a rule allows."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import pytest

from sidecar.egress import own
from sidecar.egress.addresses import classify


def mine() -> str:
    """An address of this machine that is not loopback, or loopback where it has no other."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("127.0.0.1", "this machine"),
        ("127.9.9.9", "this machine"),
        ("::1", "this machine"),
        ("0.0.0.0", "this machine"),
        ("::", "this machine"),
        ("::ffff:127.0.0.1", "this machine"),
        ("64:ff9b::127.0.0.1", "this machine"),
        ("fe80::1%eth0", "this machine"),
        ("93.184.216.34", None),
        ("10.255.255.1", None),
        ("2606:4700::1111", None),
        ("10.7.0.9", "the node"),
        ("fd77::7", "the node"),
        ("::ffff:10.7.0.9", "the node"),
        ("64:ff9b::10.7.0.9", "the node"),
        ("10.8.1.2", "what egress.proxy.never lists"),
    ],
)
def test_never(text: str, why: str | None) -> None:
    never = own.never(["10.8.0.0/16"], {own.NODE_VARIABLE: "10.7.0.9, fd77::7"})
    assert never(classify(text)) == why


def test_own_addresses() -> None:
    assert own.never([], {})(classify(mine())) == "this machine"
    assert own.is_own(ipaddress.ip_address("127.0.0.1"))
    assert not own.is_own(ipaddress.ip_address("93.184.216.34"))


def test_the_variable_holds_addresses() -> None:
    with pytest.raises(ValueError, match="SIDECAR_NODE_IP"):
        own.never([], {own.NODE_VARIABLE: "node-1"})


def test_gateways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own tables, as they are in a pod."""
    routes = tmp_path / "route"
    routes.write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100F40A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    routes6 = tmp_path / "route6"
    routes6.write_text(
        "00000000000000000000000000000000 00 00000000000000000000000000000000 00 "
        "fd000000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n"
        "fd000000000000000000000000000000 40 00000000000000000000000000000000 00 "
        "00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0\n"
    )
    monkeypatch.setattr(own, "_ROUTES", routes)
    monkeypatch.setattr(own, "_ROUTES6", routes6)
    if ipaddress.ip_address("10.244.0.1") in own.gateways():
        assert own.gateways() == {
            ipaddress.ip_address("10.244.0.1"),
            ipaddress.ip_address("fd00::1"),
        }
    assert own.never([], {})(classify("fd00::1")) == "the node"
    monkeypatch.setattr(own, "_ROUTES", tmp_path / "none")
    monkeypatch.setattr(own, "_ROUTES6", tmp_path / "none")
    assert own.gateways() == frozenset()
