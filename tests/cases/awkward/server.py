"""What the awkward server says, whatever carries it: one ``Awkward`` answers every request.

A transport makes a ``Request`` of each message, hands it to ``Awkward.answer``, and writes what
comes back. Transports add their ``Listener``s, to which announcements go.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.cases.awkward.behaviour import LEGACY_VERSIONS, MODERN_VERSION, Behaviour, Definition
from tests.cases.awkward.tools import TOOLS, ToolRpcError, text

Message = dict[str, Any]

META_VERSION = "io.modelcontextprotocol/protocolVersion"
META_SERVER = "io.modelcontextprotocol/serverInfo"
META_SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
NOTE = "awkward://note"
CAPABILITIES = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "completions": {},
    "logging": {},
}


@dataclass(frozen=True)
class Seen:
    """A message that reached the server. ``at`` is monotonic seconds."""

    method: str
    params: dict[str, Any]
    id: int | str | None
    session: str | None
    headers: Mapping[str, str]
    at: float


@dataclass
class Request:
    """A request being answered. A transport's subclass says how it sends and drops."""

    id: int | str
    method: str
    params: dict[str, Any]
    era: str
    session: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def progress_token(self) -> int | str | None:
        token: int | str | None = self.params.get("_meta", {}).get("progressToken")
        return token

    async def notify(self, method: str, params: dict[str, Any]) -> None:
        """Sends a notification on this request's own stream."""
        raise NotImplementedError

    async def send_raw(self, raw: str) -> None:
        """Sends something that need not be a message, in place of the answer."""
        raise NotImplementedError

    async def drop(self) -> None:
        """Loses the connection; over stdio, ends the process."""
        raise NotImplementedError


class Listener(Protocol):
    """Somebody who hears announcements: a GET stream, a listen request, or stdio."""

    session: str | None

    async def send(self, method: str, params: dict[str, Any]) -> None: ...


CHANGES = {
    "notifications/tools/list_changed": "toolsListChanged",
    "notifications/prompts/list_changed": "promptsListChanged",
    "notifications/resources/list_changed": "resourcesListChanged",
}


def error(code: int, message: str, **data: Any) -> Message:
    return {"error": {"code": code, "message": message, **({"data": data} if data else {})}}


