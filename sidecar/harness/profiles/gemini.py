"""Gemini CLI, which speaks ACP itself."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Package, Profile

GEMINI = Profile(
    name="gemini",
    title="Gemini CLI",
    package=Package("@google/gemini-cli", "0.61.0", node=20),
    command=("gemini", "--acp"),
    asking=Asking(mode="default", modes=frozenset({"default", "plan"})),
    defaults={"GEMINI_CLI_DISABLE_AUTO_UPDATE": "1"},
    authenticate={"GEMINI_API_KEY": "gemini-api-key"},
    resume=("load",),
    # It sends no rawInput: of a command the title is all there is.
    extract=Extract(title_is_command=True),
    # `.gemini/` in a worktree has no effect as long as the folder is not trusted.
    home=(".gemini/trustedFolders.json", ".gemini/policies"),
)
