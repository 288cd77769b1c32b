"""Who may use the forward proxy: clients with a token, and children with a minted one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.config import ServerConfig
from sidecar.egress.check import NOBODY, About, server_input

NODE = "NODE_USE_ENV_PROXY"
"""Node.js looks at proxy variables only where this is set."""
HERE = "localhost,127.0.0.1,::1"
"""What a program reaches without the proxy, which never dials it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose a request is. ``name`` is the user name that goes with the token."""

    name: str
    key: bytes
    about: About

    @property
    def principal(self) -> str:
        """As decisions tell it: a client's name, or ``server:NAME``."""
        return self.about.principal


class Access:
    """Tokens, kept as digests. ``revoked`` is called with the identity that lost its access."""

    def __init__(self, revoked: Callable[[Identity], None]) -> None:
        self._revoked = revoked
        self._clients: dict[bytes, Identity] = {}
        self._children: dict[bytes, Identity] = {}

    def update(self, tokens: Mapping[str, str]) -> None:
        """The clients' tokens by name, in place of those before."""
        before = self._clients
        self._clients = {}
        for name, token in tokens.items():
            key = _digest(token)
            about = About(NOBODY.server, name)
            self._clients[key] = Identity(name, key, about)
        for key, identity in before.items():
            if self._clients.get(key) != identity:
                self._revoked(identity)

    def mint(self, config: ServerConfig) -> tuple[Identity, str]:
        """A new token for one process of a server."""
        token = secrets.token_urlsafe(32)
        key = _digest(token)
        about = About(server_input(config), f"server:{config.name}")
        identity = self._children[key] = Identity(config.name, key, about)
        return identity, token

    def revoke(self, identity: Identity) -> None:
        """End a child's access. Idempotent."""
        if self._children.pop(identity.key, None) is not None:
            self._revoked(identity)

    def identify(self, header: str) -> Identity | None:
        """Whose ``Proxy-Authorization`` it is: ``Basic`` (RFC 7617) or ``Bearer`` (RFC 6750)."""
        scheme, _, given = header.partition(" ")
        given = given.strip(" ")
        match scheme.lower():
            case "bearer":
                return self._known(given)
            case "basic":
                try:
                    text = base64.b64decode(given, validate=True).decode()
                except (binascii.Error, UnicodeDecodeError):
                    return None
                name, _, token = text.partition(":")
                found = self._known(token)
                return found if found is not None and found.name == name else None
        return None

    def _known(self, token: str) -> Identity | None:
        # A digest is looked up, so that how long it takes says nothing of the tokens.
        key = _digest(token)
        return self._clients.get(key) or self._children.get(key)


def variables(address: str, name: str, token: str) -> dict[str, str]:
    """What tells a program of the proxy at ``address`` (``host:port``)."""
    url = f"http://{name}:{token}@{address}"
    found = {NODE: "1"}
    for key, value in (("http_proxy", url), ("https_proxy", url), ("no_proxy", HERE)):
        found[key] = found[key.upper()] = value
    return found


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
