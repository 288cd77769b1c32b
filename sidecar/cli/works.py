"""``sidecar works list|sweep``: the worktrees of coding agents, and which of them may go."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, cast

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient
    from sidecar.model import JsonObject

SWEEPING = 1800.0
"""Seconds that a sweep may take: it fetches, and reads every file of what it removes."""


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("works", help="works of coding agents: worktrees and branches")
    nouns = parser.add_subparsers(metavar="WHAT", required=True)
    listing = nouns.add_parser(
        "list",
        help="every work, and what its agent does",
        description="STATE is what the work's agent does: none (there is none), idle, working, "
        "or waiting for a person.",
    )
    listing.add_argument("--json", action="store_true", help="as a JSON array")
    common.config_arguments(listing)
    listing.set_defaults(run=list_works)
    sweeping = nouns.add_parser(
        "sweep",
        help="remove the worktrees whose work has landed",
        description="Removes worktree and branch of every work that merging would change "
        "nothing any more and that holds nothing else. Everything else is kept, and the reason "
        "told. The sidecar does the same by itself, every `sweep:`.",
    )
    sweeping.add_argument("--dry-run", action="store_true", help="only tell, remove nothing")
    sweeping.add_argument("--json", action="store_true", help="as a JSON object")
    common.config_arguments(sweeping)
    sweeping.set_defaults(run=sweep)


def list_works(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    head = ("harness", "checkout", "principal", "work", "state", "branch", "path")

    def question(client: AdminClient) -> int:
        common.show(client.works(), arguments.json, head, "no works")
        return 0

    return common.asked(arguments, "works", question)


def sweep(arguments: argparse.Namespace) -> int:
    """Ask for it and tell what became of each."""

    def question(client: AdminClient) -> int:
        swept = client.sweep(dry_run=arguments.dry_run)
        if arguments.json:
            print(common.dumps(swept))
        else:
            _show(swept, arguments.dry_run)
        return 0

    return common.asked(arguments, "works", question, SWEEPING)


def _show(swept: JsonObject, dry_run: bool) -> None:
    removed = cast("list[object]", swept.get("removed") or [])
    kept = cast("list[dict[str, object]]", swept.get("kept") or [])
    word = "would remove" if dry_run else "removed"
    for path in removed:
        print(f"{word} {common.cell(path)}")
    for each in kept:
        told = [common.cell(each.get(key)) for key in ("path", "reason", "detail")]
        print("kept {} ({}): {}".format(*told))
    if not removed and not kept:
        print("no works", file=sys.stderr)
