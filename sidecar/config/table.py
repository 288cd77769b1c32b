"""Every key of ``sidecar.yaml``: the one table that the loader and the JSON Schema are made of.

Keys of ``servers.*`` are in :mod:`sidecar.config.servers`.
"""

from __future__ import annotations

from typing import Literal, cast

from sidecar.config import notbuilt, places, values
from sidecar.config.audit import Audit
from sidecar.config.egress import EGRESS, Egress
from sidecar.config.harnesses import CHECKOUTS, CHILDREN, HARNESSES, Children
from sidecar.config.logs import LOG
from sidecar.config.parking import PARKING
from sidecar.config.record import Field, Got, Record, every
from sidecar.config.runtime import CREDENTIAL, RUNTIME
from sidecar.config.servers import GLOBS, SERVER
from sidecar.config.shapes import (
    Address,
    Choice,
    FilePath,
    Flag,
    ListOf,
    MapOf,
    OrOff,
    SecretReference,
    Text,
    TokenFile,
    Whole,
    duration,
    plain_text,
    size,
)
from sidecar.config.telemetry import TELEMETRY
from sidecar.config.types import (
    SHIPPED,
    AdminConfig,
    AgentConfig,
    ApproverConfig,
    AuditConfig,
    Config,
    LabelsConfig,
    Limits,
    LogConfig,
    ParkingConfig,
    PolicyConfig,
    Retry,
    RuntimeServers,
    SecretRef,
    TelemetryConfig,
)

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
KIB, GIB = 1 << 10, 1 << 30

# ------------------------------------------------------------------------- who may do what


class Agent:
    """Fields of ``agents.*``."""

    TOKEN_FILE = Field(
        "token_file",
        TokenFile(),
        SecretRef(),
        "A file with the agent's own bearer token.",
        required=True,
    )
    SERVERS = Field(
        "servers", GLOBS, (), 'Patterns of the servers it may use; ["*"] for all, absent: none.'
    )
    HARNESSES = Field(
        "harnesses", GLOBS, (), 'Patterns of the coding agents it may use; ["*"] for all.'
    )
    CHECKOUTS = Field(
        "checkouts", GLOBS, (), 'Patterns of the checkouts it may use them in; ["*"] for all.'
    )


AGENT = Record(
    "an agent's mapping",
    every(Agent),
    lambda got: AgentConfig(
        got.at.key,
        got[Agent.TOKEN_FILE],
        got[Agent.SERVERS],
        got[Agent.HARNESSES],
        got[Agent.CHECKOUTS],
    ),
    notbuilt.rows("agents.*"),
    hints={"token": "write token_file: the path of a file with the token"},
)


class Auth:
    """Fields of ``auth``."""

    NONE = Field("none", Flag(), None, "true: no token is asked for. The default.")
    TOKEN_FILE = Field("token_file", TokenFile(), None, "A file with the one bearer token.")


def _auth(got: Got) -> Got:
    if got[Auth.NONE] and got.has(Auth.TOKEN_FILE):
        got.fault(Auth.NONE, "stands beside token_file; keep one of them")
    elif not got[Auth.NONE] and set(got.node.entries) <= {Auth.NONE.key}:
        got.fault(None, "needs token_file, or none: true")
    return got


AUTH = Record(
    "a mapping",
    every(Auth),
    _auth,
    notbuilt.rows("auth"),
    hints={"token": "write token_file: the path of a file with the token"},
)


class Approver:
    """Fields of ``admin.approvers.*``."""

    TOKEN_FILE = Field(
        "token_file", TokenFile(), SecretRef(), "A file with this person's token.", required=True
    )
    ROLE = Field(
        "role",
        Choice("viewer", "approver", "operator"),
        "approver",
        "viewer looks, approver answers gated calls too, operator may do everything.",
    )


