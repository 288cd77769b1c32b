"""Checks across the file: where a fault is told, and what agents and harnesses may name."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable

from sidecar.config import nodes
from sidecar.config.harnesses import Harness
from sidecar.config.nodes import Node
from sidecar.config.record import Got
from sidecar.config.shapes import At
from sidecar.config.table import Agent, Auth, Root
from sidecar.config.types import Config


def teller(at: At, node: Node, key: str) -> Callable[[str], object]:
    """Tells a fault at ``key`` of a mapping."""
    entry = node.entries.get(key) if isinstance(node, nodes.Mapping) else None
    place = node if entry is None else entry[1]
    return lambda message: at.child(key).fault(place, message)


def at(got: Got, *keys: str) -> Callable[[str], object]:
    """Tells a fault at a setting below the root, as near as the file has it."""
    here, node, _ = _way(got, keys)
    return lambda message: here.fault(node, message)


def _way(got: Got, keys: tuple[str, ...]) -> tuple[At, Node, bool]:
    """The place of a setting below the root, the nearest node that the file has of it, and whether
    that is the setting's own."""
    here: At = got.at
    node: Node = got.node
    whole = True
    for key in keys:
        here = here.child(key)
        entry = node.entries.get(key) if isinstance(node, nodes.Mapping) else None
        whole = whole and entry is not None
        node = node if entry is None else entry[1]
    return here, node, whole


def names(got: Got, key: str) -> set[str]:
    """The keys of a mapping at the root, those with faults too, so that one fault is told once."""
    entry = got.node.entries.get(key)
    place = entry[1] if entry is not None else None
    return set(place.entries) if isinstance(place, nodes.Mapping) else set()


def check_patterns(
    got: Got, where: tuple[str, ...], patterns: tuple[str, ...], known: Iterable[str], what: str
) -> None:
    """Each pattern leads somewhere; nothing is told of a list that could not be read."""
    here, node, there_is = _way(got, where)
    if not there_is or not isinstance(node, nodes.Sequence) or len(patterns) != len(node.items):
        return
    there = sorted(known)
    for i, (pattern, item) in enumerate(zip(patterns, node.items, strict=True)):
        if pattern != "*" and not any(fnmatch.fnmatchcase(each, pattern) for each in there):
            listed = ", ".join(there) or "none"
            here.item(i).fault(item, f'"{pattern}" matches no {what}; there are: {listed}')


def check_agents(got: Got, config: Config, servers: set[str]) -> None:
    """Beside agents there is no other way in, and each of their patterns leads somewhere."""
    auth = got[Root.AUTH]
    if auth is not None and got.has(Root.AGENTS):
        if auth[Auth.NONE]:
            auth.fault(Auth.NONE, "cannot stand beside agents: each of them has its token")
        elif auth.has(Auth.TOKEN_FILE):
            message = "cannot stand beside agents: each of them has a token of its own"
            auth.fault(Auth.TOKEN_FILE, message)
    agents = got.place(Root.AGENTS)
    if not got.has(Root.AGENTS) or not isinstance(agents, nodes.Mapping):
        return
    if not agents.entries:
        got.fault(Root.AGENTS, "is empty: nobody could connect; name an agent or remove it")
    harnesses = names(got, Root.HARNESSES.key)
    checkouts = names(got, Root.CHECKOUTS.key)
    for name, agent in config.agents.items():
        for key, patterns, known, what in (
            (Agent.SERVERS.key, agent.servers, servers, "server"),
            (Agent.HARNESSES.key, agent.harnesses, harnesses, "harness"),
            (Agent.CHECKOUTS.key, agent.checkouts, checkouts, "checkout"),
        ):
            check_patterns(got, ("agents", name, key), patterns, known, what)


def check_harnesses(got: Got, config: Config, servers: set[str], *, protected: bool) -> None:
    """Coding agents share their names with servers, and need a place to work in.

    ``protected``: whoever calls us needs a token.
    """
    key = Root.HARNESSES.key
    named = names(got, key)
    if not named:
        return
    for name in sorted(named & servers):
        entry = got.node.entries[key][1]
        assert isinstance(entry, nodes.Mapping)
        place = entry.entries[name][0]
        message = "is the name of a server too; they share one name space, so rename one"
        got.at.child(key).child(name).fault(place, message)
    if not got.has(Root.WORKTREES):
        got.fault(
            Root.HARNESSES, "need worktrees: a folder where coding agents work; add it at the root"
        )
    if not names(got, Root.CHECKOUTS.key) and not got[Root.CHECKOUTS]:
        got.fault(
            Root.HARNESSES,
            "need checkouts: git repositories to work in; add checkouts: {NAME: PATH} at the root",
        )
    for name, harness in config.harnesses.items():
        mcp = (key, name, Harness.MCP.key)
        check_patterns(got, mcp, harness.mcp, servers, "server")
        if harness.mcp and not protected:
            at(got, *mcp)(
                "needs auth or agents: while no token is asked for, the agent could use every "
                "server without the sidecar knowing that it is the agent"
            )
        if harness.egress == "proxy" and config.proxy_listen is None:
            tell = at(got, key, name, Harness.EGRESS.key)
            tell("there is no proxy; add egress: {proxy: {}} at the root, or remove this")
