"""What a decision costs, through loaded files: ``python -m bench.policy``.

CPU time, the best of rounds. Numbers are of one machine at one time; compare the ratios.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sidecar.model import JsonObject, Phase
from sidecar.policy import load
from sidecar.policy.guard import Guarded
from sidecar.policy.inputs import known

ROUNDS = 15
SECONDS = 0.02

SERVER: JsonObject = {"name": "up", "transport": "stdio", "trusted": False, "runtime": False}
TOOL: JsonObject = {
    "name": "up__write",
    "server": "up",
    "upstream_name": "write",
    "kind": "mcp",
    "annotations": {},
    "hints": {"read_only": False, "destructive": True, "idempotent": False, "open_world": True},
    "gated": False,
    "gate_set": False,
    "digest": "d",
}
INPUT: JsonObject = {
    "agent": {"principal": "agent"},
    "session": {"id": "s", "labels": ["web"], "calls": 3},
    "server": SERVER,
    "call": {"id": "c", "method": "tools/call"},
    "args": {"path": "/tmp/x", "count": 3, "url": "https://api.example/x", "owner": "acme"},
    "tool": {**TOOL, "changed": False},
}
TEN = (
    'tool.server == "up" && tool.name.startsWith("up__") && !tool.hints.read_only'
    ' && args.owner == "acme" && args.count in [1, 2, 3] && args.path.startsWith("/tmp")'
    ' && "web" in session.labels && session.calls < 9 && agent.principal != "x"'
    ' && args.url.contains("evil")'
)
MIXED = (
    'args.path.startsWith("/etc{}")',
    "args.count > {}0",
    'tool.server == "s{}" && args.count > 1',
    '"label{}" in session.labels',
    "tool.hints.read_only && session.calls > {}",
)


def policy(conditions: list[str], name: str = "p", match: str = "") -> str:
    """A policy file with one deny rule a condition."""
    rules = "".join(
        f"  - {{id: r{i}, on: call, effect: deny, when: '{when}'}}\n"
        for i, when in enumerate(conditions)
    )
    return f"apiVersion: sidecar/v1\nkind: Policy\nname: {name}\n{match}rules:\n{rules}"


def best(call: Callable[[], object]) -> float:
    """Microseconds of one call."""
    count, found = 1, float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(count):
            call()
        spent = time.process_time() - began
        found = min(found, spent / count)
        if spent < SECONDS:
            count = max(count * 2, int(count * SECONDS / max(spent, 1e-6)))
    return found * 1e6


def measure(name: str, texts: Mapping[str, str]) -> None:
    """Print one row: loading, deciding with the whole policy, specialising, deciding after."""
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            (Path(folder) / file).write_text(text)
        began = time.process_time()
        whole = load([Path(folder)], shipped=())
        loading = (time.process_time() - began) * 1e3
    about = known(TOOL, SERVER)

    def special() -> Guarded:
        made = whole.specialise(about)
        made.decide(Phase.CALL, INPUT)
        return made

    began = time.process_time()
    one = special()
    once = (time.process_time() - began) * 1e3
    assert one.decide(Phase.CALL, INPUT).decision == "allow"
    generic = best(lambda: whole.decide(Phase.CALL, INPUT))
    after = best(lambda: one.decide(Phase.CALL, INPUT))
    print(f"| {name} | {loading:.0f} ms | {generic:.1f} µs | {once:.1f} ms | {after:.1f} µs |")


def main() -> None:
    """Print the table."""
    load()  # the parser's tables and the imports are no rule's cost
    print("| rules | loading | a decision | specialising, once a tool | a decision after |")
    print("|---|---|---|---|---|")
    measure("one with 10 conditions", {"p.yaml": policy([TEN])})
    mixed = [MIXED[i % len(MIXED)].format(i + 5) for i in range(50)]
    measure("50 of all kinds", {"p.yaml": policy(mixed)})
    for count in (1, 10, 100, 1000):
        guarded = [
            f'tool.server == "{"up" if i == 0 else f"s{i}"}" && args.count > 5'
            for i in range(count)
        ]
        measure(f"{count}, one applies, told by conditions", {"p.yaml": policy(guarded)})
    for count in (10, 100, 1000):
        size = max(count // 100, 1)
        files = {
            f"p{i}.yaml": policy(
                ["args.count > 5"] * size,
                f"p{i}",
                f"match: {{server: {'up' if i == 0 else f's{i}'}}}\n",
            )
            for i in range(count // size)
        }
        measure(f"{count} in {len(files)} files, those of one apply, told by match", files)


if __name__ == "__main__":
    main()
