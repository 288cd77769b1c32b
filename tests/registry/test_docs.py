"""What docs/servers.md shows is done, block by block, on a real sidecar."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import os
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar.config import load
from sidecar.config.runtime import OPTIONS
from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.http import HttpServer, serving
from tests.kit.running import Sidecar
from tests.registry.lab import lab

PAGE = (Path(__file__).parents[2] / "docs" / "servers.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = "https://mcp.example.com"


@pytest.fixture
async def upstream() -> AsyncIterator[HttpServer]:
    async with serving(Behaviour(name="search")) as server:
        yield server


@pytest.fixture
async def sidecar(upstream: HttpServer, tmp_path: Path) -> AsyncIterator[Sidecar]:
    """One that has the page's credential, for a server that is here."""
    origin = upstream.url.removesuffix("/mcp")
    sidecar = Sidecar(
        lab(tmp_path, credentials={"search": {"from_file": "secret", "origins": [origin]}})
    )
    (sidecar.folder / "secret").write_text("s3cr3t")
    try:
        await asyncio.to_thread(sidecar.start)
        yield sidecar
        await asyncio.to_thread(sidecar.stop)
    finally:
        await asyncio.to_thread(sidecar.kill)


async def test_the_commands(sidecar: Sidecar, upstream: HttpServer) -> None:
    printed = []
    commands = [
        line for kind, body in BLOCK.findall(PAGE) if kind == "sh" for line in body.split("\n")
    ]
    assert len([each for each in commands if each]) == 4
    for command in filter(None, commands):
        words = shlex.split(command.replace(EXAMPLE, upstream.url.removesuffix("/mcp")))
        done = await asyncio.to_thread(sidecar.cli, *words[1:])
        assert done.returncode == 0, (command, done.stderr)
        printed.append(done.stdout)
    assert printed[0] == "search: added\n"
    assert re.search(r"^search +runtime +\w+ +http", printed[1], re.MULTILINE)
    assert printed[2:] == ["search: removed\n", "search: added\n"]


async def test_the_python(sidecar: Sidecar, upstream: HttpServer) -> None:
    (code,) = [body for kind, body in BLOCK.findall(PAGE) if kind == "python"]
    code = code.replace(EXAMPLE, upstream.url.removesuffix("/mcp"))
    code = code.replace("unix:/run/sidecar/admin.sock", sidecar.admin)
    out = io.StringIO()

    def run() -> None:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "servers.md", "exec"), {})

    await asyncio.to_thread(run)
    expected = re.findall(r"#\s*(\w+)$", code, re.MULTILINE)
    assert out.getvalue().split() == expected == ["commands", "not_found"]


@pytest.mark.parametrize("text", [body for kind, body in BLOCK.findall(PAGE) if kind == "yaml"])
def test_the_configurations(text: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cr3t")
    file = tmp_path / "sidecar.yaml"
    file.write_text(text)
    key = base64.b64encode(os.urandom(32)).decode()
    assert load(file, environ={"SIDECAR_STORE_KEY": key}).servers


def test_every_option_is_told() -> None:
    table = PAGE.split("| option |")[1].split("`--options JSON`")[0]
    told = set(re.findall(r"`([a-z_]+)`", table))
    assert {field.key for field in OPTIONS.fields} - {"trusted", "hints"} <= told
