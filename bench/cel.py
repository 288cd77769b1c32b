"""What CEL rules cost: ``python -m bench.cel``. CPU time, the best and the median of rounds.

Numbers are of one machine at one time; compare the ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from sidecar.policy.cel import OPEN, Budget, Program, compile_text, new_frame, parse
from sidecar.policy.cel.celpy_reference import CelpyEngine
from sidecar.policy.cel.lint import lint
from sidecar.policy.cel.specialise import specialised

ROUNDS = 15
SECONDS = 0.02

TOOL = {
    "name": "delete_repo",
    "server": "github",
    "annotations": {"read_only": False, "destructive": True},
    "hints": {"read_only": False, "destructive": True, "idempotent": False, "open_world": True},
    "gated": True,
}
INPUT: dict[str, Any] = {
    "tool": TOOL,
    "args": {
        "owner": "acme",
        "repo": "infra",
        "force": True,
        "count": 5,
        "url": "https://api.example.com/x",
        "paths": [f"/srv/data/file{i}.txt" for i in range(100)],
    },
    "session": {"labels": ["outside", "x"], "trust": 2},
    "agent": {"principal": "triage"},
}
RULES = {
    "one field": "tool.annotations.read_only",
    "two conditions": 'tool.server == "github" && tool.name.startsWith("delete_")',
    "ten conditions": (
        'tool.server == "github" && tool.name.startsWith("delete_") && !tool.hints.read_only'
        ' && args.owner == "acme" && args.repo in ["infra", "billing"] && args.force'
        ' && args.count > 3 && "outside" in session.labels && session.trust <= 2'
        ' && args.url.contains("example")'
    ),
    "exists over 100": 'args.paths.exists(p, p.endsWith("/file99.txt"))',
    "labels and a pattern": (
        '"outside" in session.labels && !tool.hints.read_only'
        ' && args.url.matches("^https://[^/]*[.]example[.]com/")'
    ),
}
SERVERS = ("github", "slack", "files", "db", "jira")


def measured(call: Callable[[], object]) -> tuple[float, float]:
    """Microseconds of CPU for one call: the best and the median round."""
    count = 1
    while True:
        before = time.process_time()
        for _ in range(count):
            call()
        if (spent := time.process_time() - before) > SECONDS / 4:
            break
        count *= 4
    count = max(1, int(count * SECONDS / spent))
    rounds = []
    for _ in range(ROUNDS):
        before = time.process_time()
        for _ in range(count):
            call()
        rounds.append((time.process_time() - before) / count * 1e6)
    return min(rounds), statistics.median(rounds)


def show(what: str, call: Callable[[], object], budget: str = "") -> None:
    best, median = measured(call)
    print(f"{what:52s} {best:9.2f} {median:9.2f}  {budget}")


def fifty() -> list[str]:
    """Fifty rules of the kinds above, each for one of five servers."""
    kinds = list(RULES.values())
    return [
        f'tool.server == "{SERVERS[i % 5]}" && args.count > {i % 7} && ({kinds[i // 5 % 5]})'
        for i in range(50)
    ]


def run_all(programs: list[Program], given: dict[str, Any]) -> None:
    frame = new_frame(given, Budget(10**6))
    for program in programs:
        program.test(frame)


def first_parse() -> None:
    """Milliseconds of CPU to import the engine and to parse for the first time, once each."""
    code = (
        "import time; a = time.process_time(); import sidecar.policy.cel as c;"
        "b = time.process_time(); c.parse('a'); d = time.process_time();"
        "print(f'{(b - a) * 1e3:.0f} {(d - b) * 1e3:.0f}')"
    )
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(5)
    ]
    pairs = [tuple(map(int, result.stdout.split())) for result in found]
    print(f"{'import of the engine, ms':52s} {min(p[0] for p in pairs):9d}")
    print(f"{'first parse, ms':52s} {min(p[1] for p in pairs):9d}")


def main() -> None:
    print(f"{'µs of CPU':52s} {'best':>9s} {'median':>9s}  budget")
    frame = new_frame(INPUT, Budget(10**12))
    for name, text in RULES.items():
        program = compile_text(text)
        budget = "5" if name == "ten conditions" else ""
        show(f"rule: {name}", lambda program=program: program.test(frame), budget)
    ten = RULES["ten conditions"]
    celpy = CelpyEngine().compile(ten)
    show("the same ten conditions in cel-python", lambda: celpy(INPUT))

    general = [compile_text(text) for text in fifty()]
    env = specialised(OPEN, {"tool": TOOL})
    special = [program.specialise({"tool": TOOL}, env) for program in general]
    left = [program for program in special if not program.constant]
    show("fifty rules, general", lambda: run_all(general, INPUT))
    show("fifty rules, specialised", lambda: run_all(special, INPUT), "50")
    show(f"  only the {len(left)} that are not decided", lambda: run_all(left, INPUT), "50")
    show("a frame", lambda: new_frame(INPUT))

    tree = parse(ten)
    program = compile_text(ten)
    show("parse ten conditions", lambda: parse(ten))
    show("parse, fold and compile them", lambda: compile_text(ten))
    show("lint them", lambda: lint(tree, OPEN))
    show("specialise them", lambda: program.specialise({"tool": TOOL}))
    show("explain them", lambda: program.explain(INPUT))
    first_parse()


if __name__ == "__main__":
    main()
