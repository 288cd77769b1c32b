"""``sidecar calls``: what waits for a person, and the person's answer."""

from __future__ import annotations

import argparse
import copy
from typing import TYPE_CHECKING

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.admin.client import AdminClient
    from sidecar.model import JsonObject

_STATES = "waiting (the default), answered, all, or any state"
_ARRAY = "as a JSON array"
LEAST = 4
"""Characters of an id's beginning: with fewer, an empty variable of a script would approve."""
MOST_KNOWN = 10_000
"""Calls whose last state `watch` remembers."""
FOLDED = "(folded; --all shows it)"
HEAD = ("id", "state", "tool", "principal", "asked_at", "expires_at")


def add(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    parser = verbs.add_parser(
        "calls",
        help="calls that wait for a person: list, show, approve, deny, watch",
        description="Without more: the calls that wait. Answering is for operators and approvers.",
    )
    parser.add_argument("--state", default="waiting", help=_STATES)
    parser.add_argument("--json", action="store_true", help=_ARRAY)
    common.config_arguments(parser)
    parser.set_defaults(run=listing)
    nouns = parser.add_subparsers(metavar="WHAT")
    # What it does without more, under the name that other verbs have for it.
    same = nouns.add_parser("list", help="the calls that wait (also without a word)")
    same.add_argument("--state", default=argparse.SUPPRESS, help=_STATES)
    same.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=_ARRAY)
    common.config_arguments(same)
    same.set_defaults(run=listing)
    for what, about, run in (
        ("show", "one call, with its arguments", show),
        ("approve", "let it run, once", approve),
        ("deny", "refuse it; the agent is told why", deny),
    ):
        one = nouns.add_parser(what, help=about)
        one.add_argument("id", metavar="ID", help="as listed; its beginning is enough")
        one.add_argument("--json", action="store_true", help="as a JSON object")
        if run is show:
            one.add_argument(
                "--all", action="store_true", help="also arguments that their tool calls secret"
            )
        else:
            one.add_argument("--why", metavar="TEXT", default="", help="your reason")
        common.config_arguments(one)
        one.set_defaults(run=run)
    watching = nouns.add_parser("watch", help="calls as they come and are answered, live")
    watching.add_argument("--json", action="store_true", help="as JSON objects, one a line")
    common.config_arguments(watching)
    watching.set_defaults(run=watch)


def _ask(arguments: argparse.Namespace) -> AdminClient | None:
    config = common.load_config(arguments, asks=True)
    return common.admin_client(config) if config is not None else None


def _failed(error: Exception) -> int:
    return common.failed("calls", error)


