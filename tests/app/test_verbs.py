"""`sidecar call`, `tools` and `sessions`, as they are typed, beside a sidecar on a unix socket."""

from __future__ import annotations

import json
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.test_join import ENVELOPE, INITIALIZE, NOTES, stdio
from tests.cases.awkward import Behaviour
from tests.cases.awkward.stdio import Child
from tests.kit.running import NotReady, Sidecar, running, started


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="sidecar-") as folder:
        slow = Child(Behaviour(only=("slow", "error")), Path(folder) / "record")
        servers = {"notes": NOTES, "slow": slow.config(gated=False)}
        with started({"servers": servers, "listen": f"unix:{folder}/mcp.sock"}) as running:
            yield running


def test_the_ready_line_names_the_socket(sidecar: Sidecar) -> None:
    assert sidecar.mcp == f"unix:{sidecar.config['listen'].removeprefix('unix:')}"


def test_a_socket_at_which_somebody_listens_is_left_alone(sidecar: Sidecar) -> None:
    """A second sidecar took it away, and removed the first one's when it ended."""
    second = Sidecar({"listen": sidecar.mcp})
    with pytest.raises(
        NotReady, match=r"listen: cannot listen on unix:.*in use; stop what uses it"
    ):
        second.start()
    assert sidecar.cli("call", "notes__search").returncode == 0


def test_a_socket_that_was_left_behind_is_replaced() -> None:
    with started({"listen": f"unix:{tempfile.mkdtemp(prefix='sidecar-')}/mcp.sock"}) as killed:
        killed.signal(signal.SIGKILL)
        killed.wait()
        assert Path(killed.mcp.removeprefix("unix:")).exists()
        with started({"listen": killed.mcp}) as again:
            assert again.cli("call", "x").stderr.count("no tool 'x' that you may use") == 1
        Path(killed.mcp.removeprefix("unix:")).parent.rmdir()


def test_verbs_find_a_sidecar_on_a_unix_socket(sidecar: Sidecar) -> None:
    for at in ((), ("--url", sidecar.mcp)):
        called = sidecar.cli("call", "notes__add", "--args", '{"text": "ü"}', *at)
        assert called.stdout.startswith("noted as number"), called.stderr
        listed = sidecar.cli("tools", "--format", "openai", "--server", "notes", *at)
        names = [tool["function"]["name"] for tool in json.loads(listed.stdout)]
        assert names == ["notes__add", "notes__search"]


async def test_stdio_joins_a_sidecar_on_a_unix_socket(sidecar: Sidecar) -> None:
    before = sidecar.family
    async with stdio(sidecar) as client:
        await client.ask("initialize", INITIALIZE)
        called = await client.ask("tools/call", {"name": "notes__search", "_meta": ENVELOPE})
        assert called["result"]["content"][0]["type"] == "text"
        assert sidecar.family == before
        listed = sidecar.cli("sessions", "list")
        head, row = listed.stdout.splitlines()
        assert head.split()[:3] == ["ID", "PRINCIPAL", "CLIENT"]
        # The client and the time as people read them.
        assert " t 1 " in row and "{" not in row and ":" in row, row
        assert await client.end() == 0


def test_a_call_that_takes_too_long_says_so(sidecar: Sidecar) -> None:
    called = sidecar.cli("call", "slow__slow", "--args", '{"seconds": 9}', "--timeout", "2")
    assert (called.returncode, called.stderr) == (1, "sidecar call: no answer within 2 s\n")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--args", "@/not/there"], 2, "--args: /not/there cannot be read: No such file"),
        (["--args", "{nope"], 2, "--args: not valid JSON: "),
        (["--args", "[1]"], 2, "--args: has to be a JSON object, such as"),
        (["--timeout", "-1"], 2, "argument --timeout: has to be more than 0"),
        (["--timeout", "x"], 2, "argument --timeout: "),
        (["--token-file", "/not/there"], 1, "the token cannot be read: /not/there: No such file"),
        (["--url", "foo"], 1, "--url: 'foo' is no address; write it like http://127.0.0.1:8808"),
        (["--url", "http://127.0.0.1:1"], 1, "no sidecar answers at http://127.0.0.1:1 ("),
        (["--url", "unix:/not/there"], 1, "no sidecar answers at unix:/not/there ("),
    ],
)
def test_what_is_wrong_with_a_call_is_told_in_words(
    sidecar: Sidecar, arguments: list[str], code: int, told: str
) -> None:
    called = sidecar.cli("call", "notes__search", *arguments)
    assert (called.returncode, called.stdout) == (code, "")
    assert told in called.stderr
    assert "Errno" not in called.stderr and "()" not in called.stderr


def test_a_server_that_is_not_there_has_no_tools(sidecar: Sidecar) -> None:
    listed = sidecar.cli("tools", "--server", "nots")
    assert (listed.returncode, listed.stdout) == (1, "")
    assert listed.stderr == "sidecar tools: no server 'nots': there are notes, slow\n"


async def test_nothing_is_told_as_nothing() -> None:
    """And a sidecar that knows its agents says how to be one."""
    async with running({}) as sidecar:
        listed = sidecar.cli("tools")
        assert (listed.returncode, listed.stdout) == (0, "")
        assert listed.stderr.startswith("no tools")
        assert sidecar.cli("tools", "--json").stdout == "[]\n"
        assert sidecar.cli("sessions", "list").stderr == "no sessions\n"
        (sidecar.folder / "token").write_text("a-token-of-some-length")
        agents = {"a": {"token_file": "token", "servers": ["*"]}}
        sidecar.write({**sidecar.config, "servers": {"notes": NOTES}, "agents": agents})
        for verb in (["call", "notes__search"], ["tools", "--format", "mcp"]):
            asked = sidecar.cli(*verb)
            assert (asked.returncode, asked.stdout) == (1, "")
            assert "--token-file" in asked.stderr and "$SIDECAR_TOKEN" in asked.stderr
