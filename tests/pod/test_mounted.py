"""Config, policies and secrets in mounted ConfigMaps and Secrets, swapped while calls run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.kit.client import Legacy, Modern, eventually
from tests.pod.kit import LONG, NOTES, SECONDS, allowing, loaded, mounted
from tests.pod.kubelet import Volume


def test_a_volume_is_as_kubelet_lays_it(tmp_path: Path) -> None:
    volume = Volume(tmp_path / "v", {"a.yaml": "1", "b.yaml": "1", "below/c": "1"})
    first = (tmp_path / "v" / "..data").resolve()
    volume.swap({"a.yaml": "2", "below/c": "2"})
    assert (volume / "a.yaml").read_text() == (volume / "below" / "c").read_text() == "2"
    assert not (volume / "b.yaml").is_symlink()
    assert not first.exists()
    assert sorted(each.name for each in (tmp_path / "v").iterdir()) == [
        "..2026_11_30_12_00_00.000000002",
        "..data",
        "a.yaml",
        "below",
    ]


async def test_config_and_policy_are_swapped_under_load(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """No call fails, and what was swapped counts within two seconds."""
    policies = Volume(tmp_path / "policies", {"words.yaml": allowing(forbidden="nothing")})
    config = {"servers": {"notes": NOTES}, "policies": [str(policies.path)]}
    async with mounted(tmp_path, config) as (sidecar, swap):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__search")
        legacy = Legacy(http, sidecar.mcp)
        await legacy.open()
        turn = [client, legacy]

        async def call() -> None:
            turn.reverse()
            assert await turn[0].text("notes__search", query="x") == "no notes"

        async def denied() -> bool:
            result = await client.call("notes__search", query="forbidden")
            return result.get("isError", False) is True

        async with loaded(call) as load:
            await asyncio.sleep(SECONDS / 2)
            assert not await denied()
            began = time.monotonic()
            policies.swap({"words.yaml": allowing(forbidden="forbidden")})
            while not await denied():
                assert time.monotonic() - began < 60
                await asyncio.sleep(0.02)
            policy = time.monotonic() - began
            began = time.monotonic()
            swap({**config, "servers": {"notes": NOTES, "more": NOTES}})
            await eventually(lambda: "servers added: more" in sidecar.log(), 60)
            config_took = time.monotonic() - began
            await client.until_listed("more__search", within=60)
            # A faulty version is refused, and the one before decides on.
            policies.swap({"words.yaml": "kind: nonsense\n"})
            swap({"servers": {"notes": {}}})
            await eventually(lambda: "the policies are faulty" in sidecar.log(), 60)
            await eventually(lambda: "the configuration is faulty" in sidecar.log(), 60)
            assert await denied()
            await asyncio.sleep(SECONDS / 2)
        print(f"{load}; policy in force after {policy:.2f} s, config after {config_took:.2f} s")
        assert load.failed == []
        assert len(load.took) > 10
        if LONG:
            assert policy < 2


async def test_secrets_are_swapped(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """The tokens of an agent and of an operator, and a header of a server."""
    secrets = {"agent": "agent-1", "admin": "admin-1", "upstream": "up-1"}
    volume = Volume(tmp_path / "secrets", secrets, mode=0o400)
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        """An upstream that knows one token, and always the newest."""
        seen.append(request.headers.get("Authorization", ""))
        if seen[-1] != (volume / "upstream").read_text():
            return web.Response(status=401)
        message = await request.json()
        results: dict[str, dict[str, object]] = {
            "server/discover": {
                "protocolVersion": "2026-07-28",
                "supportedVersions": ["2026-07-28"],
                "serverInfo": {"name": "up", "version": "1"},
                "capabilities": {"tools": {}},
            },
            "tools/list": {"tools": [{"name": "ping", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "pong"}]},
        }
        result: dict[str, object] = {"resultType": "complete"}
        result |= results.get(message["method"], {})
        return web.json_response(
            {
                "jsonrpc": "2.0",
                "id": message.get("id"),
                "result": result,
            }
        )

    upstream = web.Application()
    upstream.router.add_post("/mcp", answer)
    runner = web.AppRunner(upstream)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    config = {
        "servers": {
            "up": {
                "url": f"http://127.0.0.1:{port}/mcp",
                "era": "modern",
                "gated": False,
                "trusted": True,
                "headers": {"Authorization": {"from_file": str(volume / "upstream")}},
            }
        },
        "agents": {"triage": {"token_file": str(volume / "agent"), "servers": ["*"]}},
        "admin": {"listen": "127.0.0.1:0", "token_file": str(volume / "admin")},
    }
    try:
        async with mounted(tmp_path, config) as (sidecar, _):

            async def status(url: str, token: str) -> int:
                headers = {"Authorization": f"Bearer {token}"}
                async with http.get(url, headers=headers) as response:
                    return response.status

            async def both(number: int) -> tuple[int, int]:
                return (
                    await status(f"{sidecar.rest}/tools", f"agent-{number}"),
                    await status(f"{sidecar.admin}/v1/servers", f"admin-{number}"),
                )

            assert await both(1) == (200, 200)
            client = Modern(http, sidecar.mcp, headers={"Authorization": "Bearer agent-1"})
            await client.until_listed("up__ping")
            assert await client.text("up__ping") == "pong"
            operator = {"Authorization": "Bearer admin-1"}
            events = await http.get(f"{sidecar.admin}/v1/events", headers=operator)
            assert events.status == 200
            began = time.monotonic()
            volume.swap({name: value.replace("-1", "-2") for name, value in secrets.items()})
            while await both(2) != (200, 200):
                assert time.monotonic() - began < 60
                await asyncio.sleep(0.05)
            print(f"tokens in force after {time.monotonic() - began:.2f} s")
            assert await both(1) == (401, 401)
            # What was opened with the operator's old token ends too.
            await asyncio.wait_for(events.read(), 60)
            client.headers["Authorization"] = "Bearer agent-2"
            # No call is lost: the server refuses the old one, and the file is read again.
            assert await client.text("up__ping") == "pong"
            assert seen[-2:] == ["up-1", "up-2"]
            assert "up-1" not in sidecar.log()
            assert "admin-2" not in sidecar.log()
    finally:
        await runner.cleanup()


@pytest.mark.skipif(not LONG, reason="SIDECAR_POD_LONG=1 swaps again and again")
async def test_many_swaps_under_load(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    policies = Volume(tmp_path / "policies", {"words.yaml": allowing(forbidden="0")})
    config = {"servers": {"notes": NOTES}, "policies": [str(policies.path)]}
    async with mounted(tmp_path, config) as (sidecar, swap):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__search")

        async def call() -> None:
            assert await client.text("notes__search", query="x") == "no notes"

        waits: list[float] = []
        async with loaded(call) as load:
            for number in range(1, 11):
                began = time.monotonic()
                policies.swap({"words.yaml": allowing(forbidden=str(number))})
                swap({**config, "list_wait": f"{number}s"})
                while not (await client.call("notes__search", query=str(number))).get("isError"):
                    assert time.monotonic() - began < 60
                    await asyncio.sleep(0.02)
                waits.append(time.monotonic() - began)
        print(f"{load}; in force after {min(waits):.2f} to {max(waits):.2f} s, ten times")
        assert load.failed == []
