"""Composes the rooms, starts and stops them in order. The only module that knows all of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sidecar import __version__
from sidecar.admin.api import Route
from sidecar.admin.health import HealthListener
from sidecar.admin.listener import AdminListener, SocketInUse
from sidecar.admin.roles import Actor, Role, Tokens
from sidecar.admin.routes import calls as calls_routes
from sidecar.admin.routes import egress as egress_routes
from sidecar.admin.routes import events as events_routes
from sidecar.admin.routes import pins as pins_routes
from sidecar.admin.routes import policy as policy_routes
from sidecar.admin.routes import servers as servers_routes
from sidecar.admin.routes import sessions as sessions_routes
from sidecar.admin.routes import tools as tools_routes
from sidecar.config import Config, Listen, ServerConfig, places, values
from sidecar.config.reload import applicable, difference, token_files
from sidecar.config.secrets import EnvFileSecrets
from sidecar.downstream import AgentListener, Authenticator, principals, tokens_of
from sidecar.downstream.join import run_joined
from sidecar.egress.house import HERE, Egress
from sidecar.events import Bus
from sidecar.gate import Gatehouse
from sidecar.gateway import Gateway
from sidecar.model import Caller, JsonObject, ServerStatus
from sidecar.parking import Parking
from sidecar.parking.webhook import Hook
from sidecar.policy.holder import PolicyHolder
from sidecar.ports.connector import Connector
from sidecar.ports.policy import PolicyErrors
from sidecar.ports.secrets import SecretError
from sidecar.ports.store import StoreError
from sidecar.ports.upstream import Upstream
from sidecar.store.configured import configured_store
from sidecar.supervisor import SECOND_INTERRUPT
from sidecar.telemetry import audit
from sidecar.telemetry.audit_gate import audited
from sidecar.upstream import McpServer
from sidecar.upstream.registry import Denial, Registry, Rules
from sidecar.watch import FileWatch

log = logging.getLogger("sidecar")

CLOSE_WAIT = 8.0
"""Seconds that servers get to end once nothing uses them any more; each bounds itself as well."""
BAD_POLICY = 3
"""The exit code for policies that do not load, as for a configuration."""
INPUTS = "decisions.jsonl"
JOIN_WAIT = 1.0
"""Seconds to find out whether a sidecar is there to join."""


class StartError(Exception):
    """The sidecar cannot start; the text says why and what to do. ``code`` is to exit with."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Ready:
    """Where it listens: URLs, or ``unix:PATH``; empty for a listener that is off."""

    mcp: str
    admin: str = ""
    health: str = ""

    def __str__(self) -> str:
        told = {"mcp": self.mcp, "admin": self.admin, "health": self.health}
        return "sidecar ready " + " ".join(f"{k}={v}" for k, v in told.items() if v)


