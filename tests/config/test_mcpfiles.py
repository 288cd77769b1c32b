"""``--mcp-config``: the files of other programs, in their shapes and with their variables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.config import SecretRef, ServerConfig, jsontext, mcpfiles, nodes, values
from sidecar.config.nodes import Node, Stop
from tests.config.conftest import Load, Told
from tests.kit.examples import examples


def literal(text: str) -> SecretRef:
    return SecretRef(literal=text)


def test_both_shapes_and_every_key(good: Load, tmp_path: Path) -> None:
    desktop = """{"mcpServers": {
      "files": {"command": "npx", "args": ["-y", "fs", "${HOME}/x"], "env": {"A": "${K}", "N": 8,
                "B": true}, "cwd": "work"},
      "web": {"type": "streamable-http", "url": "https://${HOST:-a.example}/mcp",
              "headers": {"Authorization": "Bearer ${K}"}}
    }}"""
    code = """{
      // what an editor writes
      "inputs": [],
      "servers": {
        "old": {"type": "sse", "url": "http://x/sse",},
        "local": {"type": "stdio", "command": "${env:PROGRAM}", "args": ["${userHome}"]},
        /* and this */
        "surf": {"serverUrl": "http://y/mcp"},
        "gem": {"httpUrl": "http://z/mcp", "transport": "http"},
      },
    }"""
    config = good("", desktop, code, env={"K": "s3cr3t", "PROGRAM": "prog"})
    home = str(tmp_path / "home")
    assert list(config.servers.values()) == [
        ServerConfig(
            "files",
            "stdio",
            command=("npx", "-y", "fs", f"{home}/x"),
            env={"A": literal("s3cr3t"), "N": literal("8"), "B": literal("true")},
            cwd=tmp_path / "work",
        ),
        ServerConfig(
            "web",
            "http",
            url="https://a.example/mcp",
            headers={"Authorization": literal("Bearer s3cr3t")},
        ),
        ServerConfig("old", "sse", url="http://x/sse"),
        ServerConfig("local", "stdio", command=("prog", home)),
        ServerConfig("surf", "http", url="http://y/mcp"),
        ServerConfig("gem", "http", url="http://z/mcp"),
    ]
    assert config.notices == ()
    assert "s3cr3t" not in repr(config)


def test_they_come_after_the_files_own_and_may_be_granted(good: Load, tmp_path: Path) -> None:
    (tmp_path / "t").write_text("t")
    text = """\
