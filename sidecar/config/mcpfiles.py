"""``--mcp-config``: the server lists that people already have for other programs.

Two shapes are in use: ``{"mcpServers": {…}}`` and ``{"servers": {…}}`` (VS Code's ``mcp.json``).
Those programs write keys of their own into them, so that what is not ours is told in a notice
instead of being an error. What says how to reach a server is checked as in ``sidecar.yaml``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from sidecar.config import jsontext, nodes, values
from sidecar.config.faults import shown
from sidecar.config.nodes import Node, Scalar, kind
from sidecar.config.shapes import BAD, At, Bad, Context, absolute, text_of
from sidecar.config.types import SecretRef, ServerConfig
from sidecar.config.yamltext import Tell

Reader: TypeAlias = Callable[[Path, Context, Callable[[str, Tell], Node | None]], Node | None]
Transport: TypeAlias = Literal["stdio", "http", "sse"]

_LISTS = ("mcpServers", "servers")
_URLS = ("url", "serverUrl", "httpUrl")
_KNOWN = {"command", "args", "env", "cwd", "headers", "type", "transport", "disabled", *_URLS}
_TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamable_http": "http",
    "streamablehttp": "http",
    "sse": "sse",
}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(slots=True)
class Added:
    """What all files have added so far. ``taken`` are names that nobody else may have."""

    taken: set[str]
    separator: str
    servers: dict[str, ServerConfig] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)


def add(file: Path, context: Context, added: Added, read: Reader) -> None:
    """Read one file, add its servers, tell its faults."""
    before = len(context.faults.found)
    root = read(file, context, jsontext.read)
    if root is None:
        if len(context.faults.found) == before:
            At(context).fault(nodes.Mapping(1, 1, {}), 'is empty; expected {"mcpServers": {…}}')
        return
    at = At(context)
    if not isinstance(root, nodes.Mapping):
        at.fault(root, f"expected an object with mcpServers, got {kind(root)}")
        return
    lists = [name for name in _LISTS if name in root.entries]
    if not lists:
        at.fault(root, "has neither mcpServers nor servers")
    listed: list[tuple[str, Scalar, Node, At]] = []
    for name in lists:
        node = root.entries[name][1]
        if isinstance(node, nodes.Mapping):
            listed += [(n, key, value, at.child(name)) for n, key, value in node]
        else:
            at.child(name).fault(node, f"expected an object of servers, got {kind(node)}")
    names = _names([name for name, *_ in listed], added)
    for name, key, value, parent in listed:
        here = parent.child(name)
        if name in added.taken and names[name] == name:
            here.fault(key, "there is a server of this name already; rename one of them")
            continue
        server = _server(names[name], value, here, added)
        if server is None:
            continue
        if names[name] != name:
            added.notices.append(f'{context.file}: "{shown(name)}" is called {names[name]} here')
        added.taken.add(names[name])
        added.servers[names[name]] = server


# -------------------------------------------------------------------------------- names


def _names(given: list[str], added: Added) -> dict[str, str]:
    """Our name for each of the file's. Those that fit stay, whatever stands before them."""
    fitting = {name for name in given if slug(name, added.separator) == name}
    taken = added.taken | fitting
    names: dict[str, str] = {}
    for name in given:
        ours = name if name in fitting else slug(name, added.separator)
        if name not in fitting and ours in taken:
            # Of the name alone, so that it does not change when others come or go.
            end = (
                _joint(added.separator)
                + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
            )
            ours = ours[: values.LONGEST_NAME - len(end)].rstrip("-_") + end
        taken.add(ours)
        names[name] = ours
    return names


def slug(name: str, separator: str) -> str:
    """A name of our grammar: what does not fit becomes ``-``."""
    ours = re.sub(r"[^A-Za-z0-9_-]+", "-", name)
    ours = re.sub(r"_{2,}", "_", ours)
    while separator in ours.strip("-_"):
        ours = ours.replace(separator, _joint(separator))
    ours = ours.strip("-_")[: values.LONGEST_NAME].rstrip("-_") or "server"
    return f"{ours}{_joint(separator)}server" if ours == values.RESERVED else ours


def _joint(separator: str) -> str:
    """What may stand inside a name beside this separator."""
    return "" if "-" in separator else "-"


# ------------------------------------------------------------------------------ one server


def _server(name: str, node: Node, at: At, added: Added) -> ServerConfig | None:
    if not isinstance(node, nodes.Mapping):
        at.fault(node, f"expected an object, got {kind(node)}")
        return None
    entries = {key: value for key, _, value in node}
    disabled = entries.get("disabled")
    if isinstance(disabled, Scalar) and disabled.value is True:
        added.notices.append(f"{at.context.file}: {name} is left out: it is disabled there")
        return None
    ignored = [shown(key) for key in entries if key not in _KNOWN]
    if ignored:
        added.notices.append(f"{at.context.file}: {name}: not used here: {', '.join(ignored)}")
    addresses = [key for key in _URLS if key in entries]
    if ("command" in entries) == bool(addresses) or len(addresses) > 1:
        at.fault(node, "needs command or url, and only one of them")
        return None
    transport = _transport(entries, at)
    if addresses:
        return _remote(name, addresses[0], transport, entries, at)
    return _local(name, entries, at)


