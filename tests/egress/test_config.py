"""The keys under ``egress``: what is read, what is refused, what waits for a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config import Config, ConfigErrors, Listen, ProxyConfig, ProxyLimits, load
from sidecar.config.reload import applicable, difference


@pytest.fixture
def read(tmp_path: Path):  # type: ignore[no-untyped-def]
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"token-{name}\n")

    def reading(text: str) -> Config:
        file = tmp_path / "sidecar.yaml"
        file.write_text(text)
        return load(file, environ={"HOME": "/nowhere"})

    return reading


def faults(read, text: str) -> list[str]:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigErrors) as caught:
        read(text)
    return [f"{fault.path}: {fault.message}" for fault in caught.value.faults]


def test_without_the_key_there_is_no_proxy(read) -> None:  # type: ignore[no-untyped-def]
    for text in ("name: x", "egress:", "egress: {}", "egress: {proxy: {listen: off}}"):
        assert read(text).proxy_listen is None


def test_defaults_and_everything(read) -> None:  # type: ignore[no-untyped-def]
    plain = read("egress: {proxy: {}}")
    assert (plain.proxy_listen, plain.proxy) == (Listen("127.0.0.1", 8811), ProxyConfig())
    config = read(
        "servers: {s: {command: [x], egress: proxy}}\n"
        "egress:\n  proxy:\n    listen: 127.0.0.1:0\n"
        "    clients: {app: {token_file: one}}\n    never: [10.0.0.5, '2001:db8::/32']\n"
        "    limits: {connections: 2, bytes: 1MiB, time: 1m, idle: 5s}\n"
    )
    assert config.servers["s"].egress == "proxy"
    assert config.proxy_listen == Listen("127.0.0.1", 0)
    assert config.proxy.never == ("10.0.0.5/32", "2001:db8::/32")
    assert config.proxy.limits == ProxyLimits(2, 1 << 20, 60.0, 5.0)
    assert list(config.proxy.clients) == ["app"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "egress: {proxy: {never: [localhost]}}",
            'egress.proxy.never[0]: "localhost" is no address or network; write it like 10.0.0.5 '
            "or 10.0.0.0/8",
        ),
        (
            "egress: {proxy: {clients: {a: {token_file: one}, b: {token_file: one}}}}",
            "egress.proxy.clients.b.token_file: holds the same token as egress.proxy.clients.a; "
            "each needs its own",
        ),
        (
            "agents: {app: {token_file: one}}\negress: {proxy: {clients: {a: {token_file: one}}}}",
            "egress.proxy.clients.a.token_file: holds the same token as agents.app; "
            "each needs its own",
        ),
        (
            "listen: 127.0.0.1:8811\negress: {proxy: {}}",
            "egress.proxy.listen: 127.0.0.1:8811 is the address of listen too; give each its own",
        ),
        (
            "egress: {proxy: {listen: 'unix:/x'}}",
            "egress.proxy.listen: cannot be a unix socket; write an address with a port",
        ),
        (
            "servers: {s: {command: [x], egress: proxy}}",
            "servers.s.egress: there is no proxy; add egress: {proxy: {}} at the root, "
            "or remove this",
        ),
        (
            "servers: {s: {command: [x], egress: proxy, env: {https_proxy: 'http://x'}}}\n"
            "egress: {proxy: {}}",
            "servers.s.env: https_proxy is set by the sidecar where egress is proxy",
        ),
    ],
)
def test_what_is_refused(read, text: str, told: str) -> None:  # type: ignore[no-untyped-def]
    assert faults(read, text) == [told]


def test_reload(read) -> None:  # type: ignore[no-untyped-def]
    """Clients and bounds at once, the listener at a restart."""
    old = read("egress: {proxy: {listen: 127.0.0.1:1, clients: {a: {token_file: one}}}}")
    new = read("egress: {proxy: {listen: 127.0.0.1:2, clients: {b: {token_file: two}}}}")
    change = difference(old, new)
    assert (change.settings, change.needs_restart) == (("egress",), ("egress.proxy.listen",))
    applied = applicable(old, new)
    assert applied.proxy_listen == Listen("127.0.0.1", 1)
    assert list(applied.proxy.clients) == ["b"]
