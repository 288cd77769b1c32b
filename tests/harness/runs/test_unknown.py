"""What is not known of a work is told as that, and never as clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sidecar.harness.tool import definition
from sidecar.wire import json
from tests.harness.kit import git
from tests.harness.runs.kit import Box, plain, script

ASK = {"toolCallId": "t", "title": "make", "kind": "execute", "rawInput": {"command": "make"}}


def told_as_unknown(answer: dict[str, Any], why: str) -> None:
    told = answer["structuredContent"]
    assert (told["head"], told["commits"], told["dirty"]) == (None, None, None)
    assert told["unknown"].startswith("head, commits and dirty are not known: ")
    assert why in told["unknown"]
    assert "call with work fix again" in told["unknown"]
    assert told["unknown"] in answer["content"][0]["text"].replace('\\"', '"')
    schema = json.fields(definition("claude", "Claude", ["repo"]).json)["outputSchema"]
    jsonschema.validate(told, plain({"schema": schema})["schema"])


async def test_of_a_checkout_that_was_taken_out_nothing_is_known(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        run = box.call(script({"write": "left.txt", "text": "x"}, {"ask": ASK}, {"say": "done"}))
        (waiting,) = await box.waits()
        (harness,) = box.runs.upstreams()
        await box.works.reconfigure([])
        box.runs.reconfigure({"claude": harness.config}, [], hold=30.0, sweep=None)
        await box.answer(waiting.id)
        answer = plain(await run)
        assert answer["structuredContent"]["stop_reason"] == "end_turn"
        told_as_unknown(answer, "its checkout is not configured any more; put it back")


@pytest.mark.parametrize("broken", ["rm .git", "echo gitdir: /elsewhere > .git"])
async def test_of_a_worktree_that_cannot_be_read_nothing_is_known(
    tmp_path: Path, broken: str
) -> None:
    async with Box(tmp_path) as box:
        run = box.call(script({"ask": ASK, "run": broken}, {"say": "done"}))
        (waiting,) = await box.waits()
        await box.answer(waiting.id)
        told_as_unknown(plain(await run), "work claude/repo/alice/fix: ")


async def test_after_a_failed_start_what_there_is_is_told(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        await box.done({"write": "left.txt", "text": "x"})
    async with Box(tmp_path, harness={"command": ("/no/such/agent",)}) as box:
        told = (await box.done({"say": "x"}))["structuredContent"]
        assert told["stop_reason"] == "failed"
        assert told["head"] == git(box.repo, "rev-parse", "main")
        assert (told["commits"], told["dirty"]) == ([], True)
        assert "unknown" not in told
