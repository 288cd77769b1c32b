"""``sidecar config check`` and ``schema``, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import main


@pytest.fixture(autouse=True)
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    monkeypatch.delenv("SIDECAR_CONFIG", raising=False)


def test_ok_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sidecar.yaml").write_text("servers: {a: {url: 'http://x/?k=s3cr3t'}}")
    (tmp_path / "m.json").write_text('{"mcpServers": {"b c": {"command": "b"}}}')
    assert main(["config", "check", "--mcp-config", "m.json"]) == 0
    out, err = capsys.readouterr()
    assert out == (
        f"ok: {tmp_path}/sidecar.yaml; 2 servers (a, b-c); no token; listen 127.0.0.1:8808; "
        "admin unix:/run/user/7/sidecar/admin.sock; health 127.0.0.1:8810; "
        "store sqlite:/state/sidecar/state.db\n"
    )
    assert err == 'm.json: "b c" is called b-c here\n'


def test_coding_agents_and_where_they_work_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sidecar.yaml").write_text(
        "harnesses: {claude: {}}\ncheckouts: {shop: shop, billing: billing}\nworktrees: works\n"
    )
    assert main(["config", "check"]) == 0
    assert "; 1 harness (claude); 2 checkouts (shop, billing); " in capsys.readouterr().out


def test_every_fault_is_a_line_and_the_exit_is_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "s.yaml").write_text("nam: x\nservers: {a: {}}\n")
    (tmp_path / "m.json").write_text("{")
    assert main(["config", "check", "--config", "s.yaml", "--mcp-config", "m.json"]) == 3
    lines = capsys.readouterr().out.replace(f"{tmp_path}/", "").splitlines()
    assert lines == [
        's.yaml:1:1: nam: unknown key "nam"; did you mean "name"?',
        "s.yaml:2:14: servers.a: a server has command (stdio) or url (HTTP): this one has "
        "neither; give it one of them",
        'm.json:1:2: not valid JSON: a key in double quotes, or "}", was expected',
    ]


def test_a_missing_file_is_bad_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "--config", "/no/where.yaml"]) == 3
    assert capsys.readouterr().out == (
        "/no/where.yaml: cannot be read: No such file or directory\n"
    )


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert printed["properties"]["list_wait"]["default"] == "1s"


@pytest.mark.parametrize(
    ("store", "shown"),
    [
        ("postgresql://me:s3cr3t@db.example:5432/sidecar?sslmode=require", "db.example:5432/sid"),
        ("postgresql://db.example/sidecar?password=s3cr3t", "store postgresql:db.example/sid"),
    ],
)
def test_a_password_in_the_store_is_not_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], store: str, shown: str
) -> None:
    (tmp_path / "sidecar.yaml").write_text(f"store: '{store}'")
    assert main(["config", "check"]) == 0
    out, err = capsys.readouterr()
    assert shown in out
    assert "s3cr3t" not in out + err
