"""Nothing that an agent may put into a known key breaks what reads it."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from sidecar.harness.profiles import PROFILES
from sidecar.harness.session import Bounds, Broken, Complaint, Effect, Session
from sidecar.harness.session_asks import outcome, read
from tests.harness.agent.kit import PROFILE

_KEYS = """
    toolCallId title kind status name rawInput locations content path line oldText newText type text
    entries plan sessionUpdate messageId currentModeId modeId configOptions modes category id
    currentValue options optionId command cmd cwd file_path changes requestId sessionId toolCall
    update _meta stopReason usage
"""
_WORDS = """
    tool_call tool_call_update plan plan_update agent_message_chunk current_mode_update
    config_option_update diff content text execute edit completed in_progress mode default auto
    allow_once reject_once t s
"""
KEYS, WORDS = _KEYS.split(), _WORDS.split()
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=20,
)
OBJECTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8)
METHODS = st.sampled_from(
    ["session/update", "session/request_permission", "$/cancel_request", "fs/read_text_file", "x"]
)


@given(OBJECTS, OBJECTS, st.sampled_from(sorted(PROFILES)))
def test_any_question_can_be_read(
    params: dict[str, object], call: dict[str, object], name: str
) -> None:
    request = read(1, params, call, PROFILES[name].extract)
    assert all(isinstance(path, str) and path for path in request.paths)
    assert request.command is None or isinstance(request.command, str)
    for decision in ("allow", "reject", "cancelled"):
        result, said = outcome(request.options, decision)  # type: ignore[arg-type]
        assert said != "allow" or request.allowable
        chosen = result["outcome"]
        assert isinstance(chosen, dict)
        if chosen["outcome"] == "selected":
            kinds = [o["kind"] for o in request.options if o.get("optionId") == chosen["optionId"]]
            assert kinds == ["allow_once" if said == "allow" else "reject_once"]


@given(st.lists(st.tuples(METHODS, OBJECTS, st.booleans()), max_size=6))
def test_any_message_can_be_heard(messages: list[tuple[str, dict[str, object], bool]]) -> None:
    session = Session(PROFILE, Bounds())

    def hear(message: dict[str, object]) -> list[Effect]:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        return list(session.receive(data))

    hear({"id": session.call("session/new", {}), "result": {"sessionId": "s"}})
    session.opened()
    turn = session.prompt([], {})
    for number, (method, params, asks) in enumerate(messages):
        id_ = {"id": number} if asks else {}
        effects = hear({"method": method, "params": {**params, "sessionId": "s"}, **id_})
        assert not any(isinstance(effect, Broken) for effect in effects)
    effects = hear({"id": turn, "result": {"stopReason": "end_turn"}})
    assert not any(isinstance(effect, Complaint) for effect in effects)
    assert session.phase == "idle"
    assert session.waiting == ()
