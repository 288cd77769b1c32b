"""The user that child processes run as: another one than the sidecar's, with ``children.user``.

Sources: setpriv(1), capabilities(7).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sidecar import privileges
from sidecar.privileges import PrivilegeError

__all__ = ["SETPRIV", "User", "current", "exposure", "lent", "run_as", "switching"]

SETPRIV = ("/usr/bin/setpriv", "/bin/setpriv")


@dataclass(frozen=True, slots=True)
class User:
    """Whom children run as. ``home`` exists and is theirs."""

    uid: int
    gid: int
    name: str
    home: Path

    @classmethod
    def of(cls, uid: int, home: Path | None) -> User:
        """A user by number, who need not be in the system's list when ``home`` is given.

        Raises PrivilegeError, which says what to do.
        """
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            entry = None
        if home is None:
            home = Path(entry.pw_dir) if entry is not None else None
        what = "children.home"
        if home is None or not home.is_absolute():
            raise PrivilegeError(
                f"{what}: this system knows no home of uid {uid}; give a folder that belongs to it"
            )
        gid = entry.pw_gid if entry is not None else uid
        try:
            owner = home.stat()
        except OSError as error:
            raise PrivilegeError(
                f"{what}: {home} cannot be used: {error.strerror}; make it, and give it to uid "
                f"{uid}: install -d -m 700 -o {uid} -g {gid} {home}"
            ) from None
        if owner.st_uid != uid:
            raise PrivilegeError(
                f"{what}: {home} belongs to uid {owner.st_uid}; give it to uid {uid}, or choose "
                "another folder"
            )
        return cls(uid, gid, entry.pw_name if entry is not None else str(uid), home)


_user: User | None = None


def run_as(user: User | None) -> None:
    """From now on every child is this user's; ``None``: ours. It is one for the whole process:
    what could forget to say it would start a child as ourselves.

    Raises PrivilegeError when that cannot be done here; then nothing was changed.
    """
    global _user  # noqa: PLW0603
    if user is not None:
        _may_run_as(user)
    _user = user


def current() -> User | None:
    """Whom children run as; ``None``: us."""
    return _user


def exposure() -> str:
    """What a child could reach, in one line for the operator; empty where it is another user."""
    if _user is not None:
        return ""
    root = " and, because that is root, everything else on this machine" if not os.geteuid() else ""
    return (
        f"child processes run as the sidecar's own user (uid {os.geteuid()}) and could read its "
        f"configuration, secrets and store, end it{root}; set children.user to keep them apart"
    )


def _may_run_as(user: User) -> None:
    if user.uid == os.geteuid():
        raise PrivilegeError(f"children.user: {user.uid} is the sidecar's own uid; choose another")
    lacking = privileges.missing(privileges.SWITCH)
    if lacking:
        raise PrivilegeError(
            f"children.user: running children as uid {user.uid} takes the capabilities "
            f"{', '.join(lacking)}, which this process has not; start the sidecar as root, with "
            f"{privileges.WORKER}=UID for a worker that is not (docs/security.md)"
        )
    prefix = switching(user)
    try:
        with privileges.lent(_LENT):
            done = subprocess.run(
                [*prefix, "/bin/sh", "-c", 'cd "$HOME" && id -u'],
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(user.home)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=10,
                check=False,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise PrivilegeError(f"children.user: nothing can be run as {user.uid}: {error}") from None
    if done.stdout.strip() != str(user.uid):
        raise PrivilegeError(
            f"children.user: nothing can be run as uid {user.uid} in {user.home}: "
            f"{done.stderr.strip() or 'it became somebody else'}"
        )


def lent() -> contextlib.AbstractContextManager[None]:
    """What ``switching`` takes, for a program that is started meanwhile."""
    return privileges.lent(_LENT if _user is not None else ())


_LENT = (privileges.SETUID, privileges.SETGID, privileges.SETPCAP)


def switching(user: User) -> tuple[str, ...]:
    """A prefix that has a program run as this user, and never as more.

    The bounding set can be emptied with SETPCAP only. Without, ``no_new_privs`` keeps it from
    being of any use. Raises PrivilegeError.
    """
    path = next((each for each in SETPRIV if os.access(each, os.X_OK)), None)
    if path is None:
        raise PrivilegeError("children.user: needs setpriv, which util-linux brings")
    bounding = ("--bounding-set", "-all") if privileges.has(privileges.SETPCAP) else ()
    return (
        path, "--reuid", str(user.uid), "--regid", str(user.gid), "--clear-groups",
        "--inh-caps", "-all", "--ambient-caps", "-all", *bounding,
        "--no-new-privs", "--pdeathsig", "KILL", "--",
    )  # fmt: skip
