"""ACP as an editor speaks it to us: conversations in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.config.types import Limits
from sidecar.downstream import acp
from sidecar.downstream.acp import Begin, Editor, Listing, Prompt, Replied, Say, Stop
from sidecar.downstream.acp_answer import Ended, read
from sidecar.downstream.acp_prompt import task_of
from sidecar.downstream.acp_updates import Teller, at_work, history, message
from sidecar.mcp.errors import Rejection
from sidecar.model import RpcError
from sidecar.ports.agents import EditorSession
from sidecar.wire.ndjson import Oversize

ABOUT = EditorSession(
    "billing/fix", "billing", "/src/billing", "fix", "/w/claude/billing/a/fix", "work/x", False
)
CWD = {"cwd": "/src/billing", "mcpServers": []}
TEXT = [{"type": "text", "text": "go"}]


class Talk:
    """One connection; ``ask`` is what comes of a request, ``told`` what is answered at once."""

    def __init__(self, *, begun: bool = True, limits: Limits | None = None) -> None:
        self.editor = Editor(limits or Limits(), name="box", version="1")
        self.next = 0
        if begun:
            self.told("initialize", {"protocolVersion": 1})

    def send(self, **fields: Any) -> list[Any]:
        return self.editor.take(json.dumps({"jsonrpc": "2.0", **fields}).encode())

    def ask(self, method: str, params: dict[str, Any] | None = None) -> Any:
        self.next += 1
        (step,) = self.send(id=self.next, method=method, params=params or {})
        return step

    def told(self, method: str, params: dict[str, Any] | None = None) -> Any:
        step = self.ask(method, params)
        assert isinstance(step, Say), step
        answer = json.loads(step.message)
        assert answer["id"] == self.next
        return answer

    def code(self, method: str, params: dict[str, Any] | None = None) -> tuple[int, str]:
        error = self.told(method, params)["error"]
        return error["code"], error["message"]

    def open(self, about: EditorSession = ABOUT, **more: Any) -> list[Any]:
        step = self.ask("session/new", {**CWD, **more})
        return [json.loads(line) for line in self.editor.opened(step, about)]


def test_initialize() -> None:
    talk = Talk(begun=False)
    info = {"name": "zed", "version": "1.2"}
    answer = talk.told("initialize", {"protocolVersion": 7, "clientInfo": info})["result"]
    assert answer["protocolVersion"] == 1
    assert answer["agentInfo"] == {"name": "box", "version": "1"}
    assert answer["agentCapabilities"]["loadSession"] is True
    assert answer["authMethods"] == []
    assert (talk.editor.client.name, talk.editor.client.version) == ("zed", "1.2")
    assert talk.code("initialize", {"protocolVersion": 1})[0] == -32600


@pytest.mark.parametrize("version", [None, "1", True, 1.5, [1]])
def test_a_version_is_a_whole_number(version: object) -> None:
    talk = Talk(begun=False)
    assert talk.code("initialize", {"protocolVersion": version})[0] == -32602
    assert talk.code("session/new", CWD) == (-32600, "initialize comes first")


def test_a_session_is_opened_and_told_where_it_works() -> None:
    talk = Talk()
    step = talk.ask("session/new", CWD)
    assert step == Begin(2, "new", "/src/billing", "", 0)
    (answer,) = talk.editor.opened(step, ABOUT)
    assert json.loads(answer)["result"] == {
        "sessionId": "billing/fix",
        "_meta": {
            "sidecar/work": {
                "name": "fix",
                "checkout": "billing",
                "path": "/w/claude/billing/a/fix",
                "branch": "work/x",
            }
        },
    }


def test_servers_of_the_editor_are_not_started_and_it_is_told() -> None:
    talk = Talk()
    servers = [{"name": "x", "command": "/bin/sh", "args": ["-c", "id"], "env": []}]
    (answer,) = talk.open(mcpServers=servers)
    assert answer["result"]["_meta"]["sidecar/ignored"] == ["mcpServers"]
    opened = talk.editor.sessions["billing/fix"]
    assert opened.ignored == 1
    assert "/bin/sh" not in repr(opened)
    text = at_work(ABOUT, opened.ignored)["content"]
    assert "MCP servers of this editor are not given to it" in json.dumps(text)
    assert "MCP servers" not in json.dumps(at_work(ABOUT, 0))


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"cwd": 1, "mcpServers": []},
        {"cwd": "", "mcpServers": []},
        {"cwd": "/x", "mcpServers": {}},
        {**CWD, "additionalDirectories": ["/etc"]},
    ],
)
def test_what_no_session_can_be_opened_with(params: dict[str, Any]) -> None:
    assert Talk().code("session/new", params)[0] == -32602


def test_a_session_is_loaded_with_its_history_and_resumed_without() -> None:
    about = EditorSession(
        "b/fix", "b", "/b", "fix", "/w", "x", True, 1.0, (("do it", "done"), ("again", ""))
    )
    talk = Talk()
    step = talk.ask("session/load", {**CWD, "sessionId": "b/fix"})
    assert step == Begin(2, "load", "/src/billing", "b/fix", 0)
    *told, answer = [json.loads(line) for line in talk.editor.opened(step, about)]
    assert [update["params"]["update"]["sessionUpdate"] for update in told] == [
        "user_message_chunk",
        "agent_message_chunk",
        "user_message_chunk",
    ]
    assert answer["id"] == 2
    assert "sessionId" not in answer["result"]
    step = talk.ask("session/resume", {**CWD, "sessionId": "b/fix"})
    assert len(talk.editor.opened(step, about)) == 1
    assert len(talk.editor.sessions) == 1
    assert talk.code("session/load", CWD)[0] == -32602


def test_a_prompt_and_its_end() -> None:
    talk = Talk()
    talk.open()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    params = {"sessionId": "billing/fix", "prompt": TEXT, "_meta": {"traceparent": trace}}
    step = talk.ask("session/prompt", params)
    assert isinstance(step, Prompt)
    assert (step.task, step.trace.traceparent) == ("go", trace)
    assert talk.code("session/prompt", params)[0] == -32600
    (line,) = talk.editor.update(step.opened, {"sessionUpdate": "x_new", "odd": [1]})
    assert json.loads(line)["params"] == {
        "sessionId": "billing/fix",
        "update": {"sessionUpdate": "x_new", "odd": [1]},
    }
    over = json.loads(talk.editor.over(step, "end_turn", {"sidecar/x": 1}))
    assert over["result"] == {"stopReason": "end_turn", "_meta": {"sidecar/x": 1}}
    again = talk.ask("session/prompt", params)
    assert isinstance(again, Prompt)
    failed = json.loads(talk.editor.failed(again.id, RpcError(-32603, "died")))
    assert failed["error"] == {"code": -32603, "message": "died"}
    assert isinstance(talk.ask("session/prompt", params), Prompt)


def test_cancelling() -> None:
    talk = Talk()
    talk.open()
    assert talk.send(method="session/cancel", params={"sessionId": "billing/fix"}) == []
    step = talk.ask("session/prompt", {"sessionId": "billing/fix", "prompt": TEXT})
    stop = [Stop(step.id)]
    assert talk.send(method="session/cancel", params={"sessionId": "billing/fix"}) == stop
    assert talk.send(method="$/cancel_request", params={"requestId": step.id}) == stop
    for odd in ({}, {"requestId": True}, {"requestId": [1]}, {"requestId": 99}):
        assert talk.send(method="$/cancel_request", params=odd) == []
    for odd in ({}, {"sessionId": 7}, {"sessionId": "else"}):
        assert talk.send(method="session/cancel", params=odd) == []
    stopped, done = talk.send(id="c", method="session/close", params={"sessionId": "billing/fix"})
    assert stopped == Stop(step.id)
    assert json.loads(done.message) == {"jsonrpc": "2.0", "id": "c", "result": {}}
    assert talk.code("session/prompt", {"sessionId": "billing/fix", "prompt": TEXT})[0] == -32002


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("session/set_mode", "in which mode the agent works"),
        ("session/set_config_option", "how the agent is set up"),
        ("authenticate", "nothing to log in to"),
        ("session/fork", "no such method"),
        ("fs/read_text_file", "no such method"),
        ("_zed.dev/x", "no such method"),
        ("x" * 1000, "no such method"),
    ],
)
def test_what_is_not_for_editors(method: str, why: str) -> None:
    code, text = Talk().code(method)
    assert code == -32601
    assert why in text
    assert len(text) < 200


def test_notifications_that_mean_nothing_are_ignored() -> None:
    talk = Talk()
    for method in ("_zed/x", "session/update", "initialize", "x"):
        assert talk.send(method=method, params={"a": 1}) == []


def test_lines_that_are_no_message() -> None:
    talk = Talk()

    def code(line: bytes | Oversize) -> tuple[object, int]:
        (step,) = talk.editor.take(line)
        assert isinstance(step, Say)
        answer = json.loads(step.message)
        return answer["id"], answer["error"]["code"]

    assert code(b"{") == (None, -32700)
    assert code(b"\xff") == (None, -32700)
    assert code(b"[]") == (None, -32600)
    assert code(b"1") == (None, -32600)
    assert code(b'{"jsonrpc":"2.0","id":null,"method":"x"}') == (None, -32600)
    assert code(b'{"jsonrpc":"2.0","id":5,"method":"x","params":[1]}') == (5, -32600)
    twice = b'{"jsonrpc":"2.0","id":6,"method":"session/new","params":{"cwd":"/a","cwd":"/b"}}'
    assert code(twice) == (6, -32602)
    deep = b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"a":' + b"[" * 90 + b"]" * 90 + b"}}"
    assert code(deep) == (7, -32602)
    long = Oversize(99_999_999, b'{"jsonrpc":"2.0","id":8,"method":"session/prompt"', b"}")
    assert code(long) == (8, -32600)
    assert talk.editor.take(b"  ") == []


def test_an_id_is_used_once_at_a_time_and_not_too_many_are_open() -> None:
    talk = Talk()
    assert isinstance(talk.send(id=9, method="session/list", params={})[0], Listing)
    (step,) = talk.send(id=9, method="session/list", params={})
    assert json.loads(step.message)["error"]["code"] == -32600
    for number in range(acp.MOST_REQUESTS):
        (step,) = talk.send(id=f"n{number}", method="session/list", params={})
    assert isinstance(step, Say)
    talk.editor.listed(Listing(9, None), [])
    assert isinstance(talk.send(id=9, method="session/list", params={})[0], Listing)


def test_not_too_many_sessions_are_open() -> None:
    talk = Talk()
    for number in range(acp.MOST_SESSIONS):
        talk.open(EditorSession(f"b/{number}", "b", "/b", str(number), "/w", "x", False))
    code, text = talk.code("session/new", CWD)
    assert (code, "session/close" in text) == (-32600, True)
    assert isinstance(talk.ask("session/load", {**CWD, "sessionId": "b/1"}), Begin)


def test_questions_of_ours() -> None:
    talk = Talk()
    talk.open()
    opened = talk.editor.sessions["billing/fix"]
    id_, line = talk.editor.ask(opened, {"toolCall": {"toolCallId": "t"}, "options": []})
    sent = json.loads(line)
    assert (sent["id"], sent["method"]) == (id_, "session/request_permission")
    assert sent["params"]["sessionId"] == "billing/fix"
    outcome = {"outcome": {"outcome": "selected", "optionId": "allow"}}
    for other in (99, str(id_)):
        assert talk.send(id=other, result=outcome) == []
    assert talk.send(id=id_, result=outcome) == [Replied(id_, outcome)]
    assert talk.send(id=id_, result=outcome) == []
    assert talk.editor.withdraw(id_) is None

    other, _ = talk.editor.ask(opened, {})
    (replied,) = talk.send(id=other, error={"code": -32601, "message": "no"})
    assert isinstance(replied.result, RpcError)
    third, _ = talk.editor.ask(opened, {})
    assert json.loads(talk.editor.withdraw(third) or b"") == {
        "jsonrpc": "2.0",
        "method": "$/cancel_request",
        "params": {"requestId": third},
    }
    assert talk.send(id=third, result=outcome) == []
    for _ in range(acp.MOST_ASKS):
        talk.editor.ask(opened, {})
    with pytest.raises(Rejection):
        talk.editor.ask(opened, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
METHODS = st.sampled_from(
    ["initialize", "session/new", "session/load", "session/prompt", "session/cancel",
     "session/list", "session/close", "$/cancel_request", "session/set_mode", "x"]
)  # fmt: skip
KEYS = st.sampled_from(
    ["cwd", "sessionId", "prompt", "mcpServers", "requestId", "protocolVersion", "_meta"]
)
MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0")},
    optional={
        "id": st.integers(0, 9) | st.text(max_size=3) | JSON,
        "method": METHODS,
        "params": st.dictionaries(KEYS, JSON) | JSON,
        "result": JSON,
        "error": JSON,
    },
)


@given(st.lists(st.binary(max_size=60) | MESSAGES.map(lambda m: json.dumps(m).encode())))
def test_whatever_comes_there_is_at_most_one_answer_to_it(lines: list[bytes]) -> None:
    talk = Talk()
    talk.open()
    for line in lines:
        answers = [step for step in talk.editor.take(line) if not isinstance(step, Stop | Replied)]
        assert len(answers) <= 1
        for step in answers:
            said = step.message if isinstance(step, Say) else b""
            if not isinstance(step, Say):
                said = talk.editor.failed(step.id, RpcError(-32603, "x"))
            assert ("result" in json.loads(said)) != ("error" in json.loads(said))


# ------------------------------------------------------------------------------- prompts


def test_a_prompt_as_a_task() -> None:
    blocks = [
        {"type": "text", "text": "Look at "},
        {"type": "resource_link", "uri": "file:///src/billing/a%20b/c.py#L1-2", "name": "c.py"},
        {"type": "text", "text": " and "},
        {"type": "resource_link", "uri": "file:///src/billing-2/d.py", "name": "d.py"},
        {"type": "resource", "resource": {"uri": "file:///src/billing/e.md", "text": "x ```y"}},
        {"type": "resource_link", "uri": "https://example.org/x", "name": "x"},
    ]
    assert task_of(blocks, "/src/billing") == (
        "Look at `a b/c.py#L1-2` and `file:///src/billing-2/d.py`"
        "\n\ne.md:\n````\nx ```y\n````\n\n`https://example.org/x`"
    )


@pytest.mark.parametrize(
    "uri",
    [
        "file:///src/billing/../secret",
        "file:///src/billing",
        "file://elsewhere/src/billing/a",
        "file://[x/src/billing/a",
    ],
)
def test_a_link_that_leads_out_stays_as_it_is(uri: str) -> None:
    assert task_of([{"type": "resource_link", "uri": uri}], "/src/billing") == f"`{uri}`"


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        "text",
        [],
        [{"type": "text", "text": " "}],
        [{"type": "text"}],
        [{"type": "text", "text": 1}],
        [7],
        [{"type": "image", "data": "x", "mimeType": "image/png"}],
        [{"type": "resource", "resource": {"uri": "x", "blob": "eA=="}}],
        [{"type": "resource"}],
        [{"type": "text", "text": "x"}] * 1001,
    ],
)
def test_what_is_no_prompt(prompt: object) -> None:
    with pytest.raises(Rejection) as caught:
        task_of(prompt, "/src")
    assert caught.value.code == -32602


# ------------------------------------------------------------------------------- updates


def test_updates_pass_as_they_came_but_for_what_is_ours() -> None:
    teller = Teller()
    odd = {"sessionUpdate": "x_notice", "content": {"y": [1]}, "_meta": {"a": 1}}
    assert teller.shape(odd) is odd
    assert teller.spoke is False
    assert teller.shape({"sessionUpdate": "current_mode_update", "currentModeId": "yolo"}) is None
    assert teller.shape({"sessionUpdate": "config_option_update"}) is None
    assert teller.shape({"sessionUpdate": 5}) is None
    forged = {**message("hi"), "_meta": {"sidecar/waiting": {"id": "x"}, "a": 1}}
    assert teller.shape(forged) == {**message("hi"), "_meta": {"a": 1}}
    assert teller.spoke is True


def test_a_tool_call_is_made_before_it_is_updated() -> None:
    teller = Teller()
    update = {"sessionUpdate": "tool_call_update", "toolCallId": "t", "kind": "execute"}
    assert teller.shape(update) == {
        "sessionUpdate": "tool_call",
        "toolCallId": "t",
        "kind": "execute",
        "status": "pending",
        "title": "tool call",
    }
    assert teller.shape(update) is update
    assert teller.shape({"sessionUpdate": "tool_call_update", "toolCallId": 1}) is None
    assert teller.shape({"sessionUpdate": "tool_call_update", "toolCallId": []}) is None


def test_history_is_what_is_remembered() -> None:
    assert history(ABOUT) == []


# ------------------------------------------------------------------------------- answers


def finished(reason: str, **more: object) -> dict[str, object]:
    told = {"stop_reason": reason, "last_message": "bye", "head": "abc", "commits": [], **more}
    return {"structuredContent": told, "_meta": {"sidecar/call": "c", "x": 1}}


@pytest.mark.parametrize("reason", ["end_turn", "max_tokens", "refusal", "cancelled"])
def test_an_end_of_the_agents_own(reason: str) -> None:
    assert read(finished(reason)) == Ended(
        reason,
        "",
        "bye",
        notes={"sidecar/call": "c", "sidecar/result": {"head": "abc", "commits": []}},
    )


def test_an_end_that_is_none() -> None:
    died = read(finished("died", error="its process exited with status 1"))
    assert (died.reason, died.error) == (None, "its process exited with status 1")
    odd = read(finished("x" * 500))
    assert odd.reason is None
    assert len(odd.error) < 150
    denied = {"content": [{"type": "text", "text": "denied: no"}], "isError": True}
    assert read(denied) == Ended(None, "denied: no")
    assert read({}).error == "the call was not answered with a result"
    for key in ("running", "parked"):
        assert read({**denied, "_meta": {f"sidecar/{key}": {}}}).goes_on
