"""Claude Code through its ACP adapter."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Package, Profile

CLAUDE = Profile(
    name="claude",
    title="Claude Code",
    package=Package("@agentclientprotocol/claude-agent-acp", "0.101.0", node=22),
    command=("claude-agent-acp",),
    # It starts in `auto`, where the model decides alone what is asked.
    asking=Asking(mode="default", modes=frozenset({"default", "plan"})),
    defaults={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"},
    forced={"CLAUDE_AGENT_ACP_PROTOCOL": "v1"},
    session_meta={
        # They are left out with the settings, and are only text.
        "systemPrompt": {
            "append": "CLAUDE.md and AGENTS.md are not loaded for you here. Where the working "
            "directory has one, read it before you begin."
        },
        "claudeCode": {
            "options": {
                # With no sources, hooks, permissions and MCP servers that lie in the worktree
                # are not read: each of them ran code or silenced a question when they were.
                "settingSources": [],
                # It makes worktrees of its own, without asking.
                "disallowedTools": ["EnterWorktree", "ExitWorktree"],
            }
        },
    },
    resume=("resume", "load"),
    extract=Extract(
        command=("command",),
        paths=("file_path", "notebook_path", "path"),
        cwd=("cwd",),
    ),
    notes=("Reads inside the worktree and `ls` are not asked for.",),
)
