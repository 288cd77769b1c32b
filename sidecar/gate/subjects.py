"""What stays the same for every call of one tool under one revision, made once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from sidecar.config import ServerConfig
from sidecar.model import Caller, Decision, Hints, JsonObject, Kind, Phase, Tool
from sidecar.policy.guard import Guarded
from sidecar.policy.inputs import known, tool_input

MOST: Final = 4096
"""Tools, and callers of one tool, of which something is kept; beyond, it is made anew."""

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

    __slots__ = (
        "_call",
        "_list",
        "_lists",
        "_policy",
        "_result",
        "config",
        "denied",
        "listed",
        "server",
        "tool",
    )

    def __init__(
        self, policy: Guarded, tool: JsonObject, server: JsonObject, config: ServerConfig | None
    ) -> None:
        self.tool: Final = tool
        self.server: Final = server
        self.config: Final = config
        self._policy = policy.specialise(known(tool, server))
        self._list = Question(self._policy, Phase.LIST)
        self._call: Question | None = None
        self._result: Question | None = None
        self.listed: Final = self._list.passes
        """Whether it is fixed that this is listed."""
        self._lists: dict[object, Decision] = {}
        always = self._policy.always(Phase.CALL)
        self.denied: Final = always is not None and always.decision == "deny"
        """Whether every call of it is denied, whatever is sent by whomever."""

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

    def listing(
        self, caller: Caller, changed: bool, name: Mapping[str, object] | None = None
    ) -> Decision:
        """Phase ``list``: the same for every connection of one agent, so it is asked once.

        ``name`` is what is known of the tool for this call alone.
        """
        question = self._list
        if question.fixed is not None:
            return question.fixed
        own = None if name is None else name["name"]
        key = (caller.principal.name, caller.client, changed, own)
        found = self._lists.get(key)
        if found is None:
            given: JsonObject = {
                "agent": agent(caller),
                "tool": {**self.tool, "changed": changed, **(name or {})},
                "server": self.server,
            }
            found = question.policy.decide(Phase.LIST, given)
            if len(self._lists) >= MOST:
                self._lists.clear()
            self._lists[key] = found
        return found


class Revision:
    """The subjects of one policy in force. A reload makes a new one."""

    def __init__(self, policy: Guarded) -> None:
        self.policy: Final = policy
        always = policy.always(Phase.LIST)
        self.lists_all: Final = (
            always is not None and always.decision == "allow" and not policy.denials(Phase.CALL)
        )
        """Whether everything is listed, whatever it is."""
        self._tools: dict[str, tuple[Tool, Subject]] = {}
        self._others: dict[tuple[str, Kind], Subject] = {}

    def of_tool(self, tool: Tool, servers: Callable[[str], ServerConfig | None]) -> Subject:
        """A tool of the catalog; one that was defined or configured anew is another object, and
        asked anew."""
        kept = self._tools.get(tool.name)
        if kept is not None and kept[0] is tool:
            return kept[1]
        config = servers(tool.server)
        subject = Subject(self.policy, tool_input(tool), server_input(tool.server, config), config)
        if len(self._tools) >= MOST:
            self._tools.clear()
        self._tools[tool.name] = (tool, subject)
        return subject

    def of_kind(self, server: str, kind: Kind, config: ServerConfig | None) -> Subject:
        """Things that are in no catalog of tools: their names differ from call to call."""
        subject = self._others.get((server, kind))
        if subject is None or subject.config is not config:
            tool: JsonObject = {
                "server": server,
                "kind": kind.value,
                "annotations": {},
                "hints": {name: getattr(READ_ONLY, name) for name in Hints.__slots__},
                "gated": False,
                "gate_set": False,
                "digest": "",
            }
            subject = Subject(self.policy, tool, server_input(server, config), config)
            if len(self._others) >= MOST:
                self._others.clear()
            self._others[server, kind] = subject
        return subject


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
    client = caller.client
    if client.name or client.version:
        given["client"] = {"name": client.name, "version": client.version}
    return given
