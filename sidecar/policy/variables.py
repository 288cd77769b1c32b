"""What rules can read: every variable of every phase, its type, and a line about it.

The one table: rules are checked against it at load, and ``sidecar policy vars`` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sidecar.model import Kind, Phase
from sidecar.policy.cel.types import (
    BOOL,
    DYN,
    INT,
    MAP,
    STRING,
    TIMESTAMP,
    Field,
    Type,
    list_of,
    object_of,
)
from sidecar.policy.phases import VARIABLES

STRINGS: Final = list_of(STRING)


def _must(type: Type, about: str) -> Field:
    return Field(type, False, about)


def _may(type: Type, about: str) -> Field:
    return Field(type, True, about)


AGENT: Final = object_of(
    principal=_must(STRING, "Who calls: an agent's name, a token's subject, or agent."),
    on_behalf_of=_may(STRING, "Whom the agent acts for, where its token says so."),
    client=_may(
        object_of(name=_must(STRING, "The program's name."), version=_must(STRING, "Its version.")),
        "What the program says of itself. It may say anything.",
    ),
    claims=_may(MAP, "Claims of the token, where it has any."),
)
SESSION: Final = object_of(
    id=_must(STRING, "The session; empty where the protocol has none."),
    labels=_must(STRINGS, 'Trust labels gathered so far, such as "outside".'),
    calls=_must(INT, "Calls of this session before this one."),
)
SERVER: Final = object_of(
    name=_must(STRING, "Its name in sidecar.yaml."),
    transport=_must(STRING, "stdio, http, sse, or acp for a coding agent."),
    url=_may(STRING, "Its address, where it has one."),
    trusted=_must(BOOL, "Whether the operator trusts what it answers."),
    runtime=_must(BOOL, "Whether it was added while the sidecar runs."),
)
CALL: Final = object_of(
    id=_must(STRING, "The call's id, the same in spans, logs and the answer."),
    method=_must(STRING, "The MCP method, such as tools/call."),
)
ANNOTATIONS: Final = object_of(
    read_only=_may(BOOL, "The server claims that it changes nothing."),
    destructive=_may(BOOL, "The server says whether it may destroy."),
    idempotent=_may(BOOL, "The server claims that twice is the same as once."),
    open_world=_may(BOOL, "The server says whether it reaches outside."),
    title=_may(STRING, "A title for people."),
)
HINTS: Final = object_of(
    read_only=_must(BOOL, "It changes nothing."),
    destructive=_must(BOOL, "It may destroy."),
    idempotent=_must(BOOL, "Twice is the same as once."),
    open_world=_must(BOOL, "It reaches things outside."),
)
TOOL: Final = object_of(
    name=_must(STRING, "The advertised name, such as github__create_issue; a resource's URI."),
    server=_must(STRING, "The name of the server (or harness) that owns it."),
    upstream_name=_must(STRING, "The server's own name for it."),
    title=_may(STRING, "A title for people."),
    kind=_must(STRING, f"One of {', '.join(Kind)}."),
    annotations=_must(ANNOTATIONS, "The server's own claims; unset where it claims nothing."),
    hints=_must(HINTS, "Always four booleans: the operator's word, else the server's, else safe."),
    gated=_must(BOOL, "A person has to approve it: configured, else all that is not read-only."),
    gate_set=_must(BOOL, "The operator decided whether it is gated."),
    digest=_must(STRING, "The sha256 of its definition; empty where it has none."),
    changed=_must(BOOL, "Its definition is other than the one that was pinned."),
)
RESULT: Final = object_of(
    is_error=_must(BOOL, "The tool itself failed."),
    size=_must(INT, "Bytes of the result."),
    text=_must(STRING, "All its text, in one string."),
    structured=_may(DYN, "Its structured content."),
    meta=_may(MAP, "Its _meta, without our own keys."),
)
TARGET: Final = object_of(
    scheme=_must(STRING, "http, https or, for a tunnel, connect."),
    host=_must(STRING, "The host as it is dialled, in lower case."),
    port=_must(INT, "The port."),
    path=_must(STRING, "The path; empty for a tunnel."),
)
ADDRESSES: Final = list_of(
    object_of(
        ip=_must(STRING, "An address that the host resolves to."),
        **{"class": _must(STRING, "Its class: public, private, loopback, metadata …")},
    )
)
VERDICT: Final = object_of(
    ok=_must(BOOL, "Whether the address check lets it through."),
    why=_must(STRING, "Why."),
    **{"class": _must(STRING, "The class of the strictest address.")},
)
_PERMISSION: Final[dict[str, tuple[Type, bool, str]]] = {
    "kind": (STRING, False, "What the agent wants: read, edit, delete, move, execute, fetch …"),
    "title": (STRING, False, "What the agent says that it wants."),
    "locations": (list_of(MAP), True, "What the agent says that it touches."),
    "paths": (STRINGS, True, "The same as absolute paths, links resolved by us."),
    "inside": (BOOL, True, "Every known path is in the worktree; unset when none is known."),
    "command": (STRING, True, "The command line, where there is one."),
    "raw": (MAP, True, "The request as the agent sent it."),
}
_WORK: Final[dict[str, tuple[Type, bool, str]]] = {
    "name": (STRING, False, "The work's name."),
    "checkout": (STRING, False, "The repository."),
    "branch": (STRING, False, "Its branch."),
    "path": (STRING, False, "Its worktree."),
}


def _fields(table: Mapping[str, tuple[Type, bool, str]], *, sure: bool) -> Type:
    """``sure``: the variable is there, so that only what may be absent in it is optional."""
    return object_of(**{n: Field(t, may or not sure, a) for n, (t, may, a) in table.items()})


PERMISSION: Final = _fields(_PERMISSION, sure=True)
WORK: Final = _fields(_WORK, sure=True)

TYPES: Final[Mapping[str, Type]] = {
    "agent": AGENT,
    "session": SESSION,
    "now": TIMESTAMP,
    "server": SERVER,
    "call": CALL,
    "args": MAP,
    "tool": TOOL,
    "permission": PERMISSION,
    "work": WORK,
    "result": RESULT,
    "url": TARGET,
    "addresses": ADDRESSES,
    "verdict": VERDICT,
    "reason": STRING,
}
ABOUT: Final[Mapping[str, str]] = {
    "agent": "Who calls.",
    "session": "The caller's session.",
    "now": "The time of the decision.",
    "server": "The server that is called, or dialled; its name is empty for the forward proxy.",
    "call": "The call.",
    "args": "The arguments, as the caller sent them; {} when there are none.",
    "tool": "What is called.",
    "permission": "What a coding agent asks for; {} for every other kind of call.",
    "work": "The coding agent's work; {} for every other kind of call.",
    "result": "What came back.",
    "url": "Where the connection goes.",
    "addresses": "What the host resolves to, each with its class.",
    "verdict": "What the built-in address check says.",
    "reason": "Why there is a connection: added, dial, redirect, oauth or proxy.",
}
EMPTY_WHEN_ABSENT: Final = ("args", "permission", "work")
"""Variables of ``call`` and ``result`` that are ``{}`` where the input does not have them."""


def of_phase(phase: Phase, kinds: frozenset[str] | None = None) -> dict[str, Type]:
    """The variables of a phase, for policies that match these kinds (``None``: all).

    Only where nothing but permissions can match are the fields of ``permission`` and ``work``
    sure to be there.
    """
    found = {name: TYPES[name] for name in TYPES if name in VARIABLES[phase]}
    only = kinds if kinds is not None else frozenset(Kind)
    if "permission" in found and not only <= {Kind.PERMISSION}:
        found["permission"] = _fields(_PERMISSION, sure=False)
    if "work" in found and not only <= {Kind.PERMISSION, Kind.ACP}:
        found["work"] = _fields(_WORK, sure=False)
    return found