APPROVER = Record(
    "an approver's mapping",
    every(Approver),
    lambda got: ApproverConfig(
        got.at.key,
        got[Approver.TOKEN_FILE],
        cast("Literal['viewer', 'approver', 'operator']", got[Approver.ROLE]),
    ),
    hints={"token": "write token_file: the path of a file with the token"},
)


class Admin:
    """Fields of ``admin``."""

    LISTEN = Field(
        "listen",
        Address(),
        None,
        "unix:/path or an address; default $XDG_RUNTIME_DIR/sidecar/admin.sock; off for none.",
    )
    TOKEN_FILE = Field(
        "token_file", TokenFile(), None, "A file with an operator's token; mandatory on TCP."
    )
    APPROVERS = Field(
        "approvers",
        MapOf(APPROVER, what="people", key=values.principal_name, pattern=values.PRINCIPAL),
        {},
        "People with a token of their own on the TCP listener, by name.",
        empty=True,
    )


def _admin(got: Got) -> AdminConfig:
    context = got.at.context
    listen = got[Admin.LISTEN] if got.has(Admin.LISTEN) else places.admin_socket(context.environ)
    if listen is not None and listen.path is None and not got.has(Admin.TOKEN_FILE):
        got.fault(Admin.LISTEN, "on TCP the admin listener needs token_file beside it")
    return AdminConfig(listen, got[Admin.TOKEN_FILE], dict(got[Admin.APPROVERS]))


ADMIN = Record(
    "a mapping",
    every(Admin),
    _admin,
    notbuilt.rows("admin"),
    hints={"token": "write token_file: the path of a file with the token"},
)

# -------------------------------------------------------------------------------- the rest


class Retries:
    """Fields of ``retry``."""

    ATTEMPTS = Field("attempts", Whole(1, 10), Retry().attempts, "In all, the first included.")
    BASE = Field(
        "base", duration(0, MINUTE), Retry().base, "The first wait; doubled each time, jittered."
    )


class Drain:
    """Fields of ``drain``."""

    GRACE = Field(
        "grace", duration(0, HOUR), Config().drain_grace, "How long running calls may still take."
    )


class Bounds:
    """Fields of ``limits``."""

    BODY = Field("body", size(KIB, GIB), Limits().body, "The largest request body.")
    RESULT = Field("result", size(KIB, GIB), Limits().result, "The largest result.")
    EVENT = Field("event", size(KIB, GIB), Limits().event, "The largest event of a stream.")
    LINE = Field(
        "line",
        size(KIB, GIB),
        Limits().line,
        "The longest line of a stdio server, a coding agent or an editor.",
    )
    DEPTH = Field("depth", Whole(4, 512), Limits().depth, "The deepest nesting of JSON.")
    LIST_PAGES = Field(
        "list_pages", Whole(1, 100_000), Limits().list_pages, "Pages of one list of a server."
    )
    SESSIONS = Field(
        "sessions", Whole(1, 1_000_000), Limits().sessions, "Sessions of agents at once."
    )
    SESSION_TTL = Field(
        "session_ttl", duration(1, 30 * DAY), Limits().session_ttl, "How long an idle one lives."
    )
    IN_FLIGHT = Field(
        "in_flight", Whole(1, 100_000), Limits().in_flight, "Requests of agents that run at once."
    )


RETRY = Record(
    "a mapping", every(Retries), lambda got: Retry(got[Retries.ATTEMPTS], got[Retries.BASE])
)
DRAIN = Record("a mapping", every(Drain), lambda got: got[Drain.GRACE])
LIMITS = Record(
    "a mapping",
    every(Bounds),
    lambda got: Limits(
        body=got[Bounds.BODY],
        result=got[Bounds.RESULT],
        event=got[Bounds.EVENT],
        line=got[Bounds.LINE],
        depth=got[Bounds.DEPTH],
        list_pages=got[Bounds.LIST_PAGES],
        sessions=got[Bounds.SESSIONS],
        session_ttl=got[Bounds.SESSION_TTL],
        in_flight=got[Bounds.IN_FLIGHT],
        given=frozenset(each.key for each in every(Bounds) if got.has(each)),
    ),
)


