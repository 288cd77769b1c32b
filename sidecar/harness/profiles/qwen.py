"""Qwen Code, a fork of Gemini CLI."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Guarded, Package, Profile

QWEN = Profile(
    name="qwen",
    title="Qwen Code",
    package=Package("@qwen-code/qwen-code", "0.15.10", node=20),
    command=("qwen", "--acp"),
    asking=Asking(mode="default", modes=frozenset({"default", "plan"})),
    authenticate={"OPENAI_API_KEY": "openai"},
    resume=("resume", "load"),
    extract=Extract(
        command=("command",),
        paths=("file_path", "absolute_path", "path"),
        cwd=("directory", "dir_path"),
        title_is_command=True,
    ),
    # Every folder is trusted unless folder trust is on, and it is off as it comes.
    guarded=(
        Guarded(".qwen/settings.json", "it may allow tools, hooks and MCP servers unasked"),
        Guarded(".qwen/.env", "it may change the model and how Qwen asks"),
        Guarded(".qwen/extensions/**", "an extension starts MCP servers"),
        Guarded(".qwen/hooks/**", "its hooks run commands"),
    ),
    home=(".qwen/policies",),
)