def _transport(entries: Mapping[str, Node], at: At) -> Transport:
    remote = "command" not in entries
    for key in ("type", "transport"):
        if key in entries:
            here = at.child(key)
            text = text_of(entries[key], here, "text")
            if isinstance(text, Bad):
                break
            transport = _TRANSPORTS.get(text.lower())
            if transport is None:
                here.fault(entries[key], f'"{shown(text)}" is not one of stdio, http, sse')
            elif remote == (transport == "stdio"):
                belongs = "command" if transport == "stdio" else "url"
                here.fault(entries[key], f"{transport} belongs to a server with {belongs}")
            else:
                return transport
    return "http" if remote else "stdio"


def _remote(
    name: str, key: str, transport: Transport, entries: Mapping[str, Node], at: At
) -> ServerConfig:
    url = _expanded(entries[key], at.child(key), values.url)
    headers: dict[str, SecretRef] = {}
    for header, value, here in _pairs(entries, "headers", at, values.header_name):
        text = _expanded(value, here, values.header_value)
        if not isinstance(text, Bad):
            headers[header] = SecretRef(literal=text)
    return ServerConfig(name, transport, url="" if isinstance(url, Bad) else url, headers=headers)


def _local(name: str, entries: Mapping[str, Node], at: At) -> ServerConfig:
    program = _expanded(entries["command"], at.child("command"), _program)
    command = ["" if isinstance(program, Bad) else program]
    args = entries.get("args")
    if isinstance(args, nodes.Sequence):
        for i, item in enumerate(args.items):
            text = _expanded(item, at.child("args").item(i), str)
            command.append("" if isinstance(text, Bad) else text)
    elif args is not None:
        at.child("args").fault(args, f"expected a list of texts, got {kind(args)}")
    env: dict[str, SecretRef] = {}
    for variable, value, here in _pairs(entries, "env", at, values.env_name):
        text = _expanded(value, here, values.env_value, bare=True)
        if not isinstance(text, Bad):
            env[variable] = SecretRef(literal=text)
    cwd: Path | None = None
    if "cwd" in entries:
        folder = _expanded(entries["cwd"], at.child("cwd"), str)
        cwd = None if isinstance(folder, Bad) or not folder else absolute(folder, at.context)
    return ServerConfig(name, "stdio", command=tuple(command), env=env, cwd=cwd)


def _program(text: str) -> None:
    if not text:
        raise ValueError("is empty; name the program")


def _pairs(
    entries: Mapping[str, Node], key: str, at: At, check: Callable[[str], None]
) -> list[tuple[str, Node, At]]:
    """The entries of an object of texts, with their places."""
    node = entries.get(key)
    if node is None or (isinstance(node, Scalar) and node.value is None):
        return []
    if not isinstance(node, nodes.Mapping):
        at.child(key).fault(node, f"expected an object of texts, got {kind(node)}")
        return []
    found: list[tuple[str, Node, At]] = []
    lower: set[str] = set()
    for name, place, value in node:
        here = at.child(key).child(name)
        try:
            check(name)
            if key == "headers" and name.lower() in lower:
                raise ValueError("is here twice, in other letters")
        except ValueError as error:
            here.fault(place, str(error))
            continue
        lower.add(name.lower())
        found.append((name, value, here))
    return found


def _expanded(
    node: Node, at: At, check: Callable[[str], object], *, bare: bool = False
) -> str | Bad:
    """The text with its variables put in. No message repeats it: it may hold a secret.

    ``bare`` takes numbers and booleans too, as those programs do for variables of the
    environment.
    """
    if bare and isinstance(node, Scalar) and isinstance(node.value, int | float):
        text: str | Bad = node.text
    else:
        text = text_of(node, at, "text")
    if isinstance(text, Bad):
        return BAD
    try:
        done = _VARIABLE.sub(lambda found: _variable(found[1], at.context), text)
        if at.context.check_secrets or done == text:
            check(done)
    except ValueError as error:
        return at.fault(node, str(error))
    return done


def _variable(written: str, context: Context) -> str:
    """``${VAR}``, ``${VAR:-default}``, ``${env:VAR}``, ``${userHome}``."""
    if written == "userHome":
        written = "env:HOME"
    if written.startswith("input:"):
        raise ValueError(
            f"${{{shown(written)}}} asks a person; put the value into an environment variable "
            "and write ${env:NAME}"
        )
    name, has_default, default = written.removeprefix("env:").partition(":-")
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(f"${{{shown(name)}}} is not known here; write ${{NAME}} or ${{env:NAME}}")
    value = context.environ.get(name)
    if value is None and has_default:
        return default
    if value is None and context.check_secrets:
        raise ValueError(f"the environment variable {name} is not set")
    return value or (default if has_default else "")
