"""What the tests of pods share: a sidecar whose files are mounted, and calls at a steady rate."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.kit.running import Sidecar, with_defaults
from tests.pod.kubelet import Volume

NOTES: dict[str, Any] = {
    "command": [sys.executable, "-m", "sidecar.demo.notes"],
    "gated": False,
    "trusted": True,
}
LONG = os.environ.get("SIDECAR_POD_LONG") == "1"
"""500 calls a second, and what is measured is held to it. Without, the same
at what a busy machine can do."""
RATE = float(os.environ.get("SIDECAR_POD_RATE", "500" if LONG else "100"))
"""Calls a second."""
SECONDS = float(os.environ.get("SIDECAR_POD_SECONDS", "10" if LONG else "1"))
"""For which they come, before and after what happens."""
MOST = 256
"""Calls at once; a machine that is slower makes fewer of them."""


def allowing(*, forbidden: str = "") -> str:
    """A policy that denies searches for a word."""
    rule = {
        "id": "word",
        "on": "call",
        "effect": "deny",
        "when": f"has(args.query) && args.query == {forbidden!r}",
        "message": '"not this word"',
    }
    return yaml.safe_dump(
        {
            "apiVersion": "sidecar/v1",
            "kind": "Policy",
            "name": "words",
            "match": {"server": "notes"},
            "rules": [rule],
        }
    )


@dataclass
class Load:
    """Calls at a steady rate: when each ended (loop's clock), and what went wrong."""

    rate: float
    took: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        took = sorted(self.took) or [0.0]
        return (
            f"{len(self.took)} calls in {self.seconds:.1f} s "
            f"({len(self.took) / max(self.seconds, 1e-9):.0f}/s of {self.rate:.0f}/s, "
            f"{self.skipped} too many at once), {len(self.failed)} failed, "
            f"p50 {took[len(took) // 2] * 1e3:.0f} ms, max {took[-1] * 1e3:.0f} ms"
        )


@contextlib.asynccontextmanager
async def loaded(call: Callable[[], Awaitable[object]], rate: float = RATE) -> AsyncIterator[Load]:
    """``call`` again and again; whatever it raises is a failed call."""
    load = Load(rate)
    running: set[asyncio.Task[None]] = set()

    async def one() -> None:
        began = time.monotonic()
        try:
            await call()
        except Exception as error:  # noqa: BLE001  any failure is what is counted
            load.failed.append(f"{type(error).__name__}: {error}")
        load.took.append(time.monotonic() - began)

    async def go() -> None:
        began = time.monotonic()
        due = 0
        while True:
            due = int((time.monotonic() - began) * rate) - load.skipped - len(load.took)
            for _ in range(due - len(running)):
                if len(running) >= MOST:
                    load.skipped += 1
                    continue
                task = asyncio.create_task(one())
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(min(0.01, 1 / rate))

    began = time.monotonic()
    going = asyncio.create_task(go())
    try:
        yield load
    finally:
        going.cancel()
        await asyncio.gather(going, return_exceptions=True)
        if running:
            await asyncio.wait(running, timeout=60)
        load.seconds = time.monotonic() - began


@contextlib.asynccontextmanager
async def mounted(
    folder: Path, config: dict[str, Any], env: dict[str, str] | None = None
) -> AsyncIterator[tuple[Sidecar, Callable[[dict[str, Any]], None]]]:
    """A sidecar whose sidecar.yaml is in a ConfigMap below ``folder``, and what swaps that."""
    sidecar = Sidecar({}, env=env)

    def text(config: dict[str, Any]) -> dict[str, str]:
        whole = with_defaults(config, sidecar.folder)
        return {"sidecar.yaml": yaml.safe_dump(whole, sort_keys=False)}

    volume = Volume(folder / "config", text(config))
    sidecar.file = volume / "sidecar.yaml"
    try:
        await asyncio.to_thread(sidecar.start)
        yield sidecar, lambda config: volume.swap(text(config))
        if sidecar.running:
            await asyncio.to_thread(sidecar.stop)
    except BaseException:
        print(sidecar.log(), file=sys.stderr)
        raise
    finally:
        await asyncio.to_thread(sidecar.kill)
