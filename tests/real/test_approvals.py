"""Calls that wait for a person, by clients that none of us wrote: with elicitation and without."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import ElicitResult

from sidecar.admin.client import AdminClient
from tests.kit.running import ROOT, Sidecar, started
from tests.peers import peers
from tests.real.test_npm_client import CLIENTS, drive

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning"),
]
needs_node = pytest.mark.skipif(
    bool(peers.why_missing("node")), reason=str(peers.why_missing("node"))
)

MODES: list[Any] = ["legacy", "2026-07-28", "auto"]
PATIENCE = 30.0
Json = dict[str, Any]
APPROVE: Json = {"action": "accept", "content": {"decision": "approve", "reason": "fine"}}
DENY: Json = {"action": "accept", "content": {"decision": "deny", "reason": "not now"}}
DECLINE: Json = {"action": "decline"}
CANCEL: Json = {"action": "cancel"}


def gated(hold: str, elicit: bool) -> Json:
    notes = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}
    return {
        "servers": {"notes": notes},
        "policy": {"shipped": ["gating"]},
        "parking": {"hold": hold, "elicit": elicit, "rate": "1000/s"},
    }


@pytest.fixture(scope="module")
def asking() -> Iterator[Sidecar]:
    """It asks clients, and holds requests for longer than anybody here waits."""
    with started(gated("300s", elicit=True)) as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def brief() -> Iterator[Sidecar]:
    """It asks nobody, and soon tells who waits to call again."""
    with started(gated("300ms", elicit=False)) as sidecar:
        yield sidecar


def people(sidecar: Sidecar) -> AdminClient:
    return AdminClient(sidecar.admin)


async def record(sidecar: Sidecar, text: str, ready: Callable[[Json], object]) -> Json:
    """The parked call with this text, as soon as it is ``ready``."""
    admin, end = people(sidecar), time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for row in await asyncio.to_thread(admin.calls, None):
            if ready(row):
                whole = await asyncio.to_thread(admin.call, str(row["id"]))
                if whole["args"] == {"text": text}:
                    return dict(whole)
        await asyncio.sleep(0.05)
    raise AssertionError(f"no such call; {admin.calls(None)}")


async def answered(sidecar: Sidecar, text: str, *, approve: bool = True) -> None:
    """A person answers the call with this text as soon as it waits, and polled if it is brief."""
    row = await record(sidecar, text, lambda row: row["state"] == "waiting")
    ask = people(sidecar).answer
    await asyncio.to_thread(ask, str(row["id"]), approve=approve, why="by a person")


async def polled(sidecar: Sidecar, text: str) -> None:
    """The same, once its client has been told to call again."""
    row = await record(sidecar, text, lambda row: row["state"] == "waiting" and row.get("polled"))
    await asyncio.to_thread(people(sidecar).answer, str(row["id"]), approve=True, why="")


async def ended(sidecar: Sidecar, text: str) -> tuple[str, str]:
    """How it ended, and by which way it was answered."""
    over = {"done", "denied", "void"}
    row = await record(sidecar, text, lambda row: row["state"] in over)
    return str(row["state"]), str(row["way"])


class Human:
    """Whoever runs the Python client; ``None`` never answers."""

    def __init__(self, answer: Json | None) -> None:
        self._answer = answer
        self.asked: list[Any] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params)
        if self._answer is None:
            await asyncio.sleep(PATIENCE)
        return ElicitResult.model_validate(self._answer)


async def python(sidecar: Sidecar, mode: Any, text: str, human: Human | None) -> Any:
    """One call by the Python client."""
    async with Client(sidecar.mcp, mode=mode, elicitation_callback=human) as client:
        return await client.call_tool("notes__add", {"text": text})


def said(result: Any) -> str:
    return str(result.content[0].text)


# --------------------------------------------------------------------------- the Python client


@pytest.mark.parametrize("mode", MODES)
async def test_python_without_elicitation_is_approved_by_a_person(
    asking: Sidecar, mode: Any
) -> None:
    text = f"python {mode} plain"
    result, _ = await asyncio.gather(python(asking, mode, text, None), answered(asking, text))
    assert said(result).startswith("noted as number ")
    assert await ended(asking, text) == ("done", "socket")


@pytest.mark.parametrize("mode", MODES[:2])
async def test_python_told_to_call_again_takes_the_approval(brief: Sidecar, mode: Any) -> None:
    text = f"python {mode} again"
    approval = asyncio.create_task(polled(brief, text))
    # It says that it can be asked; this sidecar asks nobody.
    human = Human(APPROVE)
    async with Client(brief.mcp, mode=mode, elicitation_callback=human) as client:
        first = await client.call_tool("notes__add", {"text": text})
        assert first.is_error and first.meta and first.meta["sidecar/parked"]["id"]
        await approval
        again = await client.call_tool("notes__add", {"text": text})
        assert not again.is_error and said(again).startswith("noted as number ")
        assert human.asked == []


@pytest.mark.parametrize("answer", [APPROVE, DENY, DECLINE], ids=["approve", "deny", "decline"])
@pytest.mark.parametrize("mode", MODES[:2])
async def test_python_asked_by_elicitation(asking: Sidecar, mode: Any, answer: Json) -> None:
    human, text = Human(answer), f"python {mode} {answer}"
    result = await asyncio.wait_for(python(asking, mode, text, human), PATIENCE)
    (params,) = human.asked
    assert '"text": "python' in params.message and '"notes__add"' in params.message
    yes = answer is APPROVE
    assert result.is_error is not yes
    assert said(result).startswith("noted" if yes else "denied by a person")
    assert await ended(asking, text) == ("done" if yes else "denied", "elicitation")


@pytest.mark.parametrize("mode", MODES[:2])
async def test_python_puts_the_question_away(asking: Sidecar, mode: Any) -> None:
    human, text = Human(CANCEL), f"python {mode} cancel"
    result, _ = await asyncio.gather(python(asking, mode, text, human), answered(asking, text))
    assert said(result).startswith("noted") and len(human.asked) == 1
    assert await ended(asking, text) == ("done", "socket")


async def test_python_while_its_human_thinks_somebody_else_approves(asking: Sidecar) -> None:
    human, text = Human(None), "python thinks"
    result, _ = await asyncio.gather(python(asking, "legacy", text, human), answered(asking, text))
    assert said(result).startswith("noted") and len(human.asked) == 1
    assert await ended(asking, text) == ("done", "socket")


@pytest.mark.parametrize("mode", MODES[:2])
async def test_python_over_stdio(asking: Sidecar, mode: Any) -> None:
    """``sidecar stdio``, joined to the one that runs, carries the question and the answer."""
    human, text = Human(APPROVE), f"python stdio {mode}"
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "sidecar", "stdio", "--url", asking.mcp.removesuffix("/mcp")],
        env={"PYTHONPATH": str(ROOT)},
    )
    async with Client(command, mode=mode, elicitation_callback=human) as client:
        result = await client.call_tool("notes__add", {"text": text})
    assert said(result).startswith("noted") and len(human.asked) == 1
    assert await ended(asking, text) == ("done", "elicitation")


# ----------------------------------------------------------------------------- the npm clients


def step(text: str, do: str = "callTool") -> Json:
    return {"do": do, "params": {"name": "notes__add", "arguments": {"text": text}}}


async def together(
    sidecar: Sidecar, sdk: str, mode: str, steps: list[Json], *people: Awaitable[None], **spec: Any
) -> Json:
    """What the npm client printed, while people do what they do."""
    where = {"url": sidecar.mcp, **spec}
    printed, *_ = await asyncio.gather(drive(where, sdk, mode, steps), *people)
    return printed


def texts(printed: Json) -> list[str]:
    """What each step was told."""
    for outcome in printed["outcomes"]:
        assert "error" not in outcome, outcome
    return [outcome["result"]["content"][0]["text"] for outcome in printed["outcomes"]]


@needs_node
@pytest.mark.parametrize("sdk, mode", CLIENTS)
async def test_npm_without_elicitation(
    asking: Sidecar, brief: Sidecar, sdk: str, mode: str
) -> None:
    yes, no = f"npm {sdk} {mode} yes", f"npm {sdk} {mode} no"
    printed = await together(
        asking,
        sdk,
        mode,
        [step(yes), step(no)],
        answered(asking, yes),
        answered(asking, no, approve=False),
    )
    told = texts(printed)
    assert told[0].startswith("noted as number ") and printed["asked"] == []
    assert told[1].startswith("denied by a person: by a person")
    again = f"npm {sdk} {mode} again"
    printed = await together(brief, sdk, mode, [step(again, "callOn")], polled(brief, again))
    assert texts(printed)[0].startswith("noted as number ")
    assert printed["outcomes"][0]["result"]["tries"] >= 1


@needs_node
@pytest.mark.parametrize("sdk, mode", CLIENTS)
async def test_npm_asked_by_elicitation(asking: Sidecar, sdk: str, mode: str) -> None:
    names = ("approve", "deny", "decline", "cancel", "think")
    at = {name: f"npm {sdk} {mode} elicited {name}" for name in names}
    # What is asked by an answer to a request cannot be withdrawn.
    withdrawable = ["think"] if mode == "legacy" else []
    asked = ["approve", "deny", "decline", "cancel", *withdrawable]
    printed = await together(
        asking,
        sdk,
        mode,
        [step(at[name]) for name in asked],
        *(answered(asking, at[name]) for name in asked[3:]),
        elicit=[APPROVE, DENY, DECLINE, CANCEL, None],
    )
    told = texts(printed)
    assert told[0].startswith("noted as number ")
    assert told[1].startswith("denied by a person: not now")
    assert told[2].startswith("denied by a person")
    assert all(text.startswith("noted as number ") for text in told[3:])
    assert len(printed["asked"]) == len(asked)
    assert json.dumps(at["approve"]) in printed["asked"][0]["message"]
    assert printed["withdrawn"] == len(withdrawable)
    ways = [await ended(asking, at[name]) for name in asked]
    assert ways[:3] == [(state, "elicitation") for state in ("done", "denied", "denied")]
    assert set(ways[3:]) == {("done", "socket")}
