"""What several verbs share: finding the configuration, and naming the running sidecar."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.wire.visible import visible

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient
    from sidecar.config import Config
    from sidecar.model import JsonObject

BAD_CONFIG = 3


def config_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config`` and ``--mcp-config``, as every verb that reads a configuration takes them."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="default: $SIDECAR_CONFIG, ./sidecar.yaml, /etc/sidecar/sidecar.yaml",
    )
    parser.add_argument(
        "--mcp-config",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help='a {"mcpServers": {…}} file; may be repeated',
    )


def load_config(
    arguments: argparse.Namespace, *, listen: str | None = None, asks: bool = False
) -> Config | None:
    """The configuration, or ``None`` after printing every fault.

    ``asks`` is for verbs that only ask a running sidecar: they may not have its secrets.
    """
    from sidecar.config import ConfigErrors, find, load

    try:
        path = find(arguments.config, os.environ, Path.cwd())
        loaded = load(
            path,
            mcp_configs=arguments.mcp_config,
            environ=os.environ,
            listen=listen,
            check_secrets=not asks,
        )
    except ConfigErrors as errors:
        for fault in errors.faults:
            print(fault, file=sys.stderr)
        return None
    for notice in loaded.notices:
        print(notice, file=sys.stderr)
    return loaded


def admin_client(config: Config, timeout: float = 30.0) -> AdminClient:
    """A client of the configured admin listener; ``timeout`` is in seconds, for one answer."""
    from sidecar.admin.client import AdminClient, AdminError
    from sidecar.config.secrets import EnvFileSecrets

    listen, token = config.admin.listen, None
    if listen is None:
        raise AdminError("this configuration has no admin listener; set admin.listen")
    if listen.path is None and config.admin.token is not None:
        token = EnvFileSecrets(os.environ).read(config.admin.token)
    address = str(listen) if listen.path is not None else f"http://{listen}"
    try:
        return AdminClient(address, token=token, timeout=timeout)
    except ValueError as error:
        raise AdminError(f"admin.token_file: {error}") from None


def failed(noun: str, error: BaseException) -> int:
    """Print why a verb of ``noun`` came to nothing, on stderr; the exit code. What strangers wrote
    may be quoted in it: it cannot steer the terminal, nor forge a line."""
    print(f"sidecar {noun}: {cell(str(error))}", file=sys.stderr)
    return 1


def asked(
    arguments: argparse.Namespace,
    noun: str,
    question: Callable[[AdminClient], int],
    timeout: float = 30.0,
) -> int:
    """Put a question to the running sidecar: what it returns is the exit code. ``timeout`` is in
    seconds, for one answer. A refusal, or nobody there, is printed, and is exit code 1."""
    from sidecar.admin.client import AdminError

    config = load_config(arguments, asks=True)
    if config is None:
        return BAD_CONFIG
    try:
        return question(admin_client(config, timeout))
    except AdminError as error:
        return failed(noun, error)


def table(rows: Sequence[Sequence[str]], head: Sequence[str]) -> None:
    """Print aligned columns; nothing is cut."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def show(
    values: Iterable[JsonObject], as_json: bool, head: Sequence[str], nothing: str = ""
) -> None:
    """A listing as JSON lines' elder sibling (one array) or as a table of ``head``'s keys.

    ``nothing`` is said to people, on stderr, when there are no rows.
    """
    rows = list(values)
    if as_json:
        print(dumps(rows))
    elif rows:
        table([[cell(row.get(key)) for key in head] for row in rows], [h.upper() for h in head])
    elif nothing:
        print(nothing, file=sys.stderr)


def why(error: BaseException) -> str:
    """What went wrong, for people: without error numbers and file names."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    # Libraries put an OSError's text, number and all, into errors of their own.
    return re.sub(r"^\[Errno -?\d+\] ", "", str(error)) or type(error).__name__


def cell(value: object) -> str:
    """One table cell; what strangers write cannot steer the terminal, nor hide in it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    return visible(str(value))


def dumps(value: object, indent: int | None = 2) -> str:
    """JSON for programs that a terminal may show as well: nothing in it steers that."""
    keep = "" if indent is None else "\n"
    return visible(json.dumps(value, indent=indent, ensure_ascii=False), keep)


def told(text: str) -> str:
    """A text of strangers in full: as it is for a program that reads it; in a terminal, without
    what would steer that."""
    if sys.stdout.isatty():
        return visible(text, "\n\t")
    return text.encode("utf-8", "replace").decode()
