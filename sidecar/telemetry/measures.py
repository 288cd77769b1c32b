"""All there is of metrics, as the app holds it: the page, the exporter, and who is asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from sidecar import __version__
from sidecar.events import Bus
from sidecar.model import ServerStatus, State
from sidecar.ports.store import Store
from sidecar.semconv import Key, Label, Mcp, Metric
from sidecar.telemetry import metrics_system
from sidecar.telemetry.environ import text
from sidecar.telemetry.metrics import SHORT, Gauged, Registry, by
from sidecar.telemetry.metrics_events import Meters
from sidecar.telemetry.metrics_store import MeasuredStore
from sidecar.telemetry.otlp.batches import Batches
from sidecar.telemetry.prometheus import Page
from sidecar.telemetry.resource import INSTANCE, said
from sidecar.telemetry.traces import exporters

if TYPE_CHECKING:
    from sidecar.telemetry.metrics_export import MetricsExport

T = TypeVar("T")

PROMETHEUS: Final = "prometheus"
"""An exporter that is always there: the page ``/metrics`` of the health listener."""
_STATES: Final = ("waiting", "approved", "taken")


class Measures:
    """``start`` inside the loop, ``close`` at the end of it."""

    def __init__(self, name: str, bus: Bus, environ: Mapping[str, str]) -> None:
        """``name`` is the service's where the environment says no other.

        Raises:
            SettingError: the environment asks for what cannot be had.
        """
        self.registry: Final = Registry()
        # Of a span that is not kept there is nothing to be led to: always_on is trace_based.
        exemplars = text("OTEL_METRICS_EXEMPLAR_FILTER", environ).lower() != "always_off"
        self._meters = Meters(self.registry, bus, exemplars=exemplars)
        self._stored = self.registry.histogram(
            Metric.STORE,
            "s",
            "How long the store took.",
            (Label.STORE_OPERATION, Mcp.ERROR_TYPE),
            bounds=SHORT,
        )
        self._queues: dict[str, list[Callable[[], int]]] = {}
        self._losses: dict[str, list[Callable[[], int]]] = {}
        queue = (Label.QUEUE,)
        self.registry.gauge(
            Metric.QUEUE,
            "{item}",
            "What waits in a queue.",
            queue,
            ask=lambda: _sums(self._queues),
        )
        self.registry.counted(
            Metric.LOST,
            "{item}",
            "What was lost because a queue was full, or nobody took it.",
            queue,
            ask=lambda: _sums(self._losses),
        )
        self._lag = metrics_system.Lag(self.registry)
        metrics_system.observe(self.registry)
        self.page: Final = Page(self.registry, _target(name, environ))
        self._exports = _exports(self.registry, name, environ)

    def store(self, store: Store) -> Store:
        """The same, measured."""
        measured = MeasuredStore(store, self._stored)
        self._queues["store"] = [lambda: measured.running]
        return measured

    def queue(self, name: str, depth: Callable[[], int], lost: Callable[[], int]) -> None:
        """A queue: how much waits in it now, and how much was lost so far. Several of one name
        are told together."""
        self._queues.setdefault(name, []).append(depth)
        self._losses.setdefault(name, []).append(lost)

    def batches(self, name: str, batches: Batches[T]) -> None:
        """The queue of an exporter."""
        counts = batches.counts
        self.queue(name, lambda: len(batches), lambda: counts.dropped + counts.failed)

    def servers(self, ask: Callable[[], Iterable[ServerStatus]]) -> None:
        """Who tells the state of every server."""

        def states() -> Gauged:
            found = Counter({state.value: 0 for state in State})
            found.update(each.state.value for each in ask())
            return by(found)

        self.registry.gauge(
            Metric.SERVERS, "{server}", "Servers by their state.", (Key.STATE,), ask=states
        )
        self.registry.gauge(
            Metric.SERVER_UP,
            "1",
            "Whether a server is ready: 1 or 0.",
            (Key.SERVER,),
            ask=lambda: by({each.name: int(each.state is State.READY) for each in ask()}),
        )

    def parked(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Who tells how many parked calls are in each state."""

        def states() -> Gauged:
            found = counts()
            return by({state: found.get(state, 0) for state in _STATES})

        self.registry.gauge(
            Metric.APPROVALS,
            "{call}",
            "Parked calls: waiting for a person, approved, running.",
            (Key.APPROVAL_STATE,),
            ask=states,
        )

    def forget(self, server: str) -> None:
        """A server is gone for good."""
        self._meters.forget(server)

    async def start(self) -> None:
        """Begin to look at the loop, and to export. Raises SettingError."""
        self._lag.start()
        for export in self._exports:
            await export.start()

    async def close(self) -> None:
        """Export what is left; bounded. Idempotent."""
        self._meters.close()
        await self._lag.close()
        await asyncio.gather(*(export.close() for export in self._exports))


def _sums(asked: Mapping[str, Iterable[Callable[[], int]]]) -> Gauged:
    return by({name: sum(each() for each in found) for name, found in asked.items()})


def _target(name: str, environ: Mapping[str, str]) -> Mapping[str, object]:
    """Who tells, for the page. What only the SDK can detect is in OTLP alone: the page must not
    cost its megabytes."""
    named = said(environ)
    own = text("OTEL_SERVICE_NAME", environ)
    return {
        "service.name": own or named.get("service.name", name),
        "service.version": __version__,
        "service.instance.id": INSTANCE,
    } | {key: value for key, value in named.items() if key != "service.name"}


def _exports(
    registry: Registry, name: str, environ: Mapping[str, str]
) -> tuple[MetricsExport, ...]:
    """One for each exporter. Raises SettingError."""
    wanted = [each for each in exporters("metrics", environ) if each != PROMETHEUS]
    if not wanted:
        return ()
    # Imported where telemetry is on: it costs megabytes.
    from sidecar.telemetry.apart import foreign
    from sidecar.telemetry.metrics_export import MetricsExport, way

    return tuple(
        MetricsExport(registry, way(foreign("metrics", each, environ), name, environ), environ)
        for each in wanted
    )
