"""The Agent Client Protocol as an agent speaks it, version 1. Sans-io: lines in, things to do out.

One of these is one connection of an editor, to one harness. Unknown methods are refused, unknown
notifications ignored. Which command runs, with what environment, in which mode and with which MCP
servers is not an editor's to say.

Source: ACP schema v1.21, docs/protocol of agentclientprotocol.com.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, cast

from sidecar.config.types import Limits
from sidecar.downstream.acp_prompt import task_of
from sidecar.downstream.acp_updates import Teller, history
from sidecar.harness.run_editor import PERMISSION, UPDATE
from sidecar.mcp import meta
from sidecar.mcp.errors import Rejection, invalid_params, invalid_request
from sidecar.model import (
    SIDECAR_META,
    Client,
    Fields,
    JsonObject,
    RequestId,
    RpcError,
    TraceContext,
)
from sidecar.ports.agents import EditorSession
from sidecar.wire import json, jsonrpc
from sidecar.wire.json import BadJson
from sidecar.wire.jsonrpc import Message
from sidecar.wire.ndjson import Oversize

__all__ = [
    "Begin",
    "Editor",
    "Listing",
    "Opened",
    "Prompt",
    "Replied",
    "Say",
    "Step",
    "Stop",
]

VERSION: Final = 1
MOST_SESSIONS: Final = 64
"""Sessions that one connection may have open."""
MOST_REQUESTS: Final = 128
"""Requests of one connection that may be unanswered."""
MOST_ASKS: Final = 64
"""Questions of ours that one connection may owe answers to."""

NOT_FOUND: Final = -32002
_CANCEL: Final = "$/cancel_request"
_OURS: Final = {
    "session/set_mode": "in which mode the agent works, the sidecar says: one in which it asks",
    "session/set_config_option": "how the agent is set up, the sidecar says",
    "authenticate": "there is nothing to log in to: whoever runs the sidecar has",
}
_CAPABILITIES: Final = {
    "loadSession": True,
    "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
    "mcpCapabilities": {"http": False, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
}

How = Literal["new", "load", "resume"]


@dataclass(slots=True, eq=False)
class Opened:
    """A session that the editor has open. ``prompt`` is the request that has it, if any;
    ``teller`` is that one's. ``ignored`` is how many MCP servers the editor named for it."""

    about: EditorSession
    ignored: int = 0
    greeted: bool = False
    prompt: RequestId | None = None
    teller: Teller = field(default_factory=Teller)


@dataclass(frozen=True, slots=True)
class Say:
    """Send this."""

    message: bytes


@dataclass(frozen=True, slots=True)
class Begin:
    """Find the session and say ``opened``, or ``failed``. ``session`` is empty for a new one."""

    id: RequestId
    how: How
    cwd: str
    session: str
    ignored: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Say ``listed``. ``cwd`` is the folder whose sessions are wanted, ``None`` for all."""

    id: RequestId
    cwd: str | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Have it done, and say ``over`` or ``failed``."""

    id: RequestId
    opened: Opened
    task: str
    trace: TraceContext


@dataclass(frozen=True, slots=True)
class Stop:
    """The prompt of this request is to end, as cancelled."""

    id: RequestId


@dataclass(frozen=True, slots=True)
class Replied:
    """The editor answered a question of ours."""

    id: int
    result: Fields | RpcError


Step = Say | Begin | Listing | Prompt | Stop | Replied


