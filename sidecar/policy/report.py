"""Findings and test results for other programs: SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from sidecar import __version__
from sidecar.model import JsonObject
from sidecar.policy import shapes
from sidecar.policy.testing import Outcome, Report, RuleCoverage
from sidecar.ports.policy import PolicyFault

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def fault(of: PolicyFault) -> JsonObject:
    """``{file, line, column, rule, message, warning, code}``."""
    return asdict(of)


def sarif(faults: Sequence[PolicyFault]) -> JsonObject:
    """A SARIF log with one run."""
    codes = sorted({each.code or "policy" for each in faults})
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "sidecar policy",
                        "version": __version__,
                        "rules": [{"id": code} for code in codes],
                    }
                },
                "results": [_result(each) for each in faults],
            }
        ],
    }


def _result(of: PolicyFault) -> JsonObject:
    place: JsonObject = {"artifactLocation": {"uri": _uri(of.file)}}
    if of.line:
        place["region"] = {"startLine": of.line, "startColumn": max(of.column, 1)}
    return {
        "ruleId": of.code or "policy",
        "level": "warning" if of.warning else "error",
        "message": {"text": f"{of.rule}: {of.message}" if of.rule else of.message},
        "locations": [{"physicalLocation": place}],
    }


def _uri(file: str) -> str:
    """A file's name as a URI reference (RFC 3986); ``shipped:`` is a scheme already."""
    quoted = quote(file, safe="/:@!$&'()*+,;=~")
    if file.startswith("/"):
        return f"file://{quoted}"
    # A colon in the first segment would make a scheme of what stands before it.
    first, slash, rest = quoted.partition("/")
    if file.startswith("shipped:") or ":" not in first:
        return quoted
    return f"./{first}{slash}{rest}"


def junit_of_faults(faults: Sequence[PolicyFault], files: Iterable[str]) -> str:
    """One test suite a file; a file without an error is one test that passes."""
    suites: dict[str, list[PolicyFault]] = {file: [] for file in files}
    for each in faults:
        suites.setdefault(each.file, []).append(each)
    made = []
    for file, found in suites.items():
        errors = [each for each in found if not each.warning]
        cases = [
            _case(file, f"{each.line}:{each.column} {each.rule}".strip(), [each.message])
            for each in errors
        ] or [_case(file, "loads", [])]
        made.append(_suite(file, cases, len(errors)))
    return _suites(made)


def junit_of_tests(report: Report) -> str:
    """One test suite a file, one test a case; a file that does not run is a failed test."""
    suites: dict[str, list[tuple[str, Sequence[str]]]] = {}
    for outcome in report.outcomes:
        suites.setdefault(outcome.file, []).append((outcome.case.name, outcome.problems))
    for each in report.errors:
        suites.setdefault(each.file, []).append((f"{each.line}:{each.column}", [each.message]))
    return _suites(
        [
            _suite(
                file,
                [_case(file, name, problems) for name, problems in cases],
                sum(bool(problems) for _, problems in cases),
            )
            for file, cases in suites.items()
        ]
    )


def _suites(suites: Sequence[str]) -> str:
    body = "\n".join(suites)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{body}\n</testsuites>'


def _suite(name: str, cases: Sequence[str], failed: int) -> str:
    head = f'<testsuite name={_quoted(name)} tests="{len(cases)}" failures="{failed}">'
    return "\n".join([head, *cases, "</testsuite>"])


def _case(file: str, name: str, problems: Sequence[str]) -> str:
    head = f"<testcase classname={_quoted(file)} name={_quoted(name)}"
    if not problems:
        return f"{head}/>"
    told = "\n".join(problems)
    body = f"<failure message={_quoted(problems[0])}>{escape(_visible(told))}</failure>"
    return f"{head}>{body}</testcase>"


def _quoted(text: str) -> str:
    return quoteattr(_visible(text))


def _visible(text: str) -> str:
    """XML 1.0 has no way to write control characters."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


# ------------------------------------------------------------------------------------- tests


def tests(report: Report) -> JsonObject:
    """``{passed, failed, tests: […], faults: […], coverage: […]}``."""
    return {
        "passed": len(report.outcomes) - len(report.failed),
        "failed": len(report.failed),
        "tests": [_outcome(each) for each in report.outcomes],
        "faults": [fault(each) for each in report.faults],
        "coverage": [asdict(each) for each in report.coverage],
    }


def _outcome(of: Outcome) -> Mapping[str, object]:
    return {
        "file": of.file,
        "line": of.case.line,
        "name": of.case.name,
        "passed": not of.problems,
        "problems": list(of.problems),
        "decision": shapes.decision(of.decision),
    }


def uncovered(report: Report) -> list[RuleCoverage]:
    """The rules that no case matches."""
    return [each for each in report.coverage if not each.matched]
