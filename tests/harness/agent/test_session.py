"""The machine: what may be said when, and by whose word."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sidecar.harness.protocol import Answer
from sidecar.harness.session import (
    Asked,
    Bounds,
    Broken,
    Complaint,
    Effect,
    ModeTold,
    Replied,
    Said,
    Session,
    Withdrawn,
)
from tests.harness.agent.kit import PROFILE

CALL = {"toolCallId": "t1", "title": "list", "kind": "execute", "rawInput": {"command": "ls"}}
OPTIONS = [
    {"optionId": "always", "name": "A", "kind": "allow_always"},
    {"optionId": "y", "name": "Y", "kind": "allow_once"},
    {"optionId": "n", "name": "N", "kind": "reject_once"},
]


def line(**fields: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **fields}).encode() + b"\n"


def update(update: dict[str, object], session: str = "s", **params: object) -> bytes:
    return line(method="session/update", params={"sessionId": session, "update": update, **params})


def said(text: str, **more: object) -> dict[str, object]:
    content = {"type": "text", "text": text}
    return {"sessionUpdate": "agent_message_chunk", "content": content, **more}


def ask(id_: object = 0, **params: object) -> bytes:
    given = {"sessionId": "s", "toolCall": CALL, "options": OPTIONS, **params}
    return line(id=id_, method="session/request_permission", params=given)


class Desk:
    """A session that is open, with a prompt running."""

    def __init__(self, bounds: Bounds | None = None, *, prompt: bool = True) -> None:
        self.session = Session(PROFILE, bounds or Bounds())
        new = self.session.call("session/new", {})
        self.hear(line(id=new, result={"sessionId": "s", "modes": {"currentModeId": "default"}}))
        self.session.opened()
        self.turn = self.session.prompt([{"type": "text", "text": "go"}], {}) if prompt else 0
        self.sent()

    def hear(self, data: bytes) -> list[Effect]:
        return list(self.session.receive(data))

    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.session.outgoing().splitlines()]

    def end(self, **result: object) -> list[Effect]:
        return self.hear(line(id=self.turn, result={"stopReason": "end_turn", **result}))


def outcomes(messages: list[dict[str, Any]]) -> list[object]:
    return [m["result"]["outcome"].get("optionId", "cancelled") for m in messages if "result" in m]


def test_a_question_is_answered_by_kind() -> None:
    desk = Desk()
    [asked] = desk.hear(ask("id-7"))
    assert isinstance(asked, Asked)
    assert desk.session.permit("id-7", "allow") == "allow"
    assert outcomes(desk.sent()) == ["y"]
    assert desk.session.permit("id-7", "reject") is None
    assert desk.sent() == []


@pytest.mark.parametrize(
    ("options", "decision", "chosen", "really"),
    [
        ([], "allow", "cancelled", "cancelled"),
        ([], "reject", "cancelled", "cancelled"),
        (OPTIONS[:1], "allow", "cancelled", "cancelled"),
        ([OPTIONS[0], OPTIONS[2]], "allow", "n", "reject"),
        (OPTIONS[:2], "reject", "cancelled", "cancelled"),
        (OPTIONS, "cancelled", "cancelled", "cancelled"),
        ([{"optionId": "z", "kind": "allow_session"}, *OPTIONS], "allow", "y", "allow"),
        (
            [{"kind": "allow_once"}, 7, {"optionId": 3, "kind": "allow_once"}],
            "allow",
            *["cancelled"] * 2,
        ),
        # One id for two options: who knows which of them it is.
        ([{"optionId": "y", "kind": "allow_always"}, *OPTIONS], "allow", "n", "reject"),
    ],
)
def test_nothing_but_once_is_ever_chosen(
    options: list[object], decision: Any, chosen: str, really: str
) -> None:
    desk = Desk()
    [asked] = desk.hear(ask(options=options))
    assert isinstance(asked, Asked)
    if decision == "allow":
        assert asked.request.allowable == (really == "allow")
    assert desk.session.permit(0, decision) == really
    assert outcomes(desk.sent()) == [chosen]


def test_options_that_are_no_list_allow_nothing() -> None:
    desk = Desk()
    [asked] = desk.hear(ask(options={"optionId": "y", "kind": "allow_once"}))
    assert isinstance(asked, Asked)
    assert not asked.request.allowable


def test_a_meta_replaces_nothing() -> None:
    desk = Desk()
    meta = {"session_id": "other", "tool_call": {"kind": "read"}, "toolCall": {"kind": "read"}}
    meta |= {"options": [], "sessionId": "other", "path": "/etc/passwd"}
    [asked] = desk.hear(ask(_meta=meta, tool_call={"kind": "read"}))
    assert isinstance(asked, Asked)
    request = asked.request
    assert (request.kind, request.command, request.session) == ("execute", "ls", "s")
    assert len(request.options) == 3
    desk.hear(update(said("hi"), _meta={"sessionId": "x", "update": said("no")}))
    assert desk.session.last_message.text == "hi"


def test_a_question_keeps_what_was_said_of_its_tool_call() -> None:
    desk = Desk()
    desk.hear(update({"sessionUpdate": "tool_call", **CALL, "locations": [{"path": "/w/a"}]}))
    desk.hear(update({"sessionUpdate": "tool_call_update", "toolCallId": "t1", "title": "ls now"}))
    [asked] = desk.hear(ask(toolCall={"toolCallId": "t1"}))
    assert isinstance(asked, Asked)
    request = asked.request
    assert (request.kind, request.title, request.command) == ("execute", "ls now", "ls")
    assert request.paths == ("/w/a",)
    assert request.raw["toolCall"] == {"toolCallId": "t1"}
    # What the question says itself counts more.
    [other] = desk.hear(ask(1, toolCall={"toolCallId": "t1", "rawInput": {"command": "rm x"}}))
    assert isinstance(other, Asked)
    assert other.request.command == "rm x"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"sessionId": "other"}, -32602),
        ({"sessionId": None}, -32602),
        ({"toolCall": "rm"}, -32602),
        ({"toolCall": None}, -32602),
    ],
)
def test_questions_about_something_else_are_refused(params: dict[str, object], code: int) -> None:
    desk = Desk()
    [complaint] = desk.hear(ask(**params))
    assert isinstance(complaint, Complaint)
    [refused] = desk.sent()
    assert refused["error"]["code"] == code


@pytest.mark.parametrize(
    "method",
    ["fs/read_text_file", "fs/write_text_file", "terminal/create", "elicitation/create", "_x/y"],
)
def test_what_is_not_offered_is_refused(method: str) -> None:
    desk = Desk()
    assert desk.hear(line(id=5, method=method, params={"sessionId": "s", "path": "/etc/x"})) == []
    assert [m["error"]["code"] for m in desk.sent()] == [-32601]


def test_notifications_nobody_knows_are_passed_over() -> None:
    desk = Desk()
    for method in ("_auth/status_update", "elicitation/complete", "brand/new", "initialize"):
        assert desk.hear(line(method=method, params={})) == []
    assert desk.sent() == []


def test_a_question_is_taken_back() -> None:
    desk = Desk()
    desk.hear(ask(0))
    desk.hear(ask("0", toolCall={**CALL, "toolCallId": "t2"}))
    assert desk.hear(line(method="$/cancel_request", params={"requestId": 0})) == [Withdrawn(0)]
    assert [(m["id"], m["result"]["outcome"]["outcome"]) for m in desk.sent()] == [(0, "cancelled")]
    # Not this one, not again, not what is no id.
    for other in (0, 5, None, False, [0], "1"):
        assert desk.hear(line(method="$/cancel_request", params={"requestId": other})) == []
    assert [request.id for request in desk.session.waiting] == ["0"]
    assert desk.session.permit(0, "allow") is None


def test_cancelling_answers_what_waits_and_what_comes() -> None:
    desk = Desk()
    desk.hear(ask(0))
    desk.hear(ask(1))
    assert desk.session.cancel() == (0, 1)
    cancel, *answers = desk.sent()
    assert cancel == {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}
    assert outcomes(answers) == ["cancelled", "cancelled"]
    assert desk.hear(ask(2)) == []
    assert outcomes(desk.sent()) == ["cancelled"]
    assert desk.session.cancel() == ()
    assert desk.sent() == []
    [reply] = desk.end(stopReason="cancelled")
    assert isinstance(reply, Replied)
    assert desk.session.phase == "idle"


def test_a_turn_that_ends_takes_its_questions_with_it() -> None:
    desk = Desk()
    desk.hear(ask(3))
    effects = desk.end()
    assert effects[0] == Withdrawn(3)
    assert isinstance(effects[1], Replied)
    assert outcomes(desk.sent()) == ["cancelled"]


def test_nobody_is_asked_outside_of_a_turn() -> None:
    desk = Desk(prompt=False)
    [complaint] = desk.hear(ask())
    assert isinstance(complaint, Complaint)
    assert outcomes(desk.sent()) == ["n"]


def test_what_is_said_after_the_turn_is_late_and_counts() -> None:
    desk = Desk()
    desk.hear(update(said("most of ")))
    desk.end()
    [late] = desk.hear(update(said("it")))
    assert isinstance(late, Said)
    assert late.update.late
    assert desk.session.last_message.text == "most of it"


def test_other_sessions_are_not_ours() -> None:
    desk = Desk()
    assert desk.hear(update(said("x"), session="t")) == []
    mode = {"sessionUpdate": "current_mode_update", "currentModeId": "auto"}
    assert desk.hear(update(mode, session="t")) == []
    assert desk.session.last_message.text == ""


@pytest.mark.parametrize(
    "told",
    [
        {"sessionUpdate": "current_mode_update", "currentModeId": "bypassPermissions"},
        {"sessionUpdate": "current_mode_update", "modeId": "bypassPermissions"},
        {
            "sessionUpdate": "config_option_update",
            "configOptions": [
                {"id": "model", "category": "model", "currentValue": "default"},
                {"id": "m", "category": "mode", "currentValue": "bypassPermissions"},
            ],
        },
        {
            "sessionUpdate": "config_option_update",
            "configOptions": [{"id": "mode", "currentValue": "bypassPermissions"}],
        },
    ],
)
def test_a_switch_of_the_mode_is_told_first(told: dict[str, object]) -> None:
    desk = Desk()
    first, second = desk.hear(update(told))
    assert first == ModeTold("bypassPermissions", asks=False)
    assert isinstance(second, Said)


def test_a_switch_to_a_mode_that_asks_is_only_told() -> None:
    desk = Desk()
    told = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    assert desk.hear(update(told))[0] == ModeTold("plan", asks=True)


@pytest.mark.parametrize(
    "params",
    [
        {"sessionId": "s"},
        {"update": {}},
        {"sessionId": "s", "update": []},
        {"sessionId": 7, "update": {}},
        {},
    ],
)
def test_updates_without_a_shape_are_complained_about(params: dict[str, object]) -> None:
    [complaint] = Desk().hear(line(method="session/update", params=params))
    assert isinstance(complaint, Complaint)


@pytest.mark.parametrize(
    "raw",
    [
        {"sessionUpdate": "compaction_update", "status": "x"},
        {"sessionUpdate": "_vendor/thing"},
        {"sessionUpdate": 7},
        {},
        {"sessionUpdate": "tool_call", "toolCallId": "t", "kind": "brand_new", "status": "weird"},
        {"sessionUpdate": "tool_call", "toolCallId": 7},
        {"sessionUpdate": "tool_call"},
        {"sessionUpdate": "agent_message_chunk", "content": "x"},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "text": "x"}},
        {"sessionUpdate": "plan", "entries": [1, {"content": "a"}]},
        {"sessionUpdate": "config_option_update", "configOptions": {"mode": "auto"}},
        {"sessionUpdate": "current_mode_update", "currentModeId": ["auto"]},
    ],
)
def test_updates_that_nobody_knows_pass_unchanged(raw: dict[str, object]) -> None:
    desk = Desk()
    [effect] = desk.hear(update(raw))
    assert isinstance(effect, Said)
    assert effect.update.raw == raw
    assert desk.session.last_message.text == ""


def test_too_much_in_one_turn_breaks_it() -> None:
    desk = Desk(Bounds(turn=1000))
    effects = [e for _ in range(20) for e in desk.hear(update(said("x" * 100)))]
    assert isinstance(effects[-1], Broken)
    fresh = Desk(Bounds(turn=1000))
    for _ in range(3):
        assert not any(
            isinstance(e, Broken) for _ in range(4) for e in fresh.hear(update(said("x")))
        )
        fresh.end()
        fresh.turn = fresh.session.prompt([], {})


def test_too_much_garbage_breaks_it() -> None:
    desk = Desk(Bounds(garbage=3))
    effects = desk.hear(b"x\n" * 5)
    assert [type(e) for e in effects] == [Complaint] * 3 + [Broken] * 2


def test_the_last_message_is_bounded() -> None:
    desk = Desk(Bounds(message=10))
    desk.hear(update(said("12345678")))
    desk.hear(update(said("9abcdef")))
    assert (desk.session.last_message.text, desk.session.last_message.cut) == ("123456789a", True)


def test_stop_reasons_are_whatever_they_are() -> None:
    for result in ({"stopReason": "brand_new"}, {"stopReason": None}, {"stopReason": {"a": 1}}):
        desk = Desk()
        [reply] = desk.end(**result)
        assert isinstance(reply, Replied)
        assert isinstance(reply.reply, Answer)
        assert reply.reply.result["stopReason"] == result["stopReason"]
        assert desk.session.phase == "idle"


def test_the_last_answer_of_a_turn_tells_whether_it_was_denied() -> None:
    desk = Desk()
    desk.hear(ask(0))
    desk.session.permit(0, "reject")
    assert desk.session.denied
    desk.hear(ask(1))
    desk.session.permit(1, "allow")
    assert not desk.session.denied
