"""Tables: ratios to direct of the same round, medians over rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.extras import Measured
from bench.load import Slice

HEAD = ("target", "at once", "calls/s", "× direct", "p50 ms", "p99 ms", "CPU ms/call", "errors")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, as Markdown."""
    widths = [max(len(row[n]) for row in [head, *rows]) for n in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
        return "| " + " | ".join(padded) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([line(head), rule, *(line(row) for row in rows)])


def summary(slices: Sequence[Slice], direct: Sequence[Slice]) -> dict[str, float]:
    """The medians of one target at one concurrency."""

    def median(values: Iterable[float]) -> float:
        found = list(values)
        return statistics.median(found) if found else 0.0

    worked = [(s, d) for s, d in zip(slices, direct, strict=True) if s.calls and d.calls]
    return {
        "rate": median(s.rate for s, _ in worked),
        "ratio": median(s.rate / d.rate for s, d in worked),
        "p50_ms": median(s.quantile(0.5) for s, _ in worked) * 1e3,
        "p99_ms": median(s.quantile(0.99) for s, _ in worked) * 1e3,
        "cpu_ms": median(s.cpu / s.calls for s, _ in worked) * 1e3,
        "calls": sum(s.calls for s in slices),
        "errors": sum(len(s.errors) for s in slices),
    }


def load(summaries: Mapping[tuple[str, int], dict[str, float]], order: Sequence[str]) -> str:
    rows = []
    # Slices came in any order; targets stand as they were started.
    for (name, at_once), found in sorted(
        summaries.items(), key=lambda item: (item[0][1], order.index(item[0][0]))
    ):
        rows.append(
            (
                name,
                str(at_once),
                f"{found['rate']:,.0f}",
                f"{found['ratio']:.3f}",
                f"{found['p50_ms']:.2f}",
                f"{found['p99_ms']:.2f}",
                "" if name == "direct" else f"{found['cpu_ms']:.3f}",
                f"{found['errors']:.0f}",
            )
        )
    return table(HEAD, rows)


def budgets(slices: Mapping[tuple[str, int], Sequence[Slice]]) -> str:
    """The budgets that compare targets, where both were measured: ratios within each round."""
    rows: list[tuple[str, str, str]] = []

    def ratio(what: str, over: str, under: str, of: Callable[[Slice], float], budget: str) -> None:
        top, bottom = slices.get((over, 32), ()), slices.get((under, 32), ())
        found = [of(a) / of(b) for a, b in zip(top, bottom, strict=False) if of(b)]
        if found:
            spread = f"{min(found):.2f}–{max(found):.2f}"
            rows.append((what, f"{statistics.median(found):.2f} × ({spread})", budget))

    def rate(measured: Slice) -> float:
        return measured.rate

    def cpu(measured: Slice) -> float:
        return measured.cpu / max(1, measured.calls)

    ratio("calls/s at 32, sidecar to direct", "sidecar", "direct", rate, "≥ 0.30 ×")
    ratio("calls/s at 32, byte copy to direct", "floor", "direct", rate, "")
    ratio("calls/s at 32, sidecar to FastMCP's proxy", "sidecar", "fastmcp", rate, "≥ 8 ×")
    ratio("CPU a call at 32, sidecar to the byte copy", "sidecar", "floor", cpu, "≤ 2.5 ×")
    return table(("what", "measured", "budget"), rows)


def extras(measured: Sequence[Measured]) -> str:
    return table(("what", "measured", "budget"), [(m.what, m.value, m.budget) for m in measured])


def as_json(
    summaries: Mapping[tuple[str, int], dict[str, float]],
    about: Mapping[str, Any],
    measured: Sequence[Measured],
) -> dict[str, Any]:
    return {
        "about": dict(about),
        "load": [{"target": n, "at_once": c, **found} for (n, c), found in summaries.items()],
        "extras": [{"what": m.what, "value": m.value, "budget": m.budget} for m in measured],
    }
