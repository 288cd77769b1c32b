"""The built-in tools of the awkward server: one for each thing that a call can do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cases.awkward.server import Awkward, Request

Arguments = dict[str, Any]
Result = dict[str, Any]
Tool = Callable[["Awkward", "Request", Arguments], Awaitable[Result]]

MIB = 1 << 20
# A child that outlives polite requests: its own session, SIGTERM ignored, gone after a minute.
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


class ToolRpcError(Exception):
    """A tool that answers with a JSON-RPC error instead of a result."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error


def text(value: str, **more: Any) -> Result:
    """A result with one text block."""
    return {"content": [{"type": "text", "text": value}], **more}


async def echo(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with ``message``."""
    return text(str(args.get("message", "")))


async def arguments(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with its arguments, as they arrived."""
    return text("arguments", structuredContent={"arguments": args})


async def whoami(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with the server's name and the tool's own."""
    return text(f"{server.behaviour.name}:{request.params['name']}")


async def slow(server: Awkward, request: Request, args: Arguments) -> Result:
    """Takes ``seconds``, and answers with how many ran at once when it began."""
    server.running += 1
    server.most_at_once = max(server.most_at_once, server.running)
    at_once = server.running
    try:
        await asyncio.sleep(float(args.get("seconds", 0.4)))
    finally:
        server.running -= 1
    return text("done", structuredContent={"at_once": at_once})


async def count(server: Awkward, request: Request, args: Arguments) -> Result:
    """Counts the calls of its session: a stateful server."""
    key = request.session or ""
    server.counters[key] = server.counters.get(key, 0) + 1
    return text(str(server.counters[key]))


async def headers(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with the HTTP headers that its request had."""
    return text("headers", structuredContent={"headers": dict(request.headers)})


async def meta(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with the ``_meta`` that its request had."""
    return text("meta", structuredContent={"meta": request.params.get("_meta", {})})


async def fidelity(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with ``Behaviour.result``."""
    return server.behaviour.result or text("nothing set")


async def fail(server: Awkward, request: Request, args: Arguments) -> Result:
    """A tool's own error."""
    return text("it failed", isError=True)


async def fail_rpc(server: Awkward, request: Request, args: Arguments) -> Result:
    """A JSON-RPC error; ``error`` is sent as it stands."""
    default = {"code": -32050, "message": "no such luck", "data": {"why": "because"}}
    raise ToolRpcError(args.get("error", default))


async def progress(server: Awkward, request: Request, args: Arguments) -> Result:
    """Sends ``steps`` progress notifications, ``gap`` seconds apart, when it was given a token."""
    token = request.progress_token
    steps = int(args.get("steps", 3))
    for step in range(1, steps + 1):
        if token is not None:
            params = {"progressToken": token, "progress": step, "total": steps, "message": "…"}
            await request.notify("notifications/progress", params)
        await asyncio.sleep(float(args.get("gap", 0.1)))
    return text(f"token {'none' if token is None else 'given'}")


async def talk(server: Awkward, request: Request, args: Arguments) -> Result:
    """Sends one log message of ``level`` on its request's stream."""
    level = args.get("level", "warning")
    await request.notify("notifications/message", {"level": level, "data": "spoken"})
    return text("spoke")


async def big(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with ``mib`` MiB of text."""
    return text("x" * int(float(args.get("mib", 1)) * MIB))


async def change(server: Awkward, request: Request, args: Arguments) -> Result:
    """Offers a further tool ``name``, and says so ``times`` in ``within`` seconds."""
    server.behaviour.tools.append({"name": args["name"], "inputSchema": {"type": "object"}})
    times = int(args.get("times", 1))
    for _ in range(times):
        await server.announce("notifications/tools/list_changed")
        await asyncio.sleep(float(args.get("within", 0.1)) / times)
    return text("changed")


async def touch(server: Awkward, request: Request, args: Arguments) -> Result:
    """Says that the resource ``uri`` was updated, to those who subscribed to it."""
    await server.updated(args["uri"])
    return text("touched")


async def die(server: Awkward, request: Request, args: Arguments) -> Result:
    """Ends the process (stdio) or drops the connection (HTTP) without an answer.

    With ``once``, a path: only when there is no such file, which it makes.
    """
    await asyncio.sleep(float(args.get("after", 0)))
    if "once" in args:
        marker = Path(args["once"])
        if marker.exists():
            return text("survived")
        marker.touch()
    await request.drop()
    raise asyncio.CancelledError


async def hang(server: Awkward, request: Request, args: Arguments) -> Result:
    """Never answers."""
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets was set")


async def garble(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with ``raw``, which need not be JSON; ``$id`` in it is the request's id."""
    raw = str(args.get("raw", "<html>no</html>"))
    await request.send_raw(raw.replace("$id", json.dumps(request.id)))
    raise asyncio.CancelledError


async def breed(server: Awkward, request: Request, args: Arguments) -> Result:
    """Starts a child that ignores SIGTERM, in a session of its own; answers with its pid."""
    server.breed([sys.executable, "-c", STUBBORN])
    return text(str(server.children[-1].pid))


async def environment(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with the names of its environment variables."""
    return text("environment", structuredContent={"names": sorted(os.environ)})


async def pid(server: Awkward, request: Request, args: Arguments) -> Result:
    """Answers with its process id."""
    return text(str(os.getpid()))


async def stop(server: Awkward, request: Request, args: Arguments) -> Result:
    """Ends its own process by SIGKILL after it answered."""
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGKILL)
    return text("stopping")


READ_ONLY = {"readOnlyHint": True}
WRITES = {"readOnlyHint": False, "idempotentHint": False}
TOOLS: dict[str, tuple[Tool, dict[str, bool]]] = {
    "echo": (echo, READ_ONLY),
    "arguments": (arguments, READ_ONLY),
    "whoami": (whoami, READ_ONLY),
    "slow": (slow, READ_ONLY),
    "count": (count, WRITES),
    "headers": (headers, READ_ONLY),
    "meta": (meta, READ_ONLY),
    "fidelity": (fidelity, READ_ONLY),
    "fail": (fail, READ_ONLY),
    "fail_rpc": (fail_rpc, READ_ONLY),
    "progress": (progress, READ_ONLY),
    "talk": (talk, READ_ONLY),
    "big": (big, READ_ONLY),
    "change": (change, WRITES),
    "touch": (touch, WRITES),
    "die": (die, WRITES),
    "hang": (hang, WRITES),
    "garble": (garble, WRITES),
    "breed": (breed, WRITES),
    "environment": (environment, READ_ONLY),
    "pid": (pid, READ_ONLY),
    "stop": (stop, WRITES),
}
