"""Credentials, people of the admin listener, stores, and options of a server added at run time."""

from __future__ import annotations

import base64
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config import (
    ApproverConfig,
    ConfigErrors,
    CredentialConfig,
    RuntimeServers,
    SecretRef,
    values,
)
from sidecar.config.runtime import OPTIONS, Options, query_holds_secret, read_options
from tests.config.conftest import Load

KEY = base64.b64encode(bytes(range(32))).decode()
FORMER = base64.b64encode(bytes(32)).decode()


def test_everything_written_out(good: Load, tmp_path: Path) -> None:
    for name in ("linear", "op", "alice"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "key").write_text(f"{KEY}\n{FORMER}\n")
    config = good(
        """\
admin:
  listen: 127.0.0.1:0
  token_file: op
  approvers: {alice: {token_file: alice}, bob: {token_file: linear, role: viewer}}
credentials:
  linear: {from_file: linear, origins: ["https://MCP.linear.app:443/", "http://[::1]:9/"]}
  other: {from_env: OTHER, template: "{}", header: X-Key, origins: ["https://other.example"]}
runtime_servers: {check: false, commands: true, most: 7}
reconcile: off
store_key: {from_file: key}
""",
        env={"OTHER": "s3cr3t"},
    )
    assert config.credentials == {
        "linear": CredentialConfig(
            "linear",
            SecretRef(from_file=tmp_path / "linear", template="Bearer {}"),
            ("https://mcp.linear.app", "http://[::1]:9"),
        ),
        "other": CredentialConfig(
            "other",
            SecretRef(from_env="OTHER", template="{}"),
            ("https://other.example",),
            "X-Key",
        ),
    }
    assert config.admin.approvers == {
        "alice": ApproverConfig("alice", SecretRef(from_file=tmp_path / "alice"), "approver"),
        "bob": ApproverConfig("bob", SecretRef(from_file=tmp_path / "linear"), "viewer"),
    }
    assert config.runtime_servers == RuntimeServers(check=False, commands=True, most=7)
    assert config.reconcile is None
    assert config.store_key == SecretRef(from_file=tmp_path / "key")


@pytest.mark.parametrize(
    ("text", "path", "says"),
    [
        ("store_key: abc", "store_key", "it is a secret"),
        ("store_key: {from_env: SHORT}", "store_key", "openssl rand -base64 32"),
        ("store_key: {from_env: TWICE}", "store_key", "same key twice"),
        ("store: postgresql://h", "store", "names no database"),
        ("store: postgresql://h:x/d", "store", "cannot be read"),
        ("store: postgresql://h/d#x", "store", "write %23"),
        ("store: nobodys://h/d", "store", "is not a store"),
        ("credentials: {a: {from_env: OK}}", "credentials.a", "origins is missing"),
        (
            "credentials: {a: {from_env: OK, origins: []}}",
            "credentials.a.origins",
            "an empty one",
        ),
        (
            "credentials: {a: {from_env: NONE, origins: [https://a.example]}}",
            "credentials.a",
            "NONE is not set",
        ),
        (
            "credentials: {a: {from_env: OK, origins: [https://a.example], header: host}}",
            "credentials.a.header",
            "written by the sidecar itself",
        ),
        (
            "credentials: {a: {from_env: OK, template: x, origins: [https://a.example]}}",
            "credentials.a.template",
            "needs {} once",
        ),
        ("reconcile: 0s", "reconcile", "out of bounds"),
        ("reconcile: never", "reconcile", "not a duration"),
        (
            "admin: {approvers: {a: {token_file: none}}}",
            "admin.approvers.a.token_file",
            "cannot be read",
        ),
        ("admin: {approvers: {a: {role: viewer}}}", "admin.approvers.a", "token_file is missing"),
    ],
)
def test_faults(good: Load, text: str, path: str, says: str) -> None:
    env = {"SHORT": "YWJj", "TWICE": f"{KEY} {KEY}", "OK": "s3cr3t"}
    with pytest.raises(ConfigErrors) as caught:
        good(text, env=env)
    told = [fault for fault in caught.value.faults if fault.path == path]
    assert told, caught.value
    assert says in told[0].message
    assert "s3cr3t" not in str(caught.value)


def test_a_token_names_one_person(good: Load, tmp_path: Path) -> None:
    (tmp_path / "op").write_text("same")
    with pytest.raises(ConfigErrors, match=r"approvers\.a\.token_file: holds the same token as"):
        good("admin: {token_file: op, approvers: {a: {token_file: op}}}")


def test_a_password_in_the_stores_url_is_not_shown(good: Load) -> None:
    config = good("store: postgres://me:s3cr3t@db.example/sidecar")
    assert config.store == "postgresql://me:s3cr3t@db.example/sidecar"
    assert "s3cr3t" not in repr(config)
    with pytest.raises(ConfigErrors) as caught:
        good("store: 'postgresql://me:s3cr3t@db.example'")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://A.example/mcp?x=1", "https://a.example"),
        ("https://a.example:443/", "https://a.example"),
        ("http://a.example:443/", "http://a.example:443"),
        ("http://[::1]:80/mcp", "http://[::1]"),
    ],
)
def test_origin_of(url: str, origin: str) -> None:
    assert values.origin_of(url) == origin


# -------------------------------------------------------------- options of a server at run time

PLAIN = Options(
    "http://a.example/mcp",
    "http",
    (),
    {},
    None,
    {},
    None,
    None,
    None,
    None,
    30.0,
    "auto",
    "auto",
)


