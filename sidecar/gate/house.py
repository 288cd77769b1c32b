"""The gate with everything it keeps, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from sidecar.config import Config, ServerConfig
from sidecar.events import Bus, ToolsChanged
from sidecar.gate.deciding import Holder
from sidecar.gate.gate import PolicyGate
from sidecar.gate.ledger import Ledger
from sidecar.gate.parking import Parking
from sidecar.gate.pins import Pins
from sidecar.gate.records import Inputs, Records
from sidecar.model import Tool
from sidecar.ports.store import Store
from sidecar.ports.tracer import Tracer

log = logging.getLogger("sidecar.gate")

_FIRST, _LONGEST = 0.5, 30.0
_QUIET: Final = 0.05
"""Seconds in which several lists that change are looked at together."""


class Gatehouse:
    """``gate`` answers once ``start`` has returned."""

    def __init__(
        self,
        holder: Holder,
        store: Store,
        bus: Bus,
        config: Config,
        *,
        servers: Callable[[str], ServerConfig | None],
        inputs: Path | None = None,
        parking: Parking | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """``servers`` gives a server's configuration; ``inputs`` is where those of decisions
        go under ``policy.record: inputs``. ``tracer`` is ``None`` where no span is kept."""
        self.ledger: Final = Ledger(store, config.labels, bus=bus)
        self.pins: Final = Pins(store)
        self._records = Records(bus, tracer=tracer)
        self.gate: Final = PolicyGate(
            holder,
            servers=servers,
            ledger=self.ledger,
            pins=self.pins,
            records=self._records,
            bus=bus,
            parking=parking,
            limit=config.limits.result,
        )
        self._config = config
        self._path = inputs
        self._seen = asyncio.Event()
        self._seeing: asyncio.Task[None] | None = None
        self._stop = bus.listen(ToolsChanged, lambda _: self._seen.set())

    async def start(self, tools: Callable[[], Iterable[Tool]]) -> None:
        """Read what is stored; ``tools`` gives all that the servers have, and what is new among
        them is pinned from now on.

        Raises:
            StoreError: the store cannot be read.
            OSError: inputs of decisions cannot be recorded.
        """
        await self.ledger.start()
        await self.pins.start()
        await self._record(self._config)
        self._seen.set()
        self._seeing = asyncio.create_task(self._see(tools), name="pins")

    async def reconfigure(self, config: Config) -> None:
        """Take over ``labels``, ``limits.result`` and ``policy.record``.

        Raises:
            OSError: inputs of decisions cannot be recorded; the rest is taken over.
        """
        self.ledger.reconfigure(config.labels)
        self.gate.limit = config.limits.result
        self._config = config
        await self._record(config)

    async def _record(self, config: Config) -> None:
        wanted = config.policy.record == "inputs"
        held = self._records.inputs
        if wanted and held is None:
            if self._path is None:
                raise FileNotFoundError(2, "there is no folder to keep inputs of decisions in")
            inputs = Inputs(self._path)
            await inputs.start()
            self._records.inputs = inputs
        elif not wanted and held is not None:
            self._records.inputs = None
            await held.close()

    async def close(self) -> None:
        """Write what waits to be written, and stop. Idempotent."""
        self._stop()
        self.gate.close()
        task, self._seeing = self._seeing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.pins.close()
        await self.ledger.close()
        if self._records.inputs is not None:
            await self._records.inputs.close()

    async def _see(self, tools: Callable[[], Iterable[Tool]]) -> None:
        """Pin what servers offer for the first time, for as long as the sidecar runs."""
        wait = _FIRST
        while True:
            await self._seen.wait()
            await asyncio.sleep(_QUIET)
            self._seen.clear()
            try:
                known = await self.pins.see_all(tools())
            except Exception:
                # Not to know a tool denies its calls; the next look must come all the same.
                log.exception("pinning the tools failed")
                known = False
            if known:
                wait = _FIRST
                continue
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST)
            self._seen.set()
