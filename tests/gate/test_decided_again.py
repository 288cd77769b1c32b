"""A call that was held is decided twice; what is kept tells which is which, and one is logged."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sidecar.events import Bus, Decided
from sidecar.gate.records import Records
from sidecar.model import Call, Caller, Decision, Kind, Phase, Principal, TraceContext
from sidecar.telemetry.sampling import Sampling, always
from sidecar.telemetry.span import KeptSpan, SpanLimits
from sidecar.telemetry.tracer import KeepingTracer
from tests.kit.running import running
from tests.telemetry.test_audit import NOTES, _approve_the_first, call, config, listed

CALL = Call("id", Kind.MCP, "tools/call", "s", "s__x", "x", {})
ASK = Decision("ask", "p/asks", ("p/asks",))
DENY = Decision("deny", "p/no", ("p/no",))


def test_span_event_and_log(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[KeptSpan] = []
    events: list[Decided] = []
    bus = Bus()
    bus.listen(Decided, events.append)
    tracer = KeepingTracer(Sampling(True, always), SpanLimits(), kept.append)
    records = Records(bus, tracer=tracer)
    trace = TraceContext(f"00-{'a' * 32}-{'b' * 16}-01")
    caller = Caller(Principal("a"), trace=trace)
    with caplog.at_level(logging.INFO, "sidecar.gate"):
        records.tell(Phase.CALL, CALL, caller, ASK)
        records.tell(Phase.CALL, CALL, caller, ASK, again=True)
        records.tell(Phase.CALL, CALL, caller, DENY, again=True)
    assert [span.attributes.get("sidecar.again") for span in kept] == [None, True, True]
    assert [event.again for event in events] == [False, True, True]
    assert [line.getMessage() for line in caplog.records] == [
        "call of s__x for a: held for approval by p/asks",
        "call of s__x for a: denied by p/no",
    ]


async def test_a_call_that_was_approved(tmp_path: Path) -> None:
    gated = config(tmp_path, servers={"notes": NOTES}, parking={"hold": "50s"})
    async with aiohttp.ClientSession() as http, running(gated) as sidecar:
        await listed(http, sidecar)
        calling = asyncio.create_task(call(http, sidecar))
        done = await asyncio.to_thread(_approve_the_first, sidecar)
        assert done.returncode == 0, done.stderr
        assert not (await calling).get("isError")
    told: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()
    ]
    decided = [each for each in told if each["kind"] == "decision" and each["phase"] == "call"]
    assert [each.get("again") for each in decided] == [None, True]
    assert [each["decision"] for each in decided] == ["ask", "ask"]
