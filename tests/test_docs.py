"""What README and docs show is true: every command and every YAML block is run.

A command that no runner below knows fails the test: a new one needs its runner.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sidecar.admin.client import AdminClient

ROOT = Path(__file__).resolve().parent.parent
# Each room's tests run their page's own commands and blocks.
ELSEWHERE = {
    "agents.md",
    "policy.md",
    "egress.md",
    "servers.md",
    "approvals.md",
    "telemetry-queries.md",
}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
# `make test` is what runs this; `make bench` takes minutes and is run by hand; how to throw a work
# away is run by tests/harness/test_works.py.
SEEN_ELSEWHERE = {
    "make test",
    "make bench",
    "git -C billing worktree remove -f -f PATH",
    "git -C billing branch -D BRANCH",
}


def blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(page.read_text()) if kind == language]


def commands() -> list[tuple[str, str]]:
    return [
        (page.name, command.removeprefix(".venv/bin/"))
        for page in PAGES
        if page.name not in ELSEWHERE
        for body in blocks(page, "sh")
        for line in body.splitlines()
        if (command := line.partition(" #")[0].strip()) and not command.startswith("#")
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the README's own sidecar.yaml, and the sidecar that `sidecar run` starts."""
    folder = tmp_path_factory.mktemp("newcomer")
    yaml = blocks(ROOT / "README.md", "yaml")[0]
    run = folder / "run"
    # Ports of the kernel's choice, and a server that is installed here, in place of the README's.
    config = (
        "listen: 127.0.0.1:0\nhealth: {listen: 127.0.0.1:0}\n"
        f"admin: {{listen: 'unix:{run}/admin.sock'}}\nstore: memory\n{yaml}"
    ).replace("[mcp-server-time]", f"['{sys.executable}', -m, sidecar.demo.notes]")
    (folder / "sidecar.yaml").write_text(config)
    yield folder


@pytest.fixture(scope="module")
def running(newcomer: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sidecar", "run"],
        cwd=newcomer,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    yield line
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def environment() -> dict[str, str]:
    return {**os.environ, "DOCS_TOKEN": "of no use", "PYTHONPATH": str(ROOT)}


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0].endswith("sidecar")
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *words[1:]],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_readme_check_run_and_look(newcomer: Path, running: str) -> None:
    assert running.startswith("sidecar ready mcp=http://127.0.0.1:")
    assert "ok" in run("sidecar config check", newcomer)
    assert json.loads(run("sidecar config schema", newcomer))["properties"]["servers"]
    until = time.monotonic() + 20
    while "ready" not in (listed := run("sidecar servers list", newcomer)):
        assert time.monotonic() < until, listed
        time.sleep(0.2)
    assert re.search(r"^time +ready +stdio", listed, re.MULTILINE), listed
    assert re.search(r"^docs +(backoff|connecting) +http", listed, re.MULTILINE), listed
    tools = run("sidecar tools", newcomer)
    assert re.search(r"^time__add +time +no", tools, re.MULTILINE), tools
    assert "no call" in run("sidecar calls", newcomer)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.skipif(not (ROOT / ".venv/bin/sidecar").exists(), reason="not run through make test")
def test_make_demo() -> None:
    """The README's first command, on ports that are free."""
    demo = subprocess.Popen(
        ["make", "--no-print-directory", "demo", "ARGS=--listen 127.0.0.1:0"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "MAKEFLAGS"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert demo.stdout is not None
    try:
        told = ""
        while "Ctrl-C ends it" not in told:
            line = demo.stdout.readline()
            assert line, told
            told += line
        add, search, tools = [
            text.strip() for text in told.splitlines() if text.startswith("     .venv/bin/sidecar")
        ]
        link = re.search(r"^ +(http://127\.0\.0\.1:\d+)/#token=(\S+)$", told, re.MULTILINE)
        assert link is not None, told
        with ThreadPoolExecutor(1) as pool:
            adding = pool.submit(run, add, ROOT)
            page = AdminClient(link[1], token=link[2])
            until = time.monotonic() + 20
            while not (waiting := page.calls("waiting")):
                assert time.monotonic() < until and not adding.done(), adding
                time.sleep(0.05)
            assert [(call["tool"], call["state"]) for call in waiting] == [
                ("notes__add", "waiting")
            ]
            assert run(search, ROOT) == "no notes\n"
            page.answer(str(waiting[0]["id"]), approve=True)
            assert adding.result(40) == "noted as number 1\n"
        assert run(search, ROOT) == "1. hello\n"
        listed = run(tools, ROOT)
        assert '"input_schema"' in listed
        assert '"clock__now"' in listed
    finally:
        os.killpg(demo.pid, signal.SIGINT)
        demo.wait(30)
        demo.stdout.close()


RUNNERS = {
    "make demo": test_make_demo,
    "sidecar config check": test_readme_check_run_and_look,
    "sidecar config schema": test_readme_check_run_and_look,
    "sidecar run": test_readme_check_run_and_look,
    "sidecar servers list": test_readme_check_run_and_look,
    "sidecar tools": test_readme_check_run_and_look,
    "sidecar calls": test_readme_check_run_and_look,
}


@pytest.mark.parametrize(("page", "command"), commands())
def test_every_command_has_a_runner(page: str, command: str) -> None:
    assert command in RUNNERS or command in SEEN_ELSEWHERE, f"{page} shows what no test runs"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (page.name, text)
        for page in PAGES
        if page.name not in ELSEWHERE | {"config.md"}
        for text in blocks(page, "yaml")
    ],
)
def test_every_yaml_block_loads(page: str, text: str, tmp_path: Path) -> None:
    from sidecar.config import load

    path = tmp_path / "sidecar.yaml"
    path.write_text(text)
    assert load(path, environ=environment()).servers, page
