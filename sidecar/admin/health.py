"""The kubelet's listener: ``/livez`` and ``/readyz``, and nothing else.

It checks no Host (a probe is sent to the pod's address) and reveals nothing but its word.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from sidecar.config import Listen


class HealthListener:
    """``ready`` returns ``None`` when traffic is welcome, else why it is not."""

    def __init__(self, ready: Callable[[], str | None]) -> None:
        self._ready = ready
        self._runner: web.ServerRunner | None = None

    async def start(self, listen: Listen) -> str:
        """Bind and serve; returns the base URL. Raises OSError."""
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.5)
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, listen.host, listen.port).start()
        host, port = runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def close(self) -> None:
        """Stop serving; idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.Response:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        match request.path:
            case "/livez":
                return web.Response(text="ok\n")
            case "/readyz":
                why = self._ready()
                return web.Response(status=503 if why else 200, text=f"{why or 'ok'}\n")
            case _:
                return web.Response(status=404, text="here are /livez and /readyz\n")
