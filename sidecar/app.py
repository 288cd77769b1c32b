"""Composes the rooms, starts and stops them in order. The only module that knows all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidecar import __version__, descriptors, privileges, users
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
from sidecar.admin.routes import works as works_routes
from sidecar.config import Config, Listen, ServerConfig, places, values
from sidecar.config.reload import applicable, difference, token_files
from sidecar.config.secrets import EnvFileSecrets
from sidecar.downstream import AgentListener, Authenticator, principals, tokens_of
from sidecar.egress.house import HERE, Egress
from sidecar.events import Bus
from sidecar.gate import Gatehouse
from sidecar.gateway import Gateway
from sidecar.harness.house import House, HouseError, Means
from sidecar.harness.tokens import RunTokens
from sidecar.model import Caller, JsonObject, ServerStatus
from sidecar.parking import Parking
from sidecar.parking.webhook import Hook
from sidecar.policy.holder import PolicyHolder
from sidecar.ports.connector import Connector
from sidecar.ports.policy import PolicyErrors
from sidecar.ports.secrets import SecretError
from sidecar.ports.store import StoreError
from sidecar.ports.upstream import Upstream
from sidecar.privileges import PrivilegeError
from sidecar.store.configured import configured_store
from sidecar.telemetry import audit
from sidecar.telemetry.audit_gate import audited
from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.logs_house import Logs
from sidecar.telemetry.measures import Measures
from sidecar.telemetry.traces import Tracing
from sidecar.upstream import McpServer
from sidecar.upstream.attempts import Attempts
from sidecar.upstream.registry import Denial, Registry, Rules

log = logging.getLogger("sidecar")

CLOSE_WAIT = 8.0
"""Seconds that servers get to end once nothing uses them any more; each bounds itself as well."""
BAD_POLICY = 3
"""The exit code for policies that do not load, as for a configuration."""
INPUTS = "decisions.jsonl"


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
            StartError: a token cannot be read, the store's URL leads to no store, or the
                environment asks for telemetry that cannot be had.
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
        self._operators = Tokens()
        self._health: HealthListener | None = None
        self._attempts = Attempts(descriptors.limit())
        self._draining = False
        self._serving = False
        self._run_tokens = RunTokens()
        self._mcp_url: str | None = None
        try:
            self._auth = Authenticator(tokens_of(config, self._secrets), runs=self._run_tokens)
            self._measures = Measures(config.name, self.bus, os.environ)
            self._logs = Logs(config, self.bus, os.environ)
            self._tracing = Tracing(config.name, self.bus, os.environ)
            self._store = self._measures.store(configured_store(config, self._secrets))
            self.egress = Egress(lambda: self.policies.current, self.bus, config, self._secrets)
        except (SecretError, SettingError, StoreError, ValueError) as error:
            raise StartError(str(error)) from error
        self.policies = PolicyHolder(
            config.policies, config.policy, schemas=self._schema, bus=self.bus
        )
        self.parking = Parking(
            self._store,
            config.parking,
            revision=lambda: self.policies.current.revision,
            bus=self.bus,
            tracer=self._tracing.tracer,
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
            tracer=self._tracing.kept,
        )
        self._audit = audit.configured(config, self.bus, self._logs.trail)
        gate = audited(self._gatehouse.gate, self._audit, self.bus, config.audit)
        self.gateway = Gateway(config, self.bus, gate=gate, tracer=self._tracing.tracer)
        self.parking.definition = self.gateway.definition
        if self._audit is not None:
            self.parking.recorded = self._audit.written
        self.agents = House(
            Means(
                gate=gate,
                bus=self.bus,
                tokens=self._run_tokens,
                labels=self._gatehouse.ledger,
                secrets=self._secrets,
                mcp_url=lambda: self._mcp_url,
                servers=self._server_names,
                proxy=self.egress.proxy,
                tracer=self._tracing.tracer,
            )
        )
        self._measure()
        # Under other policies, what is listed may be another thing.
        self.policies.listen(lambda _: self.gateway.tools_changed())
        self.policies.listen(lambda _: self.parking.reloaded())
        self.registry = Registry(
            self._store,
            shared=values.shared(config.store),
            rules=_rules(config),
            make=self._make,
            end=self._end,
            placed=self._place,
            check=self._may_be_added,
        )

    def _measure(self) -> None:
        """What metrics ask for when somebody looks."""
        self._measures.servers(self.servers)
        self._measures.parked(self.parking.book.index.counts)
        trail = self._audit
        if trail is not None:
            self._measures.queue("audit", lambda: trail.waiting, lambda: trail.failed)
        if self._logs.export is not None:
            for exporting in self._logs.export.batches:
                self._measures.batches("logs", exporting)
        for batches in self._tracing.batches:
            self._measures.queue("spans", batches.__len__, batches.lost)

    def _hook_dialer(self, url: str) -> Connector:
        # Its connections pass the egress rules as a server would that cannot be configured.
        return self.egress.connector(ServerConfig("sidecar", "http", url=url))

    def _labels(self, caller: Caller) -> tuple[str, ...]:
        return self._gatehouse.ledger.of(caller)

    async def _may_be_added(self, config: ServerConfig, by: str) -> Denial | None:
        checked = await self.egress.added(config, by)
        if checked.ok:
            return None
        why = checked.decision.message or checked.verdict.text
        return Denial(checked.decision.rule, why, checked.allowable)

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
        self._part_from_children()
        try:
            await self._measures.start()
            await self._logs.start()
            await self._tracing.start()
            # First, because nothing is decided without a record.
            if self._audit is not None:
                await self._audit.start()
        except SettingError as error:
            raise StartError(str(error)) from error
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
        try:
            await self.agents.open(self._config)
        except HouseError as error:
            raise StartError(str(error)) from error
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
                hosts=self._config.hosts,
                editors=lambda: self.agents.editors,
            )
            with _binding("listen", self._config.listen):
                bound = await self._agent.start(self._config.listen)
                agent = f"http://{bound}/mcp" if bound.path is None else str(bound)
                self._mcp_url = _reachable(bound)
        self._serving = True
        if self._config.health is not None:
            self._health = HealthListener(self._not_ready, self._measures.page.answer)
            with _binding("health.listen", self._config.health):
                health = await self._health.start(self._config.health)
        return Ready(mcp=agent, admin=admin, health=health)

    def _part_from_children(self) -> None:
        """Decide whom children run as, before the first of them. Raises StartError."""
        uid, home = self._config.children_user, self._config.children_home
        try:
            users.run_as(users.User.of(uid, home) if uid is not None else None)
        except PrivilegeError as error:
            raise StartError(str(error)) from error
        if uid is None:
            # What a worker of another user held for this is of no use to it.
            privileges.forgo()
        spawning = any(each.command for each in self._config.servers.values())
        if (spawning or self._config.harnesses) and (told := users.exposure()):
            log.info("%s", told)

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
        self._operators.update(self._admin_tokens())
        self._admin = AdminListener(
            self._admin_routes(), tokens=self._operators, own=self._own, bus=self.bus
        )
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
            *works_routes.routes(self.agents),
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
        self.agents.drain()
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
        await self.agents.close()
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
        await self._tracing.close()
        await self._measures.close()
        await self._logs.close()
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
            attempts=self._attempts if config.runtime else None,
        )

    def _place(self) -> None:
        """The configured servers in the file's order, then those added at run time by name."""
        configured: list[tuple[Upstream, ServerConfig]] = [
            (server, server.config) for server in self._servers.values()
        ]
        placed = configured + self.agents.upstreams() + self.registry.running()
        self.gateway.set_servers(placed)
        names = {config.name for _, config in placed}
        for name in self._names - names:
            self.parking.removed(name)
            self._measures.forget(name)
        self._names = names

    def servers(self) -> list[ServerStatus]:
        """Every server, sorted by name; those that only the store has say why they do not run."""
        here = [server.status for server in self._servers.values()]
        here += [harness.status for harness, _ in self.agents.upstreams()]
        return sorted([*here, *self.registry.servers()], key=lambda each: (each.name, each.source))

    def _server_names(self) -> list[str]:
        """Of MCP servers, those added at run time among them."""
        return [*self._servers, *[config.name for _, config in self.registry.running()]]

    def _end(self, server: Upstream) -> None:
        """Close a server without waiting for it; ``close`` waits for all that are left."""
        task = asyncio.create_task(server.close(), name=f"server {server.name}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # ------------------------------------------------------------------------ reload

    async def reload(self, config: Config) -> str:
        """Take over what can be taken over without a restart; returns one line that tells.

        Raises:
            StartError: a token cannot be read, or a checkout not be used; nothing was changed.
        """
        operators = list(self._admin_tokens()) if self._admin is not None else []
        try:
            # Also when nothing else changed: a rotated token is a new value at the same place.
            self._auth.update(tokens_of(config, self._secrets))
            self.egress.update(config)
        except (SecretError, ValueError) as error:
            raise StartError(str(error)) from error
        if self._operators.update(operators) and self._admin is not None:
            # Whoever reads events with a token that is void shall not go on.
            self._admin.end_streams()
        change = difference(self._config, config)
        if not change:
            return "no setting changed" + ("; tokens were read again" if self.token_files() else "")
        applied = applicable(self._config, config)
        try:
            await self.agents.reconfigure(applied)
        except HouseError as error:
            raise StartError(str(error)) from error
        gone = principals(self._config) - principals(config)
        self._config = applied
        self._logs.reconfigure(self._config)
        self.parking.reconfigure(self._config.parking)
        self._hook.reconfigure(self._config.parking.webhook)
        for name in gone:
            self.parking.revoked(name)
            self.agents.revoked(name)
        self.gateway.reconfigure(self._config)
        await self._reconfigure_gate()
        if self._agent is not None:
            self._agent.reconfigure(self._config.limits)
        # A name leaves the store's servers before the file's takes it, and comes back after.
        self.registry.configure(_rules(self._config))
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


def _rules(config: Config) -> Rules:
    return Rules.of(config, dict.fromkeys(config.harnesses, "harness"))


def _reachable(bound: Listen) -> str | None:
    """Where a process of this machine reaches us; coding agents know no sockets of files."""
    if bound.path is not None:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound.host, bound.host)
    return f"http://{Listen(host, bound.port)}/mcp"


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
