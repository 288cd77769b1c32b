"""``sidecar policy check``, ``test`` and ``fmt``."""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from sidecar.cli import common
from sidecar.cli.policy_scope import (
    BAD,
    FOUND,
    USAGE,
    BadInput,
    Scope,
    complain,
    dump,
    many,
    read_json,
    scope,
)
from sidecar.model import JsonObject
from sidecar.policy import EngineOptions, PolicyErrors, files, report, suites
from sidecar.policy.decide import CelPolicy
from sidecar.policy.fmt import formatted
from sidecar.policy.guard import Guarded
from sidecar.policy.testing import FAILS, Report, Runner, find_tests
from sidecar.policy.testing import check as run_tests
from sidecar.ports.policy import PolicyFault

_HEAD = ("rule", "on", "effect", "mode", "file")

# ------------------------------------------------------------------------------------ check


def check(arguments: argparse.Namespace) -> int:
    """Load as the sidecar would, its tests included; 0, 3, or 4 for a test that fails and, with
    ``--strict``, for a warning."""
    about = scope(arguments, arguments.paths)
    if about is None:
        return BAD
    faults: list[PolicyFault] = []
    policy: Guarded | None = None
    try:
        schemas = None if arguments.tools is None else _schemas(arguments.tools)
        policy = about.load(EngineOptions(default=about.default, schemas=schemas))
        faults += policy.warnings
    except PolicyErrors as errors:
        faults += errors.faults
    except BadInput as error:
        print(f"sidecar policy check: {error}", file=sys.stderr)
        return USAGE
    faults += _tests_read(about) if policy is None else run_tests(about.paths, engine=about.engine)
    _show_check(arguments.format, about, faults, policy)
    if any(not fault.warning and fault.code != FAILS for fault in faults):
        return BAD
    failing = any(fault.code == FAILS for fault in faults)
    return FOUND if failing or (faults and arguments.strict) else 0


def _tests_read(about: Scope) -> list[PolicyFault]:
    """Faults of the form of the test files; without policies there is nothing to run them on."""
    faults: list[PolicyFault] = []
    try:
        for file in files.read(find_tests(about.paths)):
            faults += suites.read(file, file.text)[1]
    except PolicyErrors:
        return []  # told by the load
    return faults


def _schemas(path: Path) -> Callable[[str, str], JsonObject | None]:
    """The input schemas of a list of tools, by server and the server's own name."""
    read = read_json(str(path), "the list of tools")
    tools = read.get("tools") if isinstance(read, dict) else read
    if not isinstance(tools, list):
        raise BadInput("the list of tools has to be a JSON array")
    known: dict[str, JsonObject] = {}
    for tool in tools:
        if isinstance(tool, dict) and isinstance(tool.get("inputSchema"), dict):
            known[str(tool.get("name"))] = tool["inputSchema"]
    return lambda server, name: known.get(f"{server}__{name}")


def _show_check(
    shape: str, about: Scope, faults: Sequence[PolicyFault], policy: Guarded | None
) -> None:
    rules = [] if policy is None else _rules(policy)
    sound = policy is not None and all(fault.warning for fault in faults)
    if shape == "sarif":
        dump(report.sarif(faults))
    elif shape == "junit":
        print(report.junit_of_faults(faults, dict.fromkeys(file for file, _ in rules)))
    elif shape == "json":
        dump(
            {
                "ok": sound,
                "revision": None if policy is None else policy.revision,
                "faults": [report.fault(fault) for fault in faults],
                "rules": [rule for _, rule in rules],
            }
        )
    else:
        for fault in faults:
            print(fault)
        if policy is not None and sound:
            count = len(dict.fromkeys(file for file, _ in rules))
            print(
                f"ok: {many(count, 'policy', 'policies')}, {many(len(rules), 'rule', 'rules')}, "
                f"default {about.default}, revision {policy.revision[:12]}"
            )
            rows = [[common.cell(rule[key]) for key in _HEAD] for _, rule in rules]
            common.table(rows, [key.upper() for key in _HEAD])


def _rules(policy: Guarded) -> list[tuple[str, JsonObject]]:
    """File and description of every rule, as far as the engine tells them."""
    if not isinstance(policy.policy, CelPolicy):
        return []
    return [
        (
            rule.file,
            {
                "rule": rule.id,
                "on": rule.phase.value,
                "effect": rule.effect,
                "mode": "audit" if rule.audit else "enforce",
                "file": f"{rule.file}:{rule.line}",
            },
        )
        for rule in policy.policy.all_rules()
    ]


# ------------------------------------------------------------------------------------- test


def test(arguments: argparse.Namespace) -> int:
    """Run tests; 0, 3 when something does not load, 4 when a test fails."""
    about = scope(arguments, arguments.paths)
    if about is None:
        return BAD
    try:
        found = find_tests([*about.paths, *_beside(about.paths)], about.shipped)
    except PolicyErrors as errors:
        complain(errors.faults)
        return BAD
    only = arguments.only
    result = Runner(about.engine).run(
        found, lambda case: only is None or fnmatch.fnmatchcase(case.name, only)
    )
    _show_tests(arguments, result)
    if result.errors:
        return BAD
    if not result.outcomes:
        print("sidecar policy test: no tests were found", file=sys.stderr)
        return FOUND
    missed = arguments.strict and (result.faults or report.uncovered(result))
    return FOUND if result.failed or missed else 0


def _beside(paths: Sequence[Path]) -> list[Path]:
    """The tests of policy files that were named themselves."""
    named = [path for path in paths if path.is_file() and not files.is_test(path)]
    beside = [path.with_name(f"{path.stem}{files.TEST}{path.suffix}") for path in named]
    return [path for path in beside if path.is_file()]


def _show_tests(arguments: argparse.Namespace, result: Report) -> None:
    if arguments.format == "json":
        dump(report.tests(result))
    elif arguments.format == "sarif":
        dump(report.sarif([*result.faults, *result.as_faults()]))
    elif arguments.format == "junit":
        print(report.junit_of_tests(result))
    else:
        for fault in [*result.faults, *result.as_faults()]:
            print(fault)
        passed = len(result.outcomes) - len(result.failed)
        print(f"{passed} passed, {len(result.failed)} failed")
        if arguments.coverage:
            _show_coverage(result)


def _show_coverage(result: Report) -> None:
    missed = report.uncovered(result)
    reached = len(result.coverage) - len(missed)
    print(f"{reached} of {many(len(result.coverage), 'rule', 'rules')} matched in a test")
    for rule in missed:
        print(f"{rule.file}:{rule.line}: {rule.id} ({rule.phase}) matches in no test")


# -------------------------------------------------------------------------------------- fmt


def fmt(arguments: argparse.Namespace) -> int:
    """Write files in one shape; with ``--check`` only say which would change."""
    about = scope(arguments, arguments.paths)
    if about is None:
        return BAD
    try:
        found = files.read(files.find(about.paths))
        texts = [(file, file.data.decode()) for file in found if file.text is not None]
    except PolicyErrors as errors:
        complain(errors.faults)
        return BAD
    changed = [(file.path, new) for file, old in texts if (new := formatted(old)) != old]
    for path, text in changed:
        if arguments.check:
            print(f"{path} would change")
        else:
            _replace(path, text)
            print(f"{path} changed")
    return FOUND if changed and arguments.check else 0


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all; a link stays a link."""
    target = Path(os.path.realpath(path))
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".fmt-", delete=False) as new:
        new.write(text)
        os.fchmod(new.fileno(), target.stat().st_mode & 0o777)
    os.replace(new.name, target)