class Policies:
    """Fields of ``policy``."""

    ENGINE = Field(
        "engine",
        plain_text("an engine's name", 64),
        PolicyConfig().engine,
        "cel, celpy (slow, for comparison), or one that a package brings.",
    )
    DEFAULT = Field(
        "default",
        Choice("allow", "deny"),
        PolicyConfig().default,
        "What is decided where no rule matches: allow or deny.",
    )
    SHIPPED = Field(
        "shipped",
        ListOf(Choice(*SHIPPED), what="the sidecar's own policies"),
        SHIPPED,
        "Which of the sidecar's own policies are loaded; default all.",
    )
    RECORD = Field(
        "record",
        Choice("digests", "inputs"),
        PolicyConfig().record,
        "What is kept of what was decided upon; inputs hold arguments.",
    )


def _policy(got: Got) -> PolicyConfig:
    shipped = got[Policies.SHIPPED]
    if len(set(shipped)) != len(shipped):
        got.fault(Policies.SHIPPED, "names a policy twice")
    # The two choices have been checked; a shape cannot tell the type of its words.
    default: Literal["allow", "deny"] = "deny" if got[Policies.DEFAULT] == "deny" else "allow"
    record: Literal["digests", "inputs"] = (
        "inputs" if got[Policies.RECORD] == "inputs" else "digests"
    )
    return PolicyConfig(got[Policies.ENGINE], default, shipped, record)


POLICY = Record("a mapping", every(Policies), _policy)


class Labels:
    """Fields of ``labels``."""

    SCOPE = Field(
        "scope",
        Choice("principal", "session"),
        LabelsConfig().scope,
        "Whose the labels are: all that a principal does, or each session's own.",
    )
    TTL = Field(
        "ttl",
        duration(1, 365 * DAY),
        LabelsConfig().ttl,
        "How long a label lasts after the last result that brought it.",
    )


def _labels(got: Got) -> LabelsConfig:
    return LabelsConfig(
        "session" if got[Labels.SCOPE] == "session" else "principal", got[Labels.TTL]
    )


LABELS = Record("a mapping", every(Labels), _labels)


class Health:
    """Fields of ``health``."""

    LISTEN = Field(
        "listen",
        Address(unix=False),
        Config().health,
        "/livez, /readyz, /metrics and nothing else; off for none.",
    )