def listing(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from sidecar.admin.client import AdminError

    try:
        client = _ask(arguments)
        if client is None:
            return common.BAD_CONFIG
        found = client.calls(None if arguments.state == "all" else arguments.state)
    except AdminError as error:
        return _failed(error)
    if not found and not arguments.json:
        print("no call waits" if arguments.state == "waiting" else "no calls")
        return 0
    common.show(found, arguments.json, HEAD)
    return 0


def _whole(client: AdminClient, start: str) -> str:
    """The id that begins so: the whole one, or the only one that waits."""
    from sidecar.admin.client import AdminError

    if len(start) >= 36:
        return start
    if len(start) < LEAST:
        raise AdminError(f"{start!r} is too short: give {LEAST} characters of the id, or more")
    found = [str(call["id"]) for call in client.calls() if str(call["id"]).startswith(start)]
    if len(found) > 1:
        raise AdminError(f"{len(found)} calls begin with {start!r}: give more of the id")
    return found[0] if found else start


def show(arguments: argparse.Namespace) -> int:
    """One call, for people or programs."""
    from sidecar.admin.client import AdminError

    try:
        client = _ask(arguments)
        if client is None:
            return common.BAD_CONFIG
        call = client.call(_whole(client, arguments.id))
    except AdminError as error:
        return _failed(error)
    if arguments.json:
        print(common.dumps(call))
        return 0
    shown = call if arguments.all else _fold(call)
    for key, value in {**shown, "labels": _readable(shown.get("labels", []))}.items():
        if isinstance(value, dict | list):
            text = common.dumps(value)
            print(f"{key}:")
            print("\n".join(f"  {common.cell(line)}" for line in text.splitlines()))
        else:
            print(f"{key}: {common.cell(value)}")
    return 0


def _readable(labels: object) -> object:
    """Labels with their times as all other times of a call are shown, not in seconds."""
    from sidecar.parking.answers import moment

    if isinstance(labels, list):
        return [_readable(each) for each in labels]
    if not isinstance(labels, dict):
        return labels
    return {
        key: moment(value)
        if key in ("at", "until") and isinstance(value, float)
        else _readable(value)
        if key == "results"
        else value
        for key, value in labels.items()
    }


def _fold(call: JsonObject) -> JsonObject:
    """The call without the values that its tool's schema calls ``writeOnly``."""
    pointers = call.get("folded")
    if not isinstance(pointers, list):
        return call
    folded = copy.deepcopy(call)
    compared = folded.get("compared")
    sides = [folded.get("args"), compared.get("args") if isinstance(compared, dict) else None]
    for pointer in map(str, pointers):
        for side in sides:
            _hide(side, pointer)
        if isinstance(compared, dict) and isinstance(compared.get("differences"), list):
            for each in compared["differences"]:
                if f"{each['path']}/".startswith(f"{pointer}/"):
                    each.update(dict.fromkeys(each.keys() & {"before", "now"}, FOLDED))
    return folded


def _hide(args: object, pointer: str) -> None:
    """Put ``FOLDED`` in the place that a JSON pointer (RFC 6901) leads to, if there is one."""
    *path, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    at: object = args
    for part in path:
        at = _below(at, part)
    if isinstance(at, dict) and last in at:
        at[last] = FOLDED
    elif isinstance(at, list) and last.isdigit() and int(last) < len(at):
        at[int(last)] = FOLDED


def _below(value: object, part: str) -> object:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and part.isdigit() and int(part) < len(value):
        return value[int(part)]
    return None


def approve(arguments: argparse.Namespace) -> int:
    """Let it run."""
    return _answer(arguments, approve=True)


def deny(arguments: argparse.Namespace) -> int:
    """Refuse it."""
    return _answer(arguments, approve=False)


def _answer(arguments: argparse.Namespace, *, approve: bool) -> int:
    from sidecar.admin.client import AdminError, Refused

    try:
        client = _ask(arguments)
        if client is None:
            return common.BAD_CONFIG
        id = _whole(client, arguments.id)
        try:
            call = client.answer(id, approve=approve, why=arguments.why)
        except Refused as refused:
            if refused.reason != "conflict":
                raise
            return _failed(_too_late(client.call(id)))
    except AdminError as error:
        return _failed(error)
    if arguments.json:
        print(common.dumps(call))
        return 0
    print(f"{call['state']}: {common.cell(call['tool'])} of {common.cell(call['principal'])}")
    return 0


def _too_late(call: JsonObject) -> Exception:
    """Why nothing came of an answer: somebody was faster, or time was."""
    by = f", answered by {call['answered_by']} ({call['way']})" if call.get("answered_by") else ""
    why = f": {call['ended']}" if call["state"] in ("cancelled", "void") else ""
    return Exception(f"the call is {call['state']} already{by}{why}; nothing has changed")


def watch(arguments: argparse.Namespace) -> int:
    """A line for each change, until the sidecar ends or Ctrl-C."""
    from sidecar.admin.client import AdminError

    try:
        client = _ask(arguments)
        if client is None:
            return common.BAD_CONFIG
        told = _Told(arguments.json)
        for name, body in client.events():
            if name.startswith("call."):
                told.tell(body)
            elif name in ("open", "lost"):
                # Only now: what begins to wait from here on comes as an event.
                for call in reversed(client.calls("waiting")):
                    told.tell(call)
    except AdminError as error:
        return _failed(error)
    return 0


class _Told:
    """Prints each state of each call once, however often it is heard of."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._states: dict[object, object] = {}

    def tell(self, call: JsonObject) -> None:
        id, state = call["id"], call["state"]
        if self._states.pop(id, None) != state:
            print(_line(call, self._as_json), flush=True)
        self._states[id] = state
        if len(self._states) > MOST_KNOWN:
            del self._states[next(iter(self._states))]


def _line(call: JsonObject, as_json: bool) -> str:
    if as_json:
        return common.dumps(call, None)
    by = f" by {common.cell(call['answered_by'])}" if call.get("answered_by") else ""
    return (
        f"{common.cell(call['state']):9}  {call['id']}  {common.cell(call['tool'])}  "
        f"{common.cell(call['principal'])}{by}"
    )
