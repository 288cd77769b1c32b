"""The parser's tables on disk are those of the grammars installed here.

``SIDECAR_WRITE_DOCS=1 pytest tests/policy/cel/test_grammar.py`` writes them anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import example, given

from sidecar.policy.cel import tables
from sidecar.policy.cel.build import Builder
from sidecar.policy.cel.grammar import build, grammar_text, lark_parser
from tests.policy.cel.expressions import anything


def test_the_tables_on_disk_are_up_to_date() -> None:
    if os.environ.get("SIDECAR_WRITE_DOCS"):
        tables.PATH.write_bytes(tables.dump(build(), grammar_text()))
    content = json.loads(tables.PATH.read_bytes())
    assert content["of"] == tables.digest(grammar_text())
    assert b"celpy" not in tables.PATH.read_bytes()  # no path of the machine that wrote it


LOADED = tables.load(grammar_text(), Builder())
BUILT = build(Builder())


@given(expression=anything())
@example("{?'k': v, 1: [2, ?x,],}")
@example("!a && -1 < 2u ? f(x) : .x.g(r'\\d')")
@example("T{a: 1, ?`b-c`: 2,}.d[?0]")
def test_the_tables_parse_as_the_grammar_does(expression: str) -> None:
    assert LOADED is not None
    assert LOADED.parse(expression) == BUILT.parse(expression)


def test_other_grammars_are_not_read_with_these_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tables.load(grammar_text() + " ", Builder()) is None
    monkeypatch.setattr(tables, "PATH", tmp_path / "tables.json")
    assert tables.load(grammar_text(), Builder()) is None
    (tmp_path / "tables.json").write_bytes(b"{")
    assert tables.load(grammar_text(), Builder()) is None
    lark_parser.cache_clear()
    try:
        assert str(lark_parser().parse("1").value) == "1"
    finally:
        lark_parser.cache_clear()
