"""What stays the same for every call of one tool under one revision, made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sidecar.config import ServerConfig
from sidecar.model import Caller, Decision, Hints, JsonObject, Kind, Phase, Tool
from sidecar.policy.guard import Guarded
from sidecar.policy.inputs import known, tool_input

MOST: Final = 4096
"""Tools whose calls were decided; beyond, what was made for them is made anew."""
MOST_LISTED: Final = 65_536
MOST_AGENTS: Final = 256
"""Things in lists, and agents who asked for one of them, whose decisions are kept."""

READ_ONLY: Final = Hints(read_only=True, destructive=False, idempotent=True, open_world=True)
"""Prompts, resources and completion: they change nothing, and may reach anywhere."""


class Question:
    """What one phase of a policy wants to know.

    ``fixed`` is the decision where nothing of an input can change it. A denial is decided all
    the same: what it says may depend on the input. ``passes``: fixed, and nothing is to be done.
    """

    __slots__ = ("fixed", "parts", "passes", "phase", "policy", "roots")

    def __init__(self, policy: Guarded, phase: Phase) -> None:
        self.policy = policy
        self.phase = phase
        always = policy.always(phase)
        self.fixed = always if always is not None and always.decision == "allow" else None
        self.passes = self.fixed is not None and not (self.fixed.labels or self.fixed.redactions)
        names = policy.refs(phase)
        self.roots = frozenset(name.partition(".")[0] for name in names)
        # Of a result, only what is read is decoded; a bare `result` reads all of it.
        self.parts = (
            None
            if "result" in names
            else frozenset(n.split(".")[1] for n in names if n.startswith("result."))
        )


class Subject:
    """A tool, or one kind of thing that a server has, in front of one policy."""

    __slots__ = ("_call", "_policy", "_result", "config", "server", "tool")

    def __init__(
        self, policy: Guarded, tool: JsonObject, server: JsonObject, config: ServerConfig | None
    ) -> None:
        self.tool: Final = tool
        self.server: Final = server
        self.config: Final = config
        self._policy = policy.specialise(known(tool, server))
        self._call: Question | None = None
        self._result: Question | None = None

    @property
    def call(self) -> Question:
        """What the policy wants to know of a call."""
        question = self._call
        if question is None:
            question = self._call = Question(self._policy, Phase.CALL)
        return question

    @property
    def result(self) -> Question:
        """What the policy wants to know of a result."""
        question = self._result
        if question is None:
            question = self._result = Question(self._policy, Phase.RESULT)
        return question


class Revision:
    """One policy in force, and what was made of it. A reload makes a new one."""

    def __init__(self, policy: Guarded, servers: Callable[[str], ServerConfig | None]) -> None:
        """``servers`` gives a server's configuration, the same object until it changes."""
        self.policy: Final = policy
        self._servers = servers
        self._tools: dict[str, tuple[Tool, Subject]] = {}
        self._others: dict[tuple[str, Kind], Subject] = {}
        always = policy.always(Phase.LIST)
        self.lists_all: Final = always is not None and always.decision == "allow"
        """Whether phase ``list`` leaves nothing out, whatever it is."""
        self.shows_all: Final = self.lists_all and policy.foredoomed(Phase.CALL, {}) is None
        """Whether everything is shown: what is always denied when it is called is not."""
        self._lists: dict[str, tuple[object, dict[object, Decision]]] = {}
        self._doomed: dict[str, tuple[object, bool]] = {}

    # --------------------------------------------------------------------------- calls

    def of_tool(self, tool: Tool) -> Subject:
        """A tool of the catalog; one that was defined or configured anew is another object, and
        asked anew."""
        kept = self._tools.get(tool.name)
        if kept is not None and kept[0] is tool:
            return kept[1]
        config = self._servers(tool.server)
        about, server = self._about(tool)
        subject = Subject(self.policy, about, server, config)
        if len(self._tools) >= MOST:
            self._tools.clear()
        self._tools[tool.name] = (tool, subject)
        return subject

    def of_kind(self, server: str, kind: Kind) -> Subject:
        """Things that are in no catalog of tools: their names differ from call to call."""
        config = self._servers(server)
        subject = self._others.get((server, kind))
        if subject is None or subject.config is not config:
            tool = thing_input(server, kind)
            subject = Subject(self.policy, tool, server_input(server, config), config)
            if len(self._others) >= MOST:
                self._others.clear()
            self._others[server, kind] = subject
        return subject

    # --------------------------------------------------------------------------- lists

    def listing(self, tool: Tool, changed: bool, caller: Caller) -> Decision:
        """Phase ``list``: the same for every connection of one agent, so it is asked once.

        Not specialised for the tool: lists have thousands of them, and most are never called.
        """
        return self._listing(tool.name, tool, caller, changed, lambda: self._about(tool))

    def listing_of(self, server: str, kind: Kind, name: str, own: str, caller: Caller) -> Decision:
        """As ``listing``, for a prompt or a resource."""
        key = f"{kind.value} {server} {name}"
        about = {**thing_input(server, kind), "name": name, "upstream_name": own}
        config = self._servers(server)
        return self._listing(
            key, config, caller, False, lambda: (about, server_input(server, config))
        )

    def _listing(
        self,
        key: str,
        of: object,
        caller: Caller,
        changed: bool,
        about: Callable[[], tuple[JsonObject, JsonObject]],
    ) -> Decision:
        kept = self._lists.get(key)
        if kept is None or kept[0] is not of:
            if len(self._lists) >= MOST_LISTED:
                self._lists.clear()
            kept = self._lists[key] = (of, {})
        who = (caller.principal.name, caller.client, changed)
        found = kept[1].get(who)
        if found is None:
            tool, server = about()
            given: JsonObject = {
                "agent": agent(caller),
                "tool": {**tool, "changed": changed},
                "server": server,
            }
            found = self.policy.decide(Phase.LIST, given)
            if len(kept[1]) >= MOST_AGENTS:
                kept[1].clear()
            kept[1][who] = found
        return found

    def doomed(self, tool: Tool) -> bool:
        """Whether every call of it is denied, whatever is sent by whomever."""
        kept = self._doomed.get(tool.name)
        if kept is None or kept[0] is not tool:
            about, server = self._about(tool)
            doomed = self.policy.foredoomed(Phase.CALL, {"tool": about, "server": server}) is True
            if len(self._doomed) >= MOST_LISTED:
                self._doomed.clear()
            kept = self._doomed[tool.name] = (tool, doomed)
        return kept[1]

    def doomed_of(self, server: str, kind: Kind, name: str, own: str) -> bool:
        """As ``doomed``, for a prompt or a resource."""
        about = {**thing_input(server, kind), "name": name, "upstream_name": own}
        given: JsonObject = {"tool": about, "server": server_input(server, self._servers(server))}
        return self.policy.foredoomed(Phase.CALL, given) is True

    def _about(self, tool: Tool) -> tuple[JsonObject, JsonObject]:
        config = self._servers(tool.server)
        harness = config is not None and config.transport == "acp"
        about = tool_input(tool, Kind.ACP if harness else Kind.MCP)
        return about, server_input(tool.server, config)


