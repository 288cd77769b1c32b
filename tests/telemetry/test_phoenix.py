"""A backend that none of us wrote reads what a sidecar tells, and gives it back: Arize Phoenix.

With ``SIDECAR_SCREENSHOTS=FOLDER`` its pages are kept as pictures, those in docs/.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.app.test_harness import COMMIT, Place, bash, script
from tests.cases.behind import dead_port
from tests.kit.client import Modern
from tests.kit.running import Sidecar, running
from tests.peers import chromium, peers
from tests.telemetry.spans import Receiver
from tests.telemetry.test_trace_whole import Agent, approved

PHOENIX = peers.PEERS / "phoenix" / "bin" / "phoenix"
pytestmark = [
    pytest.mark.skipif(
        not (PHOENIX.exists() and os.environ.get("SIDECAR_PHOENIX")),
        reason="a backend of 850 MB: run `make test-otel`",
    ),
    pytest.mark.real,
]
PROJECT = "sidecar"
CLICK = """
    const found = [...document.querySelectorAll("*")].find(
        (each) => each.children.length === 0 && each.textContent === arguments[0]);
    found?.click();
    return Boolean(found);
"""
PATIENCE = 240.0
NOTES: dict[str, Any] = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}


@asynccontextmanager
async def phoenix(folder: Path) -> AsyncIterator[str]:
    """Its address. It takes ten seconds to start."""
    port, grpc = dead_port(), dead_port()
    settings = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
        "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    }
    log = folder / "phoenix.log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            str(PHOENIX), "serve", stdout=output, stderr=output, env={**os.environ, **settings}
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE
        async with aiohttp.ClientSession() as http:
            while True:
                try:
                    async with http.get(f"{url}/healthz") as answer:
                        if answer.status == 200:
                            break
                except aiohttp.ClientError:
                    pass
                assert process.returncode is None and time.monotonic() < end, log.read_text()
                await asyncio.sleep(0.2)
        yield url
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 60)


async def spans_of(http: aiohttp.ClientSession, url: str) -> list[dict[str, Any]]:
    """Every span that it has of the project, through its own API."""
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        params = {"limit": "500"} | ({"cursor": cursor} if cursor else {})
        async with http.get(f"{url}/v1/projects/{PROJECT}/spans", params=params) as answer:
            if answer.status == 404:
                return []
            page = await answer.json()
        found += page["data"]
        cursor = page.get("next_cursor") or ""
        if not cursor:
            return found


async def until(http: aiohttp.ClientSession, url: str, *names: str) -> list[dict[str, Any]]:
    """Its spans, once these are among them."""
    end = time.monotonic() + PATIENCE
    while True:
        found = await spans_of(http, url)
        missing = set(names) - {span["name"] for span in found}
        if not missing:
            return found
        assert time.monotonic() < end, f"{missing} never came; there are {len(found)}"
        await asyncio.sleep(0.3)


def tree(spans: list[dict[str, Any]], root: dict[str, Any]) -> dict[str, list[str]]:
    """The names below each name, of the trace that begins with ``root``."""
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    found: dict[str, list[str]] = {}
    for span in sorted(spans, key=lambda span: span["start_time"]):
        if span["context"]["trace_id"] == root["context"]["trace_id"] and span["parent_id"]:
            found.setdefault(names[span["parent_id"]], []).append(span["name"])
    return found


def pictures(wanted: dict[str, str]) -> None:
    """The pages of these traces, by name; each shows the wait for a person."""
    if chromium.programs() is None:
        pytest.skip(chromium.MISSING)
    from tests.page.browser import Browser

    folder = os.environ.get("SIDECAR_SCREENSHOTS")
    browser = Browser()
    try:
        for name, url in wanted.items():
            browser.fresh(url, size=(1600, 1000))
            browser.until(
                lambda: "sidecar.approval" in browser.text(), "the trace", within=PATIENCE
            )
            browser.until(lambda: browser.js(CLICK, "sidecar.approval"), "the wait in the tree")
            browser.until(lambda: "approval.by" in browser.text(), "who answered", within=PATIENCE)
            # What a page fetches last is drawn a moment later.
            time.sleep(1)
            if folder is not None:
                browser.driver.save_screenshot(str(Path(folder).resolve() / f"{name}.png"))
    finally:
        browser.close()


async def project_of(http: aiohttp.ClientSession, url: str) -> str:
    async with http.get(f"{url}/v1/projects") as answer:
        projects = (await answer.json())["data"]
    return next(str(each["id"]) for each in projects if each["name"] == PROJECT)


async def call_until_done(client: Modern, agent: Agent, task: str) -> dict[str, Any]:
    while True:
        answer = await agent.call(client, "claude", task=task, work="fix-login")
        if "sidecar/running" not in answer.get("_meta", {}):
            return answer


@asynccontextmanager
async def world(url: str, place: Place) -> AsyncIterator[tuple[Sidecar, Agent]]:
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{url}/v1/traces",
        "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={PROJECT}",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    config = place.config(
        servers={"notes": {**NOTES, "gated": ["add"]}},
        policy={"shipped": ["coding-agents", "gating"]},
        telemetry={"capture": {"arguments": True, "results": True}},
    )
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        async with running(config) as sidecar:
            yield sidecar, Agent(Receiver(url), {"openinference.project.name": PROJECT})


async def test_what_phoenix_has_of_a_call_and_of_a_run(tmp_path: Path) -> None:
    data = tmp_path / "phoenix"
    data.mkdir()
    async with (
        phoenix(data) as url,
        world(url, Place(tmp_path)) as (sidecar, agent),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as http,
    ):
        client = Modern(http, sidecar.mcp)
        await client.until_listed("notes__add", "claude", within=60)
        noted = asyncio.create_task(agent.call(client, "notes__add", text="call Ada"))
        id = await approved(sidecar)
        assert (await noted)["content"][0]["text"] == "noted as number 1"

        task = script(bash(COMMIT), {"say": "The login is fixed."})
        run = asyncio.create_task(call_until_done(client, agent, task))
        await approved(sidecar)
        answer = (await run)["structuredContent"]
        assert [commit["subject"] for commit in answer["commits"]] == ["Fix the login"]

        spans = await until(
            http, url, "tools/call notes__add", "invoke_agent claude", "sidecar.commit"
        )
        turns = sorted(
            (span for span in spans if span["name"] == "agent's turn"),
            key=lambda span: str(span["start_time"]),
        )
        assert tree(spans, turns[0]) == {
            "agent's turn": ["tools/call notes__add"],
            "tools/call notes__add": [
                "sidecar.decide",
                "sidecar.approval",
                "sidecar.decide",
                "tools/call notes__add",
            ],
            "sidecar.approval": ["sidecar.answer"],
        }
        request = next(
            span
            for span in spans
            if span["name"] == "tools/call notes__add"
            and span["parent_id"] == turns[0]["context"]["span_id"]
        )
        about = request["attributes"]
        assert request["span_kind"] == "TOOL"
        assert about["sidecar.rule"] == "gating/gated"
        assert about["gen_ai.tool.call.arguments"] == '{"text":"call Ada"}'
        wait = next(
            span
            for span in spans
            if span["name"] == "sidecar.approval"
            and span["parent_id"] == request["context"]["span_id"]
        )
        assert wait["attributes"]["sidecar.approval"] == id
        assert wait["attributes"]["sidecar.approval.by"].startswith("uid:")

        below = tree(spans, turns[1])
        whole = below["invoke_agent claude"]
        assert {"session/request_permission", "sidecar.commit"} <= set(whole)
        assert any(name.startswith("sidecar.session_update ") for name in whole)
        assert below["session/request_permission"][:2] == ["sidecar.decide", "sidecar.approval"]
        run_span = next(span for span in spans if span["name"] == "invoke_agent claude")
        assert run_span["span_kind"] == "AGENT"
        assert run_span["attributes"]["sidecar.work"] == "fix-login"
        changed = next(span for span in spans if span["name"] == "sidecar.tools_changed")
        assert changed["attributes"]["sidecar.tools.count"] == 2

        project = await project_of(http, url)
        names = ("trace-call", "trace-run")
        wanted = {
            name: f"{url}/projects/{project}/traces/{turn['context']['trace_id']}"
            for name, turn in zip(names, turns, strict=False)
        }
        await asyncio.to_thread(pictures, wanted)
