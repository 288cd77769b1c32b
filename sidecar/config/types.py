"""The configuration as the rooms see it: frozen, typed, complete, every default filled in.

Durations are seconds (float), sizes are bytes (int), paths are absolute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret value is: an environment variable or a file, optionally in a template.

    ``template`` holds ``{}`` where the value goes. A literal (a value written in the file)
    has neither; it is shown as ``***`` like any other.
    """

    from_env: str | None = None
    from_file: Path | None = None
    template: str | None = None
    literal: str | None = None

    def __repr__(self) -> str:
        """Where the value is, never what it is (a template may hold a part of it)."""
        if self.from_env is not None:
            return f"SecretRef(from_env={self.from_env!r})"
        if self.from_file is not None:
            return f"SecretRef(from_file={str(self.from_file)!r})"
        return "SecretRef(***)"


@dataclass(frozen=True, slots=True)
class Listen:
    """An address: TCP ``host`` and ``port``, or a unix socket's ``path``."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class AnnotationOverride:
    """The operator's word on a tool's hints; ``None`` leaves the server's."""

    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """One MCP server: ``command`` (stdio) or ``url`` (HTTP), never both. With the transport
    ``acp`` it is how the catalog and policies see a harness, which has a configuration of its own.

    ``only`` and ``except_`` are globs over the server's own tool names; ``None`` means not set.
    ``gated`` is ``None`` (not set), a boolean, or globs. ``annotations`` maps a glob to an
    override, first match wins. ``timeout`` is per attempt, in seconds. ``egress`` says whether a
    stdio server is told to use the forward proxy. ``runtime`` is true of
    one that was added while the sidecar runs, never of one in the file; ``checked`` says whether
    the egress verdict on addresses counts for such a one. ``command`` and ``url`` are left
    out of ``repr``: people put keys into arguments and queries.
    """

    name: str
    transport: Literal["stdio", "http", "sse", "acp"]
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, SecretRef] = field(default_factory=dict)
    cwd: Path | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, SecretRef] = field(default_factory=dict)
    only: tuple[str, ...] | None = None
    except_: tuple[str, ...] | None = None
    trusted: bool = False
    gated: bool | tuple[str, ...] | None = None
    annotations: tuple[tuple[str, AnnotationOverride], ...] = ()
    hints: Literal["trust", "restrict"] = "trust"
    timeout: float = 30.0
    era: Literal["auto", "legacy", "modern"] = "auto"
    isolation: Literal["auto", "shared", "session"] = "auto"
    egress: Literal["direct", "proxy"] = "direct"
    runtime: bool = False
    checked: bool = True


Profile = Literal["claude", "codex", "gemini", "opencode", "qwen", "generic"]
"""The coding agents that are known; ``generic`` is any other that speaks ACP."""


@dataclass(frozen=True, slots=True)
class HarnessConfig:
    """One coding agent, offered as one tool.

    ``command`` empty means the profile's own; ``env`` is what its process gets beside the few
    variables that every child gets. ``trusted``: its answers carry no label ``outside``.
    ``gated``: a person approves each call of the tool itself. ``mcp`` are globs over the servers
    that the agent may use through us. ``busy`` is what another task gets while the work has one;
    ``hold`` how many seconds a call is held open while the agent works. ``egress`` says whether
    the agent is told to use the forward proxy. ``command`` is left out of ``repr``: people put
    keys into arguments.
    """

    name: str
    profile: Profile
    command: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, SecretRef] = field(default_factory=dict)
    trusted: bool = False
    gated: bool = False
    mcp: tuple[str, ...] = ()
    busy: Literal["refuse", "queue"] = "refuse"
    hold: float = 600.0
    egress: Literal["direct", "proxy"] = "direct"


