"""Several rules that ask for one call: a person is told what each of them says."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp

from sidecar.admin.client import AdminClient
from sidecar.gate.records import recorded
from sidecar.model import Decision, Reason
from sidecar.parking import record
from sidecar.parking.question import message
from tests.kit.running import running
from tests.parking.test_admin_calls import config, opened

POLICY = """
apiVersion: sidecar/v1
kind: Policy
name: own
rules:
  - {id: fixed, on: call, effect: ask, when: "true", message: '"because I say so"'}
  - {id: quotes, on: call, effect: ask, when: "true", message: '"text: " + args.text'}
  - {id: fine, on: call, effect: allow, when: "true"}
"""


async def shown(http: aiohttp.ClientSession, folder: Path, **parking: Any) -> dict[str, Any]:
    """The call that waits, as a person is shown it."""
    (folder / "own.yaml").write_text(POLICY)
    whole = config("50ms")
    whole["policies"] = [str(folder / "own.yaml")]
    whole["policy"] = {"shipped": ["gating"]}
    whole["parking"] |= parking
    async with running(whole) as sidecar:
        client, admin = await opened(http, sidecar), AdminClient(sidecar.admin)
        polled = await client.call("notes__add", text="pssst")
        id = polled["_meta"]["sidecar/parked"]["id"]
        (row,) = await asyncio.to_thread(admin.calls)
        assert "reasons" not in row
        cli = (await asyncio.to_thread(sidecar.cli, "calls", "show", id)).stdout
        assert "because I say so" in cli
        return await asyncio.to_thread(admin.call, id)


async def test_each_rule_that_asks_is_told_with_what_it_says(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    found = await shown(http, tmp_path)
    said = {each["rule"]: each["message"] for each in found["reasons"]}
    assert said == {
        "gating/gated": "approval is needed: notes__add may change something",
        "own/fixed": "because I say so",
        "own/quotes": "text: pssst",
    }


async def test_a_message_that_quotes_is_kept_from_people_who_are_not_to_see_what_it_quotes(
    http: aiohttp.ClientSession, tmp_path: Path
) -> None:
    found = await shown(http, tmp_path, redact=["text"])
    said = {each["rule"]: each["message"] for each in found["reasons"]}
    assert (said["own/fixed"], said["own/quotes"]) == ("because I say so", "")
    assert "pssst" not in str(found)


def test_whoever_is_asked_by_elicitation_is_told_all_of_them() -> None:
    parked = record.Parked(
        id="1",
        claim="",
        state=record.State.WAITING,
        kind="mcp",
        method="tools/call",
        tool="s__t",
        server="s",
        upstream_name="t",
        principal="agent",
        rules=("a/x", "b/y", "c/z"),
        message="one",
        reasons=(("a/x", "one"), ("b/y", "two"), ("c/z", "")),
        asked_at=0.0,
        expires_at=1.0,
    )
    lines = [line.split() for line in message(parked, ()).splitlines()]
    assert [line[1] for line in lines if line[:1] == ["because:"]] == ['"one"', '"two"']


def test_what_is_recorded_holds_none_of_it() -> None:
    decision = Decision("ask", "a/x", reasons=(Reason("a/x", "quotes", constant=False),))
    assert recorded(decision).reasons == ()
