"""Bringing a checkout's base up to date, the one thing for which a git of ours may use a network.

Where from is in the repository's config, which an agent can write. So the URL is read as text,
has to be one that git itself can fetch without running a program it names, and has to be the
one that was there when the sidecar first saw the checkout.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

from sidecar.harness.git import GitError, plain_file
from sidecar.harness.git_checkout import Repository
from sidecar.harness.records import write_durably

__all__ = ["FetchError", "fetch", "pin_remote"]

TIMEOUT = 120.0
"""Seconds a fetch may take."""

_PROTOCOLS = "file:git:http:https:ssh"
_SCHEME = re.compile(r"(?:file|git|https?|ssh)://[^-\s]\S*")
_SCP = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*:[^:\s-]\S*")
_PASSED = (
    "HOME", "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY",
)  # fmt: skip
_SYSTEM = Path("/etc/gitconfig")
_SSH_CONFIG = Path("/etc/ssh/ssh_config")


class FetchError(Exception):
    """The base could not be fetched. Says why, and what to do; never a URL."""


def pin_remote(repository: Repository) -> None:
    """Remember where each remote of the checkout leads, unless that is remembered already.

    A remote that is configured later is remembered when it is first seen.
    """
    for remote, url in _remotes(repository).items():
        pin = _pin(repository, remote)
        if not pin.exists():
            pin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(pin, _digest(url))


def fetch(repository: Repository, base_ref: str) -> None:
    """Fetch the base, if it is a remote's branch. Raises FetchError."""
    parts = base_ref.split("/", 3)
    if parts[:2] != ["refs", "remotes"] or len(parts) != 4:
        return
    remote, branch = parts[2:]
    try:
        url = _remotes(repository).get(remote)
        if url is None:
            raise FetchError(f"the checkout has no remote {remote!r}")
        _check(repository, remote, url)
        repository.git.run(
            "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head",
            "--no-auto-maintenance", "--no-prune", "--end-of-options",
            url, f"+refs/heads/{branch}:{base_ref}",
            env=_environment(), holds=False, timeout=TIMEOUT,
        )  # fmt: skip
        repository.share()
    except GitError as error:
        why = error.why if url is None else error.why.replace(url, f"{remote}'s URL")
        raise FetchError(f"git fetch from {remote}: {_last_line(why)}") from None


def _remotes(repository: Repository) -> dict[str, str]:
    """The first URL of each remote, read from the config as from any file."""
    try:
        data = plain_file(repository.common / "config", 1 << 20)
    except OSError as error:
        raise FetchError(str(error)) from None
    if not data:
        return {}
    done = repository.git.run(
        "config", "--file", "-", "--no-includes", "-z", "--get-regexp", "^remote[.].*[.]url$",
        stdin=data, ok=(0, 1), timeout=10,
    )  # fmt: skip
    found: dict[str, str] = {}
    for line in done.text.split("\0"):
        key, _, url = line.partition("\n")
        if url:
            found.setdefault(key.removeprefix("remote.").removesuffix(".url"), url)
    return found


def _check(repository: Repository, remote: str, url: str) -> None:
    local = os.path.isabs(url)
    # `name::address` runs the program git-remote-name; a leading dash would be an option.
    if not (local or _SCHEME.fullmatch(url) or _SCP.fullmatch(url)) or "::" in url:
        raise FetchError(f"the URL of {remote} is none of https, ssh, git, http, file or a path")
    pin = _pin(repository, remote)
    try:
        pinned = plain_file(pin)
    except OSError as error:
        raise FetchError(str(error)) from None
    if pinned is None:
        write_durably(pin, _digest(url))
    elif pinned != _digest(url):
        raise FetchError(
            f"the URL of {remote} is another than when the sidecar first saw this checkout; "
            f"if you changed it, delete {pin}"
        )


def _pin(repository: Repository, remote: str) -> Path:
    name = hashlib.sha256(remote.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return repository.private / "remotes" / name


def _digest(url: str) -> bytes:
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest().encode()


def _environment() -> dict[str, str]:
    env = {name: os.environ[name] for name in _PASSED if name in os.environ}
    env["GIT_ALLOW_PROTOCOL"] = _PROTOCOLS
    ssh = f"-F {_SSH_CONFIG}" if _roots_alone(_SSH_CONFIG) else "-F none"
    env["GIT_SSH_COMMAND"] = (
        f"ssh {ssh} -oBatchMode=yes -oPermitLocalCommand=no -oClearAllForwardings=yes"
    )
    env["GIT_SSH_VARIANT"] = "ssh"
    if _roots_alone(_SYSTEM):
        # The operator's word, for credential helpers and proxies.
        env["GIT_CONFIG_NOSYSTEM"] = "0"
        env["GIT_CONFIG_SYSTEM"] = str(_SYSTEM)
    return env


def _roots_alone(path: Path) -> bool:
    """Whether nobody but root can have written it."""
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == 0 and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "failed"