class Awkward:
    """The server. ``behaviour`` may be changed while it runs."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.seen: list[Seen] = []
        self.running = 0
        self.most_at_once = 0
        self.counters: dict[str, int] = {}
        self.children: list[subprocess.Popen[bytes]] = []
        self.listeners: list[Listener] = []
        self.subscribed: dict[str, set[str | None]] = {}
        self.cancelled: list[int | str] = []
        """Ids of requests that ended by ``notifications/cancelled`` or a closed connection."""
        self.answers: list[Message] = []
        """What the client answered to requests of ours."""
        self.tasks: dict[tuple[str | None, int | str], asyncio.Task[Message]] = {}

    # ------------------------------------------------------------------------ looking back

    def methods(self) -> list[str]:
        """The methods that arrived, in order."""
        return [seen.method for seen in self.seen]

    def of(self, method: str) -> list[Seen]:
        return [seen for seen in self.seen if seen.method == method]

    def calls(self, tool: str) -> list[Seen]:
        """The ``tools/call`` requests of one tool."""
        return [seen for seen in self.of("tools/call") if seen.params.get("name") == tool]

    def record(self, message: Message, session: str | None, headers: Mapping[str, str]) -> None:
        method, params = str(message.get("method", "")), message.get("params") or {}
        at = time.monotonic()
        self.seen.append(Seen(method, params, message.get("id"), session, headers, at))

    # --------------------------------------------------------------------------- answering

    async def run(self, request: Request) -> Message:
        """The whole answer to a request, unless it is cancelled meanwhile."""
        key = (request.session, request.id)
        self.tasks[key] = asyncio.create_task(self.answer(request))
        try:
            return await self.tasks[key]
        except asyncio.CancelledError:
            self.cancelled.append(request.id)
            raise
        finally:
            self.tasks.pop(key).cancel()

    def cancel(self, session: str | None, request_id: int | str) -> None:
        """A ``notifications/cancelled`` came in."""
        task = self.tasks.get((session, request_id))
        if task is not None:
            task.cancel()

    async def answer(self, request: Request) -> Message:
        body = await self._body(request)
        if request.era == "modern" and "result" in body:
            body = {"result": self._modern(request.method, dict(body["result"]))}
        return {"jsonrpc": "2.0", "id": request.id, **body}

    def _modern(self, method: str, result: dict[str, Any]) -> dict[str, Any]:
        """Adds what every modern result has."""
        result.setdefault("resultType", "complete")
        server = {"name": self.behaviour.name, "version": "1.0"}
        result["_meta"] = {META_SERVER: server, **result.get("_meta", {})}
        if method == "server/discover" or method.endswith("/list") or method == "resources/read":
            result |= {"ttlMs": 0, "cacheScope": "private"}
        return result

    async def _body(self, request: Request) -> Message:
        if request.era not in self.behaviour.eras:
            return error(-32601, f"method not found: {request.method}")
        match request.method:
            case "initialize":
                return await self._initialize(request)
            case "server/discover":
                return {"result": self._discovery()}
            case "ping" if request.era == "legacy":
                return {"result": {}}
            case "tools/list":
                return await self._list_tools(request)
            case "tools/call":
                return await self._call(request)
        return self._rest(request)

    async def _initialize(self, request: Request) -> Message:
        await asyncio.sleep(self.behaviour.initialize_delay)
        wanted = request.params.get("protocolVersion")
        version = wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[-1]
        return {"result": {"protocolVersion": version, **self._about()}}

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "capabilities": CAPABILITIES,
            "serverInfo": {"name": self.behaviour.name, "version": "1.0"},
        }
        if self.behaviour.instructions:
            about["instructions"] = self.behaviour.instructions
        return about

    def _discovery(self) -> dict[str, Any]:
        versions = list(LEGACY_VERSIONS) if "legacy" in self.behaviour.eras else []
        return {"supportedVersions": [MODERN_VERSION, *versions], **self._about()}

    def tools(self) -> list[Definition]:
        """The whole list, without pages."""
        behaviour = self.behaviour
        offered = []
        for name, (function, hints) in TOOLS.items():
            if behaviour.only is None or name in behaviour.only:
                offered.append(
                    {
                        "name": name,
                        "description": function.__doc__,
                        "inputSchema": {"type": "object"},
                        "annotations": behaviour.annotate.get(name, hints),
                    }
                )
        return [*offered, *behaviour.tools]

    async def _list_tools(self, request: Request) -> Message:
        behaviour = self.behaviour
        await asyncio.sleep(behaviour.list_delay)
        if behaviour.list_error:
            return error(-32603, "cannot list")
        tools, page = self.tools(), behaviour.page
        if not page:
            return {"result": {"tools": tools}}
        start = int(request.params.get("cursor") or 0)
        if start and behaviour.cursor == "fails":
            return error(-32603, "this page cannot be read")
        if behaviour.cursor == "endless":
            filler = {"name": f"page_{start}", "inputSchema": {"type": "object"}}
            return {"result": {"tools": [filler], "nextCursor": str(start + 1)}}
        result: dict[str, Any] = {"tools": tools[start : start + page]}
        if start and behaviour.cursor == "repeats":
            result["nextCursor"] = request.params["cursor"]
        elif start + page < len(tools):
            result["nextCursor"] = str(start + page)
        return {"result": result}

    async def _call(self, request: Request) -> Message:
        name = request.params.get("name")
        if not any(tool["name"] == name for tool in self.tools()):
            return error(-32602, f"Unknown tool: {name}")
        if name not in TOOLS:
            return {"result": text(f"{self.behaviour.name}:{name}")}
        try:
            call = TOOLS[name][0]
            return {"result": await call(self, request, request.params.get("arguments") or {})}
        except ToolRpcError as problem:
            return {"error": problem.error}

    def _rest(self, request: Request) -> Message:
        params = request.params
        match request.method:
            case "prompts/list":
                arguments = [{"name": "who", "required": True}]
                return {"result": {"prompts": [{"name": "greet", "arguments": arguments}]}}
            case "prompts/get" if params.get("name") == "greet":
                who = (params.get("arguments") or {}).get("who", "nobody")
                said = {"type": "text", "text": f"{self.behaviour.name} greets {who}"}
                return {"result": {"messages": [{"role": "user", "content": said}]}}
            case "resources/list":
                return {"result": {"resources": [{"uri": self.note, "name": "note"}]}}
            case "resources/templates/list":
                template = {"uriTemplate": self.note + "/{number}", "name": "numbered"}
                return {"result": {"resourceTemplates": [template]}}
            case "resources/read" if str(params.get("uri", "")).startswith(self.note):
                content = {"uri": params["uri"], "text": f"read from {self.behaviour.name}"}
                return {"result": {"contents": [content]}}
            case "resources/read":
                return error(-32002, "Resource not found", uri=params.get("uri"))
            case "resources/subscribe":
                self.subscribed.setdefault(params["uri"], set()).add(request.session)
                return {"result": {}}
            case "resources/unsubscribe":
                self.subscribed.get(params["uri"], set()).discard(request.session)
                return {"result": {}}
            case "completion/complete":
                value = params.get("argument", {}).get("value", "")
                return {"result": {"completion": {"values": [f"{value}-completed"]}}}
            case "logging/setLevel":
                return {"result": {}}
        return error(-32601, f"method not found: {request.method}")

    @property
    def note(self) -> str:
        """The URI of the server's one resource; servers with other names have another."""
        return f"{NOTE}/{self.behaviour.name}"

    # -------------------------------------------------------------------------- announcing

    async def announce(self, method: str, params: dict[str, Any] | None = None) -> None:
        """A notification to everybody who listens."""
        for listener in tuple(self.listeners):
            await listener.send(method, params or {})

    async def updated(self, uri: str) -> None:
        """``resources/updated`` to the sessions that subscribed."""
        wanting = self.subscribed.get(uri, set())
        for listener in tuple(self.listeners):
            if listener.session in wanting or uri in getattr(listener, "uris", ()):
                await listener.send("notifications/resources/updated", {"uri": uri})

    def breed(self, command: list[str]) -> None:
        """Starts a child in a session of its own."""
        self.children.append(subprocess.Popen(command, start_new_session=True))

    def end_children(self) -> None:
        """Ends what ``breed`` started, for tests that run the server inside their own process."""
        for child in self.children:
            child.kill()
            child.wait()
