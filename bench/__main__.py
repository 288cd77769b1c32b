"""``python -m bench``: every target in one run, in interleaved slices, as ratios to direct."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import uvloop

from bench import report
from bench.extras import EXTRAS as ALONE
from bench.extras import Measured
from bench.load import CallFailed, Slice, run_slice
from bench.targets import Target, fastmcp, floor, sidecar, upstream
from bench.tracing import tracing
from tests.kit import processes
from tests.peers import peers

AT_ONCE = (1, 32)
EXTRAS = {**ALONE, "tracing": tracing}
MESSAGE = "x" * 64
STDIO: dict[str, object] = {
    "command": [sys.executable, "-m", "bench.upstream", "--stdio"],
    "cwd": str(Path(__file__).resolve().parent.parent),
}

Open = Callable[[Target], contextlib.AbstractContextManager[Target]]
TARGETS: dict[str, Open] = {
    "floor": floor,
    "sidecar": lambda direct: sidecar("sidecar", {"up": {"url": direct.url}}, "legacy"),
    "sidecar-modern": lambda direct: sidecar(
        "sidecar-modern", {"up": {"url": direct.url}}, "modern"
    ),
    "sidecar-stdio": lambda direct: sidecar("sidecar-stdio", {"up": STDIO}, "legacy"),
    "fastmcp": fastmcp,
}


@contextlib.contextmanager
def opened(names: list[str]) -> Iterator[list[Target]]:
    """Direct and the named targets, all up at once."""
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(upstream())
        found = [direct]
        for name in names:
            if name == "fastmcp" and (why := peers.why_missing("fastmcp-new")):
                print(f"fastmcp is left out: {why}")
                continue
            target = stack.enter_context(TARGETS[name](direct))
            memory = processes.memory(target.pids()) / (1 << 20)
            print(f"{name}: up after {target.start:.2f} s, {memory:.0f} MiB PSS", flush=True)
            found.append(target)
        yield found


def measure(
    targets: list[Target], rounds: int, seconds: float
) -> dict[tuple[str, int], list[Slice]]:
    """Rounds of one slice for each target and concurrency, in another order each."""
    slices: dict[tuple[str, int], list[Slice]] = {}
    jobs = [(target, at_once) for target in targets for at_once in AT_ONCE]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for number in range(rounds):
            random.shuffle(jobs)
            for target, at_once in jobs:
                before = processes.cpu_seconds(target.pids())
                arguments = {"message": MESSAGE}
                work = run_slice(
                    target.url,
                    target.era,
                    target.tool,
                    arguments,
                    at_once=at_once,
                    seconds=seconds,
                )
                try:
                    measured = runner.run(work)
                except (aiohttp.ClientError, CallFailed) as failed:
                    print(f"{target.name} does not answer: {failed}", flush=True)
                    measured = Slice(seconds, errors=[repr(failed)])
                measured.cpu = processes.cpu_seconds(target.pids()) - before
                slices.setdefault((target.name, at_once), []).append(measured)
            print(f"round {number + 1} of {rounds} is done", flush=True)
    return slices


def names_of(only: str | None) -> tuple[list[str], list[str]]:
    """Which targets and which extras were asked for."""
    if only is None:
        return list(TARGETS), list(EXTRAS)
    wanted = only.split(",")
    unknown = [name for name in wanted if name not in TARGETS and name not in EXTRAS]
    if unknown:
        sys.exit(
            f"no such target: {', '.join(unknown)} (there are {', '.join([*TARGETS, *EXTRAS])})"
        )
    return [n for n in TARGETS if n in wanted], [n for n in EXTRAS if n in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of slices (default 5)")
    parser.add_argument("--slice", type=float, default=3.0, help="seconds a slice (default 3)")
    parser.add_argument("--only", help=f"some of {', '.join([*TARGETS, *EXTRAS])}")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    names, extra_names = names_of(options.only)

    about = {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rounds": options.rounds,
        "slice_seconds": options.slice,
        "load_average_before": os.getloadavg()[0],
    }
    print(" ".join(f"{key}={value}" for key, value in about.items()), flush=True)
    measured: list[Measured] = []
    summaries: dict[tuple[str, int], dict[str, float]] = {}
    with opened(names) as targets:
        if names:
            slices = measure(targets, options.rounds, options.slice)
            for (name, at_once), found in slices.items():
                summaries[name, at_once] = report.summary(found, slices["direct", at_once])
            order = [target.name for target in targets]
            print(f"\n{report.load(summaries, order)}\n\n{report.budgets(slices)}")
    if extra_names:
        with upstream() as alone:
            for name in extra_names:
                for figure in EXTRAS[name](alone):
                    measured.append(figure)
                    print(f"{figure.what}: {figure.value}", flush=True)
        print(f"\n{report.extras(measured)}")
    about["load_average_after"] = os.getloadavg()[0]
    if options.json:
        figures = report.as_json(summaries, about, measured)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
