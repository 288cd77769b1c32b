"""What tracing costs: one sidecar without it beside others, measured in turns.

Each is a whole sidecar with metrics and logs as they are by default. Figures are medians over
rounds of what one has against the one without tracing in the same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Iterator

import uvloop

from bench.extras import Measured, rss
from bench.load import Slice, run_slice
from bench.targets import Target, free_port, sidecar, sidecar_of, sink
from tests.kit import processes

ROUNDS, SECONDS, AT_ONCE, STARTS = 9, 2.0, 8, 5
MIB = 1 << 20
OFF = "off"


def _ways(port: int) -> dict[str, dict[str, str]]:
    """How each is told what to do."""
    only = {"OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}

    def to(port: int, share: str) -> dict[str, str]:
        return {
            **only,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
            "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": share,
        }

    return {
        OFF: only,
        "1 %": to(port, "0.01"),
        "100 %": to(port, "1"),
        "100 %, nobody listens": to(free_port(), "1"),
    }


def tracing(direct: Target) -> Iterator[Measured]:
    """CPU a call, calls and latency with tracing off, for some and for all, and to nobody."""
    up: dict[str, object] = {"url": direct.url}
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(sink())
        targets = [
            stack.enter_context(sidecar(name, {"up": up}, "modern", env))
            for name, env in _ways(port).items()
        ]
        memory = {target.name: rss(max(target.pids())) / MIB for target in targets}
        slices = _measure(targets)
        after = {target.name: rss(max(target.pids())) / MIB for target in targets}
    yield Measured("start to listening, without and with", _beside(_starts(up), "s", 2))
    yield Measured("memory of the worker after start", _beside(memory, "MiB", 0))
    yield Measured("memory of the worker after all of this", _beside(after, "MiB", 0))
    for name, found in slices.items():
        cpu = statistics.median(each.cpu / each.calls * 1e6 for each in found)
        value = f"{cpu:.0f} µs CPU a call"
        if name != OFF:
            value += "; to the one without: " + ", ".join(
                f"{what} {_ratio(found, slices[OFF], of)}"
                for what, of in (
                    ("CPU", lambda s: s.cpu / s.calls),
                    ("p50", lambda s: s.quantile(0.5)),
                    ("p99", lambda s: s.quantile(0.99)),
                )
            )
        yield Measured(f"tracing {name}", value)


def _starts(up: dict[str, object]) -> dict[str, float]:
    """The fastest of some starts: what is slower was held up by something else."""
    taken: dict[str, list[float]] = {}
    for _ in range(STARTS):
        for name, env in _ways(free_port()).items():
            if name in (OFF, "100 %"):
                with sidecar_of({"up": up}, env) as running:
                    taken.setdefault(name, []).append(running.took)
    return {name: min(found) for name, found in taken.items()}


def _measure(targets: list[Target]) -> dict[str, list[Slice]]:
    slices: dict[str, list[Slice]] = {target.name: [] for target in targets}
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number in range(ROUNDS + 1):
            for target in random.sample(targets, len(targets)):
                before = processes.cpu_seconds(target.pids())
                work = run_slice(
                    target.url,
                    target.era,
                    target.tool,
                    {"message": "x" * 64},
                    at_once=AT_ONCE,
                    seconds=SECONDS,
                )
                found = runner.run(work)
                found.cpu = processes.cpu_seconds(target.pids()) - before
                assert not found.errors, found.errors[:3]
                if number:
                    # The first round warms.
                    slices[target.name].append(found)
                time.sleep(0.1)
    return slices


def _beside(figures: dict[str, float], unit: str, digits: int) -> str:
    off = figures[OFF]
    return f"{off:.{digits}f} and {figures['100 %']:.{digits}f} {unit}"


def _ratio(found: list[Slice], off: list[Slice], of: object) -> str:
    assert callable(of)
    ratios = [of(one) / of(other) for one, other in zip(found, off, strict=True)]
    return f"{statistics.median(ratios):.2f} × ({min(ratios):.2f}–{max(ratios):.2f})"
