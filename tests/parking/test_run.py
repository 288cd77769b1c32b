"""A real ``sidecar run``: parked over HTTP and stdio's stores, answered by the command line."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.app.test_join import INITIALIZE, stdio
from tests.kit.client import CLIENTS, Legacy, Modern, eventually
from tests.kit.running import Sidecar, running

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}


def gated(tmp_path: Path, **parking: Any) -> dict[str, Any]:
    return {
        "servers": {"notes": NOTES},
        "store": f"sqlite://{tmp_path}/state.db",
        "policy": {"shipped": ["gating"]},
        "parking": {"hold": "20s", **parking},
    }


def calls(sidecar: Sidecar, *arguments: str) -> Any:
    done = sidecar.cli("calls", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


async def waiting(sidecar: Sidecar) -> dict[str, Any]:
    """The one call that waits, as soon as it does."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        found = await asyncio.to_thread(calls, sidecar, "--json")
        if found:
            (one,) = found
            return dict(one)
        await asyncio.sleep(0.1)
    raise AssertionError("nothing waits")


@pytest.mark.parametrize("era", CLIENTS)
async def test_approved_by_the_command_line_while_it_is_held(era: str, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, running(gated(tmp_path)) as sidecar:
        client = CLIENTS[era](http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")
        call = asyncio.create_task(client.call("notes__add", text="hello"))
        parked = await waiting(sidecar)
        assert (parked["tool"], parked["principal"]) == ("notes__add", "agent")
        assert parked["rules"] == ["gating/gated"]
        shown = await asyncio.to_thread(calls, sidecar, "show", parked["id"], "--json")
        assert shown["args"] == {"text": "hello"}
        said = await asyncio.to_thread(calls, sidecar, "approve", parked["id"], "--why", "fine")
        assert "approved" in said
        assert (await call)["content"][0]["text"] == "noted as number 1"
        after = await asyncio.to_thread(calls, sidecar, "show", parked["id"], "--json")
        assert (after["state"], after["why"], after["way"]) == ("done", "fine", "socket")
        assert after["answered_by"].startswith("uid:")
        again = await asyncio.to_thread(sidecar.cli, "calls", "approve", parked["id"])
        assert again.returncode == 1 and "done" in again.stderr
        assert await client.text("notes__search") == "1. hello"


async def test_denied_by_the_command_line(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, running(gated(tmp_path)) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add")
        call = asyncio.create_task(client.call("notes__add", text="hello"))
        parked = await waiting(sidecar)
        await asyncio.to_thread(calls, sidecar, "deny", parked["id"], "--why", "not today")
        result = await call
        assert result["isError"] and "not today" in result["content"][0]["text"]
        assert result["_meta"]["sidecar/denied"]["rule"] == "gating/gated"
        assert await client.text("notes__search") == "no notes"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
async def test_poll_answer_restart_approval_and_the_call_again(
    end: signal.Signals, tmp_path: Path
) -> None:
    config = gated(tmp_path, hold="300ms")
    async with aiohttp.ClientSession() as http:
        async with running(config) as sidecar:
            client = Legacy(http, sidecar.mcp)
            await client.open()
            await client.until_listed("notes__add")
            answer = await client.call("notes__add", text="kept")
            assert answer["isError"]
            id = answer["_meta"]["sidecar/parked"]["id"]
            if end is signal.SIGTERM:
                await asyncio.to_thread(sidecar.stop)
            else:
                sidecar.kill()
        async with running(config) as sidecar:
            await asyncio.to_thread(calls, sidecar, "approve", id)
            client = Legacy(http, sidecar.mcp)
            await client.open()
            await client.until_listed("notes__add")
            assert await client.text("notes__add", text="kept") == "noted as number 1"
            answer = await client.call("notes__add", text="kept")
            assert answer["_meta"]["sidecar/parked"]["id"] != id
            assert await client.text("notes__search") == "1. kept"


async def test_sigterm_answers_whoever_waits_at_once(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, running(gated(tmp_path)) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add")
        call = asyncio.create_task(client.call("notes__add", text="hello"))
        parked = await waiting(sidecar)
        began = time.monotonic()
        sidecar.signal(signal.SIGTERM)
        answer = await call
        assert time.monotonic() - began < 20
        assert answer["_meta"]["sidecar/parked"]["id"] == parked["id"]
        await asyncio.to_thread(sidecar.wait)


async def test_an_agent_that_hangs_up_or_cancels(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http, running(gated(tmp_path)) as sidecar:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        await client.until_listed("notes__add")

        async def begin(text: str) -> tuple[asyncio.Task[Any], int]:
            id = client.next_id()
            params = {"name": "notes__add", "arguments": {"text": text}}
            task = asyncio.create_task(client.exchange("tools/call", params, request_id=id))
            await waiting(sidecar)
            return task, id

        async def ended(text: str) -> str:
            def look() -> str:
                (one,) = [
                    call
                    for call in calls(sidecar, "--state", "cancelled", "--json")
                    if calls(sidecar, "show", call["id"], "--json")["args"] == {"text": text}
                ]
                return str(one["ended"])

            for _ in range(50):
                try:
                    return await asyncio.to_thread(look)
                except ValueError:
                    await asyncio.sleep(0.1)
            raise AssertionError("it was not cancelled")

        task, _ = await begin("hung up")
        task.cancel()
        assert await ended("hung up") == "the caller hung up"
        task, id = await begin("cancelled")
        await client.notify("notifications/cancelled", {"requestId": id})
        assert await ended("cancelled") == "the caller cancelled it"
        task.cancel()
        assert await client.text("notes__search") == "no notes"


async def test_the_rest_face(tmp_path: Path) -> None:
    async with (
        aiohttp.ClientSession() as http,
        running(gated(tmp_path, hold="200ms")) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add")
        body = {"name": "notes__add", "args": {"text": "by rest"}}
        async with http.post(f"{sidecar.rest}/call", json=body) as answer:
            assert answer.status == 202
            parked = (await answer.json())["_meta"]["sidecar/parked"]
        await asyncio.to_thread(calls, sidecar, "approve", parked["id"])
        async with http.post(f"{sidecar.rest}/call", json=body) as answer:
            assert answer.status == 200
            assert (await answer.json())["content"][0]["text"] == "noted as number 1"


async def test_two_sidecars_on_one_file(tmp_path: Path) -> None:
    """Parked at one, answered at the other, run by whichever is asked."""
    config = gated(tmp_path)
    async with (
        aiohttp.ClientSession() as http,
        running(config) as one,
        running(config) as two,
    ):
        first, second = Modern(http, one.mcp), Modern(http, two.mcp)
        await first.until_listed("notes__add")
        await second.until_listed("notes__add")
        held = asyncio.create_task(first.call("notes__add", text="x"))
        parked = await waiting(one)
        joined = asyncio.create_task(second.call("notes__add", text="x"))
        await waiting(two)
        await asyncio.sleep(0.3)
        assert not joined.done()
        await asyncio.to_thread(calls, two, "approve", parked["id"])
        answers = await asyncio.gather(held, joined)
        texts = [answer["content"][0]["text"] for answer in answers]
        assert texts == ["noted as number 1", "noted as number 1"]
        noted = [await client.text("notes__search") for client in (first, second)]
        assert sorted(noted) == ["1. x", "no notes"]


async def test_the_webhook(tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []

    async def receive(request: web.BaseRequest) -> web.Response:
        got.append(json.loads(await request.read()))
        return web.Response()

    runner = web.ServerRunner(web.Server(receive))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    hook = {"url": f"http://127.0.0.1:{port}/", "secret": "of-some-length-it-is"}
    config = gated(tmp_path, hold="0s", webhook=hook)
    async with aiohttp.ClientSession() as http, running(config) as sidecar:
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add")
        answer = await client.call("notes__add", text="secret words")
        await eventually(lambda: got, 30)
        assert got[0]["call"]["id"] == answer["_meta"]["sidecar/parked"]["id"]
        assert "secret words" not in json.dumps(got)
    await runner.cleanup()


async def test_watching(tmp_path: Path) -> None:
    async with (
        aiohttp.ClientSession() as http,
        running(gated(tmp_path, hold="100ms")) as sidecar,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add")
        watch = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sidecar",
            "calls",
            "watch",
            "--config",
            str(sidecar.file),
            stdout=asyncio.subprocess.PIPE,
        )
        assert watch.stdout is not None
        try:
            await client.call("notes__add", text="before")
            line = (await asyncio.wait_for(watch.stdout.readline(), 30)).decode()
            assert line.startswith("waiting") and "notes__add" in line
            id = line.split()[1]
            await asyncio.to_thread(calls, sidecar, "deny", id)
            line = (await asyncio.wait_for(watch.stdout.readline(), 30)).decode()
            assert line.startswith("denied") and id in line and "uid:" in line
        finally:
            watch.kill()
            await watch.wait()


async def test_stdio_alone_can_be_answered_too(tmp_path: Path) -> None:
    """No ``sidecar run`` anywhere: the process that an agent started listens to people itself."""
    sidecar = Sidecar(gated(tmp_path))
    async with stdio(sidecar, "--alone") as client:
        await client.ask("initialize", INITIALIZE)
        await client.tell("notifications/initialized")
        await client.ask("tools/list")
        params = {"name": "notes__add", "arguments": {"text": "x"}}
        call = asyncio.create_task(client.ask("tools/call", params))
        parked = await waiting(sidecar)
        await asyncio.to_thread(calls, sidecar, "approve", parked["id"])
        assert (await call)["result"]["content"][0]["text"] == "noted as number 1"
        assert await client.end() == 0


async def test_the_python_client_waits_and_gets_the_result(tmp_path: Path) -> None:
    """``sidecar call`` is the ``mcp`` package's own client, which knows nothing of parking."""
    async with running(gated(tmp_path)) as sidecar:
        words = ("call", "notes__add", "--args", '{"text": "x"}', "--url", sidecar.mcp)
        call = asyncio.create_task(asyncio.to_thread(sidecar.cli, *words))
        parked = await waiting(sidecar)
        await asyncio.to_thread(calls, sidecar, "approve", parked["id"])
        done = await call
        assert (done.returncode, done.stdout) == (0, "noted as number 1\n"), done.stderr
