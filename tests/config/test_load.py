"""The file as a whole: defaults, every key, every check across keys, all faults at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.config import (
    AdminConfig,
    AgentConfig,
    AnnotationOverride,
    Config,
    ConfigErrors,
    Limits,
    Listen,
    Retry,
    SecretRef,
    ServerConfig,
    find,
    load,
)
from tests.config.conftest import Load, Told

ALL = """\
name: desk
listen: "[::1]:0"
hosts: [mcp.example.com, "[::1]", 10.0.0.7]
health: {listen: "0.0.0.0:8810"}
admin: {listen: 127.0.0.1:8809, token_file: operator}
separator: "--"
servers:
  github:
    command: [github-mcp-server, stdio, ""]
    env: {TOKEN: {from_env: GH}, PLAIN: text, MADE: {template: "a {} b", from_file: ~/gh}}
    cwd: work
    only: [search_*]
    trusted: yes
    gated: [create_*, "*"]
    annotations:
      "list_*": {read_only: true}
      "*": {destructive: false, idempotent: true, open_world: false, title: All}
    hints: restrict
    timeout: 1m
    era: legacy
    isolation: session
  linear:
    url: https://mcp.linear.app/mcp?key=s3cr3t
    transport: sse
    headers: {authorization: {template: "Bearer {}", from_env: GH}}
    except: []
    gated: false
agents:
  triage: {token_file: triage, servers: [github, "lin*"]}
  nobody: {token_file: nobody}
store: sqlite:////var/lib//state.db
list_wait: 0s
retry: {attempts: 1, base: 50ms}
drain: {grace: 1m}
limits: {body: 1MiB, result: 2MB, event: 4096, line: 64KiB, depth: 8, list_pages: 2, sessions: 3,
  session_ttl: 1h}
"""


def write(tmp_path: Path, **files: str) -> None:
    (tmp_path / "home").mkdir(exist_ok=True)
    for name, text in files.items():
        (tmp_path / name).write_text(text)


def test_every_key(good: Load, tmp_path: Path) -> None:
    write(tmp_path, operator="o\n", triage="t\r\n", nobody="n", **{"home/gh": "g"})
    config = good(ALL, env={"GH": "ghp"})
    gh = SecretRef(from_env="GH")
    assert config == Config(
        name="desk",
        path=tmp_path / "sidecar.yaml",
        listen=Listen("::1", 0),
        hosts=("mcp.example.com", "[::1]", "10.0.0.7"),
        health=Listen("0.0.0.0", 8810),
        admin=AdminConfig(Listen("127.0.0.1", 8809), SecretRef(from_file=tmp_path / "operator")),
        separator="--",
        servers={
            "github": ServerConfig(
                name="github",
                transport="stdio",
                command=("github-mcp-server", "stdio", ""),
                env={
                    "TOKEN": gh,
                    "PLAIN": SecretRef(literal="text"),
                    "MADE": SecretRef(from_file=tmp_path / "home/gh", template="a {} b"),
                },
                cwd=tmp_path / "work",
                only=("search_*",),
                trusted=True,
                gated=("create_*", "*"),
                annotations=(
                    ("list_*", AnnotationOverride(read_only=True)),
                    ("*", AnnotationOverride(None, False, True, False, "All")),
                ),
                hints="restrict",
                timeout=60.0,
                era="legacy",
                isolation="session",
            ),
            "linear": ServerConfig(
                name="linear",
                transport="sse",
                url="https://mcp.linear.app/mcp?key=s3cr3t",
                headers={"authorization": SecretRef(from_env="GH", template="Bearer {}")},
                except_=(),
                gated=False,
            ),
        },
        agents={
            "triage": AgentConfig(
                "triage", SecretRef(from_file=tmp_path / "triage"), ("github", "lin*")
            ),
            "nobody": AgentConfig("nobody", SecretRef(from_file=tmp_path / "nobody")),
        },
        store="sqlite:/var/lib/state.db",
        list_wait=0.0,
        retry=Retry(1, 0.05),
        drain_grace=60.0,
        limits=Limits(1 << 20, 2_000_000, 4096, 65536, 8, 2, 3, 3600.0),
    )
    assert list(config.servers) == ["github", "linear"]


def test_no_secret_is_in_the_representation(good: Load, tmp_path: Path) -> None:
    write(tmp_path, operator="o", triage="t", nobody="n", **{"home/gh": "g"})
    text = ALL.replace("PLAIN: text", "PLAIN: hunter2").replace('stdio, ""]', "--key=hunter2]")
    config = good(text, env={"GH": "ghp_1234"})
    shown = f"{config!r} {config}"
    assert "hunter2" not in shown
    assert "s3cr3t" not in shown
    assert "ghp_1234" not in shown
    assert "SecretRef(***)" in shown
    assert "SecretRef(from_env='GH')" in shown


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "---\n", "{}", "servers:\nhealth:\nlimits:\nadmin:\n"]
)
def test_nothing_configured_still_loads(good: Load, tmp_path: Path, text: str) -> None:
    assert good(text) == Config(
        path=tmp_path / "sidecar.yaml",
        admin=AdminConfig(Listen(path=Path("/run/user/7/sidecar/admin.sock"))),
        store="sqlite:/state/sidecar/state.db",
    )


def test_no_file_and_no_environment_still_load() -> None:
    config = load(None, environ={"TMPDIR": "/somewhere"})
    socket = Path(f"/somewhere/sidecar-{os.getuid()}/admin.sock")
    assert config == Config(admin=AdminConfig(Listen(path=socket)), store="memory")
    assert load(None, environ={"HOME": "/h"}).store == "sqlite:/h/.local/state/sidecar/state.db"
    # Relative values are ignored, as the XDG specification has it.
    assert load(None, environ={"HOME": "/h", "XDG_STATE_HOME": "x"}).store.startswith("sqlite:/h/")


def test_off_means_no_listener(good: Load) -> None:
    config = good('listen: off\nhealth: {listen: "off"}\nadmin: {listen: off}\n')
    assert (config.listen, config.health, config.admin.listen) == (None, None, None)


def test_all_faults_at_once_each_at_its_place(told: Told) -> None:
    text = """\
