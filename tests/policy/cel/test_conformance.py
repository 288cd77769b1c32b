"""cel-spec's conformance tests through both engines, and the table of docs/cel.md.

``SIDECAR_WRITE_DOCS=1 pytest tests/policy/cel/test_conformance.py`` writes the table anew.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.policy.cel import engines
from tests.policy.cel.conformance import (
    CHECKER,
    MESSAGES,
    REPOSITORY,
    Case,
    Engine,
    Outcome,
    cases,
    folder,
    run,
    summary,
)

FOLDER = folder()
pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="cel-spec's files are not here; set SIDECAR_CEL_SPEC to their folder"
)

# Tests that apply and do not pass, each with the reason that docs/cel.md gives.
EXCEPTIONS: dict[str, str] = {}
BEGIN = "<!-- conformance: written by tests/policy/cel/test_conformance.py -->"
END = "<!-- end of conformance -->"


def _all() -> list[Case]:
    assert FOLDER is not None
    return list(cases(FOLDER))


def _outcomes(engine: Engine) -> list[Outcome]:
    return [run(engine, case) for case in _all() if case.skipped is None]


def test_our_engine_passes_what_applies() -> None:
    outcomes = _outcomes(engines.ours)
    failed = {o.case.id: f"{o.case.expr} → {o.failure}" for o in outcomes if o.failure}
    assert set(failed) == set(EXCEPTIONS), failed
    assert len(outcomes) > 1700
    assert len(failed) <= len(outcomes) // 100


def test_what_does_not_apply_is_told_apart_by_reason() -> None:
    reasons = Counter(case.skipped for case in _all())
    assert reasons[MESSAGES] + reasons[CHECKER] + reasons[None] == sum(reasons.values()) == 2456
    for case in _all():
        if case.skipped == MESSAGES:
            assert case.file not in {"basic", "logic", "lists", "string", "macros", "fields"}


def _row(name: str, cells: list[str]) -> str:
    return f"| {name} | " + " | ".join(cells) + " |"


def _table() -> str:
    everything = _all()
    skipped = [case for case in everything if case.skipped is not None]
    ours = summary(_outcomes(engines.ours), skipped)
    theirs = summary(_outcomes(engines.celpy), [])
    lines = [
        "| file | tests | need messages | need a type checker | apply | `cel` | `celpy` |",
        "|---|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for file, row in sorted(ours.items()):
        apply = row["passed"] + row["failed"]
        celpy = theirs.get(file, Counter())["passed"]
        counts = {
            "tests": sum(row.values()),
            MESSAGES: row[MESSAGES],
            CHECKER: row[CHECKER],
            "apply": apply,
            "cel": row["passed"],
            "celpy": celpy,
        }
        total.update(counts)
        shown = [str(count) for count in counts.values()]
        lines.append(_row(file, shown if apply else [*shown[:4], "–", "–"]))
    lines.append(_row("**all**", [f"**{count}**" for count in total.values()]))
    return "\n".join(lines)


def test_the_table_in_the_docs_is_true() -> None:
    document = REPOSITORY / "docs" / "cel.md"
    text = document.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    table = _table()
    if os.environ.get("SIDECAR_WRITE_DOCS"):
        document.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")
        return
    assert shown.strip() == table
    for test, reason in EXCEPTIONS.items():
        assert test in after
        assert reason in after
