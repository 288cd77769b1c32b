"""OpenCode, which speaks ACP itself."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Guarded, Package, Profile

_PLUGINS = "code in it runs when OpenCode starts"
_AGENTS = "it may define an agent with permissions of its own"

OPENCODE = Profile(
    name="opencode",
    title="OpenCode",
    package=Package("opencode-ai", "1.18.33"),
    command=("opencode", "acp"),
    # Its modes say what it may do, not whether it asks: that is in its configuration, where
    # what the variable holds wins over every file.
    asking=Asking(mode="build", modes=frozenset({"build", "plan"})),
    defaults={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    merged={
        "OPENCODE_CONFIG_CONTENT": {
            "permission": {
                "bash": "ask",
                "edit": "ask",
                "webfetch": "ask",
                "external_directory": "ask",
            },
            "autoupdate": False,
        }
    },
    denial="end_turn",
    resume=("resume", "load"),
    # The tail of an answer may come after the end of the turn.
    drain=0.6,
    extract=Extract(command=("command",), paths=("filepath", "filePath", "path")),
    guarded=(
        Guarded(".opencode/plugin/**", _PLUGINS),
        Guarded(".opencode/plugins/**", _PLUGINS),
        Guarded(".opencode/tool/**", _PLUGINS),
        Guarded(".opencode/tools/**", _PLUGINS),
        Guarded(".opencode/agent/**", _AGENTS),
        Guarded(".opencode/agents/**", _AGENTS),
        Guarded(".opencode/mode/**", _AGENTS),
        Guarded(".opencode/modes/**", _AGENTS),
        Guarded("opencode.json", "it may load plugins and start MCP servers"),
        Guarded("opencode.jsonc", "it may load plugins and start MCP servers"),
        Guarded(".opencode/opencode.json", "it may load plugins and start MCP servers"),
        Guarded(".opencode/opencode.jsonc", "it may load plugins and start MCP servers"),
    ),
    home=(".config/opencode/plugin", ".config/opencode/plugins"),
    notes=("Reads are not asked for.",),
)
