"""What docs/telemetry.md says of spans is what the code has: every name, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from sidecar import semconv

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "telemetry.md").read_text()
TRACES = PAGE.split("\n## Traces\n")[1].split("\n## ")[0]
NAME = re.compile(r"`([a-z0-9_.]+\.[a-z0-9_.]+)`")


def tables() -> list[list[str]]:
    """The first cells of each table under "Traces", in order."""
    found: list[list[str]] = []
    rows: list[str] = []
    for line in TRACES.splitlines():
        if line.startswith("|"):
            rows.append(line.split("|")[1].strip())
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def values(of: type) -> set[str]:
    return {value for key, value in vars(of).items() if key.isupper()}


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in NAME.findall(cell)]


def test_every_span_is_documented() -> None:
    found = names(tables()[0])
    assert {name for name in found if name.startswith("sidecar.")} == values(semconv.Names)


def test_every_attribute_is_documented_once() -> None:
    theirs, ours = (names(cells) for cells in tables()[1:3])
    operations = {semconv.GenAi.EXECUTE_TOOL, semconv.GenAi.INVOKE_AGENT}
    conventions = values(semconv.Mcp) | values(semconv.GenAi) | values(semconv.Vcs)
    assert sorted(theirs) == sorted(conventions - operations)
    assert sorted(ours) == sorted(values(semconv.Key))


def test_names_are_written_down_in_one_place() -> None:
    """Whoever sets one takes it from ``semconv``."""
    known = (
        values(semconv.Key) | values(semconv.Names) | values(semconv.GenAi) | values(semconv.Mcp)
    )
    known |= values(semconv.Vcs)
    wrong = []
    for path in sorted((ROOT / "sidecar").rglob("*.py")):
        # Log records have event names, which may be what an attribute is called.
        if path.name in ("semconv.py", "logs_export.py"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            for text in re.findall(r'"((?:sidecar|gen_ai|mcp|vcs)\.[a-z_.]+)"', line):
                if text in known and "getLogger" not in line:
                    wrong.append(f"{path.relative_to(ROOT)}:{number}: {text}")
    assert wrong == []


def test_every_name_is_used() -> None:
    used = {
        name
        for path in (ROOT / "sidecar").rglob("*.py")
        if path.name != "semconv.py"
        for name in re.findall(r"\b(?:Names|Mcp|GenAi|Vcs|Key)\.[A-Z_]+\b", path.read_text())
    }
    known = {
        f"{of.__name__}.{key}"
        for of in (semconv.Names, semconv.Mcp, semconv.GenAi, semconv.Vcs, semconv.Key)
        for key in vars(of)
        if key.isupper()
    }
    assert sorted(known - used) == []


def test_pictures_are_where_the_page_shows_them() -> None:
    found = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", TRACES)
    assert found
    for name in found:
        assert (ROOT / "docs" / name).read_bytes().startswith(b"\x89PNG"), name
