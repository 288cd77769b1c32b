"""ACP over standard input and output, from a sidecar of its own."""

from __future__ import annotations

from typing import Final

from sidecar import __version__
from sidecar.config.types import Config
from sidecar.downstream.acp_server import EditorServer
from sidecar.downstream.auth import ANYBODY, Grant
from sidecar.downstream.pipes import stdio_lines
from sidecar.downstream.running import Crowd
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.ports.agents import EditorSessions

__all__ = ["run_alone"]

MOST_IN_FLIGHT: Final = 256


async def run_alone(
    gateway: Gateway, sessions: EditorSessions | None, bus: Bus, config: Config, harness: str
) -> None:
    """Serve the one editor at standard input, as the principal of an open listener, until the
    input ends or nobody reads the output."""
    assert sessions is not None, "the configuration has a harness"
    server = EditorServer(
        gateway,
        sessions,
        bus,
        Grant(ANYBODY),
        harness,
        name=config.name,
        version=__version__,
        limits=config.limits,
        crowd=Crowd(MOST_IN_FLIGHT),
    )
    async with stdio_lines(config.limits.line) as (lines, write):
        await server.serve(lines, write)
