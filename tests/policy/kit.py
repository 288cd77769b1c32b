"""Policies and inputs for tests, written as short as they can be."""

from __future__ import annotations

from pathlib import Path

from sidecar.model import Decision, JsonObject, Phase
from sidecar.policy import EngineOptions, load
from sidecar.policy.guard import Guarded
from sidecar.policy.suites import merged

HEAD = "apiVersion: sidecar/v1\nkind: Policy\nname: {name}\n{more}rules:\n"

TOOL: JsonObject = {
    "name": "up__write",
    "server": "up",
    "upstream_name": "write",
    "kind": "mcp",
    "annotations": {},
    "hints": {"read_only": False, "destructive": True, "idempotent": False, "open_world": True},
    "gated": True,
    "gate_set": False,
    "digest": "d",
    "changed": False,
}
SERVER: JsonObject = {"name": "up", "transport": "stdio", "trusted": False, "runtime": False}
GIVEN: JsonObject = {
    "agent": {"principal": "agent"},
    "session": {"id": "s", "labels": [], "calls": 0},
    "server": SERVER,
    "call": {"id": "c", "method": "tools/call"},
    "args": {},
    "tool": TOOL,
}
RESULT: JsonObject = {"is_error": False, "size": 2, "text": "ok", "meta": {}}
DIAL: JsonObject = {
    "url": {"scheme": "https", "host": "api.example", "port": 443, "path": "/"},
    "addresses": [{"ip": "93.184.216.34", "class": "public"}],
    "verdict": {"ok": True, "why": "public", "class": "public"},
    "reason": "dial",
    "server": {**SERVER, "runtime": True},
    "agent": {"principal": "agent"},
}


def rule(
    id: str, effect: str, when: str, *, on: str = "call", message: str = "", more: str = ""
) -> str:
    """A rule of a file."""
    said = f"    message: {message!r}\n" if message else ""
    extra = f"    {more}\n" if more else ""
    return (
        f"  - id: {id}\n    on: {on}\n    effect: {effect}\n"
        f"    when: |\n      {when}\n{said}{extra}"
    )


def policy(*rules: str, name: str = "p", more: str = "") -> str:
    """A policy file."""
    return HEAD.format(name=name, more=f"{more}\n" if more else "") + "".join(rules)


class Folder:
    """A folder of policies."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, name: str, text: str) -> Path:
        """Write one file of it."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def load(self, *texts: str, default: str = "allow", engine: str = "cel") -> Guarded:
        """Load these policies and nothing else."""
        paths = [self.write(f"policy{i}.yaml", text) for i, text in enumerate(texts)]
        options = EngineOptions(default="deny" if default == "deny" else "allow")
        return load(paths, shipped=(), options=options, engine=engine)


def decide(of: Guarded, phase: Phase = Phase.CALL, **over: object) -> Decision:
    """A decision about the usual input with something else in it."""
    base = DIAL if phase is Phase.CONNECT else GIVEN
    if phase is Phase.RESULT:
        base = {**base, "result": RESULT}
    return of.decide(phase, merged(base, over))
