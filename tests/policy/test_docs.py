"""docs/policy.md is true: its files are written, its commands run, and what they print is there.

Blocks are taken in the order of the page, in one folder: a file's block stands below its name
in backticks; a text block is what the commands right above it print.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.config import load as load_config
from sidecar.model import Phase
from sidecar.policy import EngineOptions, PolicyErrors, load
from sidecar.policy.describe import functions
from sidecar.policy.phases import EFFECTS, VARIABLES
from sidecar.policy.testing import Runner, find_tests

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
BLOCK = re.compile(
    r"(?:^`(?P<file>[\w./-]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```", re.M | re.S
)
REVISION = re.compile(r"\b[0-9a-f]{12}\b")


def blocks() -> list[tuple[str, str, str]]:
    return [(each["kind"], each["file"] or "", each["body"]) for each in BLOCK.finditer(PAGE)]


def test_the_tutorial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIDECAR_CONFIG", raising=False)
    printed, ran, compared = "", 0, 0
    for kind, file, body in blocks():
        if file:
            path = tmp_path / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(body)
        elif kind == "sh":
            printed = ""
            for line in body.splitlines():
                command, _, said = line.partition("#")
                expected = int(said.split()[1]) if said.strip().startswith("exits") else 0
                words = shlex.split(command)
                assert words[0] == "sidecar"
                code = main(words[1:])
                out, err = capsys.readouterr()
                assert code == expected, (line, out, err)
                printed += out
                ran += 1
        elif kind == "text":
            assert REVISION.sub("…", printed) == REVISION.sub("…", body)
            compared += 1
    assert (ran, compared) == (5, 4)
    assert load_config(tmp_path / "sidecar.yaml", environ={}).policies == (tmp_path / "policies",)
    report = Runner().run(find_tests([tmp_path / "policies", tmp_path / "more"]))
    assert [str(each) for each in (*report.faults, *report.as_faults())] == []
    assert len(report.outcomes) == 6


@pytest.mark.parametrize(
    "body", [body for kind, file, body in blocks() if kind == "yaml" and not file]
)
def test_every_other_block_loads_without_a_warning(body: str, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(body)
    loaded = load([tmp_path / "p.yaml"], shipped=(), options=EngineOptions())
    assert [str(each) for each in loaded.warnings] == []


def test_blocks_that_are_wrong_are_so(tmp_path: Path) -> None:
    wrong = [body for kind, file, body in blocks() if kind == "yaml" and body.startswith("# error")]
    assert len(wrong) == 1
    (tmp_path / "p.yaml").write_text(wrong[0])
    with pytest.raises(PolicyErrors):
        load([tmp_path / "p.yaml"], shipped=())


def test_the_table_of_phases_is_that_of_the_code() -> None:
    rows = {
        cells[0].strip("` "): cells
        for line in PAGE.splitlines()
        if line.startswith("| `") and len(cells := line.strip("|").split("|")) == 5
    }
    for phase in Phase:
        _, _, effects, _, variables = rows[phase.value]
        assert re.findall(r"`(\w+)`", effects) == list(EFFECTS[phase])
        named = set(re.findall(r"`(\w+)`", variables))
        if "the same" in variables:
            named |= VARIABLES[Phase.CALL]
        assert named == VARIABLES[phase]


def test_every_verb_is_there() -> None:
    for verb in ("check", "test", "eval", "replay", "fmt", "vars"):
        assert f"| `sidecar policy {verb}" in PAGE


def test_json_blocks_are_json() -> None:
    for kind, _, body in blocks():
        if kind == "json":
            json.loads(body)
    assert "glob" in functions()
