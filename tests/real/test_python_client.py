"""Real servers behind the sidecar, driven by the ``mcp`` package's client in every mode."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError, StdioServerParameters, types

from tests.kit.client import eventually
from tests.kit.running import ROOT, Sidecar
from tests.real.conftest import PART_OF, World

pytestmark = [
    pytest.mark.real,
    # The handshake era is what it calls deprecated.
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]

LEGACY, MODERN, AUTO = "legacy", "2026-07-28", "auto"
MODES: list[Any] = [LEGACY, MODERN, AUTO]


@pytest.fixture(params=MODES)
async def client(sidecar: Sidecar, request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    # pytest ends a fixture in another task than it began it in, which anyio does not bear.
    opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def own() -> None:
        async with Client(sidecar.mcp, mode=request.param) as made:
            opened.set_result(made)
            await over.wait()

    owner = asyncio.create_task(own())
    await asyncio.wait({owner, opened}, return_when=asyncio.FIRST_COMPLETED)
    if owner.done():
        await owner
    yield await opened
    over.set()
    await owner


def text(result: Any) -> str:
    assert not result.is_error, result
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return block.text


# ------------------------------------------------------------------------------------ lists


async def test_every_server_is_listed(client: Client, world: World) -> None:
    names = [tool.name for tool in (await client.list_tools()).tools]
    assert len(names) == len(set(names))
    world.need(*PART_OF)
    for server in PART_OF:
        assert [name for name in names if name.startswith(f"{server}__")], server


async def test_prompts_and_resources_of_all_are_listed(client: Client, world: World) -> None:
    world.need("everything", "fastmcp_new")
    prompts = {prompt.name for prompt in (await client.list_prompts()).prompts}
    assert {"everything__simple-prompt", "fastmcp_new__greet", "sdk__greet"} <= prompts
    resources = {str(resource.uri) for resource in (await client.list_resources()).resources}
    assert {"everyday://motto", "sdk://motto"} <= resources
    found = (await client.list_resource_templates()).resource_templates
    assert "demo://resource/dynamic/text/{resourceId}" in {t.uri_template for t in found}


# ------------------------------------------------------------------------------- npm servers


async def test_everything(client: Client, world: World) -> None:
    world.need("everything")
    assert text(await client.call_tool("everything__echo", {"message": "hi"})) == "Echo: hi"
    result = await client.call_tool("everything__get-sum", {"a": 2, "b": 40})
    assert text(result) == "The sum of 2 and 40 is 42."
    result = await client.call_tool(
        "everything__get-structured-content", {"location": "Los Angeles"}
    )
    expected = {"temperature": 73, "conditions": "Sunny / Clear", "humidity": 48}
    assert result.structured_content == expected
    image = (await client.call_tool("everything__get-tiny-image", {})).content[1]
    assert isinstance(image, types.ImageContent) and image.mime_type == "image/png"
    assert base64.b64decode(image.data).startswith(b"\x89PNG")
    links = (await client.call_tool("everything__get-resource-links", {"count": 3})).content
    assert [block.type for block in links].count("resource_link") == 3


@pytest.mark.parametrize("server", ["everything", "everything_http", "everything_sse"])
async def test_progress_of_everything(client: Client, world: World, server: str) -> None:
    world.need(server)
    steps: list[tuple[float, float | None]] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, total))

    result = await client.call_tool(
        f"{server}__trigger-long-running-operation",
        {"duration": 0.4, "steps": 4},
        progress_callback=step,
    )
    assert text(result).startswith("Long running operation completed")
    await eventually(lambda: len(steps) == 4)
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]


async def test_prompts_of_everything(client: Client, world: World) -> None:
    world.need("everything")
    prompt = await client.get_prompt("everything__args-prompt", {"city": "Oslo", "state": "NO"})
    content = prompt.messages[0].content
    assert isinstance(content, types.TextContent)
    assert "Oslo, NO" in content.text


async def test_resources_of_everything(client: Client, world: World) -> None:
    world.need("everything")
    # More than one server offers this URI, so it is asked at the server's own address.
    async with Client(world.sidecar.at("everything"), mode=LEGACY) as own:
        read = await own.read_resource("demo://resource/dynamic/text/7")
        content = read.contents[0]
        assert isinstance(content, types.TextResourceContents)
        assert content.text.startswith("Resource 7: This is a plaintext resource")
        listed = {str(r.uri) for r in (await own.list_resources()).resources}
        assert "demo://resource/static/document/architecture.md" in listed


async def test_completion_of_everything(client: Client, world: World) -> None:
    world.need("everything")
    reference = types.PromptReference(type="ref/prompt", name="everything__completable-prompt")
    completed = await client.complete(reference, {"name": "department", "value": "S"})
    assert completed.completion.values == ["Sales", "Support"]
    completed = await client.complete(
        reference, {"name": "name", "value": ""}, {"department": "Engineering"}
    )
    assert completed.completion.values


async def test_filesystem(client: Client, world: World) -> None:
    world.need("files")
    file = world.files / "räksmörgås.txt"
    content = "line one\nzwei 🦊\n"
    await client.call_tool("files__write_file", {"path": str(file), "content": content})
    assert file.read_text() == content
    read = await client.call_tool("files__read_text_file", {"path": str(file)})
    assert text(read) == content
    listed = await client.call_tool("files__list_directory", {"path": str(world.files)})
    assert f"[FILE] {file.name}" in text(listed)
    outside = await client.call_tool("files__read_text_file", {"path": "/etc/passwd"})
    assert outside.is_error and "root:" not in str(outside.content)


async def test_memory(client: Client, world: World, request: pytest.FixtureRequest) -> None:
    world.need("memory")
    name = f"entity-{request.node.name}"
    entity = {"name": name, "entityType": "test", "observations": ["exists"]}
    await client.call_tool("memory__create_entities", {"entities": [entity]})
    found = await client.call_tool("memory__search_nodes", {"query": name})
    assert json.loads(text(found))["entities"] == [entity]
    await client.call_tool("memory__delete_entities", {"entityNames": [name]})
    found = await client.call_tool("memory__search_nodes", {"query": name})
    assert json.loads(text(found))["entities"] == []


async def test_sequential_thinking(client: Client, world: World) -> None:
    world.need("thinking")
    thought = {"thought": "first", "thoughtNumber": 1, "totalThoughts": 2}
    result = await client.call_tool(
        "thinking__sequentialthinking", {**thought, "nextThoughtNeeded": True}
    )
    assert json.loads(text(result))["thoughtNumber"] == 1


# ---------------------------------------------------------------------- official Python servers


async def test_time(client: Client, world: World) -> None:
    world.need("time")
    asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    result = json.loads(text(await client.call_tool("time__convert_time", asked)))
    assert result["target"]["datetime"].endswith("T21:00:00+09:00")
    result = await client.call_tool("time__get_current_time", {"timezone": "Nowhere/Land"})
    assert result.is_error


async def test_git(client: Client, world: World) -> None:
    world.need("git")
    path = {"repo_path": str(world.repository)}
    assert "notes.txt" in text(await client.call_tool("git__git_status", path))
    assert "first commit" in text(await client.call_tool("git__git_log", path))
    assert "+two" in text(await client.call_tool("git__git_diff_unstaged", path))
    elsewhere = await client.call_tool("git__git_status", {"repo_path": "/"})
    assert elsewhere.is_error


async def test_fetch_honours_robots(client: Client, world: World) -> None:
    world.need("fetch")
    result = await client.call_tool("fetch__fetch", {"url": world.website + "/index.html"})
    assert "forty-two" in text(result)
    refused = await client.call_tool("fetch__fetch", {"url": world.website + "/private/"})
    assert refused.is_error
    assert "robots.txt" in str(refused.content) and "secret" not in str(refused.content)


# ------------------------------------------------------------- FastMCP and the SDK, old and new

EVERYDAY = ["fastmcp_old", "fastmcp_old_http", "fastmcp_new", "fastmcp_new_http"]


@pytest.mark.parametrize("server", EVERYDAY)
async def test_fastmcp(client: Client, world: World, server: str) -> None:
    world.need(server)
    assert text(await client.call_tool(f"{server}__add", {"a": 20, "b": 22})) == "42"
    result = await client.call_tool(f"{server}__describe", {"name": "abba"})
    assert result.structured_content == {"name": "abba", "length": 4, "letters": ["a", "b"]}
    failed = await client.call_tool(f"{server}__fail", {})
    assert failed.is_error and "always fails" in str(failed.content)
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    climbed = await client.call_tool(f"{server}__climb", {"steps": 5}, progress_callback=step)
    assert text(climbed) == "climbed 5"
    await eventually(lambda: steps == [1, 2, 3, 4, 5])
    prompt = await client.get_prompt(f"{server}__greet", {"name": "Ada"})
    assert "Say hello to Ada." in str(prompt.messages[0].content)
    async with Client(world.sidecar.at(server), mode=AUTO) as own:
        for uri, expected in (("motto", "one day at a time"), ("square/9", "81")):
            contents = (await own.read_resource(f"everyday://{uri}")).contents
            assert isinstance(contents[0], types.TextResourceContents)
            assert contents[0].text == expected


@pytest.mark.parametrize("server", ["sdk1", "sdk1_http", "sdk1_sse"])
async def test_sdk_1(client: Client, world: World, server: str) -> None:
    world.need(server)
    result = await client.call_tool(f"{server}__multiply", {"a": 6, "b": 7})
    assert text(result) == "42"
    assert result.structured_content == {"result": 42}
    steps: list[float] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append(progress)

    await client.call_tool(f"{server}__climb", {"steps": 3}, progress_callback=step)
    await eventually(lambda: steps == [1, 2, 3])


@pytest.mark.parametrize("server", ["sdk", "sdk_http", "sdk_legacy", "sdk_modern"])
async def test_sdk_2(client: Client, world: World, server: str) -> None:
    result = await client.call_tool(f"{server}__weather", {"city": "Oslo"})
    assert result.structured_content == {"city": "Oslo", "celsius": 21.5}
    steps: list[tuple[float, str | None]] = []

    async def step(progress: float, total: float | None, message: str | None) -> None:
        steps.append((progress, message))

    await client.call_tool(f"{server}__climb", {"steps": 3}, progress_callback=step)
    await eventually(lambda: len(steps) == 3)
    assert steps == [(1, "step 1"), (2, "step 2"), (3, "step 3")]


@pytest.mark.parametrize("mode", [LEGACY, MODERN])
async def test_a_server_of_both_eras_is_used_in_the_callers(sidecar: Sidecar, mode: Any) -> None:
    """Over HTTP; a stdio server is one process, in the era it was opened in."""
    async with Client(sidecar.mcp, mode=mode) as client:

        async def era(server: str) -> str:
            return text(await client.call_tool(f"{server}__era", {}))

        assert await era("sdk_http") == ("2025-11-25" if mode == LEGACY else MODERN)
        assert await era("sdk_legacy") == "2025-11-25"
        assert await era("sdk_modern") == MODERN
        assert await era("sdk") == MODERN


async def test_errors_of_the_sdk_arrive(client: Client) -> None:
    with pytest.raises(MCPError) as failed:
        await client.read_resource("sdk://nowhere")
    assert failed.value.code in (-32002, -32602)
    with pytest.raises(MCPError) as failed:
        await client.call_tool("sdk__nothing", {})
    assert failed.value.code == -32602


# -------------------------------------------------------------------------------- notifications


async def test_log_messages_come_while_the_call_runs(sidecar: Sidecar) -> None:
    """In the handshake era after ``logging/setLevel``; each mode's own way of asking."""
    for mode in (LEGACY, MODERN):
        said: list[Any] = []

        async def log(params: Any, said: list[Any] = said) -> None:
            said.append(params.data)

        more: dict[str, Any] = {"log_level": "info"} if mode == MODERN else {}
        async with Client(sidecar.mcp, mode=mode, logging_callback=log, **more) as client:
            if mode == LEGACY:
                await client.set_logging_level("info")
            assert text(await client.call_tool("sdk_http__speak", {})) == "spoke"
            await eventually(said.copy)
            assert said == ["spoken aloud"]


