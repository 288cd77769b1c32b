"""The listener for probes and for Prometheus: ``/livez``, ``/readyz``, ``/metrics``, nothing else.

Probes are sent to the pod's address, so their Host is not looked at. Metrics name servers, tools
and rules: on loopback, only who names the listener by its own address reads them, so that no web
page does that has its name point here (``wire/hosts``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from aiohttp import web

from sidecar.config import Listen, values
from sidecar.wire.hosts import HostRules, HostVerdict

_ALL: Final = "/livez, /readyz and /metrics"

Metrics: TypeAlias = Callable[[str], Awaitable[tuple[bytes, str]]]
"""By the ``Accept`` header of who asks: the page, and its media type."""


class HealthListener:
    """``ready`` returns ``None`` when traffic is welcome, else why it is not."""

    def __init__(self, ready: Callable[[], str | None], metrics: Metrics | None = None) -> None:
        self._ready = ready
        self._metrics = metrics
        self._runner: web.ServerRunner | None = None
        self._hosts: HostRules | None = None

    async def start(self, listen: Listen) -> str:
        """Bind and serve; returns the base URL. Raises OSError."""
        self._hosts = HostRules(listen) if values.is_local(listen) else None
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
            case "/metrics" if self._metrics is not None:
                if not self._names_us(request):
                    return web.Response(status=421, text="ask for it by its own address\n")
                body, kind = await self._metrics(request.headers.get("Accept", ""))
                return web.Response(body=body, headers={"Content-Type": kind})
            case _:
                here = "/livez and /readyz" if self._metrics is None else _ALL
                return web.Response(status=404, text=f"here are {here}\n")

    def _names_us(self, request: web.BaseRequest) -> bool:
        if self._hosts is None:
            return True
        return self._hosts.host(request.headers.getall("Host", [])) is HostVerdict.OURS
