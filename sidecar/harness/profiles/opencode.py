"""OpenCode, which speaks ACP itself."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Guarded, Package, Profile
from sidecar.model import JsonObject

_PLUGINS = "the code of a plugin runs when OpenCode starts"
_ASK: JsonObject = {
    "bash": "ask",
    "edit": "ask",
    "webfetch": "ask",
    "external_directory": "ask",
}

OPENCODE = Profile(
    name="opencode",
    title="OpenCode",
    package=Package("opencode-ai", "1.18.33"),
    command=("opencode", "acp"),
    # Its modes say what it may do, not whether it asks: that is in its configuration, where
    # what the variable holds wins over every file.
    asking=Asking(mode="build", modes=frozenset({"build", "plan"})),
    defaults={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    # Else it would start MCP servers and load tools of the worktree, and take agents with
    # permissions of their own.
    forced={"OPENCODE_DISABLE_PROJECT_CONFIG": "1"},
    merged={
        "OPENCODE_CONFIG_CONTENT": {
            # These are left out with the rest, and are only text.
            "instructions": ["{cwd}/AGENTS.md", "{cwd}/CLAUDE.md"],
            "permission": _ASK,
            "autoupdate": False,
        },
        # It comes over the permissions of every other place.
        "OPENCODE_PERMISSION": _ASK,
    },
    denial="end_turn",
    resume=("resume", "load"),
    # The tail of an answer may come after the end of the turn.
    drain=0.6,
    extract=Extract(command=("command",), paths=("filepath", "filePath", "path")),
    # Plugins are loaded all the same, and with `OPENCODE_PURE` too.
    guarded=(
        Guarded(".opencode/plugin/**", _PLUGINS),
        Guarded(".opencode/plugins/**", _PLUGINS),
        *(
            Guarded(f"{folder}{name}", _PLUGINS, keys=("plugin", "plugins"))
            for folder in ("", ".opencode/")
            for name in ("opencode.json", "opencode.jsonc", "config.json")
        ),
    ),
    home=(".config/opencode/plugin", ".config/opencode/plugins"),
    notes=("Reads are not asked for.",),
)