servers: {z: {url: http://z}}
agents: {x: {token_file: t, servers: [z, a]}}
"""
    config = good(text, '{"mcpServers": {"b": {"command": "b"}, "a": {"command": "a"}}}')
    assert list(config.servers) == ["z", "b", "a"]


def test_names_are_made_to_fit_and_told(good: Load) -> None:
    given = {
        "My Files": {"command": "a"},
        "a b": {"command": "b"},
        "a.b": {"command": "c"},
        "a-b": {"command": "d"},
        "sidecar": {"command": "e"},
        "__x__y__": {"command": "f"},
        "日本": {"command": "g"},
        "n" * 40: {"command": "h"},
    }
    config = good("", json.dumps({"mcpServers": given}))
    assert {server.command[0]: name for name, server in config.servers.items()} == {
        "a": "My-Files",
        "b": "a-b-c8687a08",
        "c": "a-b-2e7336dc",
        "d": "a-b",
        "e": "sidecar-server",
        "f": "x_y",
        "g": "server",
        "h": "n" * 32,
    }
    assert [notice.split("mcp0.json: ")[1] for notice in config.notices] == [
        '"My Files" is called My-Files here',
        '"a b" is called a-b-c8687a08 here',
        '"a.b" is called a-b-2e7336dc here',
        '"sidecar" is called sidecar-server here',
        '"__x__y__" is called x_y here',
        '"日本" is called server here',
        f'"{"n" * 40}" is called {"n" * 32} here',
    ]


def test_a_changed_name_does_not_depend_on_its_neighbours(good: Load) -> None:
    def names(*given: str) -> dict[str, str]:
        servers = {name: {"command": name} for name in given}
        config = good("", json.dumps({"mcpServers": servers}))
        return {server.command[0]: name for name, server in config.servers.items()}

    assert names("a-b", "a b", "a.b")["a.b"] == names("a.b", "a-b")["a.b"] == "a-b-2e7336dc"


def test_names_that_are_taken(told: Told, good: Load) -> None:
    yaml = "servers: {git: {url: http://x}, a-b: {url: http://x}}"
    assert told(yaml, '{"mcpServers": {"git": {"command": "a"}}}') == [
        "mcp0.json:1:17: mcpServers.git: there is a server of this name already; rename one of them"
    ]
    one = '{"mcpServers": {"x": {"command": "a"}}}'
    assert told("", one, one) == [
        "mcp1.json:1:17: mcpServers.x: there is a server of this name already; rename one of them"
    ]
    # A name that had to be changed anyway steps aside.
    config = good(yaml, '{"mcpServers": {"a b": {"command": "a"}}}')
    assert list(config.servers) == ["git", "a-b", "a-b-c8687a08"]


def test_keys_of_other_programs_are_told_and_disabled_servers_left_out(good: Load) -> None:
    text = """{"mcpServers": {
      "a": {"command": "a", "autoApprove": ["x"], "timeout": 60, "disabled": false},
      "b": {"command": "b", "disabled": true}
    }}"""
    config = good("", text)
    assert list(config.servers) == ["a"]
    assert [notice.split("mcp0.json: ")[1] for notice in config.notices] == [
        "a: not used here: autoApprove, timeout",
        "b is left out: it is disabled there",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", '1:1: is empty; expected {"mcpServers": {…}}'),
        ("// only a comment", '1:1: is empty; expected {"mcpServers": {…}}'),
        ("[]", "1:1: expected an object with mcpServers, got a list"),
        ('{"a": {"command": "x"}}', "1:1: has neither mcpServers nor servers"),
        ('{"mcpServers": []}', "1:16: mcpServers: expected an object of servers, got a list"),
        ('{"mcpServers": {"a": 1}}', "1:22: mcpServers.a: expected an object, got a number"),
        ('{"mcpServers": {"a": {}}}', "1:22: mcpServers.a: needs command or url, and only one"),
        (
            '{"mcpServers": {"a": {"command": "a", "url": "http://x"}}}',
            "1:22: mcpServers.a: needs command or url, and only one",
        ),
        (
            '{"mcpServers": {"a": {"command": ["a"]}}}',
            "1:34: mcpServers.a.command: expected text, got a list",
        ),
        (
            '{"mcpServers": {"a": {"command": ""}}}',
            "1:34: mcpServers.a.command: is empty; name the program",
        ),
        (
            '{"mcpServers": {"a": {"command": "a", "args": "b"}}}',
            "1:47: mcpServers.a.args: expected a list of texts, got text",
        ),
        (
            '{"mcpServers": {"a": {"command": "a", "args": [1]}}}',
            "1:48: mcpServers.a.args[0]: expected text, got a number",
        ),
        (
            '{"mcpServers": {"a": {"command": "a", "type": "http"}}}',
            "1:47: mcpServers.a.type: http belongs to a server with url",
        ),
        (
            '{"mcpServers": {"a": {"url": "http://x", "type": "ws"}}}',
            '1:50: mcpServers.a.type: "ws" is not one of stdio, http, sse',
        ),
        (
            '{"mcpServers": {"a": {"url": "x"}}}',
            "1:30: mcpServers.a.url: is not an http:// or https:// URL with a host",
        ),
        (
            '{"mcpServers": {"a": {"url": "http://x", "headers": {"A": "b", "a": "c"}}}}',
            "1:64: mcpServers.a.headers.a: is here twice, in other letters",
        ),
        (
            '{"mcpServers": {"a": {"url": "http://x", "headers": {"A": "b\\nc"}}}}',
            "1:59: mcpServers.a.headers.A: has a line break",
        ),
        (
            '{"mcpServers": {"a": {"command": "${NOT_SET}"}}}',
            "1:34: mcpServers.a.command: the environment variable NOT_SET is not set",
        ),
        (
            '{"servers": {"a": {"command": "a", "env": {"K": "${input:key}"}}}}',
            "1:49: servers.a.env.K: ${input:key} asks a person; put the value into",
        ),
        (
            '{"servers": {"a": {"command": "${workspaceFolder}/a${x y}"}}}',
            "1:31: servers.a.command: ${x y} is not known here",
        ),
        ('{"mcpServers": {"a": {"command": "a"}, "a": {}}}', '1:40: "a" is here twice; the first'),
        ('{"mcpServers": {"a": {"command": "a"}', '1:38: not valid JSON: "," or "}" was expected'),
        ('{"mcpServers": {}} x', "1:20: not valid JSON: one value was expected"),
        ("{'mcpServers': {}}", "1:2: not valid JSON: a key in double quotes"),
        ('{"mcpServers": {}, "x": NaN}', "1:25: not valid JSON: a value was expected"),
        ('{"mcpServers": {}, "x": "a\nb"}', "1:27: not valid JSON: a text that does not end"),
    ],
)
def test_faults(told: Told, text: str, fault: str) -> None:
    faults = told("", text, env={"workspaceFolder": "/w"})
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"mcp0.json:{fault}")


def test_faults_of_all_files_at_once(told: Told) -> None:
    bad = '{"mcpServers": {"a": {}, "b": {"url": "x"}}}'
    files = [fault.split(":")[0] for fault in told("nam: x", bad, "{")]
    assert files == ["sidecar.yaml", "mcp0.json", "mcp0.json", "mcp1.json"]


def test_a_missing_file(told: Told, good: Load, tmp_path: Path) -> None:
    from sidecar.config import ConfigErrors, load

    with pytest.raises(ConfigErrors) as caught:
        load(None, mcp_configs=[tmp_path / "no.json"], environ={})
    assert str(caught.value).endswith("no.json: cannot be read: No such file or directory")


def test_unset_variables_do_not_matter_to_a_verb_that_only_asks(good: Load) -> None:
    text = '{"mcpServers": {"a": {"url": "${URL}"}}}'
    assert list(good("", text, check_secrets=False).servers) == ["a"]


# --------------------------------------------------------------------------- JSON as text


def read(text: str) -> Node | None:
    def fail(line: int, column: int, message: str) -> None:
        raise AssertionError(message)

    return jsontext.read(text, fail)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)


@settings(deadline=None, max_examples=examples(80))
@given(JSON, st.booleans(), st.sampled_from([None, 2]))
def test_what_json_writes_is_read_as_it_was(value: object, ascii: bool, indent: int | None) -> None:
    root = read(json.dumps(value, ensure_ascii=ascii, indent=indent))
    assert root is not None
    assert nodes.plain(root) == value


@settings(deadline=None, max_examples=examples(100))
@given(st.text(alphabet='{}[]",:/*\\ \n\tabtruefalsn019-.eE', max_size=40))
def test_no_text_escapes_as_anything_but_a_stop(text: str) -> None:
    try:
        jsontext.read(text, lambda line, column, message: None)
    except Stop as stop:
        assert stop.line >= 1
        assert stop.column >= 1


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 66 + "]" * 66])
def test_depth_is_bounded(text: str) -> None:
    with pytest.raises(Stop, match="nested deeper than 64 levels"):
        read(text)


@settings(deadline=None, max_examples=examples(150))
@given(st.text(max_size=60), st.sampled_from(["__", "-", "_", "--", "_-", "-_-"]))
def test_every_name_becomes_one_of_ours(name: str, separator: str) -> None:
    added = mcpfiles.Added(taken={mcpfiles.slug(name, separator)}, separator=separator)
    for ours in (mcpfiles.slug(name, separator), mcpfiles._names([name], added)[name]):
        values.server_name(ours)
        assert separator not in ours
