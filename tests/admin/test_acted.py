"""What operators change is in the audit trail: who, what, and whether it was refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from sidecar.admin.api import Route
from sidecar.admin.roles import Role
from sidecar.app import App
from sidecar.config import Config
from tests.kit.running import running
from tests.telemetry.test_audit import NOTES, config

QUESTIONS = {"/v1/egress/check", "/v1/policy/eval"}
"""They change nothing."""
ANSWERS = {"/v1/calls/{id}/approve", "/v1/calls/{id}/deny"}
"""They have records of their own kind."""


def test_every_route_that_changes_something_has_a_name(tmp_path: Path) -> None:
    routes: list[Route] = App(Config(), own=frozenset())._admin_routes()
    changing = {each.path for each in routes if each.method not in ("GET", "HEAD")}
    named = [each for each in routes if each.changes]
    assert {each.path for each in named} == changing - QUESTIONS - ANSWERS
    assert len({each.changes for each in named}) == len(named) == 6
    assert {each.role for each in named} == {Role.OPERATOR}


def acted(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "audit.jsonl").read_text().splitlines()
    return [each for each in map(json.loads, lines) if each["kind"] == "admin"]


async def test_what_operators_do_is_in_the_trail(tmp_path: Path) -> None:
    async with running(
        config(tmp_path, servers={"notes": NOTES}, runtime_servers={"check": False})
    ) as sidecar:
        for arguments, code in [
            (("servers", "add", "later", "--url", "http://127.0.0.1:9/mcp?key=SECRET"), 0),
            (("servers", "remove", "later"), 0),
            (("servers", "remove", "notes"), 1),
            (("tools", "pin", "--all"), 0),
        ]:
            done = await asyncio.to_thread(sidecar.cli, *arguments)
            assert done.returncode == code, done.stderr
    told = acted(tmp_path)
    assert [(each["action"], each.get("targets"), each.get("error")) for each in told] == [
        ("servers.put", ["later"], None),
        ("servers.remove", ["later"], None),
        ("servers.remove", ["notes"], "configured"),
        ("pins.accept", ["notes__add", "notes__search"], None),
    ]
    assert all(each["by"].startswith("uid:") and each["way"] == "socket" for each in told)
    assert "SECRET" not in (tmp_path / "audit.jsonl").read_text()
