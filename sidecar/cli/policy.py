"""``sidecar policy``: check, test, eval, replay, fmt and vars.

Exit codes: 0 ok, 2 usage or an input that is none, 3 policies that do not load, 4 a check found
something (a test that fails, with ``--strict`` a warning).
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

from sidecar.cli import common

FORMATS = ("text", "json", "sarif", "junit")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the verbs."""
    noun = subparsers.add_parser("policy", help="check, test, try and explain policies")
    verbs = noun.add_subparsers(metavar="VERB", required=True)
    _add_check(verbs)
    _add_test(verbs)
    _add_eval(verbs)
    _add_replay(verbs)
    _add_fmt(verbs)
    _add_vars(verbs)


def _paths(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("paths", metavar="PATH", type=Path, nargs="*", help=what)
    common.config_arguments(parser)
    parser.add_argument("--engine", metavar="NAME", help="in place of policy.engine")


def _formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=FORMATS, default="text", help="default: text")
    parser.add_argument(
        "--json", dest="format", action="store_const", const="json", help="--format json"
    )
    parser.add_argument("--strict", action="store_true", help="exit 4 where there is a warning")


def _add_check(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "check",
        help="tell everything that is wrong with policy files",
        description="Checks these files and folders, or without any those of the configuration "
        "and the sidecar's own, and runs the tests beside them, as the sidecar does when it takes "
        "them over. Prints each fault as file:line:column: policy/rule: message, or the rules "
        "that would be in force. Exits 3 when they do not load, 4 when a test fails.",
    )
    _paths(verb, "files or folders; default: what the configuration names")
    _formats(verb)
    verb.add_argument(
        "--tools",
        metavar="FILE",
        type=Path,
        help="tools as `sidecar tools --format mcp` gives them: the arguments that a rule about "
        "one tool reads have to be that tool's",
    )
    verb.set_defaults(run=_verb("checks", "check"))


def _add_test(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "test",
        help="run policy tests",
        description="Runs the *_test.yaml files among these files and below these folders, or "
        "without any those of the configuration and the sidecar's own. Exits 4 when one fails.",
    )
    _paths(verb, "test files, policy files with a test beside them, or folders")
    _formats(verb)
    verb.add_argument("--coverage", action="store_true", help="tell which rules no test reaches")
    verb.add_argument("--run", dest="only", metavar="GLOB", help="only tests with such a name")
    verb.set_defaults(run=_verb("checks", "test"))


def _add_eval(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "eval",
        help="decide one input, and say why",
        description="Decides an input as the gateway would. The input is JSON: {phase, tool, "
        "server, agent, session, call, args, permission, work, result, url, addresses, now}; "
        "what is absent is absent. Exits 0 whatever is decided.",
    )
    _some_policies(verb)
    verb.add_argument(
        "--input", metavar="FILE", required=True, help="a file with the input, or - for stdin"
    )
    verb.add_argument(
        "--explain", action="store_true", help="every rule, and the value of each of its parts"
    )
    verb.add_argument("--json", action="store_true", help="the decision as JSON")
    verb.set_defaults(run=_verb("eval", "evaluate"))


def _some_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policies",
        metavar="PATH",
        type=Path,
        nargs="+",
        action="extend",
        help="these files alone, with default allow, in place of what the configuration names",
    )
    parser.add_argument(
        "--shipped", action="store_true", help="with --policies: the sidecar's own as well"
    )
    common.config_arguments(parser)
    parser.add_argument("--engine", metavar="NAME", help="in place of policy.engine")


def _add_replay(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "replay",
        help="decide recorded inputs again, and tell what would be different",
        description="Reads a file that `policy.record: inputs` wrote. Exits 4 when a decision "
        "would be another. What cannot be decided again is told as unknown.",
    )
    verb.add_argument("file", metavar="FILE", type=Path, help="the records")
    _some_policies(verb)
    verb.add_argument("--json", action="store_true", help="every record as JSON")
    verb.set_defaults(run=_verb("eval", "replay"))


def _add_fmt(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "fmt",
        help="write policy files in one shape",
        description="Puts keys into one order and takes out stray space, in place. Comments stay. "
        "Without a path: the files of the configuration.",
    )
    _paths(verb, "files or folders")
    verb.add_argument(
        "--check", action="store_true", help="write nothing; exit 4 where something would change"
    )
    verb.set_defaults(run=_verb("checks", "fmt"))


def _add_vars(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    verb = verbs.add_parser(
        "vars",
        help="what rules can read, phase by phase",
        description="Every variable with its type, and every function. A ? marks a field that "
        "may be absent.",
    )
    verb.add_argument(
        "--phase", choices=("connect", "list", "call", "result"), help="one phase alone"
    )
    verb.add_argument("--json", action="store_true", help="JSON Schema of each phase's input")
    verb.set_defaults(run=_verb("eval", "variables"))


def _verb(module: str, name: str) -> Callable[[argparse.Namespace], int]:
    """The verb, whose module is imported when it runs."""

    def run(arguments: argparse.Namespace) -> int:
        verbs = importlib.import_module(f"sidecar.cli.policy_{module}")
        return int(getattr(verbs, name)(arguments))

    return run
