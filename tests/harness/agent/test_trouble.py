"""Agents that crash, flood, lie, hang, fork and fall silent."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.config import Limits
from sidecar.harness.agent import Agent, AgentFailed, AgentGone, AgentLimits, AgentSpec
from sidecar.harness.profiles import PROFILES, Asking, Profile
from sidecar.harness.session import Bounds
from tests.harness.agent.kit import LIMITS, PROFILE, Ear, command, forever, running, script, sent
from tests.kit.processes import alive

CALL = {"toolCallId": "t1", "kind": "execute", "rawInput": {"command": "ls"}}


async def until(condition: Callable[[], object], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  processes tell nobody
            await asyncio.sleep(0.01)


# -------------------------------------------------------------------------------- its process


async def test_a_crash_in_the_middle_is_told_with_what_was_said(tmp_path: Path) -> None:
    secret = "hunter2-in-a-variable"
    steps = [{"say": "so far"}, {"stderr": f"key={secret}\nENOMEM\n"}, {"exit": 3}]
    async with running(tmp_path, env={"TOKEN": secret}) as (agent, ear):
        with pytest.raises(AgentGone) as gone:
            await agent.prompt(script(*steps))
        assert gone.value.last_message == "so far"
        assert str(gone.value) == (
            "scripted: its process exited with status 3 and left 2 lines on stderr, which speak of "
            "memory that ran out"
        )
        assert ear.epitaphs == [gone.value.epitaph]
        assert "key=***" in agent.stderr_tail
        assert secret not in agent.stderr_tail
        assert agent.over is gone.value
        with pytest.raises(AgentGone):
            await agent.prompt("more")
        await agent.cancel()


KEY = "-----BEGIN\nbase64-of-the-key\n-----END"
LINES = "a=hunter2-in-a-variable\nb=base64-of-the-key\nc=t0ken-of-the-run\x1b[2J\nENOMEM\n"


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
async def test_its_last_words_are_in_the_log_at_debug_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, level: int
) -> None:
    caplog.set_level(level, "sidecar.harness.agent")
    headers = [{"name": "Authorization", "value": "Bearer t0ken-of-the-run"}]
    spec = AgentSpec(
        "x",
        PROFILE,
        ("/bin/sh", "-c", f"printf %s '{LINES}' >&2; exit 7"),
        tmp_path,
        {"TOKEN": "hunter2-in-a-variable", "KEY": KEY},
        ({"type": "http", "name": "s", "url": "http://127.0.0.1:1/", "headers": headers},),
    )
    with pytest.raises(AgentGone, match="left 4 lines on stderr"):
        await Agent.start(spec, Ear())
    told = [each.getMessage() for each in caplog.records if "stderr" in each.getMessage()]
    wanted = r"x: the end of its stderr: a=***\nb=***\nc=***\x1b[2J\nENOMEM"
    assert told == ([wanted] if level == logging.DEBUG else [])


async def test_its_last_words_are_bounded(tmp_path: Path) -> None:
    """What is left of a secret at the cut is not shown, either."""
    secret = "s" * 30_000
    async with running(tmp_path, env={"TOKEN": secret}) as (agent, _):
        await agent.prompt(script({"stderr": secret, "times": 3}, {"say": "x"}))
        await until(lambda: agent.stderr_tail.startswith("…"))
        words = agent._process.last_words()
        assert len(words) <= 4_000
        assert "s" not in words


async def test_a_signal_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, _):
        with pytest.raises(AgentGone, match="ended by signal 9 and wrote nothing on stderr"):
            await agent.prompt(script({"kill": 9}))


async def test_a_crash_takes_its_question_with_it(tmp_path: Path) -> None:
    ear = Ear(forever)
    async with running(tmp_path, ear) as (agent, _):
        with pytest.raises(AgentGone):
            await agent.prompt(script({"ask": CALL, "wait": False}, {"sleep": 0.2}, {"exit": 1}))
        await until(lambda: ear.dropped)
        assert [request.command for request in ear.dropped] == ["ls"]


@pytest.mark.parametrize("how", ["plain", "daemon", "orphan"])
async def test_nothing_of_it_is_left(tmp_path: Path, how: str) -> None:
    file = tmp_path / "pid"
    async with running(tmp_path, limits=replace(LIMITS, look=60)) as (agent, _):
        # What an agent puts into the background outlives the shell that did it.
        await agent.prompt(script({"fork": str(file), how: True}))
        child = int(file.read_text())
        assert alive(child)
        assert os.getpgid(agent.pid) == agent.pid
        pid = agent.pid
    await until(lambda: not alive(child))
    assert not alive(pid)


async def test_a_crash_leaves_nothing_either(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with running(tmp_path) as (agent, _):
        with pytest.raises(AgentGone):
            await agent.prompt(script({"fork": str(file)}, {"exit": 1}))
        child = int(file.read_text())
    await until(lambda: not alive(child))


async def test_nor_does_a_crash_what_was_seen_before(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with running(tmp_path) as (agent, ear):
        fork = {"fork": str(file), "orphan": True}
        turn = asyncio.create_task(agent.prompt(script(fork, {"say": "x"}, {"hang": True})))
        await ear.until(lambda: ear.text)
        child = int(file.read_text())
        await until(lambda: child in agent._process._child._tree._known)
        os.kill(agent.pid, signal.SIGKILL)
        with pytest.raises(AgentGone):
            await turn
    await until(lambda: not alive(child))


async def test_one_that_ends_for_no_signal_is_killed(tmp_path: Path) -> None:
    limits = replace(LIMITS, cancel=0.2, grace=0.2)
    async with running(tmp_path, limits=limits) as (agent, ear):
        turn = asyncio.create_task(agent.prompt(script({"say": "x"}, {"deaf": True})))
        await ear.until(lambda: ear.text == "x")
        await agent.cancel()
        with pytest.raises(AgentFailed, match="did not end its turn when cancelled") as failed:
            await turn
        assert (failed.value.reason, failed.value.last_message) == ("slow", "x")
        assert not alive(agent.pid)


async def test_a_flood_on_stderr_does_not_stop_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, _):
        turn = await agent.prompt(script({"stderr": "e" * 1000, "times": 2000}, {"say": "after"}))
        assert turn.last_message == "after"
        assert len(agent.stderr_tail) < 70_000


async def test_too_much_memory_ends_it(tmp_path: Path) -> None:
    limits = replace(LIMITS, memory=1 << 20)
    async with running(tmp_path, limits=limits) as (agent, _):
        with pytest.raises(AgentFailed, match="used more than 1 MiB") as failed:
            await agent.prompt(script({"hang": True}))
        assert failed.value.reason == "memory"
        await until(lambda: not alive(agent.pid))


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    spec = AgentSpec("scripted", PROFILE, ("no-such-agent",), tmp_path)
    with pytest.raises(AgentFailed, match="not on PATH") as failed:
        await Agent.start(spec, Ear())
    assert failed.value.reason == "spawn"


# ----------------------------------------------------------------------------------- its words


async def test_floods_are_taken_at_the_speed_of_who_takes_them(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, ear):
        turn = await agent.prompt(script({"flood": 20_000, "text": "0123456789"}))
        assert sum(u.kind == "agent_message_chunk" for u in ear.updates) == 20_000
        assert turn.last_message == "0123456789" * 20_000


async def test_an_endless_flood_ends(tmp_path: Path) -> None:
    limits = replace(LIMITS, bounds=Bounds(turn=2 << 20))
    async with running(tmp_path, limits=limits) as (agent, _):
        with pytest.raises(AgentFailed, match="more than 2 MiB in one turn") as failed:
            await agent.prompt(script({"flood": 10_000_000}))
        assert failed.value.reason == "flood"
        await until(lambda: not alive(agent.pid))


async def test_one_that_does_not_read_is_ended(tmp_path: Path) -> None:
    text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "x" * 90})
    steps = [{"raw": text.replace('"id": 1', f'"id": "{"i" * 3000}"'), "times": 3000}]
    async with running(tmp_path) as (agent, _):
        with pytest.raises(AgentFailed, match="does not read") as failed:
            await agent.prompt(script({"blind": True}, *steps, {"hang": True}))
        assert failed.value.reason == "flood"


async def test_bad_lines_and_scalars_cost_themselves(tmp_path: Path) -> None:
    lines = ["not json", "42", "[]", "null", '"x"', "{", '{"jsonrpc":"2.0"}']
    async with running(tmp_path) as (agent, _):
        turn = await agent.prompt(script(*[{"raw": text} for text in lines], {"say": "after"}))
        assert turn.last_message == "after"
        assert agent.complaints == len(lines)


async def test_a_line_that_is_too_long_costs_itself(tmp_path: Path) -> None:
    limits = replace(LIMITS, bounds=Bounds(line=10_000))
    async with running(tmp_path, limits=limits) as (agent, _):
        turn = await agent.prompt(script({"say": "x" * 20_000}, {"say": "after"}))
        assert (turn.last_message, agent.complaints) == ("after", 1)


async def test_one_that_speaks_no_acp_is_ended(tmp_path: Path) -> None:
    limits = replace(LIMITS, bounds=Bounds(garbage=100))
    async with running(tmp_path, limits=limits) as (agent, _):
        with pytest.raises(AgentFailed, match="no messages of ACP"):
            await agent.prompt(script({"raw": "nonsense", "times": 5000}, {"hang": True}))


async def test_a_meta_is_no_argument(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write = {"sessionId": "s", "path": "/w/a", "content": "", "_meta": {"path": "/etc/passwd"}}
    request = {"id": "w", "method": "fs/write_text_file", "params": write}
    meta = {"tool_call": {"kind": "read"}, "toolCall": {"kind": "read"}, "session_id": "x"}
    steps = [{"request": request}, {"ask": CALL, "params": {"_meta": meta}}]
    async with running(tmp_path, log=str(log)) as (agent, ear):
        await agent.prompt(script(*steps))
        assert [(r.kind, r.command) for r in ear.requests] == [("execute", "ls")]
        refused = next(message for message in sent(log) if message.get("id") == "w")
        assert refused["error"] == {
            "code": -32601,
            "message": "fs/write_text_file is not offered by this client",
        }


async def test_stop_reasons_that_nobody_knows_are_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, _):
        turn = await agent.prompt(script({"stop": "brand_new", "more": {"usage": {"n": 1}}}))
        assert (turn.stop_reason, turn.usage) == ("brand_new", {"n": 1})
        turn = await agent.prompt(script({"stop": None}))
        assert (turn.stop_reason, turn.ended_by) == ("", "agent")


async def test_an_error_ends_a_turn_and_nothing_else(tmp_path: Path) -> None:
    error = {"code": -32603, "message": "Internal error", "data": {"details": "overloaded"}}
    async with running(tmp_path) as (agent, _):
        with pytest.raises(AgentFailed, match="Internal error: overloaded") as failed:
            await agent.prompt(script({"say": "half"}, {"error": error}))
        assert (failed.value.reason, failed.value.last_message) == ("error", "half")
        assert agent.idle
        assert (await agent.prompt("again")).last_message == "echo: again"


async def test_late_updates_belong_to_the_turn(tmp_path: Path) -> None:
    profile = replace(PROFILE, drain=2.0)
    late = [{"sleep": 0.05}, {"say": "late"}]
    async with running(tmp_path, profile=profile) as (agent, ear):
        turn = await agent.prompt(script({"say": "not "}, {"stop": "end_turn", "late": late}))
        assert turn.last_message == "not late"
        assert [u.late for u in ear.updates if u.kind == "agent_message_chunk"] == [False, True]


async def test_a_tool_that_still_runs_is_waited_for(tmp_path: Path) -> None:
    call = {"toolCallId": "t", "status": "in_progress"}
    done = {"tool": {"toolCallId": "t", "status": "completed"}, "as": "tool_call_update"}
    late = [{"sleep": 0.4}, done, {"say": "then"}]
    limits = replace(LIMITS, settle=30)
    async with running(tmp_path, limits=limits) as (agent, _):
        turn = await agent.prompt(script({"tool": call}, {"stop": "end_turn", "late": late}))
        assert turn.last_message == "then"


class Clock:
    """Runs with the real one, and is put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("sidecar.harness.agent._now", found)
    return found