@dataclass(frozen=True, slots=True)
class CheckoutConfig:
    """A git repository that coding agents may work in.

    ``base`` is where works begin and land: a branch or ref, ``None`` for ``origin/HEAD``, else
    the branch that is checked out. ``fetch``: a sweep fetches it first.
    """

    name: str
    path: Path
    base: str | None = None
    fetch: bool = False


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """A principal with a token of its own; absent lists mean none."""

    name: str
    token: SecretRef
    servers: tuple[str, ...] = ()
    harnesses: tuple[str, ...] = ()
    checkouts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApproverConfig:
    """Somebody with a token of their own on the admin listener, and how far it reaches."""

    name: str
    token: SecretRef
    role: Literal["viewer", "approver", "operator"] = "approver"


@dataclass(frozen=True, slots=True)
class AdminConfig:
    """The operator's listener. On TCP ``token`` is mandatory; ``None`` means no listener."""

    listen: Listen | None
    token: SecretRef | None = None
    approvers: Mapping[str, ApproverConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CredentialConfig:
    """A secret that servers added at run time may name, and the origins it may be sent to.

    ``origins`` are ``scheme://host[:port]`` in lower case, without a default port. ``header``
    is the header that carries it; the secret's template makes its value.
    """

    name: str
    secret: SecretRef
    origins: tuple[str, ...]
    header: str = "authorization"


@dataclass(frozen=True, slots=True)
class RuntimeServers:
    """What may be added while the sidecar runs.

    ``check``: HTTP alone, after the egress check. ``commands``: stdio servers too, which needs
    ``check`` to be off. ``most`` bounds how many there are.
    """

    check: bool = True
    commands: bool = False
    most: int = 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """``attempts`` in all, the first included; ``base`` seconds, doubled each time, jittered."""

    attempts: int = 3
    base: float = 0.2


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of everything that a stranger can send. Sizes in bytes, times in seconds.

    ``given`` are the fields that the file sets: other defaults may be made to fit the memory
    there is (``sidecar.memory``).
    """

    body: int = 4 << 20
    result: int = 16 << 20
    event: int = 16 << 20
    line: int = 16 << 20
    depth: int = 64
    list_pages: int = 1000
    sessions: int = 1000
    session_ttl: float = 1800.0
    in_flight: int = 1024
    given: frozenset[str] = field(default=frozenset(), repr=False, compare=False)


SHIPPED = ("egress", "gating", "labels", "coding-agents")
"""The policies that come with the sidecar."""


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """How policies decide: by which engine, and what where no rule matches.

    ``shipped`` are those of ours that are loaded; ``record`` says what is kept of a decision's
    input: digests alone, or the inputs too, in a file of their own.
    """

    engine: str = "cel"
    default: Literal["allow", "deny"] = "allow"
    shipped: tuple[str, ...] = SHIPPED
    record: Literal["digests", "inputs"] = "digests"


@dataclass(frozen=True, slots=True)
class LabelsConfig:
    """Trust labels: whose they are, and how many seconds they last after the last result that
    brought them."""

    scope: Literal["principal", "session"] = "principal"
    ttl: float = 86400.0


_UNITS = {1.0: "s", 60.0: "m", 3600.0: "h"}


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` in every ``seconds``: a second, a minute or an hour."""

    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count}/{_UNITS[self.seconds]}"


@dataclass(frozen=True, slots=True)
class Webhook:
    """Who is told of parked calls. Both references may hold a secret: URLs of chats do.

    ``arguments``: whether the arguments of a call are told too.
    """

    url: SecretRef
    secret: SecretRef
    arguments: bool = False


@dataclass(frozen=True, slots=True)
class ParkingConfig:
    """Calls that wait for a person.

    ``hold`` is how many seconds a request is held open, ``expire`` how many a person has to
    answer and the agent, after that, to use the answer. ``max_waiting`` and ``rate`` are for
    one principal. ``redact`` are globs over arguments that nobody is shown. ``elicit``: the
    calling client may be asked too.
    """

    hold: float = 45.0
    expire: float = 86400.0
    max_waiting: int = 20
    rate: Rate = Rate(30, 60.0)
    redact: tuple[str, ...] = ()
    webhook: Webhook | None = None
    elicit: bool = False


