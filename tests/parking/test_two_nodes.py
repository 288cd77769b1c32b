"""Two real sidecars on one PostgreSQL: parked at one, answered at the other, run once."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest

from sidecar.admin import AdminClient
from sidecar.admin.client import Refused
from tests.kit.client import Modern
from tests.kit.postgres import Postgres
from tests.kit.postgres import postgres as running_postgres
from tests.kit.running import Sidecar, running
from tests.peers.postgres import MISSING, programs

pytestmark = [pytest.mark.skipif(programs() is None, reason=MISSING), pytest.mark.timeout(180)]

PATIENCE = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as postgres:
        yield postgres


class Node:
    """One sidecar, a person at it, and an agent."""

    def __init__(self, sidecar: Sidecar, http: aiohttp.ClientSession) -> None:
        self.admin = AdminClient(sidecar.admin)
        self.agent = Modern(http, sidecar.mcp)

    async def answer(self, id: str, *, approve: bool) -> str:
        """The state that the answer led to, or ``conflict``."""
        try:
            told = await asyncio.to_thread(self.admin.answer, id, approve=approve, why="")
        except Refused as refused:
            assert refused.reason == "conflict"
            return "conflict"
        return str(told["state"])

    async def call(self, text: str) -> dict[str, Any]:
        return await self.agent.call("notes__add", text=text)

    async def outcome(self, text: str) -> str:
        """What the agent is told in the end: it calls again for as long as the call waits."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            result = await self.call(text)
            if "sidecar/parked" not in result.get("_meta", {}):
                return str(result["content"][0]["text"])
        raise AssertionError("it waits on and on")

    async def waiting(self, *texts: str) -> dict[str, str]:
        """Ids by text, once all of these wait."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            rows = await asyncio.to_thread(self.admin.calls, "waiting")
            whole = [await asyncio.to_thread(self.admin.call, str(row["id"])) for row in rows]
            ids = {str(each["args"]["text"]): str(each["id"]) for each in whole}  # type: ignore[index]
            if ids.keys() >= set(texts):
                return {text: ids[text] for text in texts}
            await asyncio.sleep(0.05)
        raise AssertionError(f"{sorted(ids)} wait, not {texts}")

    async def ended(self, id: str) -> str:
        """The state of a call, once nothing follows any more."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            state = str((await asyncio.to_thread(self.admin.call, id))["state"])
            if state not in ("waiting", "approved", "taken"):
                return state
            await asyncio.sleep(0.05)
        raise AssertionError(state)

    async def noted(self) -> list[str]:
        """The texts that this node's server was given."""
        told = await self.agent.text("notes__search")
        return [line.split(". ", 1)[1] for line in told.splitlines() if ". " in line]


@pytest.fixture
async def nodes(server: Postgres) -> AsyncIterator[tuple[Node, Node]]:
    notes = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}
    config = {
        "servers": {"notes": notes},
        "store": server.url(),
        "policy": {"shipped": ["gating"]},
        "parking": {"hold": "1s", "rate": "1000/s", "max_waiting": 100},
    }
    async with (
        aiohttp.ClientSession() as http,
        running(config) as first,
        running(config) as second,
    ):
        one, two = Node(first, http), Node(second, http)
        for node in (one, two):
            await node.agent.until_listed("notes__add")
        yield one, two


async def noted_by(nodes: tuple[Node, Node]) -> list[str]:
    """All that has run, wherever."""
    return sorted([text for node in nodes for text in await node.noted()])


async def test_one_parks_the_other_answers_and_it_runs_once(nodes: tuple[Node, Node]) -> None:
    one, two = nodes
    # Held at one, approved at the other.
    held = asyncio.create_task(one.outcome("held"))
    id = (await two.waiting("held"))["held"]
    assert await two.answer(id, approve=True) == "approved"
    assert (await held).startswith("noted as number ")
    assert [await node.ended(id) for node in nodes] == ["done", "done"]

    # Answered after the poll answer, and then both are called at once: one ticket, one run.
    raced = [f"raced {n}" for n in range(5)]
    await asyncio.gather(*(one.call(text) for text in raced))
    ids = await two.waiting(*raced)
    for id in ids.values():
        assert await two.answer(id, approve=True) == "approved"
    told = await asyncio.gather(*(node.call(text) for text in raced for node in nodes))
    for pair in zip(told[::2], told[1::2], strict=True):
        # Whoever was second shares the result; or came when it had run, and asks anew.
        ran = [each["content"][0]["text"] for each in pair if not each.get("isError")]
        assert len(set(ran)) == 1
        assert all("sidecar/parked" in each["_meta"] for each in pair if each.get("isError"))
    assert await noted_by(nodes) == sorted(["held", *raced])

    # Denied at the node that does not hold it.
    held = asyncio.create_task(two.outcome("never"))
    ids = await one.waiting("never")
    assert await one.answer(ids["never"], approve=False) == "denied"
    assert (await held).startswith("denied by a person")
    assert await noted_by(nodes) == sorted(["held", *raced])


async def test_of_two_people_at_two_nodes_at_the_same_moment_one_wins(
    nodes: tuple[Node, Node],
) -> None:
    one, two = nodes
    texts = [f"both {n}" for n in range(12)]
    calls = [asyncio.create_task(nodes[n % 2].outcome(text)) for n, text in enumerate(texts)]
    ids = await one.waiting(*texts)
    assert await two.waiting(*texts) == ids

    async def both(n: int, id: str) -> tuple[str, str]:
        # Yes and no, yes and yes, no and yes, in turns.
        yes = [(True, False), (True, True), (False, True)][n % 3]
        answers = await asyncio.gather(
            one.answer(id, approve=yes[0]), two.answer(id, approve=yes[1])
        )
        return answers[0], answers[1]

    answers = await asyncio.gather(*(both(n, ids[text]) for n, text in enumerate(texts)))
    assert all(sorted(pair).count("conflict") == 1 for pair in answers), answers
    won = {
        text: next(a for a in pair if a != "conflict")
        for text, pair in zip(texts, answers, strict=True)
    }
    # Each agent is told what the one who won said, and what was approved has run, once.
    told = dict(zip(texts, await asyncio.gather(*calls), strict=True))
    approved = [text for text in texts if won[text] == "approved"]
    for text in texts:
        first = "noted as number " if won[text] == "approved" else "denied by a person"
        assert told[text].startswith(first), (text, won[text], told[text])
        state = "done" if won[text] == "approved" else "denied"
        assert [await node.ended(ids[text]) for node in nodes] == [state, state]
    assert [text for text in await noted_by(nodes) if text.startswith("both")] == sorted(approved)
    assert 4 <= len(approved) <= 12