async def test_a_tool_of_a_cancelled_turn_is_not(tmp_path: Path) -> None:
    call = {"toolCallId": "t", "status": "in_progress"}
    limits = replace(LIMITS, settle=600)
    async with running(tmp_path, limits=limits) as (agent, ear):
        turn = asyncio.create_task(agent.prompt(script({"tool": call}, {"hang": True})))
        await ear.until(lambda: [u for u in ear.updates if u.tool])
        await agent.cancel()
        assert (await turn).ended_by == "cancel"


async def test_silence_ends_a_turn(tmp_path: Path, clock: Clock) -> None:
    limits = replace(LIMITS, silence=600)
    async with running(tmp_path, limits=limits) as (agent, ear):
        turn = asyncio.create_task(agent.prompt(script({"say": "x"}, {"hang": True})))
        await ear.until(lambda: ear.text == "x")
        clock.ahead = 601
        with pytest.raises(AgentFailed, match="said nothing for 600 s") as failed:
            await turn
        assert (failed.value.reason, failed.value.last_message) == ("silent", "x")
        assert (await agent.prompt("again")).last_message == "echo: again"


async def test_any_frame_is_a_sign_of_life_and_so_is_a_question(
    tmp_path: Path, clock: Clock
) -> None:
    limits = replace(LIMITS, silence=600, look=0.01)

    async def slowly(_: object) -> str:
        clock.ahead += 10_000
        await asyncio.sleep(0.2)  # some looks at it
        return "allow"

    ear = Ear(slowly)  # type: ignore[arg-type]
    async with running(tmp_path, ear, limits=limits) as (agent, _):
        for sign in ({"think": "hm"}, {"update": {"sessionUpdate": "_x/y"}}, {"raw": "{}"}):
            steps = script(sign, {"ask": CALL}, sign, {"sleep": 0.1}, {"say": "alive"})
            turn = asyncio.create_task(agent.prompt(steps))
            await ear.until(lambda: ear.requests)
            assert (await turn).last_message == "alive"
            ear.requests.clear()
        assert clock.ahead == 30_000