@dataclass(frozen=True, slots=True)
class AuditConfig:
    """Where the audit trail goes. ``file`` is set where ``to`` says so, ``rotate`` is the size in
    bytes at which it is set aside. ``unwritten`` says what becomes of a call whose record cannot
    be written."""

    to: Literal["off", "file", "otlp"] = "off"
    file: Path | None = None
    rotate: int = 64 << 20
    unwritten: Literal["deny", "allow"] = "deny"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Log lines on stderr. ``auto`` is text at a terminal and JSON elsewhere; ``access`` says
    whether each call has a line."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    access: bool = False


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """What of tool calls goes on their spans. ``redact`` are globs over what is hidden."""

    arguments: bool = False
    results: bool = False
    redact: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TelemetryConfig:
    """What the environment does not say of telemetry."""

    capture: CaptureConfig = CaptureConfig()


@dataclass(frozen=True, slots=True)
class ProxyLimits:
    """Bounds of the forward proxy: ``connections`` of one client at once, and of each of them
    the bytes both ways and the seconds it may last and be idle."""

    connections: int = 64
    bytes: int = 1 << 30
    time: float = 3600.0
    idle: float = 300.0


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """The forward proxy: tokens of its clients by name, addresses and networks that it never
    dials, and its bounds."""

    clients: Mapping[str, SecretRef] = field(default_factory=dict)
    never: tuple[str, ...] = ()
    limits: ProxyLimits = ProxyLimits()


@dataclass(frozen=True, slots=True)
class Config:
    """The whole file. ``path`` is where it came from, ``None`` for built-in defaults.

    ``listen`` ``None`` means no agent listener (``sidecar stdio`` alone), and ``hosts`` are names
    that it answers to beside its own address. ``token`` is the one
    token of ``auth:``; with ``agents`` each has its own. ``store`` is ``memory``,
    ``sqlite:PATH`` with an absolute path, or the URL of another store, which may hold a
    password and is left out of ``repr``. ``reconcile`` is in seconds, ``None`` for off.
    ``proxy_listen`` ``None`` means no forward proxy. ``worktrees`` is the folder of the works,
    ``None`` only where there is no harness; ``sweep`` is in seconds, ``None`` for off.
    ``children_user`` is the uid of child processes, ``None`` for our own, and
    ``children_home`` their HOME, ``None`` for that user's.
    ``notices`` are lines for the operator about what was taken from ``--mcp-config`` files
    otherwise than it stands there.
    """

    name: str = "sidecar"
    path: Path | None = None
    listen: Listen | None = Listen("127.0.0.1", 8808)
    hosts: tuple[str, ...] = ()
    health: Listen | None = Listen("127.0.0.1", 8810)
    admin: AdminConfig = AdminConfig(None)
    separator: str = "__"
    servers: Mapping[str, ServerConfig] = field(default_factory=dict)
    harnesses: Mapping[str, HarnessConfig] = field(default_factory=dict)
    checkouts: Mapping[str, CheckoutConfig] = field(default_factory=dict)
    worktrees: Path | None = None
    sweep: float | None = 86400.0
    children_user: int | None = None
    children_home: Path | None = None
    agents: Mapping[str, AgentConfig] = field(default_factory=dict)
    token: SecretRef | None = None
    store: str = field(default="memory", repr=False)
    store_key: SecretRef | None = None
    credentials: Mapping[str, CredentialConfig] = field(default_factory=dict)
    runtime_servers: RuntimeServers = RuntimeServers()
    reconcile: float | None = 60.0
    policies: tuple[Path, ...] = ()
    policy: PolicyConfig = PolicyConfig()
    labels: LabelsConfig = LabelsConfig()
    parking: ParkingConfig = ParkingConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    audit: AuditConfig = AuditConfig()
    log: LogConfig = LogConfig()
    proxy_listen: Listen | None = None
    proxy: ProxyConfig = ProxyConfig()
    list_wait: float = 1.0
    retry: Retry = Retry()
    drain_grace: float = 25.0
    limits: Limits = Limits()
    notices: tuple[str, ...] = field(default=(), compare=False)
