"""Commands of the installed peers, and why a test that needs one is skipped.

``make peers`` (``install.py``) puts them into ``.peers/``. Nothing here installs or starts
anything.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / ".peers"
NODE = PEERS / "node" / "bin" / "node"
NODE_MODULES = PEERS / "node" / "node_modules"

# The file that each npm package runs, as its own `bin` says.
_ENTRY = {
    "server-everything": "dist/index.js",
    "server-filesystem": "dist/index.js",
    "server-memory": "dist/index.js",
    "server-sequential-thinking": "dist/index.js",
}


def npm(server: str, *args: str) -> list[str]:
    """The command of an npm server, such as ``npm("server-everything", "stdio")``."""
    return [str(NODE), str(NODE_MODULES / "@modelcontextprotocol" / server / _ENTRY[server]), *args]


def node(script: Path, *args: str) -> list[str]:
    """A script of ours run by the installed Node.js. It imports packages from ``NODE_MODULES``."""
    return [str(NODE), str(script), *args]


# The file that each coding agent's package runs, and the part of `.peers/` that it is in.
_AGENTS = {
    "claude": ("agents", "@agentclientprotocol/claude-agent-acp/dist/index.js"),
    "codex": ("more-agents", "@agentclientprotocol/codex-acp/dist/index.js"),
    "gemini": ("more-agents", "@google/gemini-cli/bundle/gemini.js"),
    # Its package's own script needs npm's scripts, which we leave out.
    "opencode": ("more-agents", "opencode-*/bin/opencode"),
}


def agent(name: str, *args: str) -> list[str]:
    """The command of a coding agent, such as ``agent("claude")``."""
    part, entry = _AGENTS[name]
    home = PEERS / part
    if "*" in entry:
        return [str(min((home / "node_modules").glob(entry), key=str)), *args]
    return [str(home / "bin" / "node"), str(home / "node_modules" / entry), *args]


def why_no_agent(name: str) -> str:
    """As ``why_missing``, for a coding agent."""
    return why_missing(_AGENTS[name][0])


def python(environment: str, *args: str) -> list[str]:
    """The interpreter of one environment, such as ``python("fastmcp-new", "server.py")``."""
    return [str(PEERS / environment / "bin" / "python"), *args]


def module(name: str, *args: str) -> list[str]:
    """An official Python server, such as ``module("mcp_server_time", "--local-timezone=UTC")``."""
    return python("servers", "-m", name, *args)


def kube(program: str, *args: str) -> list[str]:
    """``kubectl``, ``helm``, or the ``python`` that has kubernetes-validate."""
    return [str(PEERS / "kube" / "bin" / program), *args]


@cache
def why_missing(part: str) -> str:
    """Empty when a part of ``.peers/`` is installed, else the reason that a skip prints."""
    pins = tomllib.loads((HERE / "pins.toml").read_text())
    known = {"agents", "kube", "more-agents", "node", *pins["python"]}
    if part not in known:
        raise ValueError(f"no such part of .peers/: {part} (there are {sorted(known)})")
    return "" if (PEERS / part / ".stamp").is_file() else _run(part)


def _run(part: str) -> str:
    how = "test-agents" if part == "more-agents" else "peers"
    return f"peer {part} missing: run `make {how}`"