# ---------------------------------------------------------------------------------- questions


async def test_a_question_that_is_taken_back_is_dropped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    ear = Ear(forever)
    steps = [{"ask": CALL, "wait": False, "id": "q"}, {"sleep": 0.1}, {"withdraw": "q"}]
    async with running(tmp_path, ear, log=str(log)) as (agent, _):
        turn = await agent.prompt(script(*steps, {"sleep": 0.1}, {"say": "went on"}))
        assert turn.last_message == "went on"
        # It may come so soon that nobody was asked yet.
        await until(lambda: ear.dropped == ear.requests)
        answer = next(message for message in sent(log) if message.get("id") == "q")
        assert answer["result"] == {"outcome": {"outcome": "cancelled"}}


async def test_cancelling_answers_its_questions_first(tmp_path: Path) -> None:
    # It ends its turn only once it has its answer, as Gemini does.
    log = tmp_path / "log"
    ear = Ear(forever)
    async with running(tmp_path, ear, log=str(log)) as (agent, _):
        turn = asyncio.create_task(agent.prompt(script({"ask": CALL})))
        await ear.until(lambda: ear.requests)
        await agent.cancel()
        ended = await turn
        assert (ended.stop_reason, ended.ended_by) == ("cancelled", "cancel")
        *_, cancel, answer = sent(log)
        assert cancel["method"] == "session/cancel"
        assert answer["result"] == {"outcome": {"outcome": "cancelled"}}
        await until(lambda: ear.dropped)
        assert (await agent.prompt("again")).last_message == "echo: again"