@pytest.mark.parametrize("server", ["sdk", "sdk_http"])
async def test_list_changed_in_both_eras(sidecar: Sidecar, server: str) -> None:
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(getattr(message, "method", type(message).__name__))

    async with (
        Client(sidecar.mcp, mode=LEGACY, message_handler=hear) as old,
        Client(sidecar.mcp, mode=MODERN) as new,
        new.listen(tools_list_changed=True) as events,
    ):
        # The GET stream of the old client opens a moment after it connected.
        for n in range(20):
            name = f"grown_{server}_{n}"
            await old.call_tool(f"{server}__grow", {"name": name})
            with contextlib.suppress(AssertionError):
                await eventually(lambda: "notifications/tools/list_changed" in heard, 1.5)
                break
        else:
            raise AssertionError("the old client hears nothing")
        event = await asyncio.wait_for(anext(aiter(events)), 30)
        assert type(event).__name__ == "ToolsListChanged"
        answer = await new.call_tool(f"{server}__{name}", {})
        assert text(answer) == f"{name} answers"


MOTTO = ("sdk_modern", "sdk://motto", "rewrite", {"text": "second"})
DYNAMIC = ("everything", "demo://resource/dynamic/text/1", "toggle-subscriber-updates", {})


@pytest.mark.parametrize("server, uri, tool, arguments", [MOTTO, DYNAMIC])
async def test_subscribed_resources_are_told(
    sidecar: Sidecar, world: World, server: str, uri: str, tool: str, arguments: dict[str, Any]
) -> None:
    """A client of either era hears of a change at a server of either era."""
    world.need(server)
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            heard.append(str(message.params.uri))

    url = sidecar.at(server)
    async with (
        Client(url, mode=LEGACY, message_handler=hear) as old,
        Client(url, mode=MODERN) as new,
        new.listen(resource_subscriptions=[uri]) as events,
    ):
        await old.subscribe_resource(uri)
        # The GET stream of the old client opens a moment after it connected.
        for _ in range(20):
            await new.call_tool(tool, arguments)
            with contextlib.suppress(AssertionError):
                # Once toggled, the other one tells by itself, again and again.
                await eventually(lambda: uri in heard, 1.5 if server == "sdk_modern" else 30)
                break
        event = await asyncio.wait_for(anext(aiter(events)), 30)
        assert str(getattr(event, "uri", "")) == uri
        assert uri in heard
        await old.unsubscribe_resource(uri)
        if server == "everything":
            await new.call_tool(tool, arguments)