class App:
    """One sidecar: ``start``, any number of ``reload``, ``drain``, ``close``."""

    def __init__(self, config: Config, *, own: frozenset[int] | None = None) -> None:
        """``own`` are the pids whose descendants may not use the admin socket.

        Raises:
            StartError: a token cannot be read, or the store's URL leads to no store.
        """
        self._config = config
        self._own = own if own is not None else frozenset({os.getpid(), os.getppid()} - {0, 1})
        self._secrets = EnvFileSecrets(os.environ)
        self.bus = Bus()
        self._servers: dict[str, McpServer] = {}
        self._names: set[str] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._agent: AgentListener | None = None
        self._admin: AdminListener | None = None
        self._health: HealthListener | None = None
        self._draining = False
        self._serving = False
        try:
            self._auth = Authenticator(tokens_of(config, self._secrets))
            self._store = configured_store(config, self._secrets)
            self.egress = Egress(lambda: self.policies.current, self.bus, config, self._secrets)
        except (SecretError, StoreError, ValueError) as error:
            raise StartError(str(error)) from error
        self.policies = PolicyHolder(config.policies, config.policy, schemas=self._schema)
        self.parking = Parking(
            self._store,
            config.parking,
            revision=lambda: self.policies.current.revision,
            bus=self.bus,
            labels=self._labels,
        )
        self._hook = Hook(
            config.parking.webhook, self._secrets, self._hook_dialer, name=config.name
        )
        self.parking.tell(self._hook.tell)
        self._gatehouse = Gatehouse(
            self.policies,
            self._store,
            self.bus,
            config,
            servers=self._server_config,
            inputs=_inputs_file(config),
            parking=self.parking,
        )
        self._audit = audit.configured(config, self.bus)
        gate = audited(self._gatehouse.gate, self._audit, self.bus, config.audit)
        self.gateway = Gateway(config, self.bus, gate=gate)
        self.parking.definition = self.gateway.definition
        # Under other policies, what is listed may be another thing.
        self.policies.listen(lambda _: self.gateway.tools_changed())
        self.policies.listen(lambda _: self.parking.reloaded())
        self.registry = Registry(
            self._store,
            shared=values.shared(config.store),
            rules=Rules.of(config),
            make=self._make,
            end=self._end,
            placed=self._place,
            check=self._may_be_added,
        )

    def _hook_dialer(self, url: str) -> Connector:
        # Its connections pass the egress rules as a server would that cannot be configured.
        return self.egress.connector(ServerConfig("sidecar", "http", url=url))

    def _labels(self, caller: Caller) -> tuple[str, ...]:
        return self._gatehouse.ledger.of(caller)

    async def _may_be_added(self, config: ServerConfig) -> Denial | None:
        checked = await self.egress.added(config)
        if checked.ok:
            return None
        return Denial(checked.decision.rule, checked.decision.message or checked.verdict.text)

    def _server_config(self, name: str) -> ServerConfig | None:
        return self.gateway.config_of(name)

    def _schema(self, server: str, tool: str) -> JsonObject | None:
        return self.gateway.schema(server, tool)

    # ------------------------------------------------------------------------ start and end

    async def start(self, *, listen: bool = True) -> Ready:
        """Open the store, start every server (waiting for none), bind every listener.

        Without ``listen`` no listener is bound: standard input is the only way in.

        Raises:
            StartError: the store or a listener. What was started is closed again.
        """
        try:
            return await self._start(listen)
        except BaseException:
            await self.close()
            raise

    async def _start(self, listen: bool) -> Ready:
        try:
            # First, because nothing is decided without a record.
            if self._audit is not None:
                await self._audit.start()
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(f"audit: {where}{error.strerror or error}") from error
        try:
            await self._store.open()
        except StoreError as error:
            raise StartError(f"store: {error}") from error
        try:
            await self.policies.start()
        except PolicyErrors as errors:
            raise StartError(f"the policies do not load:\n{errors}", BAD_POLICY) from errors
        try:
            await self._gatehouse.start(self.gateway.tools)
            await self.parking.start()
            self._hook.start()
        except StoreError as error:
            raise StartError(f"store: {error}") from error
        except OSError as error:
            raise StartError(f"policy.record: {_recording(error)}") from error
        await self._start_proxy(listen)
        self._use_servers(self._config.servers.values())
        await self.registry.start()
        if not listen:
            self._serving = True
            return Ready("")
        # Listeners come last: whoever can connect finds everything behind it in place.
        agent = health = admin = ""
        if self._config.admin.listen is not None:
            admin = await self._start_admin(self._config.admin.listen)
        if self._config.listen is not None:
            self._agent = AgentListener(
                self.gateway,
                self._auth,
                self.bus,
                name=self._config.name,
                version=__version__,
                limits=self._config.limits,
            )
            with _binding("listen", self._config.listen):
                bound = await self._agent.start(self._config.listen)
                agent = f"http://{bound}/mcp" if bound.path is None else str(bound)
        self._serving = True
        if self._config.health is not None:
            self._health = HealthListener(self._not_ready)
            with _binding("health.listen", self._config.health):
                health = await self._health.start(self._config.health)
        return Ready(mcp=agent, admin=admin, health=health)

    async def _start_proxy(self, listen: bool) -> None:
        """Before the servers, which may be told of it. Children have one without listeners too."""
        address = self._config.proxy_listen
        if address is not None and not listen:
            address = HERE
        if address is not None:
            with _binding("egress.proxy.listen", address):
                log.info("the forward proxy listens on %s", await self.egress.start(address))

    async def listen_to_people(self) -> None:
        """Bind the admin listener alone, unless somebody has it: a process without listeners
        would be one in which nobody can approve anything."""
        listen = self._config.admin.listen
        try:
            if listen is not None:
                log.info("calls that wait are answered at %s", await self._start_admin(listen))
        except StartError as error:
            log.info("another process answers calls that wait, if any does: %s", error)

    async def _start_admin(self, listen: Listen) -> str:
        tokens = Tokens(self._admin_tokens())
        self._admin = AdminListener(self._admin_routes(), tokens=tokens, own=self._own)
        with _binding("admin.listen", listen):
            return await self._admin.start(listen)

    def _admin_routes(self) -> list[Route]:
        """What the admin listener serves; each noun's module says what it needs."""
        return [
            *servers_routes.routes(self.servers, self.registry),
            *tools_routes.routes(self.gateway.tools),
            *sessions_routes.routes(self._sessions, self._gatehouse.ledger),
            *calls_routes.routes(self.parking, self._gatehouse.ledger, self.gateway.definition),
            *events_routes.routes(self.bus),
            *pins_routes.routes(self._gatehouse.pins, self.gateway.tools),
            *policy_routes.routes(self.policies.status, lambda: self.policies.current),
            *egress_routes.routes(self.egress, self._server_config),
        ]

    def _admin_tokens(self) -> Iterator[tuple[str, Actor]]:
        """Raises StartError."""
        admin, setting = self._config.admin, "admin.token_file"
        try:
            if admin.token is not None:
                yield self._secrets.read(admin.token), Actor("admin", Role.OPERATOR)
            for name, approver in admin.approvers.items():
                setting = f"admin.approvers.{name}.token_file"
                yield self._secrets.read(approver.token), Actor(name, Role.named(approver.role))
        except SecretError as error:
            raise StartError(f"{setting}: {error}") from error

    async def drain(self) -> None:
        """Readiness off at once, nothing new; what runs gets ``drain.grace`` seconds to end."""
        self._draining = True
        self.parking.drain()
        grace = self._config.drain_grace
        proxied = asyncio.create_task(self.egress.drain(grace), name="drain of the proxy")
        try:
            if self._agent is not None:
                await self._agent.drain(grace)
            await proxied
        finally:
            proxied.cancel()

    async def close(self) -> None:
        """End everything, in the reverse order. Idempotent."""
        self._draining = True
        for listener in (self._agent, self._admin, self._health):
            if listener is not None:
                await listener.close()
        await self.gateway.close()
        await self.registry.close()
        for name in list(self._servers):
            self._end(self._servers.pop(name))
        if self._ending:
            _, late = await asyncio.wait(self._ending, timeout=CLOSE_WAIT)
            for task in late:
                log.warning("%s did not end in time", task.get_name())
        await self.egress.close()
        await self.parking.close()
        await self._hook.close()
        await self.policies.close()
        await self._gatehouse.close()
        if self._audit is not None:
            await self._audit.close()
        await self._store.close()

    def _sessions(self) -> Sequence[JsonObject]:
        return self._agent.sessions() if self._agent is not None else []

    def _not_ready(self) -> str | None:
        if self._draining:
            return "draining"
        return None if self._serving else "starting"

    # ------------------------------------------------------------------------ servers

    def _use_servers(self, configs: Iterable[ServerConfig]) -> None:
        """Exactly these servers, in this order; those whose configuration is the same stay."""
        kept: dict[str, McpServer] = {}
        for config in configs:
            server = self._servers.get(config.name)
            if server is None or server.config != config:
                server = self._make(config)
                server.start()
            kept[config.name] = server
        before, self._servers = self._servers, kept
        self._place()
        for name, server in before.items():
            if kept.get(name) is not server:
                self._end(server)

    def _make(self, config: ServerConfig) -> McpServer:
        return McpServer(
            config,
            name=self._config.name,
            bus=self.bus,
            limits=self._config.limits,
            secrets=self._secrets,
            connector=self.egress.connector(config),
            proxy=self.egress.proxy,
            source="runtime" if config.runtime else "configured",
        )

    def _place(self) -> None:
        """The configured servers in the file's order, then those added at run time by name."""
        configured: list[tuple[Upstream, ServerConfig]] = [
            (server, server.config) for server in self._servers.values()
        ]
        placed = configured + self.registry.running()
        self.gateway.set_servers(placed)
        names = {config.name for _, config in placed}
        for name in self._names - names:
            self.parking.removed(name)
        self._names = names

    def servers(self) -> list[ServerStatus]:
        """Every server, sorted by name; those that only the store has say why they do not run."""
        here = [server.status for server in self._servers.values()]
        return sorted([*here, *self.registry.servers()], key=lambda each: (each.name, each.source))

    def _end(self, server: Upstream) -> None:
        """Close a server without waiting for it; ``close`` waits for all that are left."""
        task = asyncio.create_task(server.close(), name=f"server {server.name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------------ reload

    async def reload(self, config: Config) -> str:
        """Take over what can be taken over without a restart; returns one line that tells.

        Raises:
            StartError: a token cannot be read; nothing was changed.
        """
        try:
            # Also when nothing else changed: a rotated token is a new value at the same place.
            self._auth.update(tokens_of(config, self._secrets))
            self.egress.update(config)
        except (SecretError, ValueError) as error:
            raise StartError(str(error)) from error
        change = difference(self._config, config)
        if not change:
            return "no setting changed" + ("; tokens were read again" if self.token_files() else "")
        gone = principals(self._config) - principals(config)
        self._config = applicable(self._config, config)
        self.parking.reconfigure(self._config.parking)
        self._hook.reconfigure(self._config.parking.webhook)
        for name in gone:
            self.parking.revoked(name)
        self.gateway.reconfigure(self._config)
        await self._reconfigure_gate()
        if self._agent is not None:
            self._agent.reconfigure(self._config.limits)
        # A name leaves the store's servers before the file's takes it, and comes back after.
        self.registry.configure(Rules.of(self._config))
        self._use_servers(self._config.servers.values())
        return str(change)

    def token_files(self) -> tuple[Path, ...]:
        """The files in which the tokens in force are."""
        return token_files(self._config)

    async def _reconfigure_gate(self) -> None:
        """Policies that do not load leave those before in force; the log says so."""
        await self.policies.reconfigure(self._config.policies, self._config.policy)
        try:
            await self._gatehouse.reconfigure(self._config)
        except OSError as error:
            log.error("policy.record: %s", _recording(error))


def _inputs_file(config: Config) -> Path | None:
    """Where inputs of decisions go: beside the store, or where it would be."""
    if config.store.startswith("sqlite:"):
        return Path("/" + config.store.partition(":")[2].lstrip("/")).with_name(INPUTS)
    folder = places.state_folder(os.environ)
    return folder / INPUTS if folder is not None else None


def _recording(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"inputs of decisions cannot be recorded: {where}{error.strerror}"


@contextlib.contextmanager
def _binding(setting: str, listen: Listen) -> Iterator[None]:
    try:
        yield
    except SocketInUse as error:
        raise StartError(f"{setting}: {error}") from error
    except OSError as error:
        raise StartError(
            f"{setting}: cannot listen on {listen}: {os.strerror(error.errno or 0)}; "
            "stop what uses it, or choose another address"
        ) from error


# ---------------------------------------------------------------------------- serving


async def serve(
    config: Config,
    read: Callable[[], Config | None],
    *,
    files: Sequence[Path] = (),
    on_ready: Callable[[Ready], None] = print,
) -> int:
    """Serve until SIGTERM or SIGINT, then drain and end; a second signal ends at once.

    ``read`` reads the configuration again, on SIGHUP or when ``files`` change, and returns
    ``None`` when it is faulty: what is in force stays in force.
    """
    stop, hurry, again = asyncio.Event(), asyncio.Event(), asyncio.Event()

    loop = asyncio.get_running_loop()
    asked = float("inf")

    def on_stop() -> None:
        nonlocal asked
        # Sent to the whole process group it comes twice: to us, and through the supervisor.
        if loop.time() >= asked + SECOND_INTERRUPT:
            hurry.set()
        asked = min(asked, loop.time())
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, again.set)
    app = App(config)
    on_ready(await app.start())
    sys.stdout.flush()
    # What start-up made lives as long as the process: the collector need not look at it again.
    gc.collect()
    gc.freeze()
    watching = asyncio.create_task(_reload_on(app, read, again, files))
    try:
        await stop.wait()
        log.info("draining: what runs gets %g s to end", config.drain_grace)
        await _first(app.drain(), hurry.wait())
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await app.close()
    return 0


async def _reload_on(
    app: App, read: Callable[[], Config | None], again: asyncio.Event, files: Sequence[Path]
) -> None:
    """Reload for as long as the process serves; nothing that a file holds ends this.

    Files of tokens are watched as well: whoever rotates one touches nothing else.
    """
    tokens = app.token_files()
    watch = FileWatch([*files, *tokens])
    while True:
        if files:
            await _first(watch.changed(), again.wait())
        else:
            await again.wait()
        again.clear()
        # Made before the files are read: what is written after that is a change of its own,
        # and what a signal told of is none any more.
        watch = FileWatch([*files, *tokens])
        config = await asyncio.to_thread(read)
        if config is None:
            log.error("the configuration is faulty; the one in force stays in force")
            continue
        try:
            log.info("reloaded: %s", await app.reload(config))
        except StartError as error:
            log.error("not reloaded: %s; the configuration in force stays in force", error)
        if tokens != (tokens := app.token_files()):
            # Other files, and they may have changed since they were read: look again soon.
            watch = FileWatch([*files, *tokens])
            again.set()


async def _first(*waits: Coroutine[object, object, object]) -> None:
    """Return when one of them is done; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serve_stdio(
    config: Config,
    *,
    server: str | None,
    join: tuple[str, dict[str, str]] | None,
    socket: str | None = None,
) -> int:
    """Serve standard input until it ends.

    ``join`` is the base URL of a sidecar that may run, and the headers that authenticate there;
    ``socket`` is the path of the unix socket behind it, ``None`` for TCP. When nobody listens
    there, this process serves alone, without listeners.
    """
    if join is not None and await _listening(join[0], socket):
        url = f"{join[0]}/mcp" + (f"/{server}" if server is not None else "")
        log.info("joined the sidecar at %s", join[0] if socket is None else f"unix:{socket}")
        await run_joined(url, join[1], socket)
        return 0
    from sidecar.downstream.stdio import StdioServer

    app = App(config)
    await app.start(listen=False)
    await app.listen_to_people()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await _first(StdioServer(app.gateway, config, server=server).run(), stop.wait())
    finally:
        await app.close()
    return 0


async def _listening(base: str, socket: str | None) -> bool:
    """Whether something accepts connections there."""
    url = urlsplit(base)
    try:
        async with asyncio.timeout(JOIN_WAIT):
            if socket is not None:
                _, writer = await asyncio.open_unix_connection(socket)
            else:
                port = url.port or (443 if url.scheme == "https" else 80)
                _, writer = await asyncio.open_connection(url.hostname, port)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
