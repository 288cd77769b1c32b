"""Any agent that speaks ACP and that we know nothing about."""

from __future__ import annotations

from sidecar.harness.profiles.profile import Asking, Extract, Guarded, Profile

_UNKNOWN = "what this agent does with it is not known"

GENERIC = Profile(
    name="generic",
    title="An ACP agent",
    package=None,
    command=(),
    asking=Asking(modes=frozenset({"default", "ask", "plan"}), reported=False, open_ended=True),
    # What agents usually call it. A word that is no path lies inside the worktree: no harm.
    extract=Extract(
        command=("command", "cmd", "argv", "script"),
        paths=(
            *("file_path", "filepath", "filePath", "path", "paths", "absolute_path", "uri"),
            *("notebook_path", "file", "files", "filename", "target_file", "edits", "grant_root"),
            *("source", "destination", "from", "to", "old_path", "new_path", "oldPath", "newPath"),
        ),
        keyed_paths=("changes", "fileChanges"),
        title_is_command=True,
    ),
    guarded=tuple(
        Guarded(pattern, _UNKNOWN)
        for pattern in (
            ".claude/settings.json",
            ".claude/settings.local.json",
            ".mcp.json",
            ".codex/**",
            ".opencode/**",
            "opencode.json",
            "opencode.jsonc",
            ".gemini/settings.json",
            ".gemini/policies/**",
            ".qwen/settings.json",
        )
    ),
    notes=("Whether it asks is not known: `sidecar harness check` tries it.",),
)
