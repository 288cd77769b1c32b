"""Gemini CLI, which speaks ACP itself."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Package, Profile

GEMINI = Profile(
    name="gemini",
    title="Gemini CLI",
    package=Package("@google/gemini-cli", "0.61.0", node=20),
    command=("gemini", "--acp"),
    asking=Asking(mode="default", modes=frozenset({"default", "plan"})),
    # In a folder that is not trusted it reads no settings, policies, extensions or variables.
    forced={"GEMINI_CLI_TRUST_WORKSPACE": "false"},
    authenticate={"GEMINI_API_KEY": "gemini-api-key"},
    resume=("load",),
    # It sends no rawInput: of a command the title is all there is.
    extract=Extract(title_is_command=True),
    home=(".gemini/policies",),
)
