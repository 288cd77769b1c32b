"""The page that Prometheus reads: its text format (0.0.4), and OpenMetrics 1.0 for who asks.

Names are translated as OpenTelemetry's specification has it (Prometheus and OpenMetrics
compatibility): dots become underscores, a unit is a suffix, a counter ends in ``_total``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from sidecar.telemetry.metrics import Buckets, Counter, Histogram, Instrument, Observed, Registry

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_UNITS: Final = {"s": "seconds", "By": "bytes", "ms": "milliseconds", "1": ""}
_SLICE: Final = 200
"""Series that are written in one turn of the loop."""
_ACCEPTS: Final = re.compile(r"application/openmetrics-text(?:\s*;[^,]*)?")


def accepted(accept: str) -> bool:
    """Whether an ``Accept`` header asks for OpenMetrics."""
    found = _ACCEPTS.search(accept)
    return found is not None and not re.search(r"q=0(?:\.0*)?(?:\s*[;,]|\s*$)", found[0])


class Page:
    """Writes the page; one at a time, whoever asks meanwhile gets the same."""

    def __init__(self, registry: Registry, resource: Mapping[str, object]) -> None:
        """``resource`` becomes ``target_info``."""
        self._registry = registry
        self._resource = resource
        self._writing: dict[bool, asyncio.Task[bytes]] = {}

    async def answer(self, accept: str) -> tuple[bytes, str]:
        """The page for whoever sends this ``Accept`` header, and its media type."""
        if accepted(accept):
            return await self.read(True), OPEN_METRICS
        return await self.read(), TEXT

    async def read(self, open_metrics: bool = False) -> bytes:
        """The page of now. The loop has its turn in between."""
        task = self._writing.get(open_metrics)
        if task is None:
            task = asyncio.create_task(self._write(open_metrics), name="metrics page")
            self._writing[open_metrics] = task
            task.add_done_callback(lambda _: self._writing.pop(open_metrics, None))
        return await asyncio.shield(task)

    async def _write(self, open_metrics: bool) -> bytes:
        parts: list[str] = [*_target_info(self._resource, open_metrics)]
        for instrument in self._registry:
            lines = _family(instrument, open_metrics)
            for number, line in enumerate(lines, 1):
                parts.append(line)
                if number % (_SLICE * 16) == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        if open_metrics:
            parts.append("# EOF\n")
        return "".join(parts).encode("utf-8", "replace")


def name_of(instrument: Instrument) -> str:
    """The family's name, without ``_total``."""
    name = label(instrument.name)
    unit = _UNITS.get(instrument.unit, "")
    if unit and not name.endswith(unit):
        name = f"{name}_{unit}"
    return name


def label(key: str) -> str:
    """An attribute's key as a label's name."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", key)
    return f"_{name}" if name[:1].isdigit() else name


def _target_info(resource: Mapping[str, object], open_metrics: bool) -> Iterator[str]:
    kind, name = ("info", "target") if open_metrics else ("gauge", "target_info")
    yield f"# HELP {name} Who tells.\n# TYPE {name} {kind}\n"
    told = [(key, _text(value)) for key, value in resource.items()]
    yield f"target_info{_labels(told)} 1\n"


def _family(instrument: Instrument, open_metrics: bool) -> Iterator[str]:
    name = name_of(instrument)
    family = name
    if instrument.kind == "counter" and not open_metrics:
        family = f"{name}_total"
    about = instrument.about.replace("\\", "\\\\").replace("\n", "\\n")
    if open_metrics:
        about = about.replace('"', '\\"')
    yield f"# HELP {family} {about}\n# TYPE {family} {instrument.kind}\n"
    unit = _UNITS.get(instrument.unit, "")
    if open_metrics and unit:
        yield f"# UNIT {family} {unit}\n"
    if isinstance(instrument, Histogram):
        for values, series in list(instrument.series.items()):
            yield from _buckets(
                name, instrument, instrument.attributes(values), series, open_metrics
            )
    elif isinstance(instrument, Counter | Observed):
        end = "_total" if instrument.kind == "counter" else ""
        for values, number in instrument.read():
            yield f"{name}{end}{_labels(instrument.attributes(values))} {_number(number)}\n"


def _buckets(
    name: str,
    instrument: Histogram,
    attributes: list[tuple[str, str]],
    series: Buckets,
    open_metrics: bool,
) -> Iterator[str]:
    inside = _labels(attributes)[1:-1]
    start = f"{name}_bucket{{{inside}{',' if inside else ''}le="
    seen = 0
    counts = tuple(series.counts)
    for at, count in enumerate(counts):
        seen += count
        bound = _number(instrument.bounds[at]) if at < len(instrument.bounds) else "+Inf"
        line = f'{start}"{bound}"}} {seen}'
        exemplar = series.exemplars.get(at) if open_metrics else None
        if exemplar is not None:
            value, trace, span, when = exemplar
            line += f' # {{trace_id="{trace}",span_id="{span}"}} {_number(value)} {when:.3f}'
        yield line + "\n"
    labels = f"{{{inside}}}" if inside else ""
    yield f"{name}_count{labels} {seen}\n{name}_sum{labels} {_number(series.total)}\n"


def _labels(attributes: Sequence[tuple[str, str]]) -> str:
    if not attributes:
        return ""
    # Two keys that differ in what a label cannot have are one label: the last one's.
    found = {label(key): value for key, value in attributes}
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in found.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value)
    return str(value)


def _number(number: float) -> str:
    """Bounds have a point in both formats, as OpenMetrics wants them."""
    return repr(float(number)) if isinstance(number, float) else str(number)