async def test_a_listener_that_fails_rejects(tmp_path: Path) -> None:
    async def broken(_: object) -> str:
        raise ValueError("a bug of ours")

    async with running(tmp_path, Ear(broken)) as (agent, _):  # type: ignore[arg-type]
        turn = await agent.prompt(script({"ask": CALL, "run": "touch made"}))
        assert turn.last_message == "not run: no"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("denial", ["end_turn", "cancelled", "goes_on"])
async def test_a_denial_may_end_the_turn(tmp_path: Path, denial: str) -> None:
    profile = replace(PROFILE, denial=denial)  # type: ignore[arg-type]
    ask = {"ask": CALL} if denial == "goes_on" else {"ask": CALL, "denied": denial}
    async with running(tmp_path, Ear("reject"), profile=profile) as (agent, _):
        turn = await agent.prompt(script(ask))
        assert turn.ended_by == ("agent" if denial == "goes_on" else "denial")


async def test_many_questions_wait_side_by_side(tmp_path: Path) -> None:
    ids = [f"q{n}" for n in range(5)]
    gate = asyncio.Event()

    async def later(_: object) -> str:
        await gate.wait()
        return "reject"

    ear = Ear(later)  # type: ignore[arg-type]
    steps = [{"ask": CALL, "id": id_, "wait": False} for id_ in ids]
    async with running(tmp_path, ear) as (agent, _):
        turn = asyncio.create_task(agent.prompt(script(*steps, {"hang": True})))
        await ear.until(lambda: len(ear.requests) == 5)
        assert [request.id for request in ear.requests] == ids
        gate.set()
        await ear.until(lambda: [u.state for u in ear.updates if u.state][-1:] == ["running"])
        await agent.cancel()
        await turn