listn: 127.0.0.1:1
servers:
  git hub: {comand: [x]}
  a:
    command: [x, 8080, yes]
    only: [ok, [x], ""]
    era: moderm
    retry: 3
agents:
  bot: {servers: [a, b*]}
limits: {depth: 0, body: 4TB, speed: 1}
"""
    assert told(text) == [
        'sidecar.yaml:1:1: listn: unknown key "listn"; did you mean "listen"?',
        'sidecar.yaml:3:3: servers["git hub"]: a name is letters and digits of A-Z a-z 0-9, '
        "with - and single _ inside; this one is not",
        'sidecar.yaml:3:12: servers["git hub"]: a server has command (stdio) or url (HTTP): '
        "this one has neither; give it one of them",
        'sidecar.yaml:3:13: servers["git hub"].comand: unknown key "comand"; '
        'did you mean "command"?',
        "sidecar.yaml:5:18: servers.a.command[1]: expected text, got a number; put it in quotes",
        "sidecar.yaml:5:24: servers.a.command[2]: expected text, got true or false; "
        "put it in quotes",
        "sidecar.yaml:6:16: servers.a.only[1]: expected a pattern, got a list",
        'sidecar.yaml:6:21: servers.a.only[2]: "" is not a pattern; write a name, '
        "or a part of it with *",
        'sidecar.yaml:7:10: servers.a.era: "moderm" is not one of auto, legacy, modern',
        'sidecar.yaml:8:5: servers.a.retry: unknown key "retry"; a server\'s mapping takes '
        "command, env, cwd, url, transport, headers, only, except, trusted, gated, annotations, "
        "hints, timeout, era, isolation, egress",
        "sidecar.yaml:10:8: agents.bot: token_file is missing: A file with the agent's own "
        "bearer token.",
        'sidecar.yaml:10:22: agents.bot.servers[1]: "b*" matches no server; there are: a, git hub',
        "sidecar.yaml:11:17: limits.depth: expected a number from 4 to 512",
        'sidecar.yaml:11:26: limits.body: "4TB" is not a size; write it like 4MiB, 64KiB, 10MB, '
        "or a number of bytes",
        'sidecar.yaml:11:31: limits.speed: unknown key "speed"; a mapping takes body, result, '
        "event, line, depth, list_pages, sessions, session_ttl, in_flight",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a]", "1:1: expected a mapping of settings, got a list"),
        ("just text", "1:1: expected a mapping of settings, got text"),
        ("a: 1\n---\nb: 2", "2:1: a second document starts here; write one only"),
        ("name: a\n\tlisten: b", "2:1: a tab is used to indent; YAML takes spaces only"),
        ("name: [", "2:1: not valid YAML: did not find expected node content"),
        ("name: a\nname: b", '2:1: "name" is here twice; the first is at line 1'),
        ("name: 7", "1:7: name: expected a name, got a number; put it in quotes"),
        ("name: ''", '1:7: name: "" is empty; expected a name'),
        ('name: "a\\0b"', "1:7: name: has a NUL or half a character in it"),
        ("listen: 8808", "1:9: listen: a port alone; name the address too"),
        ("listen: :8808", '1:9: listen: ":8808" names no address; write 127.0.0.1:8808'),
        ("listen:", "1:1: listen: has no value; give it one or remove the key"),
        ("agents:", "1:1: agents: has no value"),
        ("auth:", "1:1: auth: has no value"),
        ("agents: {}", "1:9: agents: is empty: nobody could connect"),
        ("auth: {}", "1:7: auth: needs token_file, or none: true"),
        ("auth: {none: false}", "1:7: auth: needs token_file, or none: true"),
        ("auth: {token: x}", "1:8: auth.token: unknown key; write token_file"),
        ("separator: .", '1:12: separator: "." is 1 to 8 of _ and -'),
        ("separator: '-'\nservers: {a-b: {url: http://x}}", "2:11: servers.a-b: has the separator"),
        ("servers: {sidecar: {url: http://x}}", '1:11: servers.sidecar: "sidecar" is reserved'),
        ("servers: {a: }", "1:14: servers.a: expected a server's mapping, got nothing"),
        ("servers: [a]", "1:10: servers: expected a mapping of servers, got a list"),
        ("servers: {a: {command: a b}}", "1:24: servers.a.command: expected a list of texts, got"),
        ("servers: {a: {command: []}}", "1:24: servers.a.command: expected a list of texts, got"),
        ("servers: {a: {command: ['']}}", "1:24: servers.a.command: begins with an empty text"),
        (
            "servers: {a: {command: [a], url: http://x}}",
            "1:14: servers.a: a server has command (stdio) or url (HTTP): this one has both",
        ),
        (
            "servers: {a: {command: [a], headers: {x: y}}}",
            "1:38: servers.a.headers: belongs to a server with url",
        ),
        (
            "servers: {a: {command: [a], transport: sse}}",
            "1:40: servers.a.transport: belongs to a server with url",
        ),
        (
            "servers: {a: {url: http://x, transport: stdio}}",
            "1:41: servers.a.transport: stdio belongs to a server with command",
        ),
        (
            "servers: {a: {url: http://x, env: {A: b}}}",
            "1:35: servers.a.env: belongs to a server with command",
        ),
        (
            "servers: {a: {url: http://x, only: [a], except: [b]}}",
            "1:49: servers.a.except: stands beside only",
        ),
        (
            "servers: {a: {url: http://x, only: }}",
            "1:30: servers.a.only: has no value",
        ),
        (
            "servers: {a: {url: http://x, gated: yep}}",
            "1:37: servers.a.gated: expected true, false or a list of patterns, got text",
        ),
        (
            "servers: {a: {url: http://x, headers: {A: b, a: c}}}",
            "1:39: servers.a.headers: A and a are one header",
        ),
        (
            "servers: {a: {url: http://x, headers: {host: b}}}",
            "1:40: servers.a.headers.host: host is written by the sidecar itself",
        ),
        (
            "servers: {a: {url: http://x, timeout: 0s}}",
            '1:39: servers.a.timeout: "0s" is out of bounds; from 10ms to 24h',
        ),
        (
            "servers: {a: {command: [a], args: [b]}}",
            "1:29: servers.a.args: unknown key; write the arguments after the program",
        ),
        (
            "servers: {a: {url: http://x, annotations: {b: {readOnlyHint: true}}}}",
            "1:48: servers.a.annotations.b.readOnlyHint: unknown key; write read_only",
        ),
        ("mcpServers: {}", "1:1: mcpServers: unknown key; write servers, or give the file to"),
        (
            "admin: {listen: 127.0.0.1:9}",
            "1:17: admin.listen: on TCP the admin listener needs token_file",
        ),
        (
            "listen: 10.1.2.3:8808",
            "1:9: listen: 10.1.2.3:8808 can be reached from other machines, and no token is asked "
            "for: listen on 127.0.0.1:8808, or set auth.token_file or agents",
        ),
        (
            "listen: 10.1.2.3:8808\nauth: {none: true}",
            "1:9: listen: 10.1.2.3:8808 can be reached",
        ),
        (
            "health: {listen: unix:/run/a.sock}",
            "1:18: health.listen: cannot be a unix socket; write an address with a port",
        ),
        (
            "health: {listen: 127.0.0.1:8808}",
            "1:18: health.listen: 127.0.0.1:8808 is the address of listen too",
        ),
    ],
)
def test_single_faults(told: Told, text: str, fault: str) -> None:
    faults = told(text)
    assert len(faults) == 1, faults
    assert faults[0].startswith(f"sidecar.yaml:{fault}")


def test_agents_leave_no_other_way_in(told: Told, tmp_path: Path) -> None:
    write(tmp_path, a="a", b="b")
    agents = "servers: {s: {url: http://x}}\nagents: {bot: {token_file: a, servers: ['*']}}\n"
    assert told(agents + "auth: {none: true}") == [
        "sidecar.yaml:3:14: auth.none: cannot stand beside agents: each of them has its token"
    ]
    assert told(agents + "auth: {token_file: b}") == [
        "sidecar.yaml:3:20: auth.token_file: cannot stand beside agents: each of them has a token "
        "of its own"
    ]


def test_a_token_belongs_to_one(told: Told, tmp_path: Path) -> None:
    write(tmp_path, a="same", b="same\n", c="other")
    agents = "agents:\n  x: {token_file: a}\n  y: {token_file: b}\n  z: {token_file: c}\n"
    assert told(agents + "admin: {token_file: a}") == [
        "sidecar.yaml:3:19: agents.y.token_file: holds the same token as agents.x; each needs its "
        "own",
        "sidecar.yaml:5:21: admin.token_file: holds the same token as agents.x; each needs its own",
    ]
    assert told("auth: {token_file: a}\nadmin: {token_file: b}") == [
        "sidecar.yaml:2:21: admin.token_file: holds the same token as auth; each needs its own"
    ]


def test_every_network_with_a_token(good: Load, tmp_path: Path) -> None:
    write(tmp_path, a="a")
    assert good("listen: 0.0.0.0:1\nauth: {token_file: a}").listen == Listen("0.0.0.0", 1)
    agents = "agents: {x: {token_file: a, servers: ['*']}}"
    assert good(f"listen: 0.0.0.0:1\n{agents}").listen == Listen("0.0.0.0", 1)


def test_all_servers_may_be_none(good: Load, tmp_path: Path) -> None:
    """``*`` means whatever there is, so that it need not match yet."""
    write(tmp_path, a="a")
    assert good("agents: {x: {token_file: a, servers: ['*']}}").agents["x"].servers == ("*",)


def test_a_bad_token_file_does_not_make_the_listener_look_open(told: Told) -> None:
    faults = told("listen: 0.0.0.0:1\nauth: {token_file: missing}")
    assert faults == [
        "sidecar.yaml:2:20: auth.token_file: missing cannot be read: No such file or directory"
    ]


def test_listen_of_the_command_line_is_checked_like_the_files(good: Load, told: Told) -> None:
    assert good("listen: 127.0.0.1:1", listen="127.0.0.1:0").listen == Listen("127.0.0.1", 0)
    # What the file says of a place that is not used does not matter.
    assert good("listen: 0.0.0.0:1", listen="127.0.0.1:2").listen == Listen("127.0.0.1", 2)
    assert told("", listen="0.0.0.0:1")[0].startswith("--listen: 0.0.0.0:1 can be reached")
    assert told("", listen="nope") == [
        "--listen: has no port; write it like 127.0.0.1:8808, [::1]:8808 or unix:/path"
    ]


def test_one_fault_in_what_an_anchor_shares_is_told_once(told: Told) -> None:
    text = "servers:\n  a: &a {url: http://x, timout: 5s}\n  b: {<<: *a}\n"
    faults = told(text)
    assert [fault.split(": ")[0] for fault in faults] == ["sidecar.yaml:2:25"] * 2
    assert [fault.split(": ")[1] for fault in faults] == ["servers.a.timout", "servers.b.timout"]


def test_files_that_are_none(tmp_path: Path, environ: dict[str, str]) -> None:
    def fault(path: Path) -> str:
        with pytest.raises(ConfigErrors) as caught:
            load(path, environ=environ)
        return str(caught.value)

    assert fault(tmp_path / "no.yaml").endswith(
        "no.yaml: cannot be read: No such file or directory"
    )
    assert fault(tmp_path).endswith(": is not a file")
    assert fault(Path("/dev/zero")) == "/dev/zero: is not a file"
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * ((4 << 20) + 1))
    assert fault(big).endswith("big.yaml: is larger than 4 MiB")
    big.write_bytes(b"name: a\nlisten: \xff\n")
    assert fault(big).endswith("big.yaml:2:9: is not UTF-8 text")


def test_faults_are_bounded(told: Told) -> None:
    assert len(told("\n".join(f"key{i}: 1" for i in range(3000)))) == 500


def test_where_the_file_is(tmp_path: Path) -> None:
    assert find(None, {}, tmp_path) in (None, Path("/etc/sidecar/sidecar.yaml"))
    (tmp_path / "sidecar.yaml").write_text("")
    assert find(None, {}, tmp_path) == tmp_path / "sidecar.yaml"
    assert find(None, {"SIDECAR_CONFIG": ""}, tmp_path) == tmp_path / "sidecar.yaml"
    assert find(None, {"SIDECAR_CONFIG": "/a/b"}, tmp_path) == Path("/a/b")
    assert find(Path("c"), {"SIDECAR_CONFIG": "/a/b"}, tmp_path) == tmp_path / "c"


def test_types_alone_import_no_yaml() -> None:
    code = "import sys, sidecar.config; print({'yaml', 'sidecar.config.table'} & set(sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert out.stdout.strip() == "set()"
