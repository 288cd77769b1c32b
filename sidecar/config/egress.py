"""Keys of ``egress``: the forward proxy, who may use it, and how much."""

from __future__ import annotations

from dataclasses import dataclass, field

from sidecar.config import values
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.shapes import Address, ListOf, MapOf, Text, TokenFile, Whole, duration, size
from sidecar.config.types import Listen, ProxyConfig, ProxyLimits, SecretRef

HOUR, DAY = 3600.0, 86400.0
KIB, TIB = 1 << 10, 1 << 40

PROXY_VARIABLES = frozenset(
    ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "node_use_env_proxy")
)
"""Environment variables that a server with ``egress: proxy`` gets from the sidecar, in lower
case."""


@dataclass(frozen=True, slots=True)
class Egress:
    """``egress`` as it was read: ``listen`` is ``None`` where there is no proxy."""

    listen: Listen | None = None
    proxy: ProxyConfig = field(default_factory=ProxyConfig)


class ProxyClient:
    """Fields of ``egress.proxy.clients.*``."""

    TOKEN_FILE = Field(
        "token_file",
        TokenFile(),
        SecretRef(),
        "A file with the client's token: the password of the proxy's address.",
        required=True,
    )


CLIENT = Record(
    "a client's mapping",
    every(ProxyClient),
    lambda got: got[ProxyClient.TOKEN_FILE],
    hints={"token": "write token_file: the path of a file with the token"},
)


class Bounds:
    """Fields of ``egress.proxy.limits``."""

    CONNECTIONS = Field(
        "connections",
        Whole(1, 10_000),
        ProxyLimits().connections,
        "Connections of one client at once.",
    )
    BYTES = Field(
        "bytes",
        size(KIB, TIB),
        ProxyLimits().bytes,
        "What one connection may carry, both ways together.",
    )
    TIME = Field(
        "time", duration(1, 30 * DAY), ProxyLimits().time, "How long one connection may last."
    )
    IDLE = Field("idle", duration(1, DAY), ProxyLimits().idle, "How long one may carry nothing.")


LIMITS = Record(
    "a mapping",
    every(Bounds),
    lambda got: ProxyLimits(
        got[Bounds.CONNECTIONS], got[Bounds.BYTES], got[Bounds.TIME], got[Bounds.IDLE]
    ),
)

DEFAULT_LISTEN = Listen("127.0.0.1", 8811)


class Proxy:
    """Fields of ``egress.proxy``."""

    LISTEN = Field(
        "listen", Address(unix=False), DEFAULT_LISTEN, "Where it listens; off for no proxy."
    )
    CLIENTS = Field(
        "clients",
        MapOf(CLIENT, what="clients", key=values.principal_name, pattern=values.PRINCIPAL),
        {},
        "Who may use it beside servers with egress: proxy, by the user name they send.",
        empty=True,
    )
    NEVER = Field(
        "never",
        ListOf(Text("an address", values.network, {"type": "string"}), what="addresses"),
        (),
        "Addresses and networks that it never dials, whatever a rule allows: your nodes'.",
        empty=True,
    )
    LIMITS = Field("limits", LIMITS, ProxyLimits(), "Bounds of one connection.", empty=True)


def _proxy(got: Got) -> Egress:
    proxy = ProxyConfig(dict(got[Proxy.CLIENTS]), got[Proxy.NEVER], got[Proxy.LIMITS])
    return Egress(got[Proxy.LISTEN], proxy)


class EgressKeys:
    """Fields of ``egress``."""

    PROXY = Field(
        "proxy",
        Record("a mapping", every(Proxy), _proxy),
        Egress(),
        "The forward proxy; without this key there is none.",
    )


EGRESS = Record("a mapping", every(EgressKeys), lambda got: got[EgressKeys.PROXY])
