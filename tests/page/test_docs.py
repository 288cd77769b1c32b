"""What docs/approvals.md shows is done, in its order, on a real sidecar."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config import load
from tests.kit.running import started
from tests.page.browser import Browser
from tests.page.conftest import World

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "approvals.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(PAGE) if kind == language]


@pytest.fixture
def settings(tmp_path: Path) -> str:
    """The page's configuration, with secrets that are there."""
    (text,) = blocks("yaml")
    for name in ("operator", "alice", "desk"):
        (tmp_path / name).write_text(f"token-of-{name}-0123456789")
        (tmp_path / name).chmod(0o600)
    return text.replace("/secrets/", f"{tmp_path}/").replace("[python,", f"['{sys.executable}',")


def test_the_configuration_loads(settings: str, tmp_path: Path) -> None:
    file = tmp_path / "sidecar.yaml"
    file.write_text(settings)
    config = load(file, environ={})
    roles = {name: each.role for name, each in config.admin.approvers.items()}
    assert roles == {"alice": "approver", "desk": "viewer"}
    assert str(config.admin.listen) == "127.0.0.1:8809"


def test_the_commands_answer_calls() -> None:
    (text,) = blocks("sh")
    listing, show, approve, deny, answered = [
        line.partition(" #")[0].strip() for line in text.splitlines()
    ]
    servers = {"notes": {"command": [sys.executable, "-m", "sidecar.demo.notes"]}}
    policy = {"shipped": ["gating"]}
    with started({"servers": servers, "policy": policy}) as sidecar:

        def run(command: str, id: str = "") -> str:
            words = shlex.split(command.replace("ID", id))
            done: subprocess.CompletedProcess[str] = sidecar.cli(*words[1:])
            assert done.returncode == 0, done.stderr
            return done.stdout

        from tests.page.conftest import Agent

        agent = Agent(sidecar.mcp)
        assert run(listing) == "no call waits\n"
        for why, command, status, state in (
            ("as agreed", approve, 200, "done"),
            ("not to everybody", deny, 403, "denied"),
        ):
            call = agent.calls("notes__add", {"text": why})
            while "notes__add" not in (listed := run(listing)):
                assert not call.done()
            id = listed.splitlines()[1].split()[0]
            assert why in run(show, id)
            assert run(command, id[:8]).endswith("notes__add of agent\n")
            assert call.result(40)[0] == status
            assert re.search(rf"{id} +{state} +notes__add", run(answered))
            assert why in run(show, id)
        agent.close()


SECTIONS = re.findall(r"^\| (\w+) \| ", PAGE.split("| section |")[1].split("\n\n")[0], re.M)
KEYS = re.findall(r"^\| (`.*?) \| (.*?) \|$", PAGE.split("| key |")[1].split("\n\n")[0], re.M)


def test_the_sections_are_those_of_the_page(shared_world: World, browser: Browser) -> None:
    browser.fresh(f"{shared_world.page}/#token=token-of-vera-0123456789")
    browser.one("#nav li")
    names = "return [...document.querySelectorAll('#nav a')].map(x => x.textContent.trim())"
    assert [name.split()[0] for name in browser.js(names)] == SECTIONS
    browser.press("?")
    browser.one("dialog dt")
    shown = "return [...document.querySelectorAll('dialog kbd')].map(x => x.textContent)"
    keys = [key.replace("` … `", " … ") for key, _ in KEYS]
    assert browser.js(shown) == [each for key in keys for each in re.findall("`(.*?)`", key)]


def test_the_picture_is_there_and_small() -> None:
    (name,) = re.findall(r"!\[[^]]+\]\((\S+)\)", PAGE)
    picture = (DOCS / name).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) < 200_000
