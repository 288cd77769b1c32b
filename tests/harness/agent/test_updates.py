"""Updates of version 1 in the shape of version 2, and what is made of them."""

from __future__ import annotations

import pytest

from sidecar.harness.agent_errors import Epitaph
from sidecar.harness.profiles import PROFILES, Extract
from sidecar.harness.session_asks import Diff, PermissionRequest, read
from sidecar.harness.updates import Tools, Update, shape
from sidecar.harness.updates_message import LastMessage


def chunk(text: str, message: str = "", kind: str = "agent_message_chunk") -> Update:
    return Update(kind, {}, text=text, message=message)


TOOL = Update("tool_call_update", {})
USAGE = Update("usage_update", {})


@pytest.mark.parametrize(
    ("updates", "text"),
    [
        ([chunk("a"), chunk("b")], "ab"),
        ([chunk("a"), USAGE, chunk("b")], "ab"),
        ([chunk("a"), TOOL, chunk("b")], "b"),
        ([chunk("a"), TOOL], "a"),
        ([chunk("a"), chunk("t", kind="agent_thought_chunk"), chunk("b")], "b"),
        ([chunk("a", "1"), chunk("b", "1"), chunk("c", "2"), chunk("d", "2")], "cd"),
        ([chunk("a", "1"), TOOL, chunk("b", "1")], "ab"),
        ([chunk("warning"), chunk("a", "1")], "a"),
        ([chunk("a", "1"), chunk("b")], "ab"),
        ([chunk("a"), chunk("", "2"), chunk("b")], "ab"),
        ([chunk("u", kind="user_message_chunk")], ""),
        ([], ""),
    ],
)
def test_the_last_message(updates: list[Update], text: str) -> None:
    last = LastMessage(100)
    for update in updates:
        last.take(update)
    assert last.text == text
    last.clear()
    assert last.text == ""
    # An id may come again in the next turn.
    last.take(chunk("new", "1"))
    assert last.text == "new"


def test_history_is_no_message() -> None:
    last = LastMessage(100)
    last.take(Update("agent_message_chunk", {}, text="old", replayed=True))
    assert last.text == ""


def test_tool_calls_are_put_together() -> None:
    tools = Tools()
    first = shape({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "A"}, tools)
    assert first.kind == "tool_call_update"
    assert first.tool is not None
    assert (first.tool.title, first.tool.status) == ("A", "pending")
    raw = {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "in_progress"}
    second = shape({**raw, "title": None}, tools)
    assert second.tool is not None
    assert (second.tool.title, second.tool.status) == ("A", "in_progress")
    assert tools.running
    shape({**raw, "status": "completed"}, tools)
    assert not tools.running


def test_only_so_many_tool_calls_are_remembered() -> None:
    tools = Tools()
    for number in range(2000):
        raw = {"toolCallId": f"t{number}", "rawInput": {"command": "x" * 1000}}
        tools.upsert(raw)
    assert tools.whole({"toolCallId": "t0"}) == {"toolCallId": "t0"}
    assert "rawInput" in tools.whole({"toolCallId": "t1999"})


def test_large_details_are_not_remembered() -> None:
    tools = Tools()
    content = [{"type": "diff", "path": "/a", "newText": "x" * 400_000}]
    tools.upsert({"toolCallId": "t", "kind": "edit", "content": content, "rawInput": {"a": 1}})
    assert tools.whole({"toolCallId": "t"}) == {
        "toolCallId": "t",
        "kind": "edit",
        "rawInput": {"a": 1},
    }


def test_plans_of_both_versions() -> None:
    tools = Tools()
    entries = [{"content": "a", "status": "pending"}, "no entry"]
    one = shape({"sessionUpdate": "plan", "entries": entries}, tools)
    two = shape({"sessionUpdate": "plan_update", "plan": {"entries": entries}}, tools)
    assert one.kind == two.kind == "plan_update"
    assert one.plan == two.plan == ({"content": "a", "status": "pending"},)
    assert shape({"sessionUpdate": "plan"}, tools).plan is None


