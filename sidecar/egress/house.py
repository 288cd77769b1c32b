"""All of egress in one place: what the app starts, configures again, and closes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.config import Config, Listen, ServerConfig
from sidecar.egress import own
from sidecar.egress.check import NOBODY, SIDECAR, About, Checked, EgressCheck, Reason
from sidecar.egress.dial import ServerDialer
from sidecar.egress.proxy import ForwardProxy
from sidecar.egress.resolve import SystemResolver
from sidecar.events import Bus
from sidecar.ports.connector import Connector
from sidecar.ports.policy import Policy
from sidecar.ports.secrets import Secrets

HERE: Final = Listen("127.0.0.1", 0)
"""Where the proxy listens for children alone, when this process serves nobody else."""


class Egress:
    """``check`` decides, ``connector`` dials for servers, ``proxy`` for everybody else."""

    def __init__(
        self, policy: Callable[[], Policy], bus: Bus, config: Config, secrets: Secrets
    ) -> None:
        """``policy`` gives the policy in force.

        Raises:
            SecretError: a client's token cannot be read.
            ValueError: the variable with the node's addresses holds something else.
        """
        self._secrets = secrets
        self._resolver = SystemResolver()
        self.check = EgressCheck(policy, self._resolver, bus)
        self.proxy = ForwardProxy(self.check, config.proxy.limits)
        self.update(config)

    def update(self, config: Config) -> None:
        """Take over another configuration, but for where the proxy listens; tokens are read
        again. Raises as the constructor; nothing was changed then."""
        tokens = {name: self._secrets.read(ref) for name, ref in config.proxy.clients.items()}
        never = own.never(config.proxy.never)
        self.check.proxy_never = never
        self.proxy.update(tokens, config.proxy.limits)

    async def start(self, listen: Listen | None) -> str:
        """Start the proxy, if there is to be one; where it listens. Raises OSError."""
        return "" if listen is None else await self.proxy.start(listen)

    def connector(self, config: ServerConfig) -> Connector:
        """How a server's connections are dialled."""
        return ServerDialer(self.check, config)

    async def added(self, config: ServerConfig, by: str = "") -> Checked:
        """The check of a server that ``by`` wants to add; empty: the sidecar's own program."""
        return await self.check.url(config.url, "added", About.of(config, by or SIDECAR))

    async def asked(
        self, url: str, reason: Reason = "added", config: ServerConfig | None = None
    ) -> Checked:
        """What the check says of a URL that nobody dials now, for a server or for nobody."""
        about = NOBODY if config is None else About.of(config)
        return await self.check.url(url, reason, about, asked=True)

    async def drain(self, grace: float) -> None:
        """Take nothing new; what runs gets ``grace`` seconds."""
        await self.proxy.drain(grace)

    async def close(self) -> None:
        """End everything. Idempotent."""
        await self.proxy.close()
        await self._resolver.close()