async def test_a_prompt_that_is_left_is_cancelled(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, ear):
        turn = asyncio.create_task(agent.prompt(script({"say": "x"}, {"hang": True})))
        await ear.until(lambda: ear.text == "x")
        with pytest.raises(RuntimeError, match="running already"):
            await agent.prompt("other")
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        await until(lambda: agent.idle)
        assert (await agent.prompt("again")).last_message == "echo: again"


# -------------------------------------------------------------------------------------- modes


async def test_a_switch_to_a_mode_that_does_not_ask_ends_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (agent, ear):
        with pytest.raises(AgentFailed, match="switched to mode 'auto'") as failed:
            await agent.prompt(
                script({"mode": "plan"}, {"mode": "auto"}, {"ask": CALL, "run": "touch made"})
            )
        assert failed.value.reason == "mode"
        assert ear.modes == [("plan", True), ("auto", False)]
        assert ear.requests == []
        await until(lambda: not alive(agent.pid))
    assert not (tmp_path / "made").exists()


async def test_between_two_turns_too(tmp_path: Path) -> None:
    late = [{"sleep": 0.3}, {"mode": "auto"}]
    async with running(tmp_path) as (agent, ear):
        await agent.prompt(script({"stop": "end_turn", "late": late}))
        await until(lambda: ear.modes)
        with pytest.raises(AgentFailed, match="switched to mode"):
            await agent.prompt("more")


@pytest.mark.parametrize("options", [False, True])
@pytest.mark.parametrize("confirm", ["before", "after"])
async def test_the_mode_is_set_and_read_back(tmp_path: Path, options: bool, confirm: str) -> None:
    async with running(tmp_path, options=options, confirm=confirm) as (agent, ear):
        assert agent.mode == "default"
        assert ear.modes == []  # while it is opened that is nobody's business
        assert (await agent.prompt("x")).last_message == "echo: x"