# ---------------------------------------------------------------------------- the stdio face


@pytest.mark.parametrize("mode", MODES)
async def test_through_sidecar_stdio(sidecar: Sidecar, world: World, mode: Any) -> None:
    """``sidecar stdio`` joins the one that runs; only JSON-RPC is on its stdout."""
    world.need("time")
    port = sidecar.mcp.split(":")[2].split("/")[0]
    config = world.files.parent / f"stdio-{mode}.yaml"
    config.write_text(f"listen: 127.0.0.1:{port}\n")
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sidecar", "stdio", "--config", str(config)],
        cwd=ROOT,
    )
    async with Client(parameters, mode=mode) as client:
        assert text(await client.call_tool("sdk__climb", {"steps": 2})) == "climbed 2"
        asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        result = await client.call_tool("time__convert_time", asked)
        assert json.loads(text(result))["source"]["timezone"] == "UTC"
        steps: list[float] = []

        async def step(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        await client.call_tool("sdk__climb", {"steps": 3}, progress_callback=step)
        await eventually(lambda: steps == [1, 2, 3])


def test_the_command_line_calls_a_real_server(sidecar: Sidecar, tmp_path: Path) -> None:
    """``sidecar call`` against the one that runs."""
    port = sidecar.mcp.split(":")[2].split("/")[0]
    config = tmp_path / "cli.yaml"
    config.write_text(f"listen: 127.0.0.1:{port}\n")
    command = [sys.executable, "-m", "sidecar"]
    arguments = ["sdk__weather", "--args", '{"city": "Oslo"}', "--config", str(config)]
    done = subprocess.run(
        [*command, "call", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "21.5" in done.stdout