class Root:
    """The file's own fields."""

    NAME = Field("name", plain_text("a name", 64), Config().name, "What the sidecar calls itself.")
    LISTEN = Field(
        "listen",
        Address(),
        Config().listen,
        "Where agents connect: MCP at /mcp, REST at /v1; off for none.",
    )
    HOSTS = Field(
        "hosts",
        ListOf(Text("a host name", values.host_name, {"type": "string"}), what="host names"),
        (),
        "Further names under which agents reach the listener, as they stand in a URL.",
    )
    HEALTH = Field(
        "health",
        Record("a mapping", every(Health), lambda got: got[Health.LISTEN]),
        Config().health,
        "The listener for probes.",
        empty=True,
    )
    ADMIN = Field("admin", ADMIN, None, "The operator's listener.", empty=True)
    SEPARATOR = Field(
        "separator",
        Text("a separator", values.separator, {"type": "string", "pattern": values.SEPARATOR}),
        Config().separator,
        "What stands between a server's name and its tool's.",
    )
    SERVERS = Field(
        "servers",
        MapOf(SERVER, what="servers", key=values.server_name, pattern=values.NAME),
        {},
        "MCP servers by name, in the order in which their tools are offered.",
        empty=True,
    )
    HARNESSES = Field(
        "harnesses", HARNESSES, {}, "Coding agents by name; each is one tool.", empty=True
    )
    CHECKOUTS = Field(
        "checkouts",
        CHECKOUTS,
        {},
        "Git repositories that coding agents may work in: a path, or a mapping.",
        empty=True,
    )
    WORKTREES = Field(
        "worktrees",
        FilePath(),
        None,
        "The folder of the agents' worktrees; needed once there is a harness.",
    )
    SWEEP = Field(
        "sweep",
        OrOff(duration(MINUTE, 30 * DAY)),
        Config().sweep,
        "How often worktrees whose work has landed are removed; off: only when asked.",
    )
    CHILDREN = Field(
        "children", CHILDREN, Children(), "Who the sidecar's child processes run as.", empty=True
    )
    AGENTS = Field(
        "agents",
        MapOf(AGENT, what="agents", key=values.principal_name, pattern=values.PRINCIPAL),
        {},
        "Who may use what; then each needs its token.",
    )
    AUTH = Field("auth", AUTH, None, "How the one agent proves who it is.")
    STORE = Field(
        "store",
        Text(
            "a store",
            values.store,
            {"type": "string", "pattern": "^(?:memory$|[a-z][a-z0-9+.-]*:/)"},
            quiet=True,
        ),
        "",
        "memory, sqlite:///path or postgresql://host/database; "
        "default sqlite:$XDG_STATE_HOME/sidecar/state.db.",
    )
    STORE_KEY = Field(
        "store_key",
        SecretReference(values.store_key),
        None,
        "What seals secrets in the store: 32 bytes in base64; former keys may follow it.",
    )
    CREDENTIALS = Field(
        "credentials",
        MapOf(CREDENTIAL, what="credentials", key=values.server_name, pattern=values.NAME),
        {},
        "Secrets that servers added at run time may name, each for its own origins.",
        empty=True,
    )
    RUNTIME_SERVERS = Field(
        "runtime_servers",
        RUNTIME,
        RuntimeServers(),
        "What may be added while the sidecar runs.",
        empty=True,
    )
    RECONCILE = Field(
        "reconcile",
        OrOff(duration(1, DAY)),
        Config().reconcile,
        "How often the servers in the store are compared with those that run; off: never.",
    )
    POLICIES = Field(
        "policies",
        ListOf(FilePath(), what="paths"),
        (),
        "Policy files, or folders of them; taken over when they change.",
        empty=True,
    )
    POLICY = Field("policy", POLICY, PolicyConfig(), "How policies decide.", empty=True)
    LABELS = Field(
        "labels", LABELS, LabelsConfig(), "What is remembered of untrusted results.", empty=True
    )
    PARKING = Field(
        "parking", PARKING, ParkingConfig(), "Calls that wait for a person's approval.", empty=True
    )
    TELEMETRY = Field(
        "telemetry", TELEMETRY, TelemetryConfig(), "What of calls is told to others.", empty=True
    )
    AUDIT = Field(
        "audit",
        Audit(),
        AuditConfig(),
        "Where every decision and every answer of a person is recorded: a file, otlp, or off.",
    )
    LOG = Field("log", LOG, LogConfig(), "Log lines on stderr.", empty=True)
    EGRESS = Field(
        "egress", EGRESS, Egress(), "Where connections may go, for others than us.", empty=True
    )
    LIST_WAIT = Field(
        "list_wait",
        duration(0, MINUTE),
        Config().list_wait,
        "How long a first list waits for servers that are still starting.",
    )
    RETRY = Field(
        "retry", RETRY, Retry(), "Retries of calls that are safe to send again.", empty=True
    )
    DRAIN = Field("drain", DRAIN, Config().drain_grace, "The end, after SIGTERM.", empty=True)
    LIMITS = Field(
        "limits", LIMITS, Limits(), "Bounds of everything a stranger can send.", empty=True
    )


ROOT: Record[Got] = Record(
    "a mapping of settings",
    every(Root),
    lambda got: got,
    notbuilt.rows(""),
    hints={"mcpServers": "write servers, or give the file to --mcp-config"},
)
