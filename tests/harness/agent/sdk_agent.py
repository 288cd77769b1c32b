"""An agent written with ACP's own Python SDK: modes, a plan, a tool call, a permission, a file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import acp
from acp import schema

MODES = schema.SessionModeState(
    current_mode_id="auto",
    available_modes=[schema.SessionMode(id=m, name=m) for m in ("default", "auto")],
)
OPTIONS = [
    schema.PermissionOption(option_id="a", name="Allow", kind="allow_once"),
    schema.PermissionOption(option_id="b", name="Always", kind="allow_always"),
    schema.PermissionOption(option_id="c", name="Reject", kind="reject_once"),
]


class Sdk(acp.Agent):
    client: acp.Client
    cwd: str
    cancelled: asyncio.Event

    def on_connect(self, conn: acp.Client) -> None:
        self.client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_info=schema.Implementation(name="sdk", version="1"),
            agent_capabilities=schema.AgentCapabilities(load_session=True),
        )

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        self.cwd = cwd
        return acp.NewSessionResponse(session_id="sdk-1", modes=MODES)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> acp.LoadSessionResponse:
        self.cwd = cwd
        await self.client.session_update(session_id, acp.update_agent_message_text("history"))
        return acp.LoadSessionResponse(modes=MODES)

    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> None:
        update = schema.CurrentModeUpdate(
            session_update="current_mode_update", current_mode_id=mode_id
        )
        await self.client.session_update(session_id, update)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        say = self.client.session_update
        self.cancelled = asyncio.Event()
        if prompt[0].text == "wait":
            await self.cancelled.wait()
            return acp.PromptResponse(stop_reason="cancelled")
        await say(
            session_id, acp.update_plan([acp.plan_entry("make it"), acp.plan_entry("say so")])
        )
        path = str(Path(self.cwd, "made"))
        await say(
            session_id,
            acp.start_edit_tool_call("t1", "Make a file", path, "hello"),
        )
        call = schema.ToolCallUpdate(tool_call_id="t1")
        answer = await self.client.request_permission(session_id, call, OPTIONS)
        allowed = getattr(answer.outcome, "option_id", None) == "a"
        if allowed:
            Path(path).write_text("hello")
        await say(
            session_id, acp.update_tool_call("t1", status="completed" if allowed else "failed")
        )
        for word in ("made ", "it") if allowed else ("was ", "denied"):
            await say(session_id, acp.update_agent_message_text(word))
        return acp.PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        self.cancelled.set()


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Sdk()))
