"""Rooms import downwards only, and nothing heavy sneaks onto the serving path."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "sidecar"

# Lower rooms first; rooms of one line may not import each other unless named in SAME_FLOOR.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("model", "events", "ports", "config", "semconv"),
    ("wire", "processes", "privileges", "descriptors"),
    ("users",),
    ("mcp", "store", "children", "supervisor", "watch", "memory", "logs"),
    ("policy", "catalog"),
    ("gate", "egress"),
    ("parking",),
    ("upstream", "harness"),
    ("gateway",),
    ("downstream", "admin", "demo", "telemetry"),
    ("app",),
    ("serving",),
    ("cli",),
    ("__main__",),
)
SAME_FLOOR = {
    ("events", "model"),
    ("ports", "model"),
    ("ports", "events"),
    ("ports", "config"),
    ("config", "model"),
    ("config", "ports"),
}
# Typed models and client SDKs cost a second and tens of MiB; only verbs that need them import them.
NEVER = {"mcp", "pydantic", "httpx", "httpx2", "anyio", "starlette", "orjson"}
LAZY_ONLY = {"cli"}

FLOOR_OF = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}


def room_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.module or "", node.lineno))
            found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def modules() -> list[Path]:
    return sorted(
        p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE
    )


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    assert room in FLOOR_OF, f"{path}: room {room!r} has no floor; add it to FLOORS"
    wrong = []
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] != "sidecar" or len(parts) < 2 or parts[1] not in FLOOR_OF:
            continue
        other = parts[1]
        if other == room or (room, other) in SAME_FLOOR:
            continue
        if FLOOR_OF[other] >= FLOOR_OF[room]:
            wrong.append(f"{path.relative_to(PACKAGE.parent)}:{line} imports {name}")
    assert wrong == []


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_sdk_on_the_serving_path(path: Path) -> None:
    if room_of(path) in LAZY_ONLY:
        return
    wrong = [
        f"{path.name}:{line} imports {name}"
        for name, line in imports(path)
        if name.split(".")[0] in NEVER
    ]
    assert wrong == []


def test_help_is_quick_to_import() -> None:
    """`sidecar --help` and the supervisor's parent load none of the heavy libraries."""
    code = (
        "import sys, sidecar.__main__, sidecar.supervisor, sidecar.cli\n"
        "heavy = {'aiohttp', 'mcp', 'uvloop', 'msgspec', 'yaml', 'pydantic'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert out.stdout.strip() == "[]"


def test_modules_stay_small() -> None:
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in modules()
        if (lines := len(path.read_text().splitlines())) > 600
    }
    assert long == {}
