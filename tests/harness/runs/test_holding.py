"""How long a call is held, what joins it, and what is answered once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.events import CallFinished
from sidecar.model import Principal
from tests.harness.runs.kit import ALICE, Box, meta, plain, script, soon

ASK = {"toolCallId": "t", "title": "make it", "kind": "execute", "rawInput": {"command": "make"}}
CANCELLED = "cancelled by the client"


async def test_a_long_run_is_answered_with_running_and_waited_for_again(tmp_path: Path) -> None:
    task = script({"say": "x"}, {"ask": ASK}, {"say": "done"})
    async with Box(tmp_path, harness={"hold": 0.6}, hold=60) as box:
        finished: list[CallFinished] = []
        box.bus.listen(CallFinished, finished.append)
        first = await box.call(task)
        told = meta(first, "running")
        assert [event.outcome for event in finished] == ["running"]
        assert plain(first)["isError"] is True
        (waiting,) = await box.waits()
        assert told == {"call": waiting.parent, "work": "fix", "waiting": told["waiting"]}
        joined = box.call(task)
        other = box.call(task)
        await soon(lambda: len(box.runs._all()[0].waiters) == 2)
        assert len(box.prompts()) == 1
        await box.answer(waiting.id)
        answers = [plain(await call) for call in (joined, other)]
        assert [a["structuredContent"]["last_message"] for a in answers] == ["xdone"] * 2


async def test_a_permission_that_waits_shortens_the_wait(tmp_path: Path) -> None:
    """``parking.hold`` counts while a person is asked, ``hold`` while the agent works."""
    task = script({"ask": ASK}, {"say": "done"})
    async with Box(tmp_path, hold=0.3, harness={"hold": 600}) as box:
        answer = await asyncio.wait_for(box.call(task), 30)
        (waiting,) = await box.waits()
        assert meta(answer, "running")["waiting"] == [
            {"id": waiting.id, "tool": "claude__execute", "title": "make it"}
        ]
        assert f"claude__execute (id {waiting.id})" in plain(answer)["content"][0]["text"]
        (work,) = await box.runs.works()
        assert (work["state"], work["call"]) == ("waiting", waiting.parent)
        await box.answer(waiting.id)
        again = plain(await box.call(task))
        assert again["structuredContent"]["last_message"] == "done"


async def test_a_finished_answer_is_given_once(tmp_path: Path) -> None:
    task = script({"ask": ASK}, {"say": "done"})
    async with Box(tmp_path, harness={"hold": 0.3}) as box:
        call = meta(await box.call(task, None), "running")["call"]
        (waiting,) = await box.waits()
        await box.answer(waiting.id)
        await soon(lambda: not box.runs._active)
        first = plain(await box.call(task, None))
        assert first["structuredContent"]["last_message"] == "done"
        second = meta(await box.call(task, None), "running")
        assert second["call"] != call
        await soon(lambda: len(box.prompts()) == 2)


async def test_a_finished_answer_outlives_the_sidecar(tmp_path: Path) -> None:
    task = script({"ask": ASK}, {"say": "done"})
    async with Box(tmp_path, harness={"hold": 0.3}) as box:
        work = meta(await box.call(task, None), "running")["work"]
        (waiting,) = await box.waits()
        await box.answer(waiting.id)
        await soon(lambda: not box.runs._active)
    async with Box(tmp_path, harness={"hold": 0.3}) as box:
        told = plain(await box.call(task, None))["structuredContent"]
        assert (told["work"], told["last_message"]) == (work, "done")
        assert len(box.prompts()) == 1
        # It was given: the same call begins another work.
        assert meta(await box.call(task, None), "running")["work"] != work


async def test_two_equal_calls_at_once_are_one_run(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        calls = [box.call(script({"say": "x"}), None) for _ in range(5)]
        works = {
            plain(answer)["structuredContent"]["work"] for answer in await asyncio.gather(*calls)
        }
        assert len(works) == 1
        assert len(box.prompts()) == 1


async def test_others_do_not_join(tmp_path: Path) -> None:
    """An equal call of another principal is another run in another work."""
    async with Box(tmp_path, habits={"store": ""}) as box:
        bob = Principal("bob", ("*",), ("*",), ("*",))
        calls = [box.call(script({"say": "x"}), who=who) for who in (ALICE, bob)]
        branches = {plain(a)["structuredContent"]["branch"] for a in await asyncio.gather(*calls)}
        assert branches == {"work/claude/alice/fix", "work/claude/bob/fix"}


async def test_a_busy_work_refuses_another_task(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        first = box.call(script({"ask": ASK}, {"say": "one"}))
        (waiting,) = await box.waits()
        refused = await box.call(script({"say": "two"}))
        assert meta(refused, "busy") == {"call": waiting.parent, "work": "fix"}
        assert plain(refused)["isError"] is True
        await box.answer(waiting.id)
        assert plain(await first)["structuredContent"]["last_message"] == "one"
        assert (await box.done({"say": "two"}))["structuredContent"]["last_message"] == "two"


async def test_or_takes_it_after_the_one_that_runs(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"busy": "queue"}) as box:
        first = box.call(script({"ask": ASK}, {"say": "one"}))
        (waiting,) = await box.waits()
        others = [box.call(script({"say": f"{n}"})) for n in range(8)]
        await soon(lambda: len(box.runs._all()) == 9)
        full = await box.call(script({"say": "too many"}))
        assert "8 tasks wait for it already" in plain(full)["content"][0]["text"]
        assert len(box.prompts()) == 1
        await box.answer(waiting.id)
        answers = [plain(await call)["structuredContent"] for call in (first, *others)]
        assert [a["last_message"] for a in answers] == ["one", *map(str, range(8))]
        assert [a["continued"] for a in answers] == [None, *["kept"] * 8]


async def test_a_queued_task_that_is_cancelled_never_begins(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"busy": "queue"}) as box:
        first = box.call(script({"ask": ASK}, {"say": "one"}))
        (waiting,) = await box.waits()
        second = box.call(script({"say": "two"}))
        await soon(lambda: len(box.runs._all()) == 2)
        second.cancel(CANCELLED)
        await asyncio.gather(second, return_exceptions=True)
        await box.answer(waiting.id)
        await first
        await soon(lambda: not box.runs._active)
        assert len(box.prompts()) == 1


async def test_a_caller_that_hangs_up_before_it_was_told_to_call_again_ends_the_run(
    tmp_path: Path,
) -> None:
    async with Box(tmp_path) as box:
        call = box.call(script({"ask": ASK}))
        await box.waits()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await soon(lambda: not box.runs._active)
        (parked,) = box.parked()
        assert (parked.state, parked.ended) == ("cancelled", "the coding agent asks no longer")


async def test_one_that_was_told_leaves_it_running(tmp_path: Path) -> None:
    async with Box(tmp_path, hold=0.2) as box:
        task = script({"ask": ASK}, {"say": "done"})
        await box.call(task)
        call = box.call(task)
        await soon(lambda: box.runs._all()[0].waiters)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        (waiting,) = await box.waits()
        await box.answer(waiting.id)
        assert plain(await box.call(task))["structuredContent"]["last_message"] == "done"


async def test_of_two_who_wait_one_may_leave(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        task = script({"ask": ASK}, {"say": "done"})
        one, two = box.call(task), box.call(task)
        (waiting,) = await box.waits()
        one.cancel(CANCELLED)
        await asyncio.gather(one, return_exceptions=True)
        await box.answer(waiting.id)
        assert plain(await two)["structuredContent"]["last_message"] == "done"


async def test_a_deadline_is_kept(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        loop = asyncio.get_running_loop()
        answer = await box.call(script({"hang": True}), deadline=loop.time() + 1.0)
        assert meta(answer, "running")["work"] == "fix"


async def test_at_the_end_of_the_sidecar_whoever_waits_for_a_person_is_told(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        call = box.call(script({"ask": ASK}))
        await box.waits()
        box.runs.drain()
        assert len(meta(await call, "running")["waiting"]) == 1
        with pytest.raises(Exception, match="the sidecar is ending"):
            await box.call("another", "other")
