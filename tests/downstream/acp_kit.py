"""An editor in memory before the real server, gateway, gate, parking and works, and agents that do
what their prompts say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from sidecar.config.types import Limits
from sidecar.downstream.acp_server import EditorServer
from sidecar.downstream.auth import Grant
from sidecar.downstream.running import Crowd
from sidecar.harness.editors import Editors
from sidecar.model import Principal
from sidecar.wire.ndjson import Lines, Oversize
from tests.harness.runs.kit import ALICE, PATIENCE, Box

Json = dict[str, Any]


class Screen:
    """What an editor does, and what it shows. Answers are kept by id, the rest in order."""

    def __init__(self, box: Box, who: Principal = ALICE) -> None:
        self.box = box
        editors = Editors(box.works, box.root, {"repo": box.repo})
        self.crowd = Crowd(64)
        self.server = EditorServer(
            box.gateway,
            editors,
            box.bus,
            Grant(who),
            "claude",
            name="box",
            version="1",
            limits=Limits(line=1 << 20),
            crowd=self.crowd,
        )
        self.answers: dict[Any, Json] = {}
        self.heard: list[Json] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.task: asyncio.Task[None]
        self._changed = asyncio.Event()
        self._in: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._next = 0

    async def lines(self) -> AsyncIterator[bytes | Oversize]:
        lines = Lines(1 << 20)
        while (data := await self._in.get()) is not None:
            for line in lines.feed(data):
                yield line

    async def write(self, message: bytes) -> None:
        await self.reads.wait()
        assert b"\n" not in message
        told = json.loads(message)
        if "method" in told:
            self.heard.append(told)
        else:
            assert told["id"] not in self.answers, told
            self.answers[told["id"]] = told
        self._changed.set()

    def send(self, message: Json) -> None:
        self._in.put_nowait(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def hang_up(self) -> None:
        self._in.put_nowait(None)

    def ask(self, method: str, **params: Any) -> int:
        self._next += 1
        self.send({"id": self._next, "method": method, "params": params})
        return self._next

    async def until(self, what: Any) -> Any:
        """Return what it gives, as soon as that is something."""
        async with asyncio.timeout(PATIENCE):
            while not (found := what()):
                self._changed.clear()
                await self._changed.wait()
            return found

    async def answer(self, id_: int) -> Json:
        return dict(await self.until(lambda: self.answers.get(id_)))

    async def result(self, method: str, **params: Any) -> Json:
        told = await self.answer(self.ask(method, **params))
        assert "result" in told, told
        return dict(told["result"])

    async def error(self, method: str, **params: Any) -> tuple[int, str]:
        told = await self.answer(self.ask(method, **params))
        assert "error" in told, told
        return told["error"]["code"], told["error"]["message"]

    async def open(self, cwd: Path | None = None, **more: Any) -> str:
        """A new session."""
        folder = str(cwd or self.box.repo)
        result = await self.result("session/new", cwd=folder, mcpServers=[], **more)
        return str(result["sessionId"])

    def prompt(self, session: str, text: str) -> int:
        return self.ask(
            "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]
        )

    async def done(self, session: str, text: str) -> Json:
        told = await self.answer(self.prompt(session, text))
        assert "result" in told, told
        return dict(told["result"])

    @property
    def updates(self) -> list[Json]:
        found = [each["params"] for each in self.heard if each["method"] == "session/update"]
        return [each["update"] for each in found]

    @property
    def text(self) -> str:
        """All that the agent said, without what we say."""
        return "".join(
            update["content"]["text"]
            for update in self.updates
            if update["sessionUpdate"] == "agent_message_chunk" and "_meta" not in update
        )

    def asked(self) -> list[Json]:
        """The questions of ours."""
        return [each for each in self.heard if each["method"] == "session/request_permission"]

    def notices(self) -> list[Json]:
        """What it was told that waits."""
        return [
            update["_meta"]["sidecar/waiting"]
            for update in self.updates
            if "sidecar/waiting" in update.get("_meta", {})
        ]


@asynccontextmanager
async def screen(box: Box, who: Principal = ALICE, *, begun: bool = True) -> AsyncIterator[Screen]:
    """One that is connected."""
    made = Screen(box, who)
    made.task = asyncio.create_task(made.server.serve(made.lines(), made.write))
    try:
        if begun:
            await made.result("initialize", protocolVersion=1, clientInfo={"name": "test"})
        yield made
    finally:
        made.hang_up()
        await asyncio.wait_for(made.task, PATIENCE)
        assert not len(made.crowd)
