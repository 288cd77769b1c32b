"""What a coding agent costs through ours: `python -m bench.agents`.

A scripted agent (no model) is read once by a plain reader of lines, which is the agent direct, and
once through `Agent`; the same updates also go through the machine alone, from memory. Beside it
stands the real Claude adapter on a fake model, where it is installed (`make peers`).
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

from sidecar.harness.agent import Agent, AgentSpec
from sidecar.harness.session import Bounds, Session
from tests.harness.agent import real
from tests.harness.agent.kit import LIMITS, PROFILE, Ear, command, script
from tests.peers import fakemodel, peers

UPDATES = 100_000
TEXT = "a piece of what a model says "
ROUNDS = 5
WORKS = 20


class Counter(Ear):
    """Counts and keeps nothing."""

    first = 0.0
    count = 0

    def update(self, update: object) -> None:
        self.count += 1
        if not self.first and getattr(update, "text", ""):
            self.first = time.perf_counter()


def machine() -> float:
    """Updates a second through the machine alone."""
    session = Session(PROFILE, Bounds())
    new = session.call("session/new", {})
    result = {"sessionId": "s", "modes": {"currentModeId": "default"}}
    list(
        session.receive(
            json.dumps({"jsonrpc": "2.0", "id": new, "result": result}).encode() + b"\n"
        )
    )
    session.opened()
    session.prompt([], {})
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": TEXT}}
    params = {"sessionId": "s", "update": update}
    line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params}) + "\n"
    block = line.encode() * 500
    begun = time.perf_counter()
    for _ in range(UPDATES // 500):
        for _effect in session.receive(block):
            pass
    return UPDATES / (time.perf_counter() - begun)


async def direct() -> tuple[float, float]:
    """Updates a second, and seconds to the first one, of the agent with a plain reader."""
    process = await asyncio.create_subprocess_exec(
        *command(mode="default"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    async def ask(id_: int, method: str, params: dict[str, object]) -> dict[str, object]:
        assert process.stdin is not None
        assert process.stdout is not None
        message = {"jsonrpc": "2.0", "id": id_, "method": method, "params": params}
        process.stdin.write(json.dumps(message).encode() + b"\n")
        while True:
            read: dict[str, object] = json.loads(await process.stdout.readline())
            if read.get("id") == id_:
                return read

    await ask(1, "initialize", {"protocolVersion": 1})
    opened = await ask(2, "session/new", {"cwd": "/", "mcpServers": []})
    session = opened["result"]["sessionId"]  # type: ignore[index]
    text = script({"flood": UPDATES, "text": TEXT})
    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
    message = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": prompt}
    begun = time.perf_counter()
    process.stdin.write(json.dumps(message).encode() + b"\n")
    first = 0.0
    while line := await process.stdout.readline():
        first = first or time.perf_counter()
        if b'"id": 3' in line:
            break
    rate = UPDATES / (time.perf_counter() - begun)
    process.stdin.close()
    await process.wait()
    return rate, first - begun


async def through(cwd: Path) -> tuple[float, float]:
    """The same through `Agent`; the drain after the turn is left out."""
    ear = Counter()
    spec = AgentSpec("bench", PROFILE, command(), cwd, limits=LIMITS)
    agent = await Agent.start(spec, ear)
    try:
        await agent.open(None)
        begun = time.perf_counter()
        await agent.prompt(script({"flood": UPDATES, "text": TEXT}))
        took = time.perf_counter() - begun - PROFILE.drain
        return UPDATES / took, ear.first - begun
    finally:
        await agent.stop()


async def memory(cwd: Path) -> float:
    """KiB of ours for each work whose agent is idle."""
    spec = AgentSpec("bench", PROFILE, command(), cwd, limits=LIMITS)
    agents: list[Agent] = []
    try:
        for number in range(WORKS + 5):
            if number == 5:  # what is loaded once is not counted
                before = _resident()
            agents.append(await Agent.start(spec, Ear()))
            await agents[-1].open(None)
            await agents[-1].prompt("hello")
        return (_resident() - before) / WORKS
    finally:
        await asyncio.gather(*(agent.stop() for agent in agents))


async def claude(cwd: Path) -> dict[str, float]:
    """The real adapter: seconds and MiB."""
    async with fakemodel.serving() as model:
        ear = Counter()
        spec = real.spec("claude", cwd / "home", cwd / "work", model)
        times = [time.perf_counter()]
        agent = await Agent.start(spec, ear)
        try:
            times.append(time.perf_counter())
            await agent.open(None)
            times.append(time.perf_counter())
            await agent.prompt(fakemodel.script({"text": "hello"}))
            held = agent.memory() / (1 << 20)
        finally:
            ended = time.perf_counter()
            await agent.stop()
        return {
            "initialize": times[1] - times[0],
            "session": times[2] - times[1],
            "first update": ear.first - times[2],
            "stop": time.perf_counter() - ended,
            "MiB": held,
        }


def _resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.3f} ({min(values):,.3f} to {max(values):,.3f})"


async def main() -> None:
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {UPDATES:,} updates a round")
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        cwd = Path(folder)
        idle = await memory(cwd)  # before anything large was held and freed
        for _ in range(ROUNDS):
            rounds.append((machine(), await direct(), await through(cwd)))
        print("updates/s, machine alone  ", _middle([m for m, _, _ in rounds]))
        print("updates/s, agent direct   ", _middle([d[0] for _, d, _ in rounds]))
        print("updates/s, through Agent  ", _middle([t[0] for _, _, t in rounds]))
        print("through, of direct        ", _middle([t[0] / d[0] for _, d, t in rounds]))
        print("first update s, direct    ", _middle([d[1] for _, d, _ in rounds]))
        print("first update s, through   ", _middle([t[1] for _, _, t in rounds]))
        print("KiB of ours an idle agent ", f"{idle:,.0f}")
        if not peers.why_no_agent("claude"):
            seen = [await claude(Path(folder, f"claude{n}")) for n in range(ROUNDS)]
            for what in seen[0]:
                print(f"claude, {what:<18}", _middle([each[what] for each in seen]))


if __name__ == "__main__":
    asyncio.run(main())
