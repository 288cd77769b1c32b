"""Secrets: where they come from, what is refused, and that none is ever told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sidecar.config import SecretRef
from sidecar.config.secrets import EnvFileSecrets
from sidecar.ports.secrets import SecretError, Secrets
from tests.config.conftest import Load, Told


def test_values_come_from_the_environment_a_file_or_the_place_itself(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"f1le\r\n\n")
    secrets: Secrets = EnvFileSecrets({"T": "v4r\n", "BRACES": "{}"})
    assert secrets.read(SecretRef(from_env="T")) == "v4r"
    assert secrets.read(SecretRef(from_file=file)) == "f1le"
    assert secrets.read(SecretRef(literal="h3re\n")) == "h3re\n"
    assert secrets.read(SecretRef(from_env="T", template="Bearer {}!")) == "Bearer v4r!"
    assert secrets.read(SecretRef(from_env="BRACES", template="a {} b")) == "a {} b"


def test_a_rotated_file_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    secrets = EnvFileSecrets({})
    assert secrets.read(SecretRef(from_file=file)) == "old"
    file.write_text("new")
    assert secrets.read(SecretRef(from_file=file)) == "new"


def test_what_cannot_be_read_names_the_place_and_returns_at_once(tmp_path: Path) -> None:
    secrets = EnvFileSecrets({"EMPTY": "\n"})

    def why(ref: SecretRef) -> str:
        with pytest.raises(SecretError) as caught:
            secrets.read(ref)
        return str(caught.value).replace(str(tmp_path), "")

    (tmp_path / "empty").write_text("\n")
    (tmp_path / "big").write_bytes(b"x" * 65537)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    assert why(SecretRef(from_env="NONE")) == "the environment variable NONE is not set"
    assert why(SecretRef(from_env="EMPTY")) == "the environment variable EMPTY is empty"
    assert why(SecretRef(from_file=tmp_path / "no")).startswith("/no cannot be read: No such file")
    assert why(SecretRef(from_file=tmp_path / "empty")) == "/empty is empty"
    assert why(SecretRef(from_file=tmp_path / "big")) == "/big is larger than 64 KiB"
    assert why(SecretRef(from_file=tmp_path / "binary")) == "/binary is not UTF-8 text"
    assert why(SecretRef(from_file=tmp_path / "pipe")) == "/pipe is not a regular file"
    assert why(SecretRef(from_file=tmp_path)) in (
        " is not a regular file",
        " cannot be read: Is a directory",
    )
    assert why(SecretRef()) == "the secret has neither from_env nor from_file"


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ("{from_env: T, from_file: a}", "needs from_env or from_file, and only one of them"),
        ("{template: 'x {}'}", "needs from_env or from_file, and only one of them"),
        ("{}", "needs from_env or from_file, and only one of them"),
        ("{from_env: NONE}", "the environment variable NONE is not set"),
        ("{from_env: EMPTY}", "the environment variable EMPTY is empty"),
        ("{from_env: SPLIT}", "it has a line break or another control character"),
        ("{from_env: T, template: 'a\\nb{}'}", None),
        ('{from_env: T, template: "a\\nb{}"}', "it has a line break or another control character"),
        ("7", "expected text, or {from_env: NAME} or {from_file: PATH}, got a number"),
        ("[a]", "expected text, or {from_env: NAME} or {from_file: PATH}, got a list"),
        ('"a\\r\\nb: c"', "it has a line break or another control character"),
    ],
)
def test_headers_are_looked_at(good: Load, told: Told, value: str, fault: str | None) -> None:
    text = f"servers: {{a: {{url: http://x, headers: {{h: {value}}}}}}}"
    env = {"T": "s3cr3t", "EMPTY": "", "SPLIT": "s3cr3t\r\nx: y"}
    if fault is None:
        assert good(text, env=env).servers["a"].headers["h"].from_env == "T"
        return
    faults = told(text, env=env)
    assert len(faults) == 1
    assert faults[0].startswith(f"sidecar.yaml:1:43: servers.a.headers.h: {fault}")
    assert "s3cr3t" not in faults[0]


def test_a_template_has_one_place_for_the_secret(told: Told) -> None:
    text = "servers: {a: {url: http://x, headers: {h: {from_env: T, template: %s}}}}"
    for template in ("Bearer", "'{} {}'"):
        assert told(text % template, env={"T": "t"}) == [
            "sidecar.yaml:1:67: servers.a.headers.h.template: needs {} once, where the secret goes"
        ]


def test_no_name_steers_a_terminal(told: Told) -> None:
    text = 'servers: {a: {command: [a], env: {A: {from_env: "\\e[2J\u202e"}}}}'
    assert told(text) == [
        "sidecar.yaml:1:38: servers.a.env.A: the environment variable ?[2J? is not set"
    ]


def test_misspelt_references_are_told(told: Told) -> None:
    faults = told("servers: {a: {command: [a], env: {A: {fromenv: T}}}}")
    assert faults[1:] == [
        "sidecar.yaml:1:39: servers.a.env.A.fromenv: unknown key; expected from_env, from_file, "
        'template; did you mean "from_env"?'
    ]


@pytest.mark.parametrize("token", ["two words", "ümlaut", "a\nb", "tab\there"])
def test_tokens_are_what_a_bearer_can_be(told: Told, tmp_path: Path, token: str) -> None:
    (tmp_path / "t").write_text(token)
    faults = told("auth: {token_file: t}")
    assert faults == [
        "sidecar.yaml:1:20: auth.token_file: it has a space or a character that a bearer token "
        "cannot have"
    ]


def test_no_value_in_any_fault(told: Told, tmp_path: Path) -> None:
    """Everything that can hold a secret, wrong in every way: no message repeats it."""
    (tmp_path / "t").write_text("hunter2 hunter2")
    text = """\
servers:
  a: {command: [x, "hunter2\\0"], env: {"A=B": hunter2, C: "hunter2\\0", D: {from_env: V}}}
  b: {url: "http://u:hunter2@x/", headers: {"a b": hunter2, c: "hunter2\\n", d: [hunter2]}}
  c: {url: "hunter2://x/?hunter2", headers: {e: {from_env: V, template: "hunter2"}}}
auth: {token_file: t}
store: postgresql://u:hunter2@db/x
"""
    faults = told(text, env={"V": "hunter2\0"})
    assert len(faults) >= 10
    assert [fault for fault in faults if "hunter2" in fault] == []


def test_a_verb_that_only_asks_needs_no_secrets(good: Load) -> None:
    text = """\
servers: {a: {url: http://x, headers: {h: {from_env: NONE}}}}
auth: {token_file: /nowhere/token}
admin: {token_file: /nowhere/other}
"""
    config = good(text, check_secrets=False)
    assert config.token == SecretRef(from_file=Path("/nowhere/token"))
    assert config.servers["a"].headers["h"] == SecretRef(from_env="NONE")