@pytest.mark.parametrize(
    ("habits", "why"),
    [
        ({"confirm": "never"}, "did not say that it is in mode 'default'"),
        ({"confirm": "wrong"}, "is in mode 'auto', in which it does not ask"),
        ({"modes": ["auto"]}, "refused mode 'default': no such mode"),
        ({"mode": None}, "has no modes"),
        ({"mute": ["session/set_mode"]}, "did not answer session/set_mode"),
        ({"confirm": "after", "opening": [{"mode": "default"}]}, ""),
    ],
)
async def test_without_that_there_is_no_prompt(
    tmp_path: Path, habits: dict[str, object], why: str
) -> None:
    limits = LIMITS
    if "mute" in habits:
        limits = replace(LIMITS, open=1.0)
    elif habits.get("confirm") == "never":
        limits = replace(LIMITS, mode=0.2)
    if not why:
        async with running(tmp_path, limits=limits, **habits) as (agent, _):
            assert agent.mode == "default"
        return
    with pytest.raises(AgentFailed, match=why) as failed:
        async with running(tmp_path, limits=limits, **habits):
            pass
    assert failed.value.reason in ("mode", "slow")


GENERIC = replace(PROFILES["generic"], drain=0.05)


@pytest.mark.parametrize(
    ("mode", "fine"),
    [(None, True), ("default", True), ("coding", True), ("yolo", False), ("acceptEdits", False)],
)
async def test_an_unknown_agent_may_be_in_any_mode_that_does_not_say_otherwise(
    tmp_path: Path, mode: str | None, fine: bool
) -> None:
    if not fine:
        with pytest.raises(AgentFailed, match="does not ask"):
            async with running(tmp_path, profile=GENERIC, mode=mode):
                pass
        return
    async with running(tmp_path, profile=GENERIC, mode=mode) as (agent, _):
        assert (await agent.prompt("x")).last_message == "echo: x"
        if mode == "coding":
            with pytest.raises(AgentFailed, match="switched to mode 'other'"):
                await agent.prompt(script({"mode": "other"}, {"hang": True}))


# ----------------------------------------------------------------------------------- sessions


async def begun(tmp_path: Path, store: str) -> str:
    async with running(tmp_path, store=store) as (agent, _):
        await agent.prompt("first")
        return agent.session


@pytest.mark.parametrize(
    ("habits", "how"),
    [({}, "resumed"), ({"resume": False}, "loaded"), ({"resume": False, "load": False}, "new")],
)
async def test_an_earlier_session_is_taken_up(
    tmp_path: Path, habits: dict[str, object], how: str
) -> None:
    store = str(tmp_path / "store")
    session = await begun(tmp_path, store)
    ear = Ear()
    spec = AgentSpec("x", PROFILE, command(store=store, **habits), tmp_path, limits=LIMITS)
    agent = await Agent.start(spec, ear)
    try:
        opened = await agent.open(session)
        assert opened.how == how
        assert opened.mode == "default"
        assert (opened.session_id == session) == (how != "new")
        assert opened.lost == ("" if how != "new" else "it cannot take up an earlier session")
        replayed = [u.text for u in ear.updates if u.replayed and u.kind == "agent_message_chunk"]
        assert replayed == (["replayed: first"] if how == "loaded" else [])
        assert (await agent.prompt("second")).last_message == "echo: second"
    finally:
        await agent.stop()


async def test_a_session_that_is_not_known_any_more(tmp_path: Path) -> None:
    spec = AgentSpec("x", PROFILE, command(), tmp_path, limits=LIMITS)
    agent = await Agent.start(spec, Ear())
    try:
        opened = await agent.open("long-gone")
        assert opened.how == "new"
        assert "Resource not found (-32002)" in opened.lost
        assert (await agent.prompt("x")).last_message == "echo: x"
    finally:
        await agent.stop()


