"""Real servers behind the sidecar, driven by the TypeScript SDKs: v1, and v2 in both eras."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cases.awkward import Behaviour
from tests.cases.behind import stage
from tests.cases.test_listing import ODD_TOOLS
from tests.kit.running import ROOT, Sidecar
from tests.peers import peers
from tests.real.conftest import World

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(bool(peers.why_missing("node")), reason=peers.why_missing("node")),
]

DRIVE = Path(__file__).resolve().parent / "clients" / "drive.mjs"
# SDK, and the mode of its version negotiation.
CLIENTS = [("v1", "legacy"), ("v2", "legacy"), ("v2", "auto")]
Step = dict[str, Any]


async def drive(where: dict[str, Any], sdk: str, mode: str, steps: list[Step]) -> dict[str, Any]:
    """Runs the client's steps; the answer is what ``drive.mjs`` printed."""
    spec = json.dumps({"sdk": sdk, "mode": mode, "steps": steps, **where})
    process = await asyncio.create_subprocess_exec(
        *peers.node(DRIVE, str(peers.NODE_MODULES), spec), stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(), 50)
    assert process.returncode == 0, err.decode()
    printed: dict[str, Any] = json.loads(out)
    return printed


def results(printed: dict[str, Any]) -> list[Any]:
    """Every step's result; none may have failed."""
    for outcome in printed["outcomes"]:
        assert "error" not in outcome, outcome
    return [outcome["result"] for outcome in printed["outcomes"]]


def call(name: str, /, progress: bool = False, **arguments: Any) -> Step:
    params = {"name": name, "arguments": arguments}
    return {"do": "callTool", "params": params, "progress": progress}


def stdio(sidecar: Sidecar, tmp_path: Path) -> dict[str, Any]:
    """The command of ``sidecar stdio``, joining the one that runs."""
    port = sidecar.mcp.split(":")[2].split("/")[0]
    config = tmp_path / "stdio.yaml"
    config.write_text(f"listen: 127.0.0.1:{port}\n")
    command = [sys.executable, "-m", "sidecar", "stdio", "--config", str(config)]
    return {"command": command, "env": {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}}


@pytest.mark.parametrize("sdk, mode", CLIENTS)
async def test_an_odd_tool_takes_the_list_from_nobody(sdk: str, mode: str) -> None:
    with stage({"odd": Behaviour(only=(), tools=ODD_TOOLS), "fine": Behaviour()}) as scene:
        printed = await drive({"url": scene.sidecar.mcp}, sdk, mode, [{"do": "listTools"}])
    names = [tool["name"] for tool in results(printed)[0]["tools"]]
    assert {"odd__no_schema", "odd__odd_types", "odd__odd_hint", "fine__echo"} < set(names)


@pytest.mark.parametrize("way", ["http", "stdio"])
@pytest.mark.parametrize("sdk, mode", CLIENTS)
async def test_tools_prompts_resources(
    sidecar: Sidecar, world: World, tmp_path: Path, sdk: str, mode: str, way: str
) -> None:
    world.need("everything", "time", "fastmcp_new")
    where = {"url": sidecar.mcp} if way == "http" else stdio(sidecar, tmp_path)
    asked: dict[str, Any] = {
        "source_timezone": "UTC",
        "time": "12:00",
        "target_timezone": "Asia/Tokyo",
    }
    printed = await drive(
        where,
        sdk,
        mode,
        [
            {"do": "listTools"},
            call("everything__get-sum", a=1, b=2),
            call("time__convert_time", **asked),
            call("sdk__weather", city="Oslo"),
            call("sdk__climb", progress=True, steps=3),
            {"do": "listPrompts"},
            {"do": "getPrompt", "params": {"name": "sdk__greet", "arguments": {"name": "Ada"}}},
            {"do": "listResources"},
            {"do": "readResource", "params": {"uri": "sdk://square/12"}},
            {"do": "listResourceTemplates"},
            {
                "do": "complete",
                "params": {
                    "ref": {"type": "ref/prompt", "name": "everything__completable-prompt"},
                    "argument": {"name": "department", "value": "E"},
                },
            },
        ],
    )
    tools, added, time, weather, climbed, prompts, greeting, resources, square, templates, done = (
        results(printed)
    )
    names = {tool["name"] for tool in tools["tools"]}
    assert {"everything__echo", "time__convert_time", "fastmcp_new__add"} <= names
    assert added["content"][0]["text"] == "The sum of 1 and 2 is 3."
    assert json.loads(time["content"][0]["text"])["target"]["datetime"].endswith("21:00:00+09:00")
    assert weather["structuredContent"] == {"city": "Oslo", "celsius": 21.5}
    assert climbed["content"][0]["text"] == "climbed 3"
    steps = [n["params"]["progress"] for n in printed["notifications"] if n["method"] == "progress"]
    assert steps == [1, 2, 3]
    assert "sdk__greet" in {prompt["name"] for prompt in prompts["prompts"]}
    assert greeting["messages"][0]["content"]["text"] == "Say hello to Ada."
    assert "sdk://motto" in {resource["uri"] for resource in resources["resources"]}
    assert square["contents"][0]["text"] == "144"
    uris = {template["uriTemplate"] for template in templates["resourceTemplates"]}
    assert "sdk://square/{number}" in uris
    assert done["completion"]["values"] == ["Engineering"]


@pytest.mark.parametrize("sdk, mode", CLIENTS)
async def test_errors(sidecar: Sidecar, sdk: str, mode: str) -> None:
    steps = [
        call("sdk__nothing"),
        {"do": "readResource", "params": {"uri": "nowhere://x"}},
        {"do": "getPrompt", "params": {"name": "nobody__x"}},
        call("sdk__weather", city="Oslo"),
    ]
    printed = await drive({"url": sidecar.mcp}, sdk, mode, steps)
    *failed, fine = printed["outcomes"]
    assert [outcome["error"]["code"] for outcome in failed] in (
        [-32602, -32602, -32602],
        [-32602, -32002, -32602],
    )
    assert fine["result"]["structuredContent"]["city"] == "Oslo"


@pytest.mark.parametrize("way", ["http", "stdio"])
async def test_list_changed_reaches_the_v1_client(
    sidecar: Sidecar, tmp_path: Path, way: str
) -> None:
    where = {"url": sidecar.mcp} if way == "http" else stdio(sidecar, tmp_path)
    name = f"grown_for_npm_{way}"
    steps = [
        {"do": "ping"},
        {"do": "listTools"},
        call("sdk_http__grow", name=name),
        {"do": "until", "heard": "notifications/tools/list_changed"},
        call(f"sdk_http__{name}"),
    ]
    printed = await drive(where, "v1", "legacy", steps)
    assert results(printed)[-1]["content"][0]["text"] == f"{name} answers"


async def test_one_server_alone_keeps_its_names(sidecar: Sidecar, world: World) -> None:
    world.need("everything_http")
    printed = await drive(
        {"url": sidecar.at("everything_http")},
        "v1",
        "legacy",
        [{"do": "listTools"}, call("echo", message="hi")],
    )
    tools, echoed = results(printed)
    assert "echo" in {tool["name"] for tool in tools["tools"]}
    assert echoed["content"][0]["text"] == "Echo: hi"
