"""A process that serves the scripted gateway at its standard input and output."""

from __future__ import annotations

import asyncio
import sys

import uvloop

from sidecar.config.types import Config, Limits
from sidecar.downstream import StdioServer
from tests.downstream.kit import ScriptedGateway


async def main() -> None:
    gateway = ScriptedGateway()
    gateway.release.set()
    config = Config(limits=Limits(line=1 << 20))
    print("what is printed goes elsewhere")
    await StdioServer(gateway, config, farewell=1.0).run()  # type: ignore[arg-type]  # scripted


if __name__ == "__main__":
    (uvloop.run if "uvloop" in sys.argv else asyncio.run)(main())
