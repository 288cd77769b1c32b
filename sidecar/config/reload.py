"""What an edit of the file changes, and which of it waits for a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sidecar.config.types import Config

T = TypeVar("T")

# Field of Config -> key of the file. Sockets stay bound, the store stays open, and names that
# are built with the separator (or told in every initialize) do not change under a session.
RESTART = {
    "name": "name",
    "listen": "listen",
    "hosts": "hosts",
    "health": "health",
    "admin": "admin",
    "separator": "separator",
    "store": "store",
    "store_key": "store_key",
    "proxy_listen": "egress.proxy.listen",
    "audit": "audit",
    "worktrees": "worktrees",
    "children_user": "children.user",
    "children_home": "children.home",
}
LIVE = {
    "token": "auth",
    "policies": "policies",
    "policy": "policy",
    "labels": "labels",
    "credentials": "credentials",
    "runtime_servers": "runtime_servers",
    "reconcile": "reconcile",
    "parking": "parking",
    "telemetry": "telemetry",
    "log": "log",
    "proxy": "egress",
    "list_wait": "list_wait",
    "retry": "retry",
    "drain_grace": "drain",
    "limits": "limits",
    "harnesses": "harnesses",
    "checkouts": "checkouts",
    "sweep": "sweep",
}


@dataclass(frozen=True, slots=True)
class Change:
    """The difference between two configurations.

    ``added``, ``removed`` and ``changed`` are names of servers; ``reordered`` says that those
    in both stand in another order, which is the order of their tools. ``agents`` are the names
    of agents that were added, removed or changed. ``settings`` are other keys of the file that
    take effect at once, ``needs_restart`` those that do not.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    reordered: bool = False
    agents: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any difference."""
        return self != Change()

    def __str__(self) -> str:
        """One line for the operator."""
        parts = [
            ("servers added", self.added),
            ("removed", self.removed),
            ("changed", self.changed),
            ("agents", self.agents),
            ("settings", self.settings),
            ("waiting for a restart", self.needs_restart),
        ]
        told = [f"{what}: {', '.join(names)}" for what, names in parts if names]
        return "; ".join(told) or "the order of servers changed"


def difference(old: Config, new: Config) -> Change:
    """What is different in ``new``. Values of secrets are not looked at: only where they are."""
    added, removed, changed = _compare(old.servers, new.servers)
    both = old.servers.keys() & new.servers.keys()
    agents = _compare(old.agents, new.agents)
    return Change(
        added=added,
        removed=removed,
        changed=changed,
        reordered=[n for n in old.servers if n in both] != [n for n in new.servers if n in both],
        agents=tuple(name for names in agents for name in names),
        settings=_keys(old, new, _live(old)),
        needs_restart=_keys(old, new, _restart(old)),
    )


def applicable(old: Config, new: Config) -> Config:
    """``new`` with the old values of what needs a restart: what can take effect now."""
    kept = {name: getattr(old, name) for name in _restart(old)}
    return dataclasses.replace(new, **kept)


def _restart(old: Config) -> Mapping[str, str]:
    """What needs a restart. The first folder of worktrees does not: nobody works there yet."""
    if old.worktrees is not None:
        return RESTART
    return {name: key for name, key in RESTART.items() if name != "worktrees"}


def _live(old: Config) -> Mapping[str, str]:
    return LIVE if old.worktrees is not None else {**LIVE, "worktrees": RESTART["worktrees"]}


def token_files(config: Config) -> tuple[Path, ...]:
    """The files in which tokens of agents, of the proxy's clients and of operators are: a token
    that is rotated changes one of them, and no setting."""
    refs = [config.token, *(agent.token for agent in config.agents.values())]
    refs += [config.admin.token, *(each.token for each in config.admin.approvers.values())]
    refs += config.proxy.clients.values()
    return tuple(ref.from_file for ref in refs if ref is not None and ref.from_file is not None)


def _compare(
    old: Mapping[str, T], new: Mapping[str, T]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    added = tuple(name for name in new if name not in old)
    removed = tuple(name for name in old if name not in new)
    return added, removed, tuple(name for name in new if name in old and new[name] != old[name])


def _keys(old: Config, new: Config, fields: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(key for name, key in fields.items() if getattr(old, name) != getattr(new, name))