def asked(tool_call: dict[str, object], extract: Extract | None = None) -> PermissionRequest:
    return read(1, {"sessionId": "s", "options": []}, tool_call, extract or Extract())


def test_everything_that_is_named_is_a_path() -> None:
    request = asked(
        {
            "kind": "edit",
            "locations": [{"path": "/w/a", "line": 3}, {"path": 7}, "x", {"path": "/w/b"}],
            "rawInput": {"file_path": "c", "path": ["d", "/w/a"], "changes": {"e": {}, "f": {}}},
            "content": [
                {"type": "diff", "path": "/w/g", "oldText": None, "newText": "n"},
                {"type": "content", "content": {"type": "text", "text": "t"}},
                {"type": "diff", "newText": "no path"},
            ],
        },
        Extract(keyed_paths=("changes",)),
    )
    assert request.locations == ("/w/a", "/w/b")
    assert request.paths == ("/w/a", "/w/b", "c", "d", "e", "f", "/w/g")
    assert request.diffs == (Diff("/w/g", None, "n"),)


@pytest.mark.parametrize(
    "raw_input",
    [
        {"filePath": "/etc/x"},
        {"source": "a", "destination": "/etc/x"},
        {"old_path": "a", "newPath": "/etc/x"},
        {"target_file": "/etc/x"},
        {"paths": ["a", "/etc/x"]},
        {"files": [{"path": "a"}, {"path": "/etc/x"}]},
        {"edits": [{"file_path": "/etc/x", "new_string": "n"}]},
        {"changes": {"/etc/x": {"type": "update"}}},
        {"uri": "file:///etc/x"},
    ],
)
def test_an_agent_that_nobody_knows_may_name_files_in_any_usual_way(
    raw_input: dict[str, object],
) -> None:
    call = {"kind": "edit", "locations": [{"path": "/w/a"}], "rawInput": raw_input}
    named = asked(call, PROFILES["generic"].extract).paths
    assert named[0] == "/w/a"
    assert named[-1] in ("/etc/x", "file:///etc/x")


def test_files_that_hold_files_come_to_an_end() -> None:
    deep: object = "/etc/x"
    for _ in range(1000):
        deep = [{"path": deep}]
    assert asked({"kind": "edit", "rawInput": {"path": deep}}).paths == ()


@pytest.mark.parametrize(
    ("raw_input", "command"),
    [
        ({"command": "ls"}, "ls"),
        ({"cmd": "ls"}, "ls"),
        ({"command": ["bash", "-lc", "touch x"]}, "bash -lc 'touch x'"),
        ({"command": ["a", 1]}, None),
        ({"command": ""}, None),
        ({"command": {"x": 1}}, None),
        ({}, None),
        ("ls", None),
    ],
)
def test_commands(raw_input: object, command: str | None) -> None:
    assert asked({"kind": "execute", "title": "T", "rawInput": raw_input}).command == command


def test_a_title_is_a_command_only_where_there_is_nothing_else() -> None:
    extract = Extract(title_is_command=True)
    assert asked({"kind": "execute", "title": "ls -l"}, extract).command == "ls -l"
    assert asked({"kind": "edit", "title": "ls -l"}, extract).command is None
    other = {"kind": "execute", "title": "harmless", "rawInput": {"script": "rm"}}
    assert asked(other, extract).command is None


@pytest.mark.parametrize("kind", [None, 7, "", "Execute", "a b", "x" * 40, "e\n", "exec__x/"])
def test_a_kind_that_is_no_name_is_other(kind: object) -> None:
    assert asked({"kind": kind}).kind == "other"


def test_a_new_kind_keeps_its_name() -> None:
    assert asked({"kind": "brand_new"}).kind == "brand_new"


def test_an_epitaph_holds_nothing_of_what_was_written() -> None:
    stderr = "POST https://user:hunter2@host/ 401\nSECRET=abc\nJavaScript heap out of memory"
    told = str(Epitaph.of(1, stderr))
    assert told == (
        "its process exited with status 1 and left 3 lines on stderr, which speak of memory that "
        "ran out and a login that is missing"
    )
    assert str(Epitaph.of(None, "")) == "its process closed its stdout and wrote nothing on stderr"
