"""What a caller is answered, however the run ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sidecar.harness import run_work
from sidecar.model import Caller, Principal, Unroutable
from tests.harness.kit import git
from tests.harness.runs.kit import Box, meta, plain, script, soon

COMMIT = (
    "echo done > new.txt && git add new.txt && "
    "git -c user.name=a -c user.email=a@b commit -q -m 'add new'"
)
EXECUTE = {
    "toolCallId": "t1",
    "title": "commit",
    "kind": "execute",
    "rawInput": {"command": COMMIT},
}


async def test_a_task_is_done_in_a_branch_of_its_own(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        call = box.call(
            script({"say": "I look."}, {"ask": EXECUTE, "run": COMMIT}, {"say": "Done."})
        )
        (waiting,) = await box.waits()
        assert waiting.tool == "claude__execute"
        assert waiting.rules == ("coding-agents/execute",)
        await box.answer(waiting.id)
        answer = plain(await call)
        told = answer["structuredContent"]
        assert json.loads(answer["content"][0]["text"]) == told
        base = git(box.repo, "rev-parse", "main")
        head = git(box.repo, "rev-parse", "work/claude/alice/fix")
        assert told | {"last_message": ""} == {
            "work": "fix",
            "checkout": "repo",
            "branch": "work/claude/alice/fix",
            "base": base,
            "head": head,
            "commits": [{"sha": head, "subject": "add new"}],
            "dirty": False,
            "last_message": "",
            "stop_reason": "end_turn",
            "asks": [
                {
                    "call": waiting.id,
                    "tool": "claude__execute",
                    "title": "commit",
                    "answer": "allow",
                    "rule": "coding-agents/execute",
                }
            ],
            "continued": None,
        }
        assert told["last_message"].endswith("Done.")
        assert "isError" not in answer
        assert answer["_meta"]["sidecar/labels"] == ["outside"]
        assert (tmp_path / "worktrees/claude/repo/alice/fix/new.txt").read_text() == "done\n"


@pytest.mark.parametrize(
    ("step", "stop", "error"),
    [
        ({"stop": "refusal"}, "refusal", None),
        ({"stop": "max_tokens"}, "max_tokens", None),
        ({"stop": "max_turn_requests"}, "max_turn_requests", None),
        ({"stop": "of a later version"}, "of a later version", None),
        ({"exit": 3}, "died", "exited with status 3"),
        ({"kill": 9}, "died", "ended by signal 9"),
        ({"error": {"code": -32603, "message": "overloaded"}}, "failed", "overloaded"),
        ({"mode": "auto"}, "failed", "in which it does not ask"),
    ],
)
async def test_what_it_did_is_told_however_it_ended(
    tmp_path: Path, step: dict[str, object], stop: str, error: str | None
) -> None:
    async with Box(tmp_path) as box:
        answer = await box.done({"write": "left.txt", "text": "x"}, {"say": "so far"}, step)
        told = answer["structuredContent"]
        assert (told["stop_reason"], told["dirty"], told["work"]) == (stop, True, "fix")
        assert told["last_message"] == "so far"
        assert answer["isError"] is True
        assert json.loads(answer["content"][0]["text"]) == told
        assert (error is None and "error" not in told) or error in told["error"]
        # The same call again goes on with the same work, even where it did not name it.
        again = await box.done({"say": "again"})
        assert again["structuredContent"]["stop_reason"] == "end_turn"
        assert again["structuredContent"]["dirty"] is True
        assert again["structuredContent"]["continued"] in ("kept", "resumed")


@pytest.mark.parametrize("denial", ["end_turn", "cancelled"])
async def test_a_denied_permission_that_ends_the_turn_is_no_cancelled_run(
    tmp_path: Path, denial: str
) -> None:
    async with Box(tmp_path) as box:
        ask = {"toolCallId": "t", "title": "x", "kind": "execute", "rawInput": {"command": "x"}}
        call = box.call(script({"ask": ask, "denied": denial}))
        (waiting,) = await box.waits()
        await box.answer(waiting.id, approve=False, why="not now")
        told = plain(await call)["structuredContent"]
        assert told["stop_reason"] == denial
        assert [ask["answer"] for ask in told["asks"]] == ["reject"]


async def test_an_agent_that_cannot_be_started_says_so(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"command": ("/no/such/agent",)}) as box:
        answer = await box.done({"say": "x"})
        told = answer["structuredContent"]
        assert answer["isError"] is True
        assert told["stop_reason"] == "failed"
        assert "/no/such/agent" in told["error"]
        assert told["branch"] == "work/claude/alice/fix"


@pytest.mark.parametrize(
    ("args", "who", "text"),
    [
        ({"task": "  "}, {}, "task is missing"),
        ({"checkout": "nowhere"}, {}, "no checkout 'nowhere'; there is repo"),
        ({"command": ["sh"]}, {}, "there is no argument 'command'"),
        ({"cwd": "/etc"}, {}, "there is no argument 'cwd'"),
        ({"work": 7}, {}, "work is a string"),
        ({"work": " "}, {}, "work holds characters that cannot be seen"),
        ({"work": "fix\n"}, {}, "work holds characters that cannot be seen"),
        ({"work": "fix\u200b"}, {}, "work holds characters that cannot be seen"),
        ({"checkout": "repo"}, {"checkouts": ("other",)}, "there is no checkout that you may use"),
    ],
)
async def test_arguments_that_say_no_task(
    tmp_path: Path, args: dict[str, object], who: dict[str, tuple[str, ...]], text: str
) -> None:
    async with Box(tmp_path) as box:
        caller = Principal("alice", ("*",), ("*",), who.get("checkouts", ("*",)))
        answer = plain(await box.call("x", args=args, who=caller))
        assert answer["isError"] is True
        assert text in answer["content"][0]["text"]
        assert not (tmp_path / "worktrees/claude").exists()


async def test_a_name_cannot_lead_out_of_the_worktrees(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        answer = await box.done({"say": "x"}, work="../../../etc")
        branch = answer["structuredContent"]["branch"]
        assert branch.startswith("work/claude/alice/etc-")
        assert not (tmp_path / "etc").exists()


async def test_a_work_without_a_name_gets_one(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        first = (await box.done({"say": "x"}, work=None))["structuredContent"]["work"]
        second = (await box.done({"say": "x"}, work=None))["structuredContent"]["work"]
        assert first != second
        assert first.startswith("w-") and len(first) == 10


async def test_the_operator_can_gate_the_harness_itself(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"gated": True}, hold=0.5) as box:
        task = script({"sleep": 1}, {"say": "x"})
        parked = await box.call(task)
        id = meta(parked, "parked")["id"]
        assert box.prompts() == []
        await box.answer(id)
        assert plain(await box.call(task))["structuredContent"]["last_message"] == "x"
        # It was used once.
        assert meta(await box.call(task), "parked")["id"] != id


async def test_what_a_caller_hears_while_the_agent_works(tmp_path: Path) -> None:
    heard: list[dict[str, object]] = []

    def notify(method: str, params: dict[str, object]) -> None:
        assert method == "notifications/progress"
        heard.append(params)

    steps = (
        {
            "plan": [
                {"content": "look", "status": "completed"},
                {"content": "fix", "status": "in_progress"},
            ]
        },
        {"sleep": 0.4},
        {
            "tool": {
                "toolCallId": "a",
                "title": "Read a.txt",
                "kind": "read",
                "status": "in_progress",
            }
        },
        {"sleep": 0.4},
        {"tool": {"toolCallId": "a", "status": "completed"}, "as": "tool_call_update"},
        {"say": "x"},
    )
    async with Box(tmp_path) as box:
        await box.done(*steps, progress="tok", notify=notify)
        texts = [str(params["message"]) for params in heard]
        assert "plan 1/2: fix" in texts
        assert "read in_progress: Read a.txt" in texts
        numbers = [params["progress"] for params in heard]
        assert numbers == sorted(set(numbers))  # type: ignore[type-var]
        assert {params["progressToken"] for params in heard} == {"tok"}
        kinds = [update.update for update in box.updates]
        assert {"plan_update", "tool_call_update", "agent_message_chunk"} <= set(kinds)
        first = box.updates[0]
        assert (first.name, first.harness, first.work) == ("box", "claude", "fix")
        assert first.agent_id == "alice"


async def test_works_run_in_parallel(tmp_path: Path) -> None:
    """P12: a question in one work delays no other."""
    ask = {"toolCallId": "t", "title": "x", "kind": "execute", "rawInput": {"command": "x"}}
    async with Box(tmp_path, habits={"store": ""}) as box:
        first = box.call(script({"ask": ask}, {"say": "one"}), "one")
        (waiting,) = await box.waits()
        second = await box.done({"say": "two"}, work="two")
        assert second["structuredContent"]["last_message"] == "two"
        assert not first.done()
        await box.answer(waiting.id)
        assert plain(await first)["structuredContent"]["last_message"] == "one"


async def test_a_caller_sees_the_harnesses_and_checkouts_it_may_use(tmp_path: Path) -> None:
    async with Box(tmp_path, others=("codex",)) as box:

        async def listed(who: Principal) -> dict[str, object]:
            fields = plain(await box.gateway.request("tools/list", {}, Caller(who)))
            return {tool["name"]: tool for tool in fields["tools"]}

        everything = await listed(Principal("a", ("*",), ("*",), ("*",)))
        assert list(everything) == ["s__write", "s__other", "claude", "codex"]
        tool = everything["claude"]
        assert tool["inputSchema"]["properties"]["checkout"]["enum"] == ["repo"]  # type: ignore[index]
        assert list(await listed(Principal("a", ("*",)))) == ["s__write", "s__other"]
        assert list(await listed(Principal("a", (), ("co*",), ("repo",)))) == ["codex"]
        assert list(await listed(Principal("a", (), ("*",), ("other",)))) == []
        told = []
        for name in ("claude", "nobody"):
            with pytest.raises(Unroutable) as missed:
                await box.call("x", name=name, who=Principal("a", ("*",)))
            assert missed.value.reason == "unknown_tool"
            told.append(missed.value.message.replace(name, "NAME"))
        # One that it may not use is as one that is not there.
        assert told[0] == told[1]
        assert told[0].startswith("there is no tool 'NAME' that you may use; ")


async def test_a_run_that_its_caller_cancels_is_cancelled(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        call = box.call(script({"say": "x"}, {"hang": True}), None)
        await soon(box.prompts)
        (work,) = await box.runs.works()
        assert work["state"] == "working"
        call.cancel("cancelled by the client")
        with pytest.raises(asyncio.CancelledError):
            await call
        await soon(lambda: box.runs.occupation(next(iter(box.runs._active), None)) != "working")  # type: ignore[arg-type]
        await soon(lambda: "session/cancel" in {each.get("method") for each in box.heard()})
        # The same call goes on with the work that it had.
        again = box.call(script({"say": "x"}, {"hang": True}), None)
        await soon(lambda: len(box.prompts()) == 2)
        assert [work["work"] for work in await box.runs.works()] == [work["work"]]
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_it_is_called_by_the_same_name_whatever_separates(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        caller = Caller(Principal("alice", ("*",), ("*",), ("repo",)))
        for separator, names in (
            (None, ["s__write", "s__other", "claude"]),
            ("-", ["s-write", "s-other", "claude"]),
        ):
            tools = plain(await box.gateway.tools_as("openai", caller, separator=separator))
            assert [tool["function"]["name"] for tool in tools["tools"]] == names
        called = await box.gateway.call("claude", {"task": "hi"}, caller, separator="-")
        assert plain(called)["structuredContent"]["last_message"] == "echo: hi"


async def test_a_run_that_never_ends_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_work, "LONGEST", 1.0)
    async with Box(tmp_path) as box:
        told = (await box.done({"hang": True}))["structuredContent"]
        assert told["stop_reason"] == "failed"
        assert "it worked for more than" in told["error"]
