"""Exporters of the SDK's and of others: found by their name, and run apart from everything else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from threading import Thread
from typing import Final

from sidecar.telemetry.environ import SettingError
from sidecar.telemetry.otlp import settings
from sidecar.telemetry.otlp.http import Sent
from sidecar.telemetry.otlp.settings import Signal

log = logging.getLogger("sidecar.telemetry")

CONSOLE: Final = "console"
GRPC: Final = "otlp_proto_grpc"
_HTTP: Final = "otlp_proto_http"


def foreign(signal: Signal, name: str, environ: Mapping[str, str]) -> str:
    """The exporter of the SDK's that a name of ``OTEL_*_EXPORTER`` means; empty where it means
    OTLP over HTTP, which is our own.

    Raises:
        SettingError: OTLP in a protocol that nobody here speaks.
    """
    if name == "otlp":
        name = GRPC if settings.protocol(signal, environ) == settings.GRPC else _HTTP
    return "" if name == _HTTP else name


def load(signal: Signal, name: str) -> Callable[[], object]:
    """What an entry point ``opentelemetry_SIGNAL_exporter`` gives: the exporter's class.

    Raises:
        SettingError: there is none, or it cannot be imported.
    """
    variable, group = f"OTEL_{signal.upper()}_EXPORTER", f"opentelemetry_{signal}_exporter"
    found = next(iter(entry_points(group=group, name=name)), None)
    if found is None:
        hint = "; install mcp-sidecar[grpc]" if name == GRPC else ""
        raise SettingError(variable, f"no exporter {name!r} is installed ({group}){hint}")
    try:
        made: Callable[[], object] = found.load()
    except Exception as error:
        # Somebody else's code; the text may hold what the environment does.
        raise SettingError(variable, f"{name!r} cannot be used: {type(error).__name__}") from error
    return made


def made(signal: Signal, name: str, make: Callable[[], object]) -> object:
    """An exporter. Raises SettingError."""
    try:
        return make()
    except Exception as error:
        # As above.
        why = f"{name!r} cannot be used: {type(error).__name__}"
        raise SettingError(f"OTEL_{signal.upper()}_EXPORTER", why) from error


class Apart:
    """Runs an exporter in threads that nothing waits for: it may take its time, and must not keep
    the process from ending. One thing at a time."""

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self._busy = False

    async def run(self, work: Callable[[], bool], timeout: float) -> Sent:
        """Never raises. ``work`` says whether it was done. When it takes longer than so many
        seconds, it goes on without us."""
        if self._busy:
            return Sent("it is still busy with what it was given before", again=True)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sent] = loop.create_future()

        def tell(sent: Sent) -> None:
            self._busy = False
            if not done.done():
                done.set_result(sent)

        def run() -> None:
            sent = self._tried(work)
            with contextlib.suppress(RuntimeError):
                # The loop may have ended meanwhile.
                loop.call_soon_threadsafe(tell, sent)

        self._busy = True
        Thread(target=run, name=f"exporter {self.name}", daemon=True).start()
        try:
            return await asyncio.wait_for(done, max(timeout, 0.001))
        except TimeoutError:
            return Sent("it does not answer in time")

    def _tried(self, work: Callable[[], bool]) -> Sent:
        try:
            return Sent() if work() else Sent("the exporter gave up")
        except Exception as error:
            # Somebody else's code: whatever it raises, what comes next is tried anew.
            log.exception("the exporter %s failed", self.name)
            return Sent(f"the exporter failed ({type(error).__name__})")
