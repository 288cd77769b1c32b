"""The demo's HTTP server: what time it is, anywhere."""

from __future__ import annotations

import datetime
import zoneinfo

from aiohttp import web

from sidecar.demo.server import DemoServer, DemoTool, Mistake
from sidecar.model import JsonObject


def now(arguments: JsonObject) -> str:
    """The time in ``zone``, an IANA name; UTC without one."""
    name = arguments.get("zone", "UTC")
    if not isinstance(name, str):
        raise Mistake("zone must be a string such as Europe/Rome")
    try:
        zone = datetime.UTC if name == "UTC" else zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise Mistake("no such time zone here; try Europe/Rome, or UTC") from error
    return datetime.datetime.now(zone).isoformat(timespec="seconds")


def server() -> DemoServer:
    """A clock server."""
    return DemoServer(
        "clock",
        [
            DemoTool(
                "now",
                "The time in a time zone.",
                {"zone": {"type": "string", "description": "an IANA name such as Europe/Rome"}},
                [],
                now,
            )
        ],
    )


class ClockServer:
    """The clock at a loopback address of the kernel's choice."""

    def __init__(self) -> None:
        self._server = server()
        self._runner: web.ServerRunner | None = None

    async def start(self) -> str:
        """Serve; returns the MCP URL."""
        self._runner = web.ServerRunner(web.Server(self._handle, access_log=None))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}/mcp"

    async def close(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        if request.method != "POST":
            return web.Response(status=405, headers={"Allow": "POST"})
        answer = self._server.answer(await request.read())
        if answer is None:
            return web.Response(status=202)
        return web.Response(body=answer, content_type="application/json")
