"""All there is of logs beyond the lines themselves, as the app holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sidecar import logs
from sidecar.config import Config
from sidecar.events import Bus
from sidecar.telemetry.logs_access import AccessLog
from sidecar.telemetry.traces import OTLP, exporters

if TYPE_CHECKING:
    from sidecar.telemetry.audit import Trail
    from sidecar.telemetry.logs_export import LogsExport


class Logs:
    """The access log, and where log records go. ``start`` inside the loop, ``close`` last."""

    def __init__(self, config: Config, bus: Bus, environ: Mapping[str, str]) -> None:
        """Raises SettingError: the environment asks for what cannot be had."""
        self.export: LogsExport | None = None
        wanted = exporters("logs", environ)
        self._lines = bool(wanted)
        if wanted or config.audit.to == "otlp":
            # Imported where telemetry is on: it costs megabytes.
            from sidecar.telemetry.logs_export import LogsExport

            self.export = LogsExport(wanted or (OTLP,), config.name, environ)
        self._access = AccessLog(bus, config.log, sink=self.export if self._lines else None)

    @property
    def trail(self) -> Trail | None:
        """The audit trail's way out, where there is an exporter."""
        if self.export is None:
            return None
        from sidecar.telemetry.logs_export import OtlpTrail

        return OtlpTrail(self.export.put)

    async def start(self) -> None:
        """Begin to export. Raises SettingError."""
        if self.export is not None:
            await self.export.start(lines=self._lines)

    def reconfigure(self, config: Config) -> None:
        """Take over ``log``."""
        logs.configure(config.log)
        self._access.reconfigure(config.log)

    async def close(self) -> None:
        """Write and export what is left; bounded. Idempotent."""
        await self._access.close()
        if self.export is not None:
            await self.export.close()
