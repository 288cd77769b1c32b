"""``sidecar config check`` and ``sidecar config schema``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.config import Config


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verbs."""
    noun = subparsers.add_parser("config", help="check the configuration, or print its JSON Schema")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    verb = verbs.add_parser(
        "check",
        help="tell every fault of the configuration",
        description="Prints each fault as file:line:column: path: message and exits 3, or one "
        "line that says what is configured. Secrets are read, as at start, and never shown.",
    )
    common.config_arguments(verb)
    verb.set_defaults(run=check)
    verb = verbs.add_parser(
        "schema",
        help="print the JSON Schema of sidecar.yaml",
        description="For editors: a JSON Schema (2020-12) of every key.",
    )
    verb.set_defaults(run=schema)


def check(arguments: argparse.Namespace) -> int:
    """Load as ``sidecar run`` would; 0 or 3."""
    from sidecar.config import ConfigErrors, find, load

    path = find(arguments.config, os.environ, Path.cwd())
    try:
        loaded = load(path, mcp_configs=arguments.mcp_config, environ=os.environ)
    except ConfigErrors as errors:
        for fault in errors.faults:
            print(fault)
        return common.BAD_CONFIG
    for notice in loaded.notices:
        print(notice, file=sys.stderr)
    print(summary(loaded))
    return 0


def summary(config: Config) -> str:
    """One line: what is configured, without any value that could be a secret."""
    parts = [
        str(config.path) if config.path is not None else "no file, defaults",
        _names("server", list(config.servers)),
    ]
    if config.harnesses:
        parts.append(_names("harness", list(config.harnesses), "es"))
        parts.append(_names("checkout", list(config.checkouts)))
    if config.agents:
        parts.append(_names("agent", list(config.agents)))
    else:
        parts.append("a token is asked for" if config.token is not None else "no token")
    parts += [
        f"listen {config.listen or 'off'}",
        f"admin {config.admin.listen or 'off'}",
        f"health {config.health or 'off'}",
        f"store {_store(config.store)}",
    ]
    return "ok: " + "; ".join(parts)


def _store(url: str) -> str:
    """Which store it is, without what may hold a password."""
    scheme, _, rest = url.partition(":")
    if scheme in ("memory", "sqlite"):
        return url
    return f"{scheme}:" + rest.partition("?")[0].rpartition("@")[2].strip("/")


def _names(noun: str, names: list[str], plural: str = "s") -> str:
    if not names:
        return f"no {noun}{plural}"
    shown = ", ".join(names[:10]) + (", …" if len(names) > 10 else "")
    return f"{len(names)} {noun}{plural if len(names) != 1 else ''} ({shown})"


def schema(arguments: argparse.Namespace) -> int:
    """Print it."""
    del arguments
    from sidecar.config.schema import schema as made

    print(common.dumps(made()))
    return 0
