"""What an agent asks for is a call of its own: decided, parked, answered (P12)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sidecar.events import Decided
from sidecar.harness import permission
from sidecar.parking.book import Missing
from tests.harness.runs.kit import Box, plain, script, soon

SHELL = {"toolCallId": "t", "title": "make it", "kind": "execute", "rawInput": {"command": "make"}}


def tool(kind: str | None, *paths: str, **more: object) -> dict[str, object]:
    found: dict[str, object] = {"toolCallId": "t", "title": "x", **more}
    if kind is not None:
        found["kind"] = kind
    if paths:
        found["locations"] = [{"path": path} for path in paths]
    return found


async def answers(box: Box, call: dict[str, object]) -> tuple[str, str]:
    """What a question is answered, and by which rule, where no person is asked."""
    done = await box.done({"ask": call})
    (ask,) = done["structuredContent"]["asks"]
    return ask["answer"], ask["rule"].removeprefix("coding-agents/")


async def test_what_the_shipped_policies_say_without_asking(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        work = tmp_path / "worktrees/claude/repo/alice/fix"
        assert await answers(box, tool("edit", "a.txt")) == ("allow", "default")
        assert await answers(box, tool("edit", str(work / "b.txt"))) == ("allow", "default")
        assert await answers(box, tool("read", "a.txt")) == ("allow", "reads")
        assert await answers(box, tool("edit", "../../../../repo/a.txt")) == ("reject", "outside")
        assert await answers(box, tool("delete", "/etc/passwd")) == ("reject", "outside")
        assert await answers(box, tool("edit", "a\0.txt")) == ("reject", "outside")
        assert await answers(box, tool("edit", "~/.bashrc")) == ("reject", "outside")
        assert await answers(box, tool("edit", ".git")) == ("reject", "self-escalation")
        assert await answers(box, tool("edit", ".claude/x.json")) == ("reject", "self-escalation")
        # A link of the agent's own making leads where it leads.
        (work / "innocent").symlink_to("/etc")
        (work / "src").symlink_to(".claude")
        assert await answers(box, tool("edit", "innocent/hosts")) == ("reject", "outside")
        assert await answers(box, tool("edit", "src/settings.json")) == (
            "reject",
            "self-escalation",
        )


@pytest.mark.parametrize(
    ("call", "name", "rule"),
    [
        (tool("execute", rawInput={"command": "ls"}), "claude__execute", "execute"),
        (tool("fetch", rawInput={"url": "https://x"}), "claude__fetch", "network"),
        (tool("read", "/etc/hostname"), "claude__read", "reads-outside"),
        (tool("edit"), "claude__edit", "unclear"),
        (tool("brand_new"), "claude__brand_new", "unclear"),
        (tool("../../x"), "claude__other", "unclear"),
        (tool(None), "claude__other", "unclear"),
        (tool("switch_mode"), "claude__switch_mode", "unclear"),
    ],
)
async def test_what_is_asked(tmp_path: Path, call: dict[str, object], name: str, rule: str) -> None:
    async with Box(tmp_path) as box:
        run = box.call(script({"ask": call}))
        (waiting,) = await box.waits()
        assert (waiting.tool, waiting.rules) == (name, (f"coding-agents/{rule}",))
        await box.answer(waiting.id, approve=False)
        assert plain(await run)["structuredContent"]["asks"][0]["answer"] == "reject"


async def test_everything_known_of_it_is_shown_and_decided(tmp_path: Path) -> None:
    decided: list[Decided] = []
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nmatch: {kind: permission}\nrules:\n"
        "  - id: all\n    on: call\n    effect: ask\n    when: >-\n"
        "      permission.kind == 'execute' && permission.command == 'make'\n"
        "      && permission.?title.orValue('') == 'make it' && permission.inside == false\n"
        "      && permission.paths == ['/etc', '/'] && has(permission.raw.toolCall)\n"
        "      && size(permission.locations) == 1\n"
        "      && work.name == 'fix' && work.checkout == 'repo'\n"
        "      && work.branch == 'work/claude/alice/fix' && work.path.endsWith('/alice/fix')\n"
        "      && agent.principal == 'harness:claude/repo/alice/fix'\n"
        "      && agent.?on_behalf_of.orValue('') == 'alice' && server.transport == 'acp'\n"
        "      && tool.name == 'claude__execute' && tool.upstream_name == 'execute'\n"
    )
    async with Box(tmp_path, policies=(rules,)) as box:
        box.bus.listen(Decided, decided.append)
        raw = {"command": "make", "cwd": "/"}
        call = tool("execute", "/etc", rawInput=raw, **{"title": "make it"})
        run = box.call(script({"ask": call}))
        (waiting,) = await box.waits()
        assert waiting.rules == ("coding-agents/execute", "mine/all")
        whole = await box.parking.book.get(waiting.id)
        shown = plain({"args": whole.args})["args"]
        assert shown["permission"]["raw"]["toolCall"]["rawInput"] == raw
        assert shown["work"]["name"] == "fix"
        assert waiting.principal == "harness:claude/repo/alice/fix"
        (decision,) = [each for each in decided if each.target == "claude__execute"]
        assert decision.kind == "permission"
        await box.answer(waiting.id)
        assert plain(await run)["structuredContent"]["asks"][0]["answer"] == "allow"
        await soon(lambda: box.parked()[0].state == "done")


async def test_either_id_answers_while_one_waits(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        run = box.call(script({"ask": SHELL}, {"say": "x"}))
        (waiting,) = await box.waits()
        answered = await box.answer(waiting.parent)
        assert answered.id == waiting.id
        assert plain(await run)["structuredContent"]["asks"][0]["answer"] == "allow"
        with pytest.raises(Missing):
            await box.answer(waiting.parent)


async def test_with_two_that_wait_it_has_to_be_said_which(tmp_path: Path) -> None:
    both = ({"ask": SHELL, "id": 1, "wait": False}, {"ask": SHELL, "id": 2, "wait": False})
    async with Box(tmp_path) as box:
        run = box.call(script(*both, {"sleep": 600}))
        first, second = await box.waits(2)
        with pytest.raises(Missing):
            await box.answer(first.parent)
        await box.answer(first.id)
        assert (await box.answer(first.parent)).id == second.id
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_nobody_in_time_is_no(tmp_path: Path) -> None:
    async with Box(tmp_path, expire=0.5) as box:
        done = await box.done({"ask": SHELL, "run": "true"}, {"say": "."})
        (ask,) = done["structuredContent"]["asks"]
        assert ask["answer"] == "reject"
        # The agent's own option to reject once, and nothing else.
        (reply,) = [m for m in box.heard() if "method" not in m]
        assert reply["result"] == {"outcome": {"outcome": "selected", "optionId": "no"}}
        assert [parked.state for parked in box.parked()] == ["expired"]


async def test_nothing_that_lasts_is_ever_allowed(tmp_path: Path) -> None:
    always = [{"optionId": "a", "name": "A", "kind": "allow_always"}]
    async with Box(tmp_path) as box:
        # Nobody is asked about what could only be refused.
        done = await box.done({"ask": SHELL, "options": always})
        assert [ask["answer"] for ask in done["structuredContent"]["asks"]] == ["reject"]
        assert box.parked() == []


async def test_a_cancelled_run_answers_what_waits(tmp_path: Path) -> None:
    async with Box(tmp_path) as box:
        run = box.call(script({"ask": SHELL, "obey": True}))
        await box.waits()
        run.cancel("cancelled by the client")
        await asyncio.gather(run, return_exceptions=True)
        await soon(lambda: not box.runs._active)
        replies = [m for m in box.heard() if "method" not in m]
        assert [reply["result"]["outcome"] for reply in replies] == [{"outcome": "cancelled"}]
        assert [parked.state for parked in box.parked()] == ["cancelled"]


async def test_a_question_that_is_taken_back_waits_no_more(tmp_path: Path) -> None:
    steps = ({"ask": SHELL, "id": 7, "wait": False}, {"sleep": 0.5}, {"withdraw": 7}, {"say": "x"})
    async with Box(tmp_path) as box:
        done = await box.done(*steps)
        assert [ask["answer"] for ask in done["structuredContent"]["asks"]] == ["cancelled"]
        await soon(lambda: [parked.state for parked in box.parked()] == ["cancelled"])


async def test_what_a_dead_agent_asked_is_lost(tmp_path: Path) -> None:
    steps = ({"ask": SHELL, "wait": False}, {"sleep": 0.5}, {"kill": 9})
    async with Box(tmp_path) as box:
        done = await box.done(*steps)
        assert done["structuredContent"]["stop_reason"] == "died"
        await soon(lambda: [parked.state for parked in box.parked()] == ["lost"])
        assert [ask["answer"] for ask in done["structuredContent"]["asks"]] == ["cancelled"]


async def test_one_that_is_too_large_to_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permission, "LARGEST", 10_000)
    large = tool("execute", rawInput={"command": "x" * 10_000})
    async with Box(tmp_path) as box:
        assert await answers(box, large) == ("reject", "harness/too_large")


async def test_a_run_has_the_labels_of_its_caller_and_gives_back_what_it_gathered(
    tmp_path: Path,
) -> None:
    rules = tmp_path / "mine.yaml"
    rules.write_text(
        "apiVersion: sidecar/v1\nkind: Policy\nname: mine\nmatch: {kind: permission}\nrules:\n"
        "  - id: tainted\n    on: call\n    effect: deny\n"
        "    when: '\"secret\" in session.labels'\n    message: \"'no'\"\n"
    )
    from sidecar.model import Caller
    from tests.harness.runs.kit import ALICE

    async with Box(tmp_path, policies=(rules,), harness={"trusted": True}) as box:
        assert await answers(box, tool("edit", "a.txt")) == ("allow", "default")
        assert box.house.ledger.of(Caller(ALICE)) == ()
        await box.house.ledger.add(Caller(ALICE), ["secret"], "c", "t")
        assert await answers(box, tool("edit", "a.txt")) == ("reject", "mine/tainted")
        # Whoever asks for the answer of an agent that knows it, knows it too.
        agent = Caller(type(ALICE)("harness:claude/repo/alice/fix"))
        await box.house.ledger.add(agent, ["more"], "c", "t")
        done = await box.done({"say": "x"})
        assert done["_meta"]["sidecar/labels"] == ["more", "secret"]
        assert box.house.ledger.of(Caller(ALICE)) == ("more", "secret")
    (tmp_path / "two").mkdir()
    async with Box(tmp_path / "two") as box:
        done = await box.done({"say": "x"})
        assert done["_meta"]["sidecar/labels"] == ["outside"]
        assert box.house.ledger.of(Caller(ALICE)) == ("outside",)