@pytest.mark.parametrize(
    ("habits", "limits", "reason"),
    [
        ({"protocol": 2}, LIMITS, "protocol"),
        ({"protocol": "1"}, LIMITS, "protocol"),
        ({"mute": ["initialize"]}, replace(LIMITS, initialize=0.2), "slow"),
        ({"mute": ["session/new"]}, replace(LIMITS, open=0.2), "slow"),
        ({"auth": "token"}, LIMITS, "auth"),
    ],
)
async def test_an_agent_that_does_not_come_up(
    tmp_path: Path, habits: dict[str, object], limits: AgentLimits, reason: str
) -> None:
    with pytest.raises(AgentFailed) as failed:
        async with running(tmp_path, limits=limits, **habits):
            pass
    assert failed.value.reason == reason


async def test_one_that_exits_before_it_greets(tmp_path: Path) -> None:
    spec = AgentSpec("x", PROFILE, ("/bin/sh", "-c", "echo no key >&2; exit 7"), tmp_path)
    with pytest.raises(AgentGone, match="exited with status 7 and left 1 line on stderr"):
        await Agent.start(spec, Ear())


async def test_it_is_logged_in_once_if_there_is_a_way(tmp_path: Path) -> None:
    profile: Profile = replace(PROFILE, authenticate={"SOME_KEY": "token"})
    env = {"SOME_KEY": "k"}
    async with running(tmp_path, profile=profile, env=env, auth="token") as (agent, _):
        assert (await agent.prompt("x")).last_message == "echo: x"
    with pytest.raises(AgentFailed, match="its login 'token' failed"):
        async with running(tmp_path, profile=profile, env=env, auth="other"):
            pass


async def test_mcp_servers_that_it_cannot_use(tmp_path: Path) -> None:
    server = {"type": "http", "name": "sidecar", "url": "http://127.0.0.1:9/mcp", "headers": []}
    spec = AgentSpec("x", PROFILE, command(http=False), tmp_path, mcp_servers=(server,))
    agent = await Agent.start(spec, Ear())
    try:
        with pytest.raises(AgentFailed, match="MCP servers over http") as failed:
            await agent.open(None)
        assert failed.value.reason == "mcp"
    finally:
        await agent.stop()


async def test_what_is_said_to_open_a_session(tmp_path: Path) -> None:
    log = tmp_path / "log"
    profile = replace(PROFILE, session_meta={"claudeCode": {"options": {"settingSources": []}}})
    async with running(tmp_path, profile=profile, log=str(log)) as (agent, _):
        await agent.prompt("x", meta={"traceparent": "00-1-2-01"})
    hello, new, mode, prompt = sent(log)
    assert hello["params"]["clientCapabilities"] == {}  # type: ignore[index]
    assert new["params"] == {
        "cwd": str(tmp_path),
        "mcpServers": [],
        "_meta": {"claudeCode": {"options": {"settingSources": []}}},
    }
    assert mode["params"] == {"sessionId": agent.session, "modeId": "default"}
    assert prompt["params"] == {
        "sessionId": agent.session,
        "prompt": [{"type": "text", "text": "x"}],
        "_meta": {"traceparent": "00-1-2-01"},
    }


async def test_a_file_that_would_loosen_it_keeps_it_from_starting(tmp_path: Path) -> None:
    (tmp_path / ".codex" / "rules").mkdir(parents=True)
    (tmp_path / ".codex" / "rules" / "x.rules").write_text("prefix_rule()")
    profile = replace(PROFILES["codex"], asking=Asking(reported=False))
    with pytest.raises(AgentFailed, match=r"\.codex/rules/x\.rules in the worktree") as failed:
        async with running(tmp_path, profile=profile):
            pass
    assert failed.value.reason == "guarded"


def test_the_configured_limits_of_lines_hold_for_agents() -> None:
    bounds = AgentLimits.of(Limits(line=12_345, depth=7)).bounds
    assert (bounds.line, bounds.depth) == (12_345, 7)