def test_the_least_and_the_most() -> None:
    assert read_options({"url": "http://a.example/mcp"}) == PLAIN
    read = read_options(
        {
            "url": "https://a.example/sse",
            "transport": "sse",
            "headers": {"x-team": "blue"},
            "credential_name": "linear",
            "only": ["a_*"],
            "gated": True,
            "trusted": False,
            "hints": "restrict",
            "timeout": "5s",
            "era": "legacy",
            "isolation": "session",
        }
    )
    assert isinstance(read, Options)
    assert (read.transport, read.headers, read.credential) == ("sse", {"x-team": "blue"}, "linear")
    assert (read.only, read.gated, read.timeout) == (("a_*",), True, 5.0)
    command = read_options({"command": ["p", "-x"], "env": {"A": "b"}, "cwd": "/srv"})
    assert isinstance(command, Options)
    assert (command.transport, command.command, command.env) == ("stdio", ("p", "-x"), {"A": "b"})


@pytest.mark.parametrize(
    ("options", "path", "says"),
    [
        ({}, "", "neither is here"),
        ([], "", "expected a server's options"),
        ({"url": "http://a", "command": ["b"]}, "", "both are here"),
        ({"url": "ftp://a"}, "url", "http:// or https://"),
        ({"url": "http://u:p@a"}, "url", "user or password"),
        ({"url": "http://a", "headers": {"x": {"from_env": "HOME"}}}, "headers.x", "a secret"),
        ({"command": ["b"], "env": {"x": {"from_file": "/k"}}}, "env.x", "a secret"),
        ({"url": "http://a", "headers": {"Authorization": "x"}}, "headers", "credential"),
        ({"url": "http://a", "headers": {"Cookie": "x"}}, "headers", "credential"),
        ({"url": "http://a", "headers": {"host": "x"}}, "headers.host", "sidecar itself"),
        ({"url": "http://a", "headers": {"x": "a\nb"}}, "headers.x", "line break"),
        ({"url": "http://a", "headers": {"x": "caf\u00e9"}}, "headers.x", "not ASCII"),
        ({"url": "http://a", "headers": {"x": "a\u2028b"}}, "headers.x", "not ASCII"),
        ({"url": "http://a", "trusted": True}, "trusted", "can only be false"),
        ({"url": "http://a", "gated": False}, "gated", "can only be true"),
        ({"url": "http://a", "gated": ["x"]}, "gated", "can only be true"),
        ({"url": "http://a", "hints": "trust"}, "hints", "not one of restrict"),
        ({"url": "http://a", "annotations": {}}, "annotations", "loosens"),
        ({"url": "http://a", "only": ["a"], "except": ["b"]}, "except", "beside only"),
        ({"url": "http://a", "credential": "a", "credential_name": "b"}, "credential_name", "bes"),
        ({"command": ["a"], "credential": "a"}, "credential", "belongs to a server with url"),
        ({"url": "http://a", "env": {"A": "b"}}, "env", "belongs to a server with command"),
        ({"command": ["a"], "cwd": "relative"}, "cwd", "begins with /"),
        ({"command": ["a"] * 65}, "command", "more than 64"),
        ({"url": "http://a/" + "x" * 8192}, "url", "longer than"),
        ({"url": "http://a", "timeout": 5}, "timeout", "not a duration"),
        ({"url": None}, "url", "has no value"),
        ({"url": "http://a", "urls": 1}, "urls", 'did you mean "url"?'),
    ],
)
def test_refused_options(options: object, path: str, says: str) -> None:
    read = read_options(options)  # type: ignore[arg-type]
    assert isinstance(read, list)
    assert any(fault.path == path and says in fault.message for fault in read), read


@pytest.mark.parametrize(
    ("header", "value", "kept"),
    [
        ("X-Api-Key", "k", False),
        ("X_API_KEY", "k", False),
        ("X-Auth-Token", "k", False),
        ("PRIVATE-TOKEN", "k", False),
        ("Ocp-Apim-Subscription-Key", "k", False),
        ("X-Amz-Security-Token", "k", False),
        ("X-Client-Secret", "k", False),
        ("Cookie2", "k", False),
        ("x-forwarded-as", "Bearer k", False),
        ("x-forwarded-as", "basic dTpw", False),
        ("x-team", "blue", True),
        ("Idempotency-Key", "7", True),
        ("X-Keyspace", "a", True),
        ("X-Author", "me", True),
    ],
)
def test_a_header_that_holds_a_secret_by_its_name_is_refused(
    header: str, value: str, kept: bool
) -> None:
    read = read_options({"url": "http://a", "headers": {header: value}})
    assert isinstance(read, Options) == kept
    if not kept:
        assert isinstance(read, list)
        assert "credential" in read[0].message
        assert value not in read[0].message.split()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from([field.key for field in OPTIONS.fields])


@given(st.dictionaries(KEYS, JSON, max_size=6))
def test_whatever_is_given_is_read_or_refused(options: dict[str, object]) -> None:
    read = read_options(options)  # type: ignore[arg-type]
    assert isinstance(read, Options) or read
    if isinstance(read, Options):
        jsonschema.validate(options, OPTIONS.schema())


@pytest.mark.parametrize(
    ("query", "holds"),
    [
        ("api_key=x", True),
        ("exaApiKey=x", True),
        ("a=1&Token=x", True),
        ("a=1;access_token=x", True),
        ("%74oken=x", True),
        ("key=x", True),
        ("X-Amz-Signature=x", True),
        ("sig=x", True),
        ("password", True),
        ("tenant=token", False),
        ("monkey=1&keyboard=2&design=3", False),
        ("profile=a", False),
        ("", False),
    ],
)
def test_a_query_that_looks_like_it_holds_a_secret(query: str, holds: bool) -> None:
    assert query_holds_secret(f"https://a.example/api_key/mcp?{query}") is holds
