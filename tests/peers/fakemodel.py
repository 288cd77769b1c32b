"""A model for real coding agents that does what its prompt says, offline.

It speaks Anthropic's Messages, OpenAI's Chat Completions and Responses, and Gemini's
generateContent, as far as the agents in `pins.toml` use them. A user message that holds
`SCRIPT [step, …] END` drives it: step n answers after n rounds of tool results. Steps are

    {"text": "…"}                        say something; with "pieces": n, n times as a stream
    {"tool": "Bash", "input": {…}}       call a tool; "custom": true for a custom tool of Responses
    {"status": 529}                      fail

and any step may have "sleep": seconds first. Without a script it says `no script`; asked without
tools, as agents do for titles, it says `A title`.

    python -m tests.peers.fakemodel [PORT]     to try it by hand
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SCRIPT = re.compile(r"SCRIPT (\[.*?\]) END", re.S)
Json = dict[str, Any]
Event = tuple[str, Json | str]
TITLE = {"text": "A title"}


def script(*steps: Json) -> str:
    """A prompt. No text in it may hold ``] END``."""
    return f"SCRIPT {json.dumps(steps)} END"


@dataclass
class FakeModel:
    """``url`` is where it listens; ``asked`` what it was asked, as `{dialect, step, body}`."""

    url: str = ""
    asked: list[Json] = field(default_factory=list)

    @property
    def steps(self) -> list[Json]:
        """The steps that were done, in order."""
        return [item["step"] for item in self.asked if item["step"] is not TITLE]

    def choose(self, dialect: str, body: Json, turns: list[tuple[str, str]], tools: object) -> Json:
        step = _step(turns) if tools else TITLE
        self.asked.append({"dialect": dialect, "step": step, "body": body})
        return step


MODEL = web.AppKey("model", FakeModel)


@asynccontextmanager
async def serving(port: int = 0) -> AsyncIterator[FakeModel]:
    """Listen on 127.0.0.1."""
    model = FakeModel()
    app = web.Application(client_max_size=64 << 20)
    app[MODEL] = model
    app.router.add_route("*", "/{path:.*}", _route)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    assert site._server is not None
    model.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    try:
        yield model
    finally:
        await runner.cleanup()


def _step(turns: list[tuple[str, str]]) -> Json:
    """What a script says comes now. ``turns`` are (user | assistant | tool, text)."""
    start, steps = 0, None
    for index, (role, text) in enumerate(turns):
        if role == "user" and (found := SCRIPT.findall(text)):
            start, steps = index, json.loads(found[-1])
    if steps is None:
        return {"text": "no script"}
    roles = ["user"] + [role for role, _ in turns[start + 1 :]]
    rounds = sum(role == "tool" and before != "tool" for before, role in itertools.pairwise(roles))
    step: Json = steps[min(rounds, len(steps) - 1)]
    return step


async def _route(request: web.Request) -> web.StreamResponse:
    path = request.path
    if request.method == "GET" and "/models" in path:
        return web.json_response(_MODELS)
    if request.method != "POST":
        return web.Response(status=200 if request.method == "HEAD" else 404)
    try:
        body = await request.json()
    except ValueError:
        return web.json_response({"error": "not JSON"}, status=400)
    if path.endswith("/count_tokens"):
        return web.json_response({"input_tokens": 10})
    if path.endswith(":countTokens"):
        return web.json_response({"totalTokens": 10})
    for end, answer in _DIALECTS.items():
        if path.lower().endswith(end):
            return await answer(request, body)
    return web.json_response({"error": f"no such path: {path}"}, status=404)


_MODELS = {
    "object": "list",
    "data": [
        {
            "id": "fake-model",
            "object": "model",
            "type": "model",
            "display_name": "Fake",
            "created": 0,
            "created_at": "2026-01-01T00:00:00Z",
            "owned_by": "tests",
        }
    ],
    "has_more": False,
    "first_id": "fake-model",
    "last_id": "fake-model",
    "models": [],
}


async def _reply(
    request: web.Request, step: Json, events: Callable[[], Iterable[Event]], whole: Json | None
) -> web.StreamResponse:
    """As a stream of events, or as one document where the agent asked for that."""
    if "status" in step:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "scripted"}}
        return web.json_response(error, status=step["status"])
    await asyncio.sleep(step.get("sleep", 0))
    if whole is not None:
        return web.json_response(whole)
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    response.force_close()
    await response.prepare(request)
    for name, data in events():
        text = data if isinstance(data, str) else json.dumps(data)
        line = f"event: {name}\n" if name else ""
        await response.write(f"{line}data: {text}\n\n".encode())
        await asyncio.sleep(step.get("gap", 0))
    await response.write_eof()
    return response


def _flat(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(b if isinstance(b, str) else b.get("text") or "" for b in content)


def _id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex[:20]


def _pieces(step: Json) -> list[str]:
    return [step.get("text", "")] * int(step.get("pieces", 1))


# ---------------------------------------------------------------------------------- Anthropic


async def _messages(request: web.Request, body: Json) -> web.StreamResponse:
    turns = []
    for message in body.get("messages", []):
        content = message["content"]
        if isinstance(content, str) or message["role"] != "user":
            turns.append((message["role"], _flat(content)))
            continue
        for block in content:
            if block.get("type") == "tool_result":
                turns.append(("tool", _flat(block.get("content"))))
            elif block.get("type") == "text":
                turns.append(("user", block["text"]))
    step = request.app[MODEL].choose("messages", body, turns, body.get("tools"))
    if "tool" in step:
        content = {"type": "tool_use", "id": _id("toolu_"), "name": step["tool"]}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.get("input", {}))}
        deltas, full, empty = [delta], {**content, "input": step.get("input", {})}, {"input": {}}
        stop = "tool_use"
    else:
        content = {"type": "text"}
        deltas = [{"type": "text_delta", "text": text} for text in _pieces(step)]
        full, empty = {**content, "text": "".join(_pieces(step))}, {"text": ""}
        stop = step.get("stop", "end_turn")
    base = {
        "id": _id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }

    def events() -> Iterable[Event]:
        yield "message_start", {"type": "message_start", "message": base}
        block = {**content, **empty}
        yield (
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": block},
        )
        for delta in deltas:
            yield (
                "content_block_delta",
                {"type": "content_block_delta", "index": 0, "delta": delta},
            )
        yield "content_block_stop", {"type": "content_block_stop", "index": 0}
        ended = {"stop_reason": stop, "stop_sequence": None}
        usage = {"output_tokens": 5}
        yield "message_delta", {"type": "message_delta", "delta": ended, "usage": usage}
        yield "message_stop", {"type": "message_stop"}

    whole = None if body.get("stream") else {**base, "content": [full], "stop_reason": stop}
    return await _reply(request, step, events, whole)


# ------------------------------------------------------------------------------------- OpenAI


async def _chat(request: web.Request, body: Json) -> web.StreamResponse:
    turns = [(m["role"], _flat(m.get("content"))) for m in body.get("messages", [])]
    step = request.app[MODEL].choose("chat", body, turns, body.get("tools"))
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    base = {"id": _id("chatcmpl-"), "created": 0, "model": body.get("model")}
    calls = []
    if "tool" in step:
        function = {"name": step["tool"], "arguments": json.dumps(step.get("input", {}))}
        calls = [{"index": 0, "id": _id("call_"), "type": "function", "function": function}]
    stop = "tool_calls" if calls else "stop"

    def chunk(delta: Json, end: str | None = None, **more: Any) -> Event:
        choice = {"index": 0, "delta": delta, "finish_reason": end}
        return "", {**base, "object": "chat.completion.chunk", "choices": [choice], **more}

    def events() -> Iterable[Event]:
        yield chunk({"role": "assistant", "content": ""})
        for delta in [{"tool_calls": calls}] if calls else [{"content": t} for t in _pieces(step)]:
            yield chunk(delta)
        yield chunk({}, stop, usage=usage)
        yield "", "[DONE]"

    whole = None
    if not body.get("stream"):
        text = None if calls else "".join(_pieces(step))
        message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
        choice = {"index": 0, "message": message, "finish_reason": stop}
        whole = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    return await _reply(request, step, events, whole)


async def _responses(request: web.Request, body: Json) -> web.StreamResponse:
    given = body.get("input", [])
    turns = [("user", given)] if isinstance(given, str) else []
    for entry in [] if isinstance(given, str) else given:
        kind = entry.get("type", "message")
        if kind == "message":
            turns.append((entry.get("role"), _flat(entry.get("content"))))
        else:
            turns.append(("tool" if kind.endswith("_output") else "assistant", ""))
    step = request.app[MODEL].choose("responses", body, turns, body.get("tools"))
    text = "".join(_pieces(step))
    item: Json
    if "tool" in step and step.get("custom"):
        item = {"type": "custom_tool_call", "id": "ctc_1", "name": step["tool"]}
        item |= {"call_id": _id("call_"), "input": step["input"], "status": "completed"}
    elif "tool" in step:
        item = {"type": "function_call", "id": "fc_1", "name": step["tool"], "status": "completed"}
        item |= {"call_id": _id("call_"), "arguments": json.dumps(step.get("input", {}))}
    else:
        content = [{"type": "output_text", "text": text, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant"}
        item |= {"status": "completed", "content": content}
    base = {"id": _id("resp_"), "object": "response"}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }

    def event(kind: str, **fields: Any) -> Event:
        return kind, {"type": kind, **fields}

    def events() -> Iterable[Event]:
        yield event("response.created", response={**base, "status": "in_progress", "output": []})
        begun = {**item, "status": "in_progress"}
        if item["type"] == "message":
            begun["content"] = []
        yield event("response.output_item.added", output_index=0, item=begun)
        for piece in _pieces(step) if item["type"] == "message" else ():
            where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
            yield event("response.output_text.delta", delta=piece, **where)
        yield event("response.output_item.done", output_index=0, item=item)
        done = {**base, "status": "completed", "output": [item], "usage": usage}
        yield event("response.completed", response=done)

    return await _reply(request, step, events, None)


# ------------------------------------------------------------------------------------- Gemini


async def _gemini(request: web.Request, body: Json) -> web.StreamResponse:
    turns = []
    for content in body.get("contents", []):
        for part in content.get("parts", []):
            if "functionResponse" in part:
                turns.append(("tool", ""))
            else:
                role = "assistant" if content.get("role") == "model" else "user"
                turns.append((role, part.get("text", "")))
    tools = [f for t in body.get("tools") or [] for f in t.get("functionDeclarations", [])]
    step = request.app[MODEL].choose("gemini", body, turns, tools)
    if step is TITLE:  # its router wants a choice of a model
        step = {"text": json.dumps({"model_choice": "flash", "reasoning": "scripted"})}
    part = (
        {"functionCall": {"name": step["tool"], "args": step.get("input", {})}}
        if "tool" in step
        else {"text": "".join(_pieces(step))}
    )
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    whole = {
        "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
        "usageMetadata": usage,
        "modelVersion": "fake",
    }
    streamed = "stream" in request.path.lower()
    return await _reply(request, step, lambda: [("", whole)], None if streamed else whole)


_DIALECTS = {
    "/messages": _messages,
    "/chat/completions": _chat,
    "/responses": _responses,
    "generatecontent": _gemini,
}


async def _main() -> None:
    async with serving(int(sys.argv[1]) if len(sys.argv) > 1 else 0) as model:
        print(model.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
