"""``sidecar egress check``: what would be decided about a URL, or about many at once."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sidecar.cli import common

if TYPE_CHECKING:
    from sidecar.config import Config
    from sidecar.egress.check import Checked, Reason
    from sidecar.policy.guard import Guarded

USAGE, FOUND = 2, 4
WHY = ("added", "dial", "redirect", "oauth", "proxy")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verb."""
    noun = subparsers.add_parser("egress", help="try where connections may go")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    verb = verbs.add_parser(
        "check",
        help="what would be decided about a URL",
        description="Resolves the host here, asks the built-in verdict and the policies of the "
        "configuration, and tells what they decide: exit 0 when it may be dialled, 4 when not. "
        "Nothing is dialled. With --cases, one JSON object a line (url, dns, verdict, chain …) "
        "takes the place of DNS; each mismatch is printed, and there is exit 4 when there is one.",
    )
    verb.add_argument("url", metavar="URL", nargs="?", help="what would be dialled")
    verb.add_argument("--cases", metavar="FILE", type=Path, help="many URLs and their answers")
    verb.add_argument(
        "--reason", choices=WHY, default="added", help="why it would be dialled; default: added"
    )
    verb.add_argument(
        "--server", metavar="NAME", help="for a server of the configuration: rules alone decide"
    )
    verb.add_argument("--json", action="store_true", help="as JSON")
    common.config_arguments(verb)
    verb.set_defaults(run=check)


def check(arguments: argparse.Namespace) -> int:
    """Ask and print."""
    from sidecar.ports.policy import PolicyErrors

    if (arguments.url is None) == (arguments.cases is None):
        print("sidecar egress check: give a URL, or --cases FILE", file=sys.stderr)
        return USAGE
    config = common.load_config(arguments, asks=True)
    if config is None:
        return common.BAD_CONFIG
    if arguments.server is not None and arguments.server not in config.servers:
        known = ", ".join(config.servers) or "none"
        print(f"sidecar egress check: no such server; there are: {known}", file=sys.stderr)
        return USAGE
    try:
        policy = _policy(config)
    except PolicyErrors as errors:
        for fault in errors.faults:
            print(fault, file=sys.stderr)
        return common.BAD_CONFIG
    if arguments.cases is not None:
        return _cases(arguments.cases, policy, arguments.json)
    reason = cast("Reason", arguments.reason)
    try:
        checked = asyncio.run(_ask(arguments, config, policy, reason))
    except ValueError as error:
        print(f"sidecar egress check: {error}", file=sys.stderr)
        return common.BAD_CONFIG
    return _show(checked, arguments.json)


def _policy(config: Config) -> Guarded:
    """The policy that would be in force. Raises PolicyErrors."""
    from sidecar.policy import EngineOptions, load

    return load(
        config.policies,
        engine=config.policy.engine,
        shipped=config.policy.shipped,
        options=EngineOptions(default=config.policy.default),
    )


async def _ask(
    arguments: argparse.Namespace, config: Config, policy: Guarded, reason: Reason
) -> Checked:
    from sidecar.egress import own
    from sidecar.egress.check import NOBODY, About, EgressCheck
    from sidecar.egress.resolve import SystemResolver
    from sidecar.events import Bus

    resolver = SystemResolver()
    never = own.never(config.proxy.never, os.environ)
    asking = EgressCheck(lambda: policy, resolver, Bus(), proxy_never=never)
    about = NOBODY if arguments.server is None else About.of(config.servers[arguments.server])
    try:
        return await asking.url(arguments.url, reason, about, asked=True)
    finally:
        await resolver.close()


def _show(checked: Checked, as_json: bool) -> int:
    decision, verdict = checked.decision, checked.verdict
    if as_json:
        print(common.dumps(checked.as_json()))
    else:
        # What cannot be read is not repeated: it may hold a password.
        where = common.cell(verdict.target.origin) if verdict.target is not None else "the URL"
        said = "may be dialled" if checked.ok else "may not be dialled"
        message = f": {common.cell(decision.message)}" if decision.message else ""
        print(f"{where} {said}, by rule {decision.rule}{message}")
        for address in verdict.addresses:
            print(f"  {common.cell(address.text)}  {address.class_}")
        if decision.would is not None:
            print(f"  were every rule enforced: {decision.would}, by rule {decision.would_rule}")
        if decision.error is not None:
            error = decision.error
            place = f"{error.file}:{error.line}:{error.column}: " if error.file else ""
            print(f"  {place}{error.rule}: {common.cell(error.message)}")
    return 0 if checked.ok else FOUND


def _cases(file: Path, policy: Guarded, as_json: bool) -> int:
    from sidecar.egress import cases

    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "is not UTF-8 text"
        print(f"{file}: {why}", file=sys.stderr)
        return USAGE
    found, faulty = [], False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append((number, cases.parse(line)))
        except ValueError as error:
            print(f"{file}:{number}: {common.cell(str(error))}", file=sys.stderr)
            faulty = True
    if faulty:
        return USAGE
    if not found:
        print(f"{file}: has no case in it", file=sys.stderr)
        return USAGE

    async def every() -> list[cases.Outcome]:
        return [await cases.run(case, lambda: policy) for _, case in found]

    outcomes = asyncio.run(every())
    wrong = [
        {"line": number, "id": case.id, "url": case.url, "wrong": outcome.wrong}
        for (number, case), outcome in zip(found, outcomes, strict=True)
        if outcome.wrong
    ]
    if as_json:
        print(common.dumps({"cases": len(found), "mismatches": wrong}))
    else:
        for each in wrong:
            what = common.cell(f"{each['id']} {each['url']}".strip())
            print(f"{file}:{each['line']}: {what}: {common.cell(each['wrong'])}")
        print(f"{_count(len(found), 'case')}, {_count(len(wrong), 'mismatch', 'es')}")
    return FOUND if wrong else 0


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}{'' if number == 1 else plural}"