class Editor:
    """One connection's state. ``client`` is what the editor says of itself."""

    def __init__(self, limits: Limits, *, name: str, version: str) -> None:
        """``name`` and ``version`` are our own."""
        self.client = Client()
        self.sessions: dict[str, Opened] = {}
        self._limits = limits
        self._info: JsonObject = {"name": name, "version": version}
        self._begun = False
        self._open: set[RequestId] = set()
        self._asked: set[int] = set()
        self._next = 1

    @property
    def begun(self) -> bool:
        """Whether ``initialize`` came."""
        return self._begun

    # ------------------------------------------------------------------------ what comes in

    def take(self, line: bytes | Oversize) -> list[Step]:
        """What one line means."""
        if isinstance(line, Oversize):
            id_ = jsonrpc.id_from_ends(line.head, line.tail)
            why = f"a message of {line.size} bytes is too long; limits.line says how long one is"
            return [Say(jsonrpc.error(id_, invalid_request(why)))]
        if not line.strip():
            return []
        try:
            message = jsonrpc.parse(line)
            params = self._params(message)
        except jsonrpc.BadMessage as bad:
            return [Say(jsonrpc.error(bad.id, RpcError(jsonrpc.INVALID_REQUEST, str(bad))))]
        except BadJson as bad:
            return [Say(jsonrpc.error(None, RpcError(jsonrpc.PARSE_ERROR, str(bad))))]
        except Rejection as rejection:
            return [Say(jsonrpc.error(rejection.id, rejection))]
        if message.is_response:
            return self._reply(message)
        if message.id is None:
            return self._notified(message.method, params)
        return self._asks(message.id, message.method, params)

    def _params(self, message: Message) -> JsonObject:
        if message.params is None:
            return {}
        try:
            return cast(
                "JsonObject", json.decode_request(bytes(message.params), self._limits.depth)
            )
        except BadJson as bad:
            # That the message has an id is known, whatever is wrong inside of it.
            raise invalid_params(f"params: {bad}", id=message.id) from None

    def _reply(self, message: Message) -> list[Step]:
        id_ = message.id
        if type(id_) is not int or id_ not in self._asked:
            return []
        self._asked.discard(id_)
        if message.error is not None:
            return [Replied(id_, jsonrpc.error_of(message.error))]
        try:
            result = json.decode(message.result or b"{}", depth=self._limits.depth)
        except BadJson:
            result = {}
        return [Replied(id_, cast("Fields", result) if isinstance(result, dict) else {})]

    def _notified(self, method: str, params: JsonObject) -> list[Step]:
        if method == "session/cancel":
            opened = self.sessions.get(str(params.get("sessionId")))
            return [Stop(opened.prompt)] if opened is not None and opened.prompt is not None else []
        if method == _CANCEL:
            id_ = jsonrpc.as_id(params.get("requestId"))
            # Everything else is answered sooner than it could be cancelled.
            if id_ is not None and id_ in (opened.prompt for opened in self.sessions.values()):
                return [Stop(id_)]
        return []

    def _asks(self, id_: RequestId, method: str, params: JsonObject) -> list[Step]:
        try:
            if id_ in self._open:
                raise invalid_request("a request with this id is unanswered", id=id_)
            if len(self._open) >= MOST_REQUESTS:
                raise invalid_request(f"{MOST_REQUESTS} requests are unanswered already", id=id_)
            steps = self._request(id_, method, params)
        except Rejection as rejection:
            return [Say(jsonrpc.error(id_, rejection))]
        if not isinstance(steps[-1], Say):
            self._open.add(id_)
        return steps

    def _request(self, id_: RequestId, method: str, params: JsonObject) -> list[Step]:
        if method == "initialize":
            return [self._initialize(id_, params)]
        if not self._begun:
            raise invalid_request("initialize comes first")
        match method:
            case "session/new" | "session/load" | "session/resume":
                return [self._begin(id_, method.removeprefix("session/"), params)]
            case "session/list":
                cwd = params.get("cwd")
                return [Listing(id_, _string(params, "cwd") if cwd is not None else None)]
            case "session/close":
                opened = self._opened(params)
                del self.sessions[opened.about.id]
                done = Say(jsonrpc.result(id_, {}))
                return [Stop(opened.prompt), done] if opened.prompt is not None else [done]
            case "session/prompt":
                return [self._prompt(id_, params)]
        why = _OURS.get(method, "there is no such method here")
        raise Rejection(jsonrpc.METHOD_NOT_FOUND, f"{method[:64]}: {why}")

    def _initialize(self, id_: RequestId, params: JsonObject) -> Step:
        if self._begun:
            raise invalid_request("this connection is initialized already")
        version = params.get("protocolVersion")
        if not isinstance(version, int) or isinstance(version, bool):
            raise invalid_params("params.protocolVersion is a whole number")
        self._begun = True
        self.client = meta.client_of(params.get("clientInfo"))
        return Say(
            jsonrpc.result(
                id_,
                {
                    # Whatever it speaks, this is what we do; it is the editor that goes then.
                    "protocolVersion": VERSION,
                    "agentInfo": self._info,
                    "agentCapabilities": _CAPABILITIES,
                    "authMethods": [],
                },
            )
        )

    def _begin(self, id_: RequestId, how: str, params: JsonObject) -> Step:
        cwd = _string(params, "cwd")
        servers = params.get("mcpServers", [])
        if not isinstance(servers, list):
            raise invalid_params("params.mcpServers is a list")
        if params.get("additionalDirectories"):
            raise invalid_params(
                "params.additionalDirectories: the agent works in its own worktree alone"
            )
        session = "" if how == "new" else _string(params, "sessionId")
        if len(self.sessions) >= MOST_SESSIONS and session not in self.sessions:
            raise invalid_request(f"{MOST_SESSIONS} sessions are open; close one (session/close)")
        return Begin(id_, cast("How", how), cwd, session, len(servers))

    def _prompt(self, id_: RequestId, params: JsonObject) -> Step:
        opened = self._opened(params)
        if opened.prompt is not None:
            raise invalid_request("this session has a prompt already; wait for it, or cancel it")
        task = task_of(params.get("prompt"), opened.about.folder)
        trace = meta.take(params, strict=False).trace
        opened.prompt, opened.teller = id_, Teller()
        return Prompt(id_, opened, task, trace)

    def _opened(self, params: JsonObject) -> Opened:
        opened = self.sessions.get(_string(params, "sessionId"))
        if opened is None:
            raise Rejection(NOT_FOUND, "no such session is open here; load it (session/load)")
        return opened

    # ----------------------------------------------------------------------- what goes out

    def opened(self, step: Begin, about: EditorSession) -> list[bytes]:
        """The answer to ``Begin``, behind what is remembered where it is loaded."""
        self._open.discard(step.id)
        opened = self.sessions.get(about.id)
        if opened is None:
            if len(self.sessions) >= MOST_SESSIONS:
                why = f"{MOST_SESSIONS} sessions are open; close one (session/close)"
                return [jsonrpc.error(step.id, invalid_request(why))]
            opened = self.sessions[about.id] = Opened(about)
        opened.ignored = step.ignored
        told = history(about) if step.how == "load" else []
        result: Fields = {"sessionId": about.id} if step.how == "new" else {}
        notes: JsonObject = {SIDECAR_META + "work": work_of(about)}
        if step.ignored:
            notes[SIDECAR_META + "ignored"] = ["mcpServers"]
        result["_meta"] = notes
        return [*(_update(about.id, each) for each in told), jsonrpc.result(step.id, result)]

    def listed(self, step: Listing, found: list[JsonObject]) -> bytes:
        """The answer to ``Listing``."""
        self._open.discard(step.id)
        return jsonrpc.result(step.id, {"sessions": found})

    def over(self, step: Prompt, reason: str, notes: JsonObject) -> bytes:
        """The answer to ``Prompt``: a stop reason of the protocol."""
        self._ended(step.id)
        result: Fields = {"stopReason": reason}
        if notes:
            result["_meta"] = notes
        return jsonrpc.result(step.id, result)

    def failed(self, id_: RequestId, error: RpcError) -> bytes:
        """The answer to any of them."""
        self._ended(id_)
        return jsonrpc.error(id_, error)

    def _ended(self, id_: RequestId) -> None:
        self._open.discard(id_)
        for opened in self.sessions.values():
            if opened.prompt == id_:
                opened.prompt = None

    def update(self, opened: Opened, raw: JsonObject) -> list[bytes]:
        """What the agent says, while it has a prompt of this session."""
        shaped = opened.teller.shape(raw)
        return [_update(opened.about.id, shaped)] if shaped is not None else []

    def notice(self, opened: Opened, update: JsonObject) -> bytes:
        """What we say."""
        return _update(opened.about.id, update)

    def ask(self, opened: Opened, params: JsonObject) -> tuple[int, bytes]:
        """``session/request_permission``: its id, and the message. Raises Rejection."""
        if len(self._asked) >= MOST_ASKS:
            raise Rejection(
                jsonrpc.INTERNAL_ERROR, f"the editor owes answers to {MOST_ASKS} questions already"
            )
        id_, self._next = self._next, self._next + 1
        self._asked.add(id_)
        sent: JsonObject = {"sessionId": opened.about.id, **params}
        return id_, jsonrpc.request(id_, PERMISSION, sent)

    def withdraw(self, id_: int) -> bytes | None:
        """The question is of no use any more; ``None`` where it was answered."""
        if id_ not in self._asked:
            return None
        self._asked.discard(id_)
        return jsonrpc.notification(_CANCEL, {"requestId": id_})


def work_of(about: EditorSession) -> JsonObject:
    """A session's work, as ``_meta["sidecar/work"]`` tells it."""
    return {
        "name": about.work,
        "checkout": about.checkout,
        "path": about.path,
        "branch": about.branch,
    }


def _update(session: str, update: JsonObject) -> bytes:
    return jsonrpc.notification(UPDATE, {"sessionId": session, "update": update})


def _string(params: JsonObject, key: str) -> str:
    value = params.get(key)
    if not isinstance(value, str) or not value:
        raise invalid_params(f"params.{key} is a string")
    return value
