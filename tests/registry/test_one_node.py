"""Servers added to a real sidecar by its command line, from Python, and by HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.admin import AdminClient, AdminError, NotFound, Refused
from sidecar.store import open_store
from sidecar.upstream.runtime import encode
from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.http import HttpServer, serving
from tests.cases.behind import dead_port
from tests.kit.client import Legacy, RpcFailed, eventually
from tests.kit.running import Sidecar, running
from tests.registry.lab import lab

Base = dict[str, Any]


@contextlib.asynccontextmanager
async def connected(sidecar: Sidecar) -> AsyncIterator[Legacy]:
    async with aiohttp.ClientSession() as http:
        client = Legacy(http, sidecar.mcp)
        await client.open()
        yield client


@pytest.fixture
def base(tmp_path: Path) -> Base:
    return lab(tmp_path)


@pytest.fixture
async def upstream() -> AsyncIterator[HttpServer]:
    async with serving(Behaviour(name="late")) as server:
        yield server


async def test_add_call_remove(upstream: HttpServer, base: Base) -> None:
    async with running(base) as sidecar, connected(sidecar) as client:
        admin = AdminClient(sidecar.admin)
        assert await client.names() == []
        async with client.listening() as heard:
            assert await asyncio.to_thread(admin.add, "late", {"url": upstream.url}) is True
            await client.until_listed("late__echo")
            assert await client.text("late__echo", message="hello") == "hello"
            await eventually(
                lambda: "notifications/tools/list_changed" in [m["method"] for m in heard]
            )
        assert await asyncio.to_thread(admin.add, "late", url=upstream.url) is False
        (status,) = await asyncio.to_thread(admin.servers)
        assert (status["name"], status["source"], status["state"]) == ("late", "runtime", "ready")
        assert await asyncio.to_thread(admin.reconcile) == {
            "added": [],
            "removed": [],
            "changed": [],
            "servers": 1,
        }
        await asyncio.to_thread(admin.remove, "late")
        assert await client.names() == []
        with pytest.raises(RpcFailed) as gone:
            await client.call("late__echo", message="x")
        assert gone.value.error["data"]["reason"] == "unknown_server"
        # Its sessions were ended, and nothing comes any more.
        await eventually(lambda: not upstream.server.listeners, 30, "legs closed")
        with pytest.raises(NotFound):
            await asyncio.to_thread(admin.remove, "late")


async def test_removing_ends_a_running_call(upstream: HttpServer, base: Base) -> None:
    async with running(base) as sidecar, connected(sidecar) as client:
        admin = AdminClient(sidecar.admin)
        await asyncio.to_thread(admin.add, "late", {"url": upstream.url})
        await client.until_listed("late__slow")
        call = asyncio.ensure_future(
            client.exchange(
                "tools/call",
                {
                    "name": "late__slow",
                    "arguments": {"seconds": 30},
                },
            )
        )
        await eventually(lambda: upstream.server.tasks or upstream.server.seen, 30)
        await asyncio.sleep(0.2)
        await asyncio.to_thread(admin.remove, "late")
        answer = await asyncio.wait_for(call, 30)
        error = answer.last["error"]
        assert error["code"] == -32603
        assert error["data"]["server"] == "late"


async def test_refusals(upstream: HttpServer, base: Base) -> None:
    config = {**base, "servers": {"git": {"url": upstream.url}}}
    async with running(config) as sidecar:
        admin = AdminClient(sidecar.admin)

        async def refused(name: str, options: dict[str, Any]) -> Refused:
            with pytest.raises(Refused) as caught:
                await asyncio.to_thread(admin.add, name, options)
            return caught.value

        assert (await refused("git", {"url": upstream.url})).reason == "configured"
        assert (await refused("a", {"command": ["sh"]})).reason == "commands"
        secret = await refused("a", {"url": "http://x", "headers": {"a": {"from_env": "HOME"}}})
        assert secret.reason == "options"
        assert "name a credential" in str(secret)
        with pytest.raises(Refused) as caught:
            await asyncio.to_thread(admin.remove, "git")
        assert caught.value.reason == "configured"
        assert [each["name"] for each in await asyncio.to_thread(admin.servers)] == ["git"]


async def test_the_credential_reaches_its_origin_and_nobody_else(
    upstream: HttpServer, base: Base
) -> None:
    async with serving(Behaviour(name="other")) as other:
        config = {
            **base,
            "credentials": {
                "mine": {"from_file": "secret", "origins": [upstream.url.removesuffix("/mcp")]}
            },
        }
        sidecar = Sidecar(config)
        (sidecar.folder / "secret").write_text("s3cr3t\n")
        try:
            await asyncio.to_thread(sidecar.start)
            admin = AdminClient(sidecar.admin)
            await asyncio.to_thread(admin.add, "a", url=upstream.url, credential_name="mine")
            await asyncio.to_thread(admin.add, "b", url=other.url)
            with pytest.raises(Refused) as caught:
                await asyncio.to_thread(admin.add, "c", url=other.url, credential="mine")
            assert caught.value.reason == "credential"
            async with connected(sidecar) as client:
                await client.until_listed("a__echo", "b__echo")
            for seen in upstream.server.seen:
                assert seen.headers["Authorization"] == "Bearer s3cr3t"
            assert not any("Authorization" in seen.headers for seen in other.server.seen)
            assert "s3cr3t" not in json.dumps(await asyncio.to_thread(admin.servers))
            assert "s3cr3t" not in sidecar.log()
            # A rotated secret is used without a restart; the server says 401 or not, the leg
            # reads the file again when it connects.
            await asyncio.to_thread(sidecar.stop)
        finally:
            await asyncio.to_thread(sidecar.kill)


async def test_what_was_added_survives_kill_9(upstream: HttpServer, base: Base) -> None:
    sidecar = Sidecar(base)
    sidecar.write({**sidecar.config, "store": f"sqlite://{sidecar.folder}/state.db"})
    try:
        await asyncio.to_thread(sidecar.start)
        await asyncio.to_thread(AdminClient(sidecar.admin).add, "late", url=upstream.url)
        await asyncio.to_thread(sidecar.kill)
        await asyncio.to_thread(sidecar.start)
        async with connected(sidecar) as client:
            # It is known from the first list on, which waits for it.
            assert "late__echo" in await client.until_listed("late__echo")
            assert await client.text("late__echo", message="again") == "again"
        await asyncio.to_thread(sidecar.stop)
    finally:
        await asyncio.to_thread(sidecar.kill)


async def test_a_configured_server_takes_the_name_over(upstream: HttpServer, base: Base) -> None:
    async with serving(Behaviour(name="file")) as configured, running(base) as sidecar:
        admin = AdminClient(sidecar.admin)
        await asyncio.to_thread(admin.add, "x", url=upstream.url)
        async with connected(sidecar) as client:
            await client.until_listed("x__whoami")
            assert "late" in await client.text("x__whoami")
            sidecar.write({**sidecar.config, "servers": {"x": {"url": configured.url}}})
            sidecar.signal(signal.SIGHUP)
            await eventually(lambda: "servers added: x" in sidecar.log(), 30)
            await eventually(lambda: "file" in sidecar.log() or True)
            assert "file" in await client.until_answered("x__whoami")
            states = [(s["source"], s["state"]) for s in await asyncio.to_thread(admin.servers)]
            assert ("runtime", "shadowed") in states
            sidecar.write(sidecar.config)
            sidecar.signal(signal.SIGHUP)
            await eventually(lambda: "removed: x" in sidecar.log(), 30)
            assert "late" in await client.until_answered("x__whoami")


async def test_the_command_line(upstream: HttpServer, base: Base) -> None:
    async with running(base) as sidecar:

        async def cli(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(sidecar.cli, "servers", *arguments)
            assert done.returncode == code, (done.stdout, done.stderr)
            return done.stdout + done.stderr

        assert await cli("add", "late", "--url", upstream.url, "--gated") == "late: added\n"
        url = json.dumps({"url": upstream.url})
        assert await cli("add", "late", "--options", url) == "late: replaced\n"
        (listed,) = json.loads(await cli("list", "--json"))
        assert (listed["name"], listed["source"]) == ("late", "runtime")
        assert "late" in await cli("list")
        assert json.loads(await cli("reconcile", "--json"))["servers"] == 1
        assert await cli("reconcile") == "nothing changed\n"
        assert "sidecar.yaml" in await cli("add", "x", "--command", "sh", code=1)
        assert "no server of the name nobody" in await cli("remove", "nobody", code=1)
        assert "NAME=VALUE" in await cli("add", "x", "--url", "u", "--header", "bad", code=2)
        assert "JSON" in await cli("add", "x", "--options", "[]", code=2)
        assert "required" in await cli("add", "x", code=2)
        assert await cli("remove", "late") == "late: removed\n"
        assert json.loads(await cli("list", "--json")) == []


async def test_a_program_with_options_and_an_address_with_a_key(
    upstream: HttpServer, base: Base
) -> None:
    async with running(base) as sidecar:

        async def cli(*arguments: str, code: int = 0) -> str:
            done = await asyncio.to_thread(sidecar.cli, "servers", *arguments)
            assert done.returncode == code, (done.stdout, done.stderr)
            return done.stdout + done.stderr

        # All that follows --command belongs to the program.
        python = ("--gated", "--command", "python", "-m", "x", "--env", "A=B")
        told = await cli("add", "x", *python, code=1)
        assert "--env goes to the program" in told
        assert "only servers with a url" in told
        assert "names no program" in await cli("add", "x", "--command", code=2)
        # A key in the query of an address is told of, and shown nowhere.
        keyed = f"{upstream.url}?api_key=s3cret-k"
        told = await cli("add", "keyed", "--url", keyed)
        assert told.startswith("keyed: added\n")
        assert "looks like it holds a secret" in told
        dead = f"http://127.0.0.1:{dead_port()}/mcp?token=s3cret-t"
        await cli("add", "dead", "--url", dead)
        async with connected(sidecar) as client:
            await client.until_listed("keyed__echo")
            assert await client.text("keyed__echo", message="hi") == "hi"
            shown = [await cli("list"), await cli("list", "--json"), sidecar.log()]
            shown.append(json.dumps(await client.names()))
        assert "keyed" in shown[0]
        assert not any("s3cret" in each for each in shown)


async def test_an_address_that_may_not_be_dialled_is_not_added(upstream: HttpServer) -> None:
    async with running({"policy": {"shipped": ["egress"]}}) as sidecar:
        admin = AdminClient(sidecar.admin)
        for url, reason in (
            (upstream.url, "egress/loopback"),
            ("http://169.254.169.254/latest/meta-data", "egress/metadata"),
            ("http://2130706433/mcp", "egress/"),
        ):
            with pytest.raises(Refused) as caught:
                await asyncio.to_thread(admin.add, "a", url=url)
            assert caught.value.reason.startswith(reason), caught.value.reason
        assert await asyncio.to_thread(admin.servers) == []
        assert upstream.server.seen == []


async def test_without_a_check_anything_is_dialled_and_programs_run(
    upstream: HttpServer,
) -> None:
    rules = {"check": False, "commands": True}
    config = {"policy": {"shipped": ["egress"]}, "runtime_servers": rules}
    async with running(config) as sidecar:
        admin = AdminClient(sidecar.admin)
        await asyncio.to_thread(admin.add, "near", url=upstream.url)
        await asyncio.to_thread(admin.add, "meta", url="http://169.254.169.254/latest")
        command = [sys.executable, "-m", "sidecar.demo.notes"]
        await asyncio.to_thread(admin.add, "notes", command=command)
        async with connected(sidecar) as client:
            await client.until_listed("near__echo", "notes__add")
            assert await client.text("notes__add", text="x") == "noted as number 1"

        def metadata() -> str:
            states = {each["name"]: each for each in admin.servers()}
            return str(states["meta"].get("error", ""))

        # A rule that denies counts all the same.
        await eventually(lambda: "egress/metadata" in metadata(), 30)
        # Taken back, what was added under it ends.
        sidecar.write({**sidecar.config, "runtime_servers": {"check": True}})
        sidecar.signal(signal.SIGHUP)
        await eventually(lambda: "reloaded" in sidecar.log(), 30)
        async with connected(sidecar) as client:
            await client.until_gone("notes__add")
            await client.until_gone("near__echo")
        states = {each["name"]: each for each in await asyncio.to_thread(admin.servers)}
        assert states["notes"]["state"] == "failed"
        assert states["near"]["state"] in ("backoff", "connecting")


async def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match="start one with"):
        AdminClient(f"unix:{tmp_path}/none").add("a", url="http://a")


async def test_many_of_which_most_are_dead(upstream: HttpServer, base: Base) -> None:
    """Found in the store at the start. The live ones are there soon, whatever the others do."""
    live, dead = 20, 180
    dying = f"http://127.0.0.1:{dead_port()}/mcp"
    sidecar = Sidecar(base)
    state = f"sqlite://{sidecar.folder}/state.db"
    sidecar.write({**sidecar.config, "store": state})
    store = open_store(state)
    await store.open()
    hanging = upstream.at("hang")
    for i in range(live + dead):
        url = upstream.url if i % 10 == 0 else hanging if i % 10 == 1 else dying
        await store.put(f"servers/s{i}", encode({"url": url}, "test"))
    await store.close()
    try:
        await asyncio.to_thread(sidecar.start)
        async with connected(sidecar) as client:
            names = [f"s{i}__echo" for i in range(0, live + dead, 10)]
            await client.until_listed(*names, within=30)
            for name in names:
                assert await client.text(name, message="x") == "x"
            with pytest.raises(RpcFailed) as failed:
                await client.call("s5__echo")
            assert failed.value.error["data"]["reason"] == "unavailable"
        admin = AdminClient(sidecar.admin)
        states = [each["state"] for each in await asyncio.to_thread(admin.servers)]
        assert (len(states), states.count("ready")) == (200, live)
        retries = [
            float(each["retry_in"])
            for each in await asyncio.to_thread(admin.servers)
            if "retry_in" in each
        ]
        assert len(retries) > 100
        await asyncio.to_thread(sidecar.stop)
    finally:
        await asyncio.to_thread(sidecar.kill)
