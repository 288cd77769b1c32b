"""Standard input and output: conversations in memory, then real processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.config.types import Config, Limits
from sidecar.downstream import StdioServer
from sidecar.downstream import stdio as stdio_module
from sidecar.model import Era
from sidecar.wire.ndjson import Lines, Oversize
from tests.downstream.kit import (
    MODERN,
    TOOLS_CHANGED,
    ScriptedGateway,
    call,
    initialize,
    modern,
    request,
    until,
)

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ROOT = Path(__file__).resolve().parents[2]


class Peer:
    """The client at the other end of the pipes."""

    def __init__(self, gateway: ScriptedGateway) -> None:
        self.gateway = gateway
        self._in: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self.reads = asyncio.Event()
        self.reads.set()
        self.broken = False
        self.task: asyncio.Task[None]

    def send(self, message: object) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self._in.put_nowait(data + b"\n")

    def end(self) -> None:
        self._in.put_nowait(None)

    async def next(self, timeout: float = 30.0) -> Any:
        async with asyncio.timeout(timeout):
            return await self._out.get()

    async def ask(self, message: object) -> Any:
        self.send(message)
        return await self.next()

    def rest(self) -> list[Any]:
        return [self._out.get_nowait() for _ in range(self._out.qsize())]

    async def lines(self) -> AsyncIterator[bytes | Oversize]:
        lines = Lines(1 << 20)
        while (data := await self._in.get()) is not None:
            for line in lines.feed(data):
                yield line

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        if self.broken:
            raise BrokenPipeError
        assert b"\n" not in message
        self._out.put_nowait(json.loads(message))


@asynccontextmanager
async def serving(server: str | None = None, farewell: float = 1.0) -> AsyncIterator[Peer]:
    gateway = ScriptedGateway()
    peer = Peer(gateway)
    stdio = StdioServer(
        gateway,  # type: ignore[arg-type]  # scripted
        Config(limits=Limits(line=1 << 20)),
        server=server,
        farewell=farewell,
    )
    peer.task = asyncio.create_task(stdio.serve(peer.lines(), peer.write))
    try:
        yield peer
    finally:
        gateway.release.set()
        peer.end()
        await asyncio.wait_for(peer.task, 30)


# ---------------------------------------------------------------------------- which era


async def test_initialize_opens_a_session() -> None:
    async with serving() as peer:
        opened = await peer.ask(initialize(protocolVersion="2025-06-18"))
        assert opened["id"] == 0
        assert opened["result"]["protocolVersion"] == "2025-06-18"
        assert opened["result"]["serverInfo"]["name"] == "sidecar"
        peer.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        answer = await peer.ask(call("echo", "x", _meta={"vendor": 1, "sidecar/x": 1}))
        assert answer == {
            "jsonrpc": "2.0",
            "id": "x",
            "result": {"content": [{"type": "text", "text": "{}"}]},
        }
        _, params, caller = peer.gateway.seen[0]
        assert params["_meta"] == {"vendor": 1}
        assert caller.era is Era.LEGACY
        assert caller.session
        assert caller.client.name == "test"
        again = await peer.ask(initialize(id=9))
        assert (again["error"]["code"], again["id"]) == (-32600, 9)
        wrong = await peer.ask(modern("tools/list", id=10))
        assert (wrong["error"]["code"], wrong["id"]) == (-32600, 10)


async def test_an_enveloped_request_opens_the_stateless_era() -> None:
    async with serving("one") as peer:
        answer = await peer.ask(modern("tools/call", {"name": "echo", "arguments": {}}, 3))
        assert answer["result"]["resultType"] == "complete"
        caller = peer.gateway.seen[0][2]
        assert (caller.era, caller.session, caller.server) == (Era.MODERN, "", "one")
        late = await peer.ask(initialize(id=4))
        assert late["error"]["code"] == -32022
        assert late["error"]["data"]["supported"] == [MODERN]
        bare = await peer.ask(request("tools/list", id=5))
        assert (bare["error"]["code"], bare["id"]) == (-32602, 5)


async def test_discover_decides_too() -> None:
    async with serving() as peer:
        found = await peer.ask(modern("server/discover"))
        assert found["result"]["supportedVersions"] == [MODERN]
        assert (await peer.ask(initialize()))["error"]["code"] == -32022


async def test_a_version_that_we_do_not_speak_decides_nothing() -> None:
    async with serving() as peer:
        meta = {"io.modelcontextprotocol/protocolVersion": "2031-01-01"}
        refused = await peer.ask(modern("server/discover", {"_meta": meta}))
        assert refused["error"]["code"] == -32022
        assert (await peer.ask(request("server/discover", {}, 2)))["error"]["code"] == -32602
        assert "result" in await peer.ask(initialize(id=3))


async def test_before_anything_is_open_only_ping_is_answered() -> None:
    async with serving() as peer:
        assert await peer.ask(request("ping", id=1)) == {"jsonrpc": "2.0", "id": 1, "result": {}}
        early = await peer.ask(request("tools/list", id=2))
        assert (early["error"]["code"], early["id"]) == (-32600, 2)
        assert "initialize" in early["error"]["message"]
        bad = await peer.ask(initialize(protocolVersion=3, id=4))
        assert (bad["error"]["code"], bad["id"]) == (-32602, 4)
        assert peer.gateway.seen == []
        assert "result" in await peer.ask(modern("tools/list"))


@pytest.mark.parametrize(
    ("line", "code", "id_"),
    [
        (b"{", -32700, None),
        (b"hello", -32700, None),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":2}}', -32700, None),
        (b"[" * 200_000, -32700, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, None),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, None),
        (b'{"id":7,"method":"ping"}', -32600, 7),
        (
            b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":"%s"}}' % (b"x" * 2_000_000),
            -32600,
            7,
        ),
        (
            b'{"jsonrpc":"2.0","method":"x","params":{"a":"%s"},"id":"q"}' % (b"x" * 2_000_000),
            -32600,
            "q",
        ),
    ],
)
async def test_lines_that_are_refused_cost_only_themselves(
    line: bytes, code: int, id_: object
) -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        answer = await peer.ask(line)
        assert (answer["error"]["code"], answer["id"]) == (code, id_)
        assert "result" in await peer.ask(request("ping", id=2))


# ----------------------------------------------------------------------- while calls run


async def test_calls_run_at_once_and_notifications_come_between() -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        for i in range(8):
            peer.send(call("wait", i))
        await until(lambda: peer.gateway.at_once == 8)
        peer.send(call("progress", "p", _meta={"progressToken": "t"}))
        for i in range(3):
            assert (await peer.next())["params"] == {"progressToken": "t", "progress": i}
        assert (await peer.ask(call("echo", "e")))["id"] == "e"
        peer.gateway.release.set()
        ids = {(await peer.next())["id"] for _ in range(9)}
        assert ids == {*range(8), "p"}


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_cancelled_ends_a_call_without_an_answer(era: str) -> None:
    async with serving() as peer:
        if era == "legacy":
            await peer.ask(initialize())
            peer.send(call("wait", 4))
            cancel = {"method": "notifications/cancelled", "params": {"requestId": 4}}
        else:
            peer.send(modern("tools/call", {"name": "wait"}, 4))
            cancel = modern("notifications/cancelled", {"requestId": 4})
            del cancel["id"]
        await peer.gateway.started.wait()
        peer.send({"jsonrpc": "2.0", **cancel})
        await until(lambda: peer.gateway.cancelled == ["wait"])
        ping = request("ping", id=5) if era == "legacy" else modern("tools/list", id=5)
        assert (await peer.ask(ping))["id"] == 5
        assert peer.rest() == []


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_id_that_is_still_unanswered_is_refused(era: str) -> None:
    async with serving() as peer:
        if era == "legacy":
            await peer.ask(initialize())
            wait, echo = call("wait", 4), call("echo", 4)
        else:
            wait = modern("tools/call", {"name": "wait"}, 4)
            echo = modern("tools/call", {"name": "echo"}, 4)
        peer.send(wait)
        await peer.gateway.started.wait()
        assert (await peer.ask(echo))["error"]["code"] == -32600
        peer.gateway.release.set()
        assert "result" in await peer.next()
        assert "result" in await peer.ask(echo)


async def test_only_so_many_calls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio_module, "MOST_IN_FLIGHT", 2)
    async with serving() as peer:
        await peer.ask(initialize())
        peer.send(call("wait", 1))
        peer.send(call("wait", 2))
        busy = await peer.ask(call("echo", 3))
        assert busy["id"] == 3
        assert busy["error"]["data"] == {
            "reason": "unavailable",
            "server": "sidecar",
            "ran": "no",
            "retry_in": 1.0,
        }


async def test_list_changes_are_told_and_a_burst_once() -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        for _ in range(5):
            peer.gateway.tell(TOOLS_CHANGED)
        assert await peer.next() == {"jsonrpc": "2.0", "method": TOOLS_CHANGED}
        await asyncio.sleep(0.1)
        assert peer.rest() == []


async def test_listen_runs_until_it_is_cancelled_or_the_input_ends() -> None:
    async with serving() as peer:
        wanted = {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}}
        acknowledged = await peer.ask(modern("subscriptions/listen", wanted, "L"))
        assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
        assert acknowledged["params"]["notifications"] == wanted["notifications"]
        peer.gateway.tell(TOOLS_CHANGED)
        peer.gateway.tell("notifications/prompts/list_changed")
        told = await peer.next()
        assert (told["method"], told["params"]) == (TOOLS_CHANGED, {"_meta": {SUBSCRIPTION: "L"}})
        cancel = modern("notifications/cancelled", {"requestId": "L"})
        del cancel["id"]
        peer.send(cancel)
        await until(lambda: not peer.gateway.listeners)
        assert peer.rest() == []
        bad = await peer.ask(modern("subscriptions/listen", {"notifications": 1}, 5))
        assert (bad["error"]["code"], bad["id"]) == (-32602, 5)
        await peer.ask(modern("subscriptions/listen", wanted, "M"))
        peer.end()
        result = await peer.next()
        assert result["id"] == "M"
        assert result["result"]["resultType"] == "complete"
        assert (await peer.next())["params"] == {"requestId": "M"}


# ----------------------------------------------------------------------------- its end


async def test_running_calls_may_finish_when_the_input_ends() -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        peer.send(call("wait", 4))
        await peer.gateway.started.wait()
        peer.end()
        await asyncio.sleep(0.05)
        assert not peer.task.done()
        peer.gateway.release.set()
        assert (await peer.next())["id"] == 4
        await asyncio.wait_for(peer.task, 30)
        assert len(peer.gateway.closed) == 1
        assert peer.gateway.listeners == []


async def test_what_outlives_the_farewell_is_ended_with_an_answer() -> None:
    async with serving(farewell=0.1) as peer:
        await peer.ask(initialize())
        peer.send(call("wait", 4))
        await peer.gateway.started.wait()
        peer.end()
        answer = await peer.next()
        assert (answer["id"], answer["error"]["code"]) == (4, -32603)
        await asyncio.wait_for(peer.task, 30)
        assert peer.gateway.cancelled == ["wait"]


async def test_when_nobody_reads_any_more_everything_ends() -> None:
    async with serving(farewell=30) as peer:
        await peer.ask(initialize())
        peer.send(call("wait", 4))
        await peer.gateway.started.wait()
        peer.broken = True
        peer.send(request("ping"))
        await asyncio.wait_for(peer.task, 30)
        assert peer.gateway.cancelled == ["wait"]


async def test_being_told_to_stop_ends_everything() -> None:
    async with serving(farewell=0.2) as peer:
        await peer.ask(initialize())
        peer.send(call("wait", 4))
        await peer.gateway.started.wait()
        peer.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await peer.task
        assert peer.gateway.cancelled == ["wait"]
        peer.task = asyncio.create_task(asyncio.sleep(0))


async def test_a_reader_that_stops_loses_progress_and_no_answer() -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        peer.reads.clear()
        peer.gateway.release.set()
        peer.send(call("flood", "f", _meta={"progressToken": 1}))
        for i in range(20):
            peer.send(call("echo", i))
        await until(lambda: len(peer.gateway.seen) == 21)
        peer.reads.set()
        found: list[Any] = []
        while len({message["id"] for message in found if "id" in message}) < 21:
            found.append(await peer.next())
        await asyncio.sleep(0.05)
        found += peer.rest()
        ids = [message["id"] for message in found if "id" in message]
        assert sorted(ids, key=str) == sorted(["f", *range(20)], key=str)
        assert len(found) < 600


async def test_a_client_that_reads_nothing_is_not_read_from() -> None:
    async with serving() as peer:
        await peer.ask(initialize())
        peer.reads.clear()
        for i in range(3):
            peer.send(call("big", i))
        await until(lambda: len(peer.gateway.seen) == 3)
        await asyncio.sleep(0.05)
        peer.send(request("ping", id="read with the last one"))
        for i in range(3, 8):
            peer.send(call("big", i))
        await asyncio.sleep(0.1)
        assert len(peer.gateway.seen) == 3
        peer.reads.set()
        ids = {(await peer.next())["id"] for _ in range(9)}
        assert ids == {*range(8), "read with the last one"}


# ---------------------------------------------------------------------------- processes


@pytest.fixture(params=["asyncio", "uvloop"])
def child(request: pytest.FixtureRequest) -> list[str]:
    return [sys.executable, "-m", "tests.downstream.stdio_child", request.param]


ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
SCRIPT = b"".join(
    json.dumps(message).encode() + b"\n"
    for message in (initialize(), call("echo", 1), call("nothing", 2))
)


def test_only_messages_are_on_standard_output(child: list[str]) -> None:
    done = subprocess.run(child, input=SCRIPT, capture_output=True, env=ENV, timeout=60, check=True)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted(message["id"] for message in messages) == [0, 1, 2]
    assert b"what is printed goes elsewhere" in done.stderr


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n\r\n"])
def test_files_are_served_like_pipes(child: list[str], tmp_path: Path, end: bytes) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(SCRIPT.rstrip() + end)
    with source.open("rb") as stdin, target.open("wb") as stdout:
        subprocess.run(child, stdin=stdin, stdout=stdout, env=ENV, timeout=60, check=True)
    messages = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert sorted(message["id"] for message in messages) == [0, 1, 2]


def test_an_empty_input_ends_at_once(child: list[str]) -> None:
    with Path(os.devnull).open("rb") as nothing:
        done = subprocess.run(
            child, stdin=nothing, capture_output=True, env=ENV, timeout=60, check=True
        )
    assert done.stdout == b""


def test_a_reader_that_goes_away_ends_the_process(child: list[str]) -> None:
    process = subprocess.Popen(
        child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=ENV
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(SCRIPT)
        process.stdin.flush()
        assert b'"id":0' in process.stdout.readline()
        process.stdout.close()
        process.stdin.write(SCRIPT)
        process.stdin.flush()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
