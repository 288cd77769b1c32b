"""``sidecar harness check NAME``: whether a coding agent asks before it acts, and obeys."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.config import Config, HarnessConfig
    from sidecar.harness.agent import AgentSpec

FOUND = 4


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("harness", help="coding agents, as they are configured")
    nouns = parser.add_subparsers(metavar="WHAT", required=True)
    checking = nouns.add_parser(
        "check",
        help="whether one asks before it acts, and obeys",
        description="Starts the agent in an empty folder, has it run a harmless command that it "
        "must ask for, and denies it. The agent asks its model once. Exit 4 when it does not ask "
        "or does not obey. No running sidecar is needed.",
    )
    checking.add_argument("name", metavar="NAME", help="a name of `harnesses:`")
    checking.add_argument("--timeout", metavar="SECONDS", type=float, default=300.0)
    checking.add_argument("--json", action="store_true", help="as a JSON object")
    common.config_arguments(checking)
    checking.set_defaults(run=check)


def check(arguments: argparse.Namespace) -> int:
    """Try it and tell what was seen."""
    config = common.load_config(arguments)
    if config is None:
        return common.BAD_CONFIG
    harness = config.harnesses.get(arguments.name)
    if harness is None:
        there = ", ".join(config.harnesses) or "none"
        told = f"there is no harness {arguments.name!r}; there are: {there}"
        print(f"sidecar harness: {told}", file=sys.stderr)
        return 2
    import asyncio

    from sidecar.harness.check import check as canary
    from sidecar.ports.secrets import SecretError
    from sidecar.privileges import PrivilegeError

    try:
        with _folder(config) as folder:
            spec = _spec(harness, Path(folder))
            result = asyncio.run(canary(spec, timeout=arguments.timeout))
    except (SecretError, PrivilegeError, OSError) as error:
        print(f"sidecar harness: {common.why(error)}", file=sys.stderr)
        return 1
    if arguments.json:
        print(common.dumps(result.as_json()))
    else:
        for step in result.steps:
            print(f"{step.state:<8}{common.cell(step.name)}: {common.cell(step.text)}")
    return 0 if result.ok else FOUND


def _folder(config: Config) -> AbstractContextManager[str]:
    """An empty folder, the agent's own; from here on it is who it would be. Raises
    PrivilegeError."""
    from sidecar import users

    uid = config.children_user
    user = users.User.of(uid, config.children_home) if uid is not None else None
    users.run_as(user)
    folder = tempfile.TemporaryDirectory(prefix="sidecar-check-", ignore_cleanup_errors=True)
    if user is not None:
        os.chown(folder.name, user.uid, user.gid)
    return folder


def _spec(harness: HarnessConfig, folder: Path) -> AgentSpec:
    """Raises SecretError."""
    from sidecar.config.secrets import EnvFileSecrets
    from sidecar.harness.agent import AgentSpec
    from sidecar.harness.profiles import PROFILES

    secrets = EnvFileSecrets(os.environ)
    profile = PROFILES[harness.profile]
    return AgentSpec(
        harness.name,
        profile,
        harness.command or profile.command,
        folder,
        {name: secrets.read(ref) for name, ref in harness.env.items()},
    )
