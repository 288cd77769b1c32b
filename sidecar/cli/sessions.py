"""``sidecar sessions list|clear``: who is connected, and what they have gathered."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, cast

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient
    from sidecar.model import JsonObject


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser("sessions", help="sessions of agents, and their trust labels")
    nouns = parser.add_subparsers(metavar="WHAT", required=True)
    listing = nouns.add_parser(
        "list",
        help="every session, every label, and the results that brought it",
        description="A label such as `outside` says that its principal has seen something that "
        "came from a server which is not trusted. The last results that brought it are named.",
    )
    listing.add_argument("--json", action="store_true", help="as a JSON object")
    common.config_arguments(listing)
    listing.set_defaults(run=list_sessions)
    clearing = nouns.add_parser(
        "clear",
        help="forget a principal's labels",
        description="For when what was read has been looked at, or its conversation is over.",
    )
    clearing.add_argument("principal", metavar="PRINCIPAL")
    common.config_arguments(clearing)
    clearing.set_defaults(run=clear)


def list_sessions(arguments: argparse.Namespace) -> int:
    """Ask and print."""

    def question(client: AdminClient) -> int:
        sessions, labels = client.sessions(), client.labels()
        if arguments.json:
            print(common.dumps({"sessions": sessions, "labels": labels}))
        else:
            _show(sessions, labels)
        return 0

    return common.asked(arguments, "sessions", question)


def _show(sessions: list[JsonObject], labels: list[JsonObject]) -> None:
    if not sessions:
        print("no sessions", file=sys.stderr)
    common.show(
        [_session(each) for each in sessions],
        False,
        [key for key in sessions[0] if any(each.get(key) is not None for each in sessions)]
        if sessions
        else (),
    )
    rows = [_row(str(each["principal"]), label) for each in labels for label in _labels(each)]
    if sessions and rows:
        print()
    common.show(rows, False, ("principal", "label", "session", "until", "brought_by"))


def _session(of: dict[str, object]) -> dict[str, object]:
    """A session with its client and its time as people read them."""
    shown, client, opened = dict(of), of.get("client"), of.get("opened_at")
    if isinstance(client, dict):
        shown["client"] = f"{client.get('name', '')} {client.get('version', '')}".strip() or None
    if isinstance(opened, int | float):
        shown["opened_at"] = _moment(opened)
    return shown


def _moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _labels(of: dict[str, object]) -> list[dict[str, object]]:
    return cast("list[dict[str, object]]", of["labels"])


def _row(principal: str, label: dict[str, object]) -> dict[str, object]:
    results = cast("list[dict[str, object]]", label["results"])
    # The latest first; the same tool once.
    targets = list(dict.fromkeys(str(each["target"]) for each in reversed(results)))
    return {
        "principal": principal,
        "label": label["label"],
        "session": label.get("session"),
        "until": _moment(cast("float", label["until"])),
        "brought_by": ", ".join(targets),
    }


def clear(arguments: argparse.Namespace) -> int:
    """Ask for it."""

    def question(client: AdminClient) -> int:
        client.clear_labels(arguments.principal)
        return 0

    return common.asked(arguments, "sessions", question)
