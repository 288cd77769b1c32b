"""``sidecar audit verify``: whether an audit trail is what was written."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.telemetry.audit_chain import Head, Report

FAILED, USAGE, FOUND = 1, 2, 4


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    noun = subparsers.add_parser("audit", help="check the audit trail")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    verb = verbs.add_parser(
        "verify",
        help="whether an audit trail is what was written",
        description="Walks the chain of every record and prints each place where it does not "
        "hold as file:line (exit 4). Files that FILE became when it was full, FILE.0000000001 "
        "and so on, are read before it.",
    )
    verb.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        type=Path,
        help="default: the file that the configuration names as audit",
    )
    verb.add_argument(
        "--head",
        metavar="SEQ:SHA256",
        help="a record that must be there as it was, such as the last one of an earlier check: "
        "it tells when the end was cut off or all of it was written anew",
    )
    verb.add_argument("--only", action="store_true", help="only the files given, no older ones")
    verb.add_argument("--json", action="store_true", help="as JSON")
    common.config_arguments(verb)
    verb.set_defaults(run=verify)


def verify(arguments: argparse.Namespace) -> int:
    """Check and print."""
    from sidecar.telemetry import audit_chain

    head: Head | None = None
    if arguments.head is not None:
        try:
            head = audit_chain.Head.parse(arguments.head)
        except ValueError as error:
            print(f"sidecar audit verify: --head {error}", file=sys.stderr)
            return USAGE
    files: list[Path] = arguments.files
    if not files:
        config = common.load_config(arguments, asks=True)
        if config is None:
            return common.BAD_CONFIG
        if config.audit.file is None:
            print(
                "sidecar audit verify: the configuration names no file as audit; name one here",
                file=sys.stderr,
            )
            return USAGE
        files = [config.audit.file]
    try:
        report = audit_chain.verify(_all(files, arguments.only), head)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"{where}{os.strerror(error.errno or 0)}", file=sys.stderr)
        return FAILED
    _show(report, arguments.json)
    return 0 if report.ok else FOUND


def _all(files: list[Path], only: bool) -> list[Path]:
    """The files and what they were before, each once. Raises OSError."""
    from sidecar.telemetry.audit_chain import rotated

    found: dict[Path, None] = {}
    for file in files:
        for each in [] if only else rotated(file):
            found[each] = None
        found.pop(file, None)
        found[file] = None
    return list(found)


def _show(report: Report, as_json: bool) -> None:
    if as_json:
        told = {
            "ok": report.ok,
            "files": report.files,
            "records": report.records,
            "first": report.first,
            "head": str(report.head) if report.records else None,
            "breaks": [
                {"file": each.file, "line": each.line, "why": each.why} for each in report.breaks
            ],
            "more_breaks": report.more,
            "notices": report.notices,
        }
        print(common.dumps(told))
        return
    for each in report.breaks:
        print(each)
    if report.more:
        print(f"and {report.more} more")
    for notice in report.notices:
        print(f"note: {notice}")
    what = "holds" if report.ok else "is broken"
    records = _counted(report.records, "record")
    print(f"{records} in {_counted(len(report.files), 'file')}; the chain {what}")
    if report.records:
        print(f"head {report.head}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
