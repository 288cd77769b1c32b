"""What real agents wrote on the wire, through the machine: `data/` holds it, shortened."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sidecar.harness.profiles import PROFILES
from sidecar.harness.protocol import Answer, Failure
from sidecar.harness.session import (
    Asked,
    Bounds,
    Complaint,
    Effect,
    ModeTold,
    Replied,
    Said,
    Session,
)

DATA = Path(__file__).with_name("data")


@dataclass
class Played:
    """What came of a log."""

    effects: list[Effect] = field(default_factory=list)
    turns: list[tuple[str, str]] = field(default_factory=list)
    refused: list[dict[str, Any]] = field(default_factory=list)
    answered: list[dict[str, Any]] = field(default_factory=list)

    def of(self, kind: type[Effect]) -> list[Any]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    @property
    def asks(self) -> list[tuple[str, str]]:
        """Of each question its kind, and the command or the first path."""
        requests = [effect.request for effect in self.of(Asked)]
        return [(r.kind, r.command or next(iter(r.paths), "")) for r in requests]


class Player:
    """Says what the client of a log said, and hears what its agent answered.

    Requests of ours have other ids than there, so answers are given ours."""

    def __init__(self, name: str, seed: int) -> None:
        self.profile = PROFILES[name.split("-", maxsplit=1)[0]]
        self.session = Session(self.profile, Bounds())
        self.ids: dict[int, int] = {}
        self.options: dict[Any, dict[str, str]] = {}
        self.random = random.Random(seed)
        self.prompt: int | None = None
        self.played = Played()

    def play(self, lines: list[str]) -> Played:
        for line in lines:
            item = json.loads(line)
            if item["from"] == "start":
                self.session = Session(self.profile, Bounds())
                self.ids.clear()
                self.prompt = None
            elif item["from"] == "client":
                self.say(item["msg"])
            else:
                self.hear(item["msg"])
            self.look()
        return self.played

    def say(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "session/prompt":
            if self.session.phase == "opening":
                self.session.opened()
            self.prompt = self.session.prompt(params["prompt"], {})
            self.ids[message["id"]] = self.prompt
        elif method == "session/cancel":
            self.session.cancel()
        elif method is not None:
            self.ids[message["id"]] = self.session.call(method, params)
        elif "outcome" in message.get("result", {}):
            outcome = message["result"]["outcome"]
            kind = self.options[message["id"]].get(outcome.get("optionId", ""), "cancelled")
            self.session.permit(message["id"], kind.split("_", maxsplit=1)[0])

    def hear(self, message: dict[str, Any]) -> None:
        if "method" not in message:
            message = {**message, "id": self.ids[message["id"]]}
        elif message["method"] == "session/request_permission":
            options = message["params"]["options"]
            self.options[message["id"]] = {o["optionId"]: o["kind"] for o in options}
        data = json.dumps(message).encode() + b"\n"
        while data:
            cut = self.random.randint(1, max(1, len(data)))
            for effect in self.session.receive(data[:cut]):
                self.played.effects.append(effect)
                if isinstance(effect, Replied) and effect.reply.id == self.prompt:
                    self.ended(effect.reply)
            data = data[cut:]

    def ended(self, reply: Answer | Failure) -> None:
        stop = (
            str(reply.result["stopReason"])
            if isinstance(reply, Answer)
            else f"error {reply.error.code}"
        )
        self.played.turns.append((stop, self.session.last_message.text))

    def look(self) -> None:
        for line in self.session.outgoing().splitlines():
            message = json.loads(line)
            if "error" in message:
                self.played.refused.append(message)
            elif "result" in message:
                self.played.answered.append(message["result"]["outcome"])


def play(name: str, seed: int = 0) -> Played:
    return Player(name, seed).play((DATA / f"{name}.jsonl").read_text().splitlines())


NAMES = sorted(path.stem for path in DATA.glob("*.jsonl"))


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_a_real_conversation_is_complained_about(name: str) -> None:
    played = play(name)
    assert played.of(Complaint) == []
    assert played.of(Said)
    # However it is cut.
    assert repr(play(name, 7).effects) == repr(played.effects)


WARNED = (
    "Warning: Model metadata for `gpt-5-codex` not found. Defaulting to fallback metadata; this "
    "can degrade performance and cause issues.\n\n"
)

TURNS = {
    "claude-101-basic": [
        ("end_turn", "hello"),
        ("end_turn", "ran it"),
        ("end_turn", "edited"),
        ("end_turn", "was refused"),
        ("end_turn", "was cancelled"),
    ],
    "claude-101-cancel-model": [("cancelled", ""), ("end_turn", "again")],
    "claude-101-crash": [("error -32603", ""), ("error -32002", ""), ("end_turn", "x")],
    "claude-101-noauth": [("error -32000", "")],
    "claude-101-restart": [
        ("end_turn", "first"),
        ("end_turn", "second"),
        ("end_turn", "third"),
        ("error -32002", ""),
    ],
    "codex-basic-read-only": [
        ("end_turn", "ran"),
        ("end_turn", "patched"),
        ("end_turn", "rm done"),
        ("cancelled", WARNED),
    ],
    "gemini-cancel-permission": [("cancelled", "")],
    "opencode-basic-ask": [
        ("end_turn", "hello"),
        ("end_turn", "ran"),
        ("end_turn", "edited"),
        ("end_turn", ""),
        ("end_turn", ""),
    ],
}


@pytest.mark.parametrize("name", TURNS)
def test_turns_end_as_they_did(name: str) -> None:
    assert play(name).turns == TURNS[name]


BASIC = [
    ("execute", "touch made.txt && echo made"),
    ("edit", "/w/claude-101/a.txt"),
    ("execute", "rm -f a.txt"),
    ("execute", "rm -f a.txt"),
]
ASKS = {
    "claude-101-basic": BASIC,
    "claude-101-kinds": [
        ("edit", "/w/c-kinds/new.txt"),
        ("edit", "/w/outside.txt"),
        ("read", "/etc/hostname"),
        ("execute", "cat /etc/hostname"),
        ("execute", "git commit --allow-empty -m x"),
        ("fetch", ""),
        ("execute", "curl -s http://127.0.0.1:9"),
    ],
    "claude-101-mcp": [("other", "")],
    "claude-49-basic": [BASIC[0], ("edit", "/w/claude-49/a.txt"), *BASIC[2:]],
    "codex-basic-read-only": [
        BASIC[0],
        BASIC[2],
        ("execute", "curl -s http://127.0.0.1:18801/models"),
    ],
    # Without rawInput: of a command, the title is all that it says.
    "gemini-basic": [BASIC[0], BASIC[2], BASIC[3]],
    "opencode-basic-ask": [BASIC[0], ("edit", "/w/oc-basic/a.txt"), *BASIC[2:]],
}


@pytest.mark.parametrize("name", ASKS)
def test_what_is_asked_is_known(name: str) -> None:
    assert play(name).asks == ASKS[name]


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("claude-101-basic", ["allow-once", "allow-once", "reject", None]),
        ("claude-49-basic", ["allow", "allow", "reject", None]),
        ("codex-basic-read-only", ["allow_once", "allow_once", "cancel"]),
        ("gemini-basic", ["proceed_once", "proceed_once", "cancel"]),
        ("opencode-basic-ask", ["once", "once", "reject", None]),
        ("claude-101-cancel-permission", [None]),
        ("codex-cancel-permission", [None]),
        ("gemini-cancel-permission", [None]),
        ("opencode-cancel-permission", [None]),
    ],
)
def test_options_are_chosen_by_their_kind(name: str, chosen: list[str | None]) -> None:
    assert [outcome.get("optionId") for outcome in play(name).answered] == chosen


def test_files_are_nobody_elses_business() -> None:
    played = play("gemini-basic")
    assert [r["error"]["code"] for r in played.refused] == [-32601, -32601]
    assert [r["error"]["code"] for r in play("opencode-basic-ask").refused] == [-32601]


def test_the_mode_that_a_session_starts_in_is_told() -> None:
    def told(name: str) -> list[tuple[str, bool]]:
        return [(mode.mode, mode.asks) for mode in play(name).of(ModeTold)]

    assert told("claude-101-kinds") == [("auto", False), ("default", True)]
    assert told("codex-basic-read-only") == [("read-only", True)]
    assert told("opencode-basic-ask") == [("build", True)]


def test_history_is_not_taken_for_news() -> None:
    updates = [said.update for said in play("claude-101-restart").of(Said)]
    replayed = [u for u in updates if u.replayed]
    assert [u.text for u in replayed if u.kind == "agent_message_chunk"] == [
        "first",
        "first",
        "second",
        "third",
    ]
    news = [u.text for u in updates if not u.replayed and u.kind == "agent_message_chunk"]
    assert news == ["first", "second", "third"]
