"""The wheel, installed where nothing else is, has the shipped policies and asks as they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

from sidecar.policy import SHIPPED
from tests.policy.kit import GIVEN, policy, rule

ROOT = Path(__file__).resolve().parents[2]


def run(*words: object, cwd: Path) -> str:
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SIDECAR_CONFIG")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    if "pip" in map(str, words) and done.returncode and "onnection" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: the build leaves a folder behind."""
    source = tmp_path_factory.mktemp("source")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "sidecar", source / "sidecar", ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "-q", "-w", out, cwd=source)
    (made,) = out.glob("*.whl")
    return made


@pytest.mark.timeout(300)
def test_it_carries_the_page(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    static = {path.name for path in (ROOT / "sidecar/admin/static").iterdir()}
    assert "index.html" in static
    assert {f"sidecar/admin/static/{name}" for name in static} <= names


@pytest.mark.timeout(300)
def test_it_carries_the_policies_and_their_tests(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in SHIPPED:
        assert f"sidecar/policies/{name}.yaml" in names
        assert f"sidecar/policies/{name}_test.yaml" in names


def test_the_folder_at_the_top_is_the_same() -> None:
    assert (ROOT / "policies" / "gating.yaml").samefile(ROOT / "sidecar/policies/gating.yaml")


@pytest.mark.timeout(300)
def test_an_empty_environment_with_one_rule_of_the_users(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "-q", wheel, cwd=tmp_path)
    sidecar = tmp_path / "env" / "bin" / "sidecar"
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "mine.yaml").write_text(policy(rule("drop", "deny", 'tool.name == "up__drop"')))
    (tmp_path / "sidecar.yaml").write_text("policies: [rules]\n")
    (tmp_path / "in.json").write_text(json.dumps(GIVEN))
    told = json.loads(run(sidecar, "policy", "eval", "--input", "in.json", "--json", cwd=tmp_path))
    assert (told["decision"], told["rule"]) == ("ask", "gating/gated")
    assert told["rules"] == ["gating/gated"]
    drop = {**GIVEN, "tool": {**GIVEN["tool"], "name": "up__drop"}}  # type: ignore[dict-item]
    (tmp_path / "in.json").write_text(json.dumps(drop))
    told = json.loads(run(sidecar, "policy", "eval", "--input", "in.json", "--json", cwd=tmp_path))
    assert (told["decision"], told["rule"]) == ("deny", "p/drop")
    assert run(sidecar, "policy", "test", cwd=tmp_path).endswith("passed, 0 failed\n")
    called(sidecar, tmp_path)


def called(sidecar: Path, folder: Path) -> None:
    """It serves there, and a call that may change something waits for a person."""
    (folder / "sidecar.yaml").write_text(
        "listen: 127.0.0.1:0\nhealth: {listen: off}\nadmin: {listen: off}\nstore: memory\n"
        "policies: [rules]\nparking: {hold: 0s}\n"
        f"servers: {{up: {{command: [{sidecar.parent}/python, -m, sidecar.demo.notes]}}}}\n"
    )
    process = subprocess.Popen(
        [sidecar, "run"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split("mcp=")[1].split()[0].removesuffix("/mcp")
        assert posted(url, "up__search") == (200, "no notes")
        status, text = posted(url, "up__add", text="x")
        assert status == 202
        assert "approval" in text
    finally:
        process.terminate()
        process.wait(30)


def posted(url: str, name: str, **args: str) -> tuple[int, str]:
    """The status and the text of a call over REST."""
    request = urllib.request.Request(
        f"{url}/v1/call",
        json.dumps({"name": name, "args": args}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return response.status, json.load(response)["content"][0]["text"]
