"""An editor, our side of ACP, and a scripted agent behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sidecar.downstream import acp_server
from sidecar.model import Principal
from tests.downstream.acp_kit import screen
from tests.harness.kit import git
from tests.harness.runs.conftest import scripted  # noqa: F401  a fixture
from tests.harness.runs.kit import Box, script, soon

BOB = Principal("bob", ("*",), ("*",), ("*",))
RM: dict[str, Any] = {
    "ask": {"toolCallId": "t1", "title": "rm x", "kind": "execute", "rawInput": {"command": "rm"}},
    "run": "touch removed",
}


@pytest.fixture
async def box(tmp_path: Path) -> AsyncIterator[Box]:
    async with Box(tmp_path) as made:
        yield made


async def elicited(box: Box) -> None:
    box.parking.reconfigure(replace(box.config.parking, elicit=True))


async def test_a_prompt_is_worked_on_in_a_worktree_of_its_own(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        path = box.root / "claude/repo/alice" / session.removeprefix("repo/")
        assert not path.exists()
        odd = {"sessionUpdate": "x_odd", "deep": {"a": [1, None]}}
        tool = {"tool": {"toolCallId": "t", "title": "Look", "kind": "read", "status": "pending"}}
        write = {"write": "made.txt", "text": "x"}
        task = script({"think": "hm"}, tool, {"update": odd}, write, {"say": "done"})
        result = await editor.done(session, task)
        assert result["stopReason"] == "end_turn"
        told = result["_meta"]
        assert told["sidecar/work"]["path"] == str(path)
        assert told["sidecar/result"]["dirty"] is True
        assert told["sidecar/result"]["continued"] is None
        assert (path / "made.txt").read_text() == "x"
        assert not (box.repo / "made.txt").exists()
        first, *rest = [u for u in editor.updates if u["sessionUpdate"] != "current_mode_update"]
        assert first["_meta"] == {"sidecar/notice": "work"}
        assert str(path) in first["content"]["text"]
        kinds = [update["sessionUpdate"] for update in rest]
        assert kinds == ["agent_thought_chunk", "tool_call", "x_odd", "agent_message_chunk"]
        assert rest[2] == odd
        assert editor.text == "done"

        again = await editor.done(session, script({"say": "more"}))
        assert again["_meta"]["sidecar/result"]["continued"] == "kept"
        assert editor.text == "donemore"
        notices = [u for u in editor.updates if "sidecar/notice" in u.get("_meta", {})]
        assert len(notices) == 1
    # Every prompt was a call of the harness, as the principal.
    assert {event.agent_id for event in box.updates} == {"alice"}


async def test_a_prompt_goes_on_with_the_editors_trace(box: Box) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with screen(box) as editor:
        session = await editor.open()
        block = {"type": "text", "text": script({"say": "x"})}
        await editor.result(
            "session/prompt", sessionId=session, prompt=[block], _meta={"traceparent": trace}
        )
    assert {event.trace.traceparent for event in box.updates} == {trace}


async def test_a_question_waits_for_a_person_and_the_editor_says_so(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        prompt = editor.prompt(session, script(RM, {"say": "bye"}))
        (parked,) = await box.waits()
        (notice,) = await editor.until(editor.notices)
        assert notice == {"id": parked.id, "tool": "claude__execute"}
        (call,) = [u for u in editor.updates if u["sessionUpdate"] == "tool_call"]
        assert (call["toolCallId"], call["status"], call["rawInput"]) == (
            "t1",
            "pending",
            {"command": "rm"},
        )
        assert editor.asked() == []
        assert prompt not in editor.answers
        await box.answer(parked.id)
        result = (await editor.answer(prompt))["result"]
        assert result["stopReason"] == "end_turn"
        (asked,) = result["_meta"]["sidecar/result"]["asks"]
        assert (asked["answer"], asked["tool"]) == ("allow", "claude__execute")
        path = Path(result["_meta"]["sidecar/work"]["path"])
        assert (path / "removed").exists()


async def test_what_rules_decide_is_asked_of_nobody(box: Box) -> None:
    await elicited(box)
    inside = {"toolCallId": "t1", "title": "e", "kind": "edit", "locations": [{"path": "a.txt"}]}
    outside = {**inside, "toolCallId": "t2", "locations": [{"path": "/etc/passwd"}]}
    async with screen(box) as editor:
        session = await editor.open()
        result = await editor.done(session, script({"ask": inside}, {"ask": outside}))
        asks = result["_meta"]["sidecar/result"]["asks"]
        assert [ask["answer"] for ask in asks] == ["allow", "reject"]
        assert asks[1]["rule"] == "coding-agents/outside"
        assert (editor.asked(), editor.notices()) == ([], [])


@pytest.mark.parametrize(("option", "answer"), [("allow", "allow"), ("reject", "reject")])
async def test_the_editor_is_asked_where_the_operator_says_so(
    box: Box, option: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_server, "NOTICE", 60.0)
    await elicited(box)
    async with screen(box) as editor:
        session = await editor.open()
        forged = {"a": 1, "sidecar/call": "another"}
        prompt = editor.prompt(session, script({**RM, "ask": {**RM["ask"], "_meta": forged}}))
        (question,) = await editor.until(editor.asked)
        (parked,) = await box.waits()
        params = question["params"]
        assert params["sessionId"] == session
        assert params["_meta"] == {"sidecar/call": parked.id}
        assert [item["kind"] for item in params["options"]] == ["allow_once", "reject_once"]
        assert params["toolCall"]["_meta"] == {"a": 1}
        # Our own words of what would run stand first: titles are the agent's.
        shown = params["toolCall"]["content"][0]["content"]["text"]
        assert '"command": "rm"' in shown
        outcome = {"outcome": "selected", "optionId": option}
        editor.send({"id": question["id"], "result": {"outcome": outcome}})
        result = (await editor.answer(prompt))["result"]
        (asked,) = result["_meta"]["sidecar/result"]["asks"]
        assert asked["answer"] == answer
        record = await box.parking.book.get(parked.id)
        assert (record.answered_by, record.way) == ("alice", "elicitation")
        assert editor.notices() == []


async def test_the_first_answer_wins_and_the_question_is_withdrawn(box: Box) -> None:
    await elicited(box)
    async with screen(box) as editor:
        session = await editor.open()
        prompt = editor.prompt(session, script(RM))
        (question,) = await editor.until(editor.asked)
        (parked,) = await box.waits()
        await box.answer(parked.id, approve=False)
        result = (await editor.answer(prompt))["result"]
        (asked,) = result["_meta"]["sidecar/result"]["asks"]
        assert asked["answer"] == "reject"
        withdrawn = [each for each in editor.heard if each["method"] == "$/cancel_request"]
        assert [each["params"] for each in withdrawn] == [{"requestId": question["id"]}]
        late = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        editor.send({"id": question["id"], "result": late})
        assert (await editor.result("session/list"))["sessions"]
        assert (await box.parking.book.get(parked.id)).answered_by == "bob"


@pytest.mark.parametrize(
    "reply",
    [
        {"error": {"code": -32601, "message": "no"}},
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": {"outcome": {"outcome": "selected", "optionId": "allow_always"}}},
        {"result": {"outcome": "allow"}},
        {"result": {}},
    ],
)
async def test_an_answer_that_says_nothing_leaves_it_to_others(box: Box, reply: Any) -> None:
    await elicited(box)
    async with screen(box) as editor:
        session = await editor.open()
        prompt = editor.prompt(session, script(RM))
        (question,) = await editor.until(editor.asked)
        editor.send({"id": question["id"], **reply})
        (parked,) = await box.waits()
        await editor.result("session/list")
        assert box.parked("waiting")
        assert prompt not in editor.answers
        await box.answer(parked.id)
        assert (await editor.answer(prompt))["result"]["stopReason"] == "end_turn"


async def test_cancelling_ends_the_prompt_and_the_agents_turn(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        prompt = editor.prompt(session, script({"say": "begun"}, RM))
        (parked,) = await box.waits()
        editor.send({"method": "session/cancel", "params": {"sessionId": session}})
        assert (await editor.answer(prompt))["result"] == {"stopReason": "cancelled"}
        await soon(lambda: box.parked("cancelled"))
        assert box.parked("cancelled")[0].id == parked.id
        await soon(lambda: "session/cancel" in [each.get("method") for each in box.heard()])
        # It goes on, in the same work.
        result = await editor.done(session, script({"say": "again"}))
        assert result["_meta"]["sidecar/result"]["continued"] is not None

        prompt = editor.prompt(session, script({"hang": True}))
        await soon(lambda: len(box.prompts()) == 3)
        editor.send({"method": "$/cancel_request", "params": {"requestId": prompt}})
        assert (await editor.answer(prompt))["result"]["stopReason"] == "cancelled"


async def test_an_editor_that_goes_away_leaves_nothing_running(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        editor.prompt(session, script(RM))
        await box.waits()
    await soon(lambda: box.parked("cancelled", "lost") and not box.parked("waiting"))
    await soon(lambda: not box.runs._all())
    async with screen(box) as editor:
        loaded = await editor.result(
            "session/load", sessionId=session, cwd=str(box.repo), mcpServers=[]
        )
        assert loaded["_meta"]["sidecar/work"]["name"] == session.removeprefix("repo/")
        result = await editor.done(session, script({"say": "back"}))
        assert result["stopReason"] == "end_turn"
        assert result["_meta"]["sidecar/result"]["continued"] is not None


async def test_another_call_that_waits_for_the_same_keeps_it_running(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        task = script(RM)
        editor.prompt(session, task)
        (parked,) = await box.waits()
        work = session.removeprefix("repo/")
        call = box.call(task, work, args={"checkout": "repo"})
        await soon(lambda: [len(run.waiters) for run in box.runs._all()] == [2])
    await box.answer(parked.id)
    fields = await asyncio.wait_for(call, 60)
    assert "isError" not in fields


async def test_a_session_is_loaded_with_what_is_remembered(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        await editor.done(session, script({"say": "first answer"}))
    async with screen(box) as editor:
        (row,) = (await editor.result("session/list", cwd=str(box.repo)))["sessions"]
        assert (row["sessionId"], row["cwd"]) == (session, str(box.repo))
        assert row["updatedAt"].startswith("20")
        await editor.result("session/load", sessionId=session, cwd=str(box.repo), mcpServers=[])
        told = [(u["sessionUpdate"], u["content"]["text"]) for u in editor.updates]
        assert told == [
            ("user_message_chunk", script({"say": "first answer"})),
            ("agent_message_chunk", "first answer"),
        ]
        worktree = box.root / "claude/repo/alice" / session.removeprefix("repo/")
        assert await editor.open(worktree) == session


async def test_works_of_others_cannot_be_had(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        await editor.done(session, script({"say": "secret"}))
        worktree = box.root / "claude/repo/alice" / session.removeprefix("repo/")
    async with screen(box, BOB) as editor:
        assert (await editor.result("session/list"))["sessions"] == []
        for cwd in (box.repo, worktree):
            for method in ("session/load", "session/resume"):
                code, text = await editor.error(
                    method, sessionId=session, cwd=str(cwd), mcpServers=[]
                )
                assert code in (-32002, -32602)
                assert "secret" not in text
        code, text = await editor.error("session/new", cwd=str(worktree), mcpServers=[])
        assert code == -32602
        code, _ = await editor.error("session/prompt", sessionId=session, prompt=[])
        assert code == -32002
        # The same name is another work.
        other = f"repo/{session.removeprefix('repo/')}"
        assert other == session
        assert not (box.root / "claude/repo/bob").exists()
    nobody = Principal("carol", ("*",), ("*",), ())
    async with screen(box, nobody) as editor:
        code, text = await editor.error("session/new", cwd=str(box.repo), mcpServers=[])
        assert (code, "There are: none" in text) == (-32602, True)


@pytest.mark.parametrize("cwd", ["/", "relative", "/etc", "/\0", "/" + "x" * 5000, "../repo"])
async def test_a_folder_that_is_no_checkout(box: Box, cwd: str) -> None:
    async with screen(box) as editor:
        code, text = await editor.error("session/new", cwd=cwd, mcpServers=[])
        assert code == -32602
        assert "`checkouts`" in text or "absolute path" in text
        assert len(text) < 1000


async def test_a_folder_below_a_checkout_is_one_and_a_link_out_of_it_is_none(box: Box) -> None:
    (box.repo / "deep/er").mkdir(parents=True)
    (box.repo / "out").symlink_to("/etc")
    (box.folder / "in").symlink_to(box.repo / "deep")
    async with screen(box) as editor:
        assert (await editor.open(box.repo / "deep/er")).startswith("repo/w-")
        assert (await editor.open(box.folder / "in")).startswith("repo/w-")
        code, _ = await editor.error("session/new", cwd=str(box.repo / "out"), mcpServers=[])
        assert code == -32602
    assert git(box.repo, "branch", "--list", "work/*") == ""


async def test_what_an_agent_dies_of_is_told(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        told = await editor.answer(editor.prompt(session, script({"say": "x"}, {"exit": 3})))
        assert told["error"]["code"] == -32603
        assert "exited with status 3" in told["error"]["message"]
        assert told["error"]["data"]["sidecar/work"]["checkout"] == "repo"
        assert (await editor.done(session, script({"stop": "refusal"})))["stopReason"] == "refusal"
        odd = await editor.answer(editor.prompt(session, script({"stop": "weird"})))
        assert "'weird'" in odd["error"]["message"]


async def test_one_work_has_one_task_and_works_run_side_by_side(box: Box) -> None:
    async with screen(box) as editor:
        one, two = await editor.open(), await editor.open()
        assert one != two
        editor.prompt(one, script(RM))
        await box.waits()
        code, _ = await editor.error(
            "session/prompt", sessionId=one, prompt=[{"type": "text", "text": "x"}]
        )
        assert code == -32600
        async with screen(box) as other:
            await other.result("session/load", sessionId=one, cwd=str(box.repo), mcpServers=[])
            told = await other.answer(other.prompt(one, "something else"))
            assert "busy" in told["error"]["message"]
        assert (await editor.done(two, script({"say": "ok"})))["stopReason"] == "end_turn"


async def test_a_caller_names_no_command_environment_or_mode(box: Box) -> None:
    async with screen(box) as editor:
        evil = {"name": "x", "command": "/bin/sh", "args": ["-c", "touch /tmp/evil"], "env": []}
        told = await editor.result(
            "session/new",
            cwd=str(box.repo),
            mcpServers=[evil],
            _meta={"claudeCode": {"options": {"permissionMode": "bypassPermissions"}}},
            command=["sh"],
            env={"A": "b"},
        )
        assert told["_meta"]["sidecar/ignored"] == ["mcpServers"]
        session = told["sessionId"]
        await editor.done(session, script({"say": "x"}))
        (opening,) = [m for m in box.heard() if m.get("method") == "session/new"]
        assert opening["params"]["mcpServers"] == []
        assert "bypassPermissions" not in str(box.heard())
        for method in ("session/set_mode", "session/set_config_option"):
            code, _ = await editor.error(method, sessionId=session, modeId="auto")
            assert code == -32601


async def test_what_result_rules_take_out_is_told_at_the_end_alone(tmp_path: Path) -> None:
    policy = tmp_path / "secrets.policy.yaml"
    policy.write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: secrets\nmatch: {kind: acp}\nrules:\n"
        "  - id: keys\n    on: result\n    effect: redact\n    when: 'true'\n"
        "    redact: {patterns: ['key-[0-9]+'], with: '[key]'}\n"
    )
    async with Box(tmp_path, policies=(policy,)) as box, screen(box) as editor:
        session = await editor.open()
        result = await editor.done(session, script({"say": "it is key-"}, {"say": "123"}))
        assert result["stopReason"] == "end_turn"
        assert editor.text == "it is [key]"
        assert "123" not in str(editor.heard)


async def test_a_harness_that_is_gated_waits_for_a_person_too(tmp_path: Path) -> None:
    async with Box(tmp_path, harness={"gated": True}, hold=0.3) as box, screen(box) as editor:
        session = await editor.open()
        prompt = editor.prompt(session, script({"say": "x"}))
        (parked,) = await box.waits()
        (notice,) = await editor.until(editor.notices)
        assert notice == {"id": parked.id, "tool": "claude"}
        await box.answer(parked.id)
        assert (await editor.answer(prompt))["result"]["stopReason"] == "end_turn"
        await elicited(box)
        prompt = editor.prompt(session, script({"say": "y"}))
        (question,) = await editor.until(editor.asked)
        outcome = {"outcome": "selected", "optionId": "reject"}
        editor.send({"id": question["id"], "result": {"outcome": outcome}})
        told = await editor.answer(prompt)
        assert "denied by a person" in told["error"]["message"]


async def test_an_editor_that_reads_nothing_is_cut_off(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_server, "MOST_BYTES", 200_000)
    monkeypatch.setattr(acp_server, "FAREWELL", 0.5)
    async with screen(box) as editor:
        session = await editor.open()
        editor.reads.clear()
        editor.prompt(session, script({"flood": 10000}, {"hang": True}))
        await asyncio.wait_for(asyncio.shield(editor.task), 60)
        assert editor.server.why == "the editor reads too slowly"
        editor.reads.set()
    await soon(lambda: not box.runs._all())


async def test_an_editor_that_says_nothing_is_cut_off(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acp_server, "SILENT", 0.05)
    async with screen(box, begun=False) as editor:
        await asyncio.wait_for(asyncio.shield(editor.task), 30)
        assert editor.server.why == "no initialize within 0 s"


async def test_nothing_begins_while_the_sidecar_ends(box: Box) -> None:
    async with screen(box) as editor:
        session = await editor.open()
        running = editor.prompt(session, script({"say": "a"}, RM))
        await box.waits()
        editor.server.draining = True
        other = await editor.answer(editor.ask("session/new", cwd=str(box.repo), mcpServers=[]))
        assert "shutting down" in other["error"]["message"]
        box.runs.drain()
        told = await editor.answer(running)
        assert "the sidecar is ending" in told["error"]["message"]
