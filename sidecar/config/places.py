"""Where things are when nobody says: the file, the admin socket, the state."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sidecar.config.types import Listen
from sidecar.config.values import LONGEST_SOCKET

SYSTEM = Path("/etc/sidecar/sidecar.yaml")


def find(explicit: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The configuration file to read, ``None`` when there is none.

    ``explicit`` (``--config``) and ``$SIDECAR_CONFIG`` are returned whether they exist or not:
    a file that was asked for and is missing is an error, not a reason to look elsewhere.
    """
    if explicit is not None:
        return cwd / explicit
    if environ.get("SIDECAR_CONFIG"):
        return cwd / environ["SIDECAR_CONFIG"]
    for path in (cwd / "sidecar.yaml", SYSTEM):
        # A file that is there and cannot be read is found too, and told by the loader.
        if os.path.lexists(path):
            return path
    return None


def admin_socket(environ: Mapping[str, str]) -> Listen:
    """``$XDG_RUNTIME_DIR/sidecar/admin.sock``, else in a folder of this user's under the
    temporary one. Whoever binds makes the folder 0700, and refuses a link or another's."""
    runtime = _absolute(environ.get("XDG_RUNTIME_DIR"))
    if runtime is not None and len(str(runtime).encode()) < LONGEST_SOCKET - 20:
        return Listen(path=runtime / "sidecar" / "admin.sock")
    temporary = _absolute(environ.get("TMPDIR"))
    if temporary is None:
        import tempfile

        temporary = Path(tempfile.gettempdir())
    return Listen(path=temporary / f"sidecar-{os.getuid()}" / "admin.sock")


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_STATE_HOME/sidecar``, by default below the home folder; ``None`` without a home."""
    state = _absolute(environ.get("XDG_STATE_HOME"))
    if state is None:
        home = _absolute(environ.get("HOME"))
        if home is None:
            return None
        state = home / ".local" / "state"
    return state / "sidecar"


def store(environ: Mapping[str, str]) -> str:
    """The default store: a file of its own, or memory where there is no home for one."""
    folder = state_folder(environ)
    return "memory" if folder is None else f"sqlite:{folder / 'state.db'}"


def _absolute(text: str | None) -> Path | None:
    """The XDG specification has relative values ignored."""
    return Path(text) if text and text.startswith("/") and "\0" not in text else None
