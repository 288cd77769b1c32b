"""Rules as they are asked: compiled for one phase, indexed by what their policy matches."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sidecar.model import Kind, Phase, Redaction
from sidecar.policy.cel.nodes import Node
from sidecar.policy.phases import Effect
from sidecar.policy.programs import Runnable


class Matcher:
    """``match`` of a policy: what of the server's own names and kinds it is about."""

    __slots__ = ("_kinds", "_servers", "_tools")

    def __init__(
        self, servers: tuple[str, ...], tools: tuple[str, ...], kinds: tuple[str, ...]
    ) -> None:
        self._servers = _regex(servers)
        self._tools = _regex(tools)
        self._kinds = frozenset(kinds)

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self._servers is None and self._tools is None and not self._kinds

    def takes(self, subject: Subject) -> bool:
        """Whether the policy is about this."""
        server, tool, kind = subject
        if self._servers is not None and not self._servers(server):
            return False
        if self._tools is not None and not self._tools(tool):
            return False
        return not self._kinds or kind in self._kinds


def _regex(globs: tuple[str, ...]) -> Callable[[str], object] | None:
    if not globs or "*" in globs:
        return None
    return re.compile("|".join(map(fnmatch.translate, globs))).match


EVERYTHING: Final = Matcher((), (), ())

Subject = tuple[str, str, str]
"""Server, the server's own name for the tool, kind: what ``match`` looks at."""


def subject_of(phase: Phase, given: Mapping[str, object]) -> Subject:
    """What an input is about. What is absent is empty, and matches no pattern but ``*``."""
    server = given.get("server")
    name = server.get("name") if type(server) is dict else None
    if phase is Phase.CONNECT:
        return _text(name), "", ""
    tool = given.get("tool")
    if type(tool) is not dict:
        return _text(name), "", ""
    owner = _text(tool.get("server", name))
    upstream = tool.get("upstream_name")
    if upstream is None:
        # Inputs written by hand may have the advertised name alone.
        upstream = _text(tool.get("name")).removeprefix(f"{owner}__")
    return owner, _text(upstream), _text(tool.get("kind", Kind.MCP.value))


def subject_known(phase: Phase, known: Mapping[str, object]) -> Subject | None:
    """What an input that holds all of ``known`` is about; ``None`` when that is not certain.

    ``known`` has whole variables, or dotted paths below them.
    """
    names = ("server.name",) if phase is Phase.CONNECT else _NEEDED
    values = [_known(known, name) for name in names]
    if not all(isinstance(value, str) for value in values):
        return None
    server, tool, kind = (*map(_text, values), "", "")[:3]
    return server, tool, kind


_NEEDED: Final = ("tool.server", "tool.upstream_name", "tool.kind")


def _known(known: Mapping[str, object], name: str) -> object:
    if name in known:
        return known[name]
    root, _, field = name.partition(".")
    whole = known.get(root)
    return whole.get(field) if isinstance(whole, dict) else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


@dataclass(slots=True, eq=False)
class Rule:
    """A rule in one phase.

    ``id`` is ``policy/id``. ``scope`` tells policies with variables apart (0: it reads none),
    because their values are kept once a decision. ``message`` is ``None`` where ``text``, a
    constant, is all there is. ``roots`` are the variables of the input that it reads.
    ``variables`` are the policy's own that the condition reads: name, text and tree, for
    explanations.
    """

    id: str
    policy: str
    phase: Phase
    effect: Effect
    audit: bool
    when: Runnable
    text: str
    message: Runnable | None
    scope: int
    file: str
    line: int
    column: int
    matcher: Matcher = EVERYTHING
    variables: tuple[tuple[str, str, Node], ...] = ()
    redaction: Redaction | None = None
    labels: tuple[str, ...] = ()
    roots: frozenset[str] = frozenset()

    @property
    def references(self) -> frozenset[str]:
        """The dotted names of the input that it reads, ``match`` included."""
        found = self.when.references
        if self.message is not None:
            found |= self.message.references
        if self.matcher.everything:
            return found
        return found.union(("server.name",) if self.phase is Phase.CONNECT else _NEEDED)
