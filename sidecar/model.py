"""The nouns of the sidecar as small typed structs.

Everything here is data: no room's behaviour lives in this module, and it imports nothing of
ours, so that every room can speak in the same words.

Payloads of calls are never modelled. A request's ``params`` are plain JSON; a result is
``Fields``: its top-level keys, each value either plain JSON or a ``msgspec.Raw`` that nobody
needed to read and that is written out byte for byte.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

# A JSON value as it was decoded. Recursive aliases cost more in casts than they find.
Json: TypeAlias = object
# A decoded JSON object: ``params`` of a request, a schema, a ``_meta``.
JsonObject: TypeAlias = dict[str, object]
# The top-level keys of a JSON object; values are ``msgspec.Raw`` (unread) or plain JSON.
Fields: TypeAlias = dict[str, object]
# A JSON-RPC request id as MCP allows it.
RequestId: TypeAlias = int | str


class Era(enum.StrEnum):
    """The two generations of MCP: sessions with ``initialize``, and stateless."""

    LEGACY = "legacy"
    MODERN = "modern"


class State(enum.StrEnum):
    """A server's state as the admin API tells it."""

    CONNECTING = "connecting"
    READY = "ready"
    BACKOFF = "backoff"
    FAILED = "failed"
    SHADOWED = "shadowed"


# --------------------------------------------------------------------------------- failures


class RpcError(Exception):
    """A JSON-RPC error, ours or a server's: ``code``, ``message`` and ``data`` go out unchanged.

    ``data`` is plain JSON, a ``msgspec.Raw``, or ``None`` when the error has none.
    """

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


Ran: TypeAlias = Literal["no", "maybe"]


class Unavailable(Exception):
    """A server could not answer: connection lost, timeout, HTTP 5xx, leg down, over a cap.

    ``ran`` says whether the request may have reached the tool; only ``no`` is safe to send
    again for a call that is neither read-only nor idempotent. ``retry_in`` is in seconds.
    ``permanent`` means that sending the same request again would fail the same way (a result
    over its cap).
    """

    def __init__(
        self,
        server: str,
        why: str,
        *,
        ran: Ran,
        retry_in: float | None = None,
        permanent: bool = False,
    ) -> None:
        super().__init__(f"{server}: {why}")
        self.server = server
        self.why = why
        self.ran: Ran = ran
        self.retry_in = retry_in
        self.permanent = permanent


NoRoute: TypeAlias = Literal[
    "no_separator",
    "unknown_server",
    "unknown_tool",
    "unknown_prompt",
    "unknown_resource",
    "ambiguous_name",
]


class Unroutable(Exception):
    """A name or URI that leads to nothing this principal may see. ``reason`` is told as it is."""

    def __init__(self, reason: NoRoute, message: str) -> None:
        super().__init__(message)
        self.reason: NoRoute = reason
        self.message = message


# ------------------------------------------------------------------------------- who calls


