"""OpenAI Codex through its ACP adapter."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Guarded, Package, Profile

CODEX = Profile(
    name="codex",
    title="Codex",
    package=Package("@agentclientprotocol/codex-acp", "2.6.0", node=22),
    command=("codex-acp",),
    # `agent` has another model answer the questions.
    asking=Asking(mode="read-only", modes=frozenset({"read-only"})),
    defaults={"NO_BROWSER": "1"},
    forced={"INITIAL_AGENT_MODE": "read-only"},
    authenticate={"OPENAI_API_KEY": "api-key", "CODEX_API_KEY": "api-key"},
    denial="cancelled",
    resume=("resume", "load"),
    extract=Extract(
        command=("command", "cmd"),
        paths=("path", "grant_root"),
        cwd=("cwd", "workdir"),
        keyed_paths=("changes", "fileChanges"),
    ),
    # The adapter declares every worktree trusted, and no setting takes that back.
    guarded=(
        Guarded(".codex/rules/**", "its rules let commands out of the sandbox unasked"),
        Guarded(".codex/hooks.json", "its hooks run commands"),
        Guarded(".codex/hooks/**", "its hooks run commands"),
        Guarded(".codex/config.toml", "it may start MCP servers and change how Codex asks"),
    ),
    home=("$CODEX_HOME/rules", ".codex/rules"),
    canary="touch {file}",
    notes=("Commands inside its own read-only sandbox are not asked for.",),
)