def thing_input(server: str, kind: Kind) -> JsonObject:
    """The variable ``tool`` of what is no tool, without its name.

    Reading changes nothing; what a coding agent asks for may do anything.
    """
    hints = Hints() if kind is Kind.PERMISSION else READ_ONLY
    return {
        "server": server,
        "kind": kind.value,
        "annotations": {},
        "hints": {name: getattr(hints, name) for name in Hints.__slots__},
        "gated": False,
        "gate_set": False,
        "digest": "",
    }


def server_input(name: str, config: ServerConfig | None) -> JsonObject:
    """The variable ``server``. One that nobody knows any more is not trusted with anything."""
    if config is None:
        return {"name": name, "transport": "", "trusted": False, "runtime": True}
    given: JsonObject = {
        "name": name,
        "transport": config.transport,
        "trusted": config.trusted,
        "runtime": config.runtime,
    }
    return {**given, "url": config.url} if config.url else given


def agent(caller: Caller) -> JsonObject:
    """The variable ``agent``."""
    given: JsonObject = {"principal": caller.principal.name}
    if caller.principal.on_behalf_of:
        given["on_behalf_of"] = caller.principal.on_behalf_of
    client = caller.client
    if client.name or client.version:
        given["client"] = {"name": client.name, "version": client.version}
    return given
