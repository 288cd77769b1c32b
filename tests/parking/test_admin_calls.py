"""A person answers parked calls of a real sidecar: by API, by command line, live."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import aiohttp
import pytest

from sidecar.admin.client import AdminClient, NotFound, Refused
from tests.kit.client import Legacy
from tests.kit.running import Sidecar, running

NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}


def config(hold: str) -> dict[str, Any]:
    return {"servers": {"notes": NOTES}, "policy": {}, "parking": {"hold": hold}}


async def parked(admin: AdminClient, number: int = 1) -> list[dict[str, Any]]:
    async def found() -> list[dict[str, Any]]:
        return await asyncio.to_thread(admin.calls, "waiting")

    for _ in range(100):
        if len(calls := await found()) == number:
            return calls
        await asyncio.sleep(0.05)
    raise AssertionError(f"not {number} calls wait, but {len(calls)}")


async def opened(http: aiohttp.ClientSession, sidecar: Sidecar) -> Legacy:
    client = Legacy(http, sidecar.mcp)
    await client.open()
    await client.until_listed("notes__add")
    return client


async def test_a_held_call_runs_once_when_it_is_approved(http: aiohttp.ClientSession) -> None:
    async with running(config("30s")) as sidecar:
        client, admin = await opened(http, sidecar), AdminClient(sidecar.admin)
        call = asyncio.create_task(client.text("notes__add", text="hello"))
        (waiting,) = await parked(admin)
        assert (waiting["tool"], waiting["principal"], waiting["state"]) == (
            "notes__add",
            "agent",
            "waiting",
        )
        assert "args" not in waiting
        whole = await asyncio.to_thread(admin.call, waiting["id"])
        assert whole["args"] == {"text": "hello"}
        assert "compared" not in whole
        answered = await asyncio.to_thread(admin.answer, waiting["id"], approve=True, why="fine")
        assert answered["state"] == "approved"
        assert await asyncio.wait_for(call, 30) == "noted as number 1"
        with pytest.raises(Refused) as again:
            await asyncio.to_thread(admin.answer, waiting["id"], approve=False)
        assert again.value.reason == "conflict"
        assert await client.text("notes__search") == "1. hello"
        done = await asyncio.to_thread(admin.call, waiting["id"])
        assert (done["state"], done["why"], done["way"]) == ("done", "fine", "socket")
        # The next one is compared with it.
        other = asyncio.create_task(client.call("notes__add", text="other"))
        (second,) = await parked(admin)
        compared = (await asyncio.to_thread(admin.call, second["id"]))["compared"]
        assert isinstance(compared, dict)
        assert compared["args"] == {"text": "hello"}
        await asyncio.to_thread(admin.answer, second["id"], approve=False, why="not that")
        refused = await asyncio.wait_for(other, 30)
        assert refused["isError"] is True
        assert "not that" in refused["content"][0]["text"]
        assert await client.text("notes__search") == "1. hello"


async def test_the_command_line_answers_after_the_poll_answer(http: aiohttp.ClientSession) -> None:
    async with running(config("200ms")) as sidecar:
        client = await opened(http, sidecar)
        polled = await client.call("notes__add", text="x")
        id = polled["_meta"]["sidecar/parked"]["id"]

        async def cli(*words: str) -> tuple[int, str]:
            done = await asyncio.to_thread(sidecar.cli, "calls", *words)
            return done.returncode, done.stdout + done.stderr

        watch = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sidecar", "calls", "watch", "--config", str(sidecar.file)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert watch.stdout is not None
        first = await asyncio.wait_for(watch.stdout.readline(), 30)
        assert first.split()[:2] == [b"waiting", id.encode()]
        # Once a further call shows up, its stream is open: nothing that follows can be missed.
        assert id in (await cli())[1]
        assert json.loads((await cli("show", id[:8], "--json"))[1])["args"] == {"text": "x"}
        assert (await cli("show", "nothing"))[0] == 1
        await asyncio.sleep(1.0)
        assert await cli("approve", id, "--why", "ok") == (0, "approved: notes__add of agent\n")
        second = await asyncio.wait_for(watch.stdout.readline(), 30)
        assert second.split()[:2] == [b"approved", id.encode()]
        assert await client.text("notes__add", text="x") == "noted as number 1"
        assert await cli() == (0, "no call waits\n")
        code, text = await cli("deny", id)
        assert code == 1
        assert "done" in text
        watch.terminate()
        await asyncio.wait_for(watch.wait(), 30)


async def test_lists_come_in_pages_and_by_state(http: aiohttp.ClientSession) -> None:
    async with running(config("50ms")) as sidecar:
        client, admin = await opened(http, sidecar), AdminClient(sidecar.admin)
        for number in range(5):
            await client.call("notes__add", text=str(number))
        ids = [call["id"] for call in await parked(admin, 5)]
        await asyncio.to_thread(admin.answer, ids[0], approve=False)
        assert [c["id"] for c in await asyncio.to_thread(admin.calls, "answered")] == ids[:1]
        connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
        async with aiohttp.ClientSession(connector=connector) as over:
            seen: list[str] = []
            after = ""
            while True:
                url = f"http://localhost/v1/calls?state=waiting&order=oldest&limit=2{after}"
                async with over.get(url) as got:
                    body = await got.json()
                assert body["counts"] == {"waiting": 4, "denied": 1}
                seen += [call["id"] for call in body["calls"]]
                if "next" not in body:
                    break
                after = f"&after={body['next']}"
            assert seen == ids[:0:-1]
            for bad in ("state=odd", "limit=0", "limit=x", "order=up", "other=1"):
                async with over.get(f"http://localhost/v1/calls?{bad}") as got:
                    assert got.status == 400
            async with over.post(f"http://localhost/v1/calls/{ids[1]}/deny", json={"y": 1}) as got:
                assert got.status == 400
        with pytest.raises(NotFound):
            await asyncio.to_thread(admin.call, "nothing")


async def test_what_happens_is_told_live(http: aiohttp.ClientSession) -> None:
    async with running(config("50ms")) as sidecar:
        client = await opened(http, sidecar)
        connector = aiohttp.UnixConnector(sidecar.admin.removeprefix("unix:"))
        async with (
            aiohttp.ClientSession(connector=connector) as over,
            over.get("http://localhost/v1/events") as stream,
        ):
            assert stream.content_type == "text/event-stream"
            await client.call("notes__add", text="secret argument")
            told = b""
            while b"call.waiting" not in told or not told.endswith(b"\n\n"):
                told += await asyncio.wait_for(stream.content.readany(), 30)
            assert b"secret argument" not in told