@dataclass(frozen=True, slots=True)
class Brought:
    """What a client of the stateless era brings with a request that was answered with a question
    of ours (2026-07-28, input required): ``state`` is the ``requestState`` that we gave with the
    question, ``responses`` are its ``inputResponses``. Neither is part of what is sent on."""

    state: str
    responses: JsonObject


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, and which servers they see: globs over server names, ``("*",)`` for all.

    ``on_behalf_of`` is the principal for whom a coding agent calls; empty for everybody else.
    """

    name: str
    servers: tuple[str, ...] = ("*",)
    harnesses: tuple[str, ...] = ()
    checkouts: tuple[str, ...] = ()
    on_behalf_of: str = ""


@dataclass(frozen=True, slots=True)
class Client:
    """What the agent says of itself. Display only: it drives nothing."""

    name: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class TraceContext:
    """W3C trace context as the bare ``_meta`` keys carry it (SEP-414); empty means absent."""

    traceparent: str = ""
    tracestate: str = ""
    baggage: str = ""


NO_TRACE = TraceContext()

# The way back while a call runs: a notification's method and params. Never blocks; what a slow
# reader cannot take is dropped by the implementation, oldest progress first.
Notify: TypeAlias = Callable[[str, JsonObject], None]
# The way back for a request to the client (elicitation, sampling, roots): method, params.
Ask: TypeAlias = Callable[[str, JsonObject], Awaitable[Fields]]
# Told the JSON-RPC id and the version of MCP of each request to a server.
Sent: TypeAlias = Callable[[RequestId, str], None]


def no_notify(method: str, params: JsonObject) -> None:
    """The way back of a caller that listens to nothing."""


@dataclass(slots=True, eq=False)
class Caller:
    """One request's sender: who, in which session, what they can do, and the way back.

    ``session`` is the downstream session id, or empty for the stateless era and for REST.
    ``server`` is set on ``/mcp/{server}``: that server alone, its names unchanged.
    ``deadline`` is in seconds on the running loop's clock, ``None`` for the server's own.
    ``progress`` is the caller's own progress token, ``None`` when it wants no progress.
    ``log_level`` is the lowest level of log messages wanted while this call runs.
    ``ask`` is there where its connection can carry a request to the client while the call runs
    (the sessions' era); whether the client declared what is asked, ``capabilities`` says.
    ``updates``: it is an editor, which hears by ``notify`` what a coding agent says, as it says
    it (``session/update``), waits without an end, and can be asked ``session/request_permission``.
    ``link`` is the trace context of the HTTP request, where ``trace`` came in its message;
    ``request`` is the JSON-RPC id, ``protocol`` the version of MCP that was agreed on.
    ``sent`` is told the id and the version of what is sent to a server in its name.
    """

    principal: Principal
    era: Era = Era.MODERN
    session: str = ""
    server: str | None = None
    client: Client = Client()
    capabilities: JsonObject = field(default_factory=dict)
    trace: TraceContext = NO_TRACE
    deadline: float | None = None
    progress: RequestId | None = None
    log_level: str | None = None
    notify: Notify = no_notify
    ask: Ask | None = None
    brought: Brought | None = None
    link: TraceContext = NO_TRACE
    request: RequestId | None = None
    updates: bool = False
    protocol: str = ""
    sent: Sent | None = None

    @property
    def isolation(self) -> str:
        """The key under which a stateful upstream session belongs to this caller alone."""
        return self.session or f"principal:{self.principal.name}"


# ------------------------------------------------------------------- what a server offers


@dataclass(frozen=True, slots=True)
class Definition:
    """One entry of a server's list as it came: ``key`` is its name, URI or URI template.

    ``json`` is the entry's JSON object, untouched.
    """

    key: str
    json: bytes


@dataclass(frozen=True, slots=True)
class Entries:
    """Everything one server offers, in the server's order, from complete lists only."""

    tools: tuple[Definition, ...] = ()
    prompts: tuple[Definition, ...] = ()
    resources: tuple[Definition, ...] = ()
    templates: tuple[Definition, ...] = ()
    capabilities: JsonObject = field(default_factory=dict)
    instructions: str = ""


NOTHING = Entries()


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """A server as the admin API shows it. ``retry_in`` is in seconds; ``error`` names no secret."""

    name: str
    source: Literal["configured", "runtime"]
    transport: Literal["stdio", "http", "sse", "acp"]
    state: State
    era: Era | None = None
    tools: int = 0
    error: str | None = None
    retry_in: float | None = None


@dataclass(frozen=True, slots=True)
class Hints:
    """Four booleans, always: the operator's word, else the server's, else the safe default."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool of the catalog.

    ``name`` is advertised downstream, ``upstream_name`` is the server's own. ``annotations``
    are the server's own claims under our names (``read_only`` …), unset when not claimed.
    ``digest`` is the sha256 (hex) of the definition's canonical JSON. ``json`` is what a list
    shows under the catalog name, ``own_json`` under the server's own.
    """

    name: str
    server: str
    upstream_name: str
    annotations: Mapping[str, object]
    hints: Hints
    gated: bool
    gate_set: bool
    trusted: bool
    digest: str
    json: bytes
    own_json: bytes


# ---------------------------------------------------------------------------------- calls


class Kind(enum.StrEnum):
    """What kind of thing a call asks for; policies see it as ``tool.kind``."""

    MCP = "mcp"
    ACP = "acp"
    PROMPT = "prompt"
    RESOURCE = "resource"
    COMPLETION = "completion"
    SAMPLING = "sampling"
    ELICITATION = "elicitation"
    ROOTS = "roots"
    PERMISSION = "permission"


class Phase(enum.StrEnum):
    """Where policy is asked."""

    CONNECT = "connect"
    LIST = "list"
    CALL = "call"
    RESULT = "result"


@dataclass(slots=True, eq=False)
class Call:
    """One decided thing: a tools/call, a prompt, a resource, a completion, a permission.

    ``id`` is a uuid4, shared by spans, logs, parking and the answer's ``_meta["sidecar/call"]``.
    ``target`` is the catalog name (a resource's URI) that policy, logs and spans show.
    ``params`` is what will be sent, with the server's own name in it. ``tool`` is ``None`` for
    kinds that have no catalog entry. ``parent`` is the id of the call in which this one came up:
    a coding agent's, for its requests. ``about`` holds the variables ``permission`` and ``work``
    of policies, where the call has them.
    """

    id: str
    kind: Kind
    method: str
    server: str
    target: str
    upstream_name: str
    params: JsonObject
    tool: Tool | None = None
    parent: str = ""
    about: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PolicyError:
    """Why a rule has no value. ``line`` and ``column`` are 1-based in ``file``, 0 when not known.

    ``rule`` is the rule that failed, as in ``Decision.rules``. Nothing here quotes the input.
    """

    kind: str
    line: int
    column: int
    message: str
    rule: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Redaction:
    """What a result rule takes out of a result before it is answered.

    A path leads from the result object (``structuredContent``, ``content`` …) to a value: a
    string is a key, a number an index (negative from the end), ``None`` every key or index of
    what is there. ``patterns`` are RE2 expressions, searched in every string of ``content`` and
    ``structuredContent``. Both are put in place of ``replacement``. With neither paths nor
    patterns the whole content goes.
    """

    rule: str
    paths: tuple[tuple[str | int | None, ...], ...] = ()
    patterns: tuple[str, ...] = ()
    replacement: str = "[redacted]"


@dataclass(frozen=True, slots=True)
class Reason:
    """What one of several rules says. ``constant``: the message quotes nothing of the input."""

    rule: str
    message: str
    constant: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """The one total answer of a policy.

    ``rule`` decided (``policy/id``, ``default`` or ``egress/why``), ``rules`` are all that
    matched and are enforced, ``audited`` those that matched in audit mode. ``mode`` ``audit``
    means that ``decision`` is what happens, and ``would`` what ``would_rule`` would have made
    of it were every rule enforced. ``error`` is the first rule that failed, of either mode.
    ``message`` may quote the input unless ``message_constant``: then it may be recorded.
    ``labels`` and ``redactions`` are what result rules add and take out. ``reasons``: where it
    asks and more than one rule matched, all that ask and what each says, ``rule`` among them.
    """

    decision: Literal["allow", "deny", "ask"]
    rule: str
    rules: tuple[str, ...] = ()
    policy: str = ""
    revision: str = ""
    message: str = ""
    mode: Literal["enforce", "audit"] = "enforce"
    would: Literal["allow", "deny", "ask"] | None = None
    error: PolicyError | None = None
    labels: tuple[str, ...] = ()
    redactions: tuple[Redaction, ...] = ()
    audited: tuple[str, ...] = ()
    would_rule: str = ""
    message_constant: bool = True
    reasons: tuple[Reason, ...] = ()


CLIENT_CANCELLED = "cancelled by the client"
"""What a request's task is cancelled with when its client said so, rather than to hang up."""


class NotSent(Exception):
    """What an admitted call ends with that was not sent after all. The text says why."""


# How an admitted call ended: its answer, or what it raised. Returns when that is written down.
Settle: TypeAlias = Callable[["Fields | BaseException"], Awaitable[None]]


@dataclass(slots=True)
class Admitted:
    """The call may be sent; ``decision`` says why, under which revision.

    ``settle`` is set where a person approved the call: it is owed once, however the call ends.
    Not frozen: one is made for each call, and freezing it costs as much as deciding does.
    """

    decision: Decision
    settle: Settle | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Refused:
    """The call is answered by ``result`` instead of being sent (denied, parked, expired).

    ``joined``: another call, equal to this one, was sent for both, and ``result`` is its answer.

    ``error`` is set for kinds whose result cannot say that it is an error (prompts, resources,
    completion): it is raised then, and ``result`` is not looked at.
    """

    decision: Decision
    kind: Literal["denied", "parked", "running", "expired", "joined"]
    result: Fields
    error: RpcError | None = None


# -------------------------------------------------------------------------------- answers


SIDECAR_META = "sidecar/"
"""The prefix of every ``_meta`` key that is ours. From anybody else such keys are dropped."""
