"""Tokens to principals, and what a changed table means for what was opened before."""

from __future__ import annotations

from pathlib import Path

import pytest

from sidecar.config.types import AgentConfig, Config, SecretRef
from sidecar.downstream.auth import ANYBODY, Authenticator, tokens_of
from sidecar.model import Principal
from sidecar.ports.secrets import SecretError

ALICE = Principal("alice", ("github",))
BOB = Principal("bob", ("*",))


def test_without_tokens_everybody_is_agent_whatever_they_send() -> None:
    auth = Authenticator()
    for lines in ([], ["Bearer x"], ["Basic eDp5"], ["a", "b"]):
        grant = auth.authenticate(lines)
        assert grant is not None
        assert grant.principal == ANYBODY == Principal("agent", ("*",), ("*",), ("*",))


@pytest.mark.parametrize("line", ["Bearer a-token", "bearer a-token", "BEARER  a-token "])
def test_a_token_stands_for_its_principal(line: str) -> None:
    auth = Authenticator([("a-token", ALICE), ("b-token", BOB)])
    grant = auth.authenticate([line])
    assert grant is not None
    assert grant.principal == ALICE


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [""],
        ["Bearer"],
        ["Bearer "],
        ["a-token"],
        ["Bearer a-token x"],
        ["Bearer a-tokeN"],
        ["Bearer a-toke"],
        ["Bearer a-tokenn"],
        ["Bearer\ta-token"],
        ["Basic a-token"],
        ["Bearer a-token", "Bearer a-token"],
        ["Bearer a-token,Bearer a-token"],
        ["Bearer ä-token"],
        ["Bearer a-token\udcff"],
        ["Bearer " + "a" * 10_000],
    ],
)
def test_anything_else_is_refused(lines: list[str]) -> None:
    assert Authenticator([("a-token", ALICE)]).authenticate(lines) is None


def test_an_empty_table_lets_nobody_in() -> None:
    assert Authenticator([]).authenticate([]) is None


@pytest.mark.parametrize("token", ["", " ", "a b", "a\n", "ä", "=", "x" * 9000])
def test_a_token_that_no_header_can_carry_is_refused_by_name_alone(token: str) -> None:
    with pytest.raises(ValueError, match="the token of alice") as raised:
        Authenticator([(token, ALICE)])
    assert len(token) < 4 or token not in str(raised.value)


def test_one_token_for_two_is_refused_and_the_old_table_stays() -> None:
    auth = Authenticator([("a-token", ALICE)])
    with pytest.raises(ValueError, match="alice and bob"):
        auth.update([("same", ALICE), ("same", BOB)])
    assert auth.authenticate(["Bearer a-token"]) is not None
    assert auth.authenticate(["Bearer same"]) is None


def test_a_reload_tells_what_an_earlier_grant_is_worth_now() -> None:
    auth = Authenticator([("a-token", ALICE), ("b-token", BOB)])
    alice = auth.authenticate(["Bearer a-token"])
    bob = auth.authenticate(["Bearer b-token"])
    assert alice is not None
    assert bob is not None
    told: list[str] = []
    stop = auth.listen(lambda: told.append("updated"))
    wider = Principal("alice", ("github", "linear"))
    auth.update([("a-token", wider)])
    assert told == ["updated"]
    renewed = auth.renewed(alice)
    assert renewed is not None
    assert renewed.principal == wider
    assert auth.renewed(bob) is None
    auth.update([("a-token", BOB)])  # the token went to somebody else
    assert auth.renewed(alice) is None
    stop()
    auth.update(None)
    assert told == ["updated"] * 2
    assert auth.renewed(alice) is None  # no longer asked for: what tokens opened ends


def test_turning_tokens_on_ends_what_was_open_without() -> None:
    auth = Authenticator()
    grant = auth.authenticate([])
    assert grant is not None
    assert auth.renewed(grant) == grant
    auth.update([("a-token", ALICE)])
    assert auth.renewed(grant) is None


class _Files:
    def read(self, ref: SecretRef) -> str:
        if ref.from_env is None:
            raise SecretError("no variable")
        return f"value-of-{ref.from_env}"


def test_the_table_of_a_configuration() -> None:
    secrets = _Files()
    assert tokens_of(Config(), secrets) is None
    assert tokens_of(Config(token=SecretRef(from_env="T")), secrets) == [("value-of-T", ANYBODY)]
    agent = AgentConfig("triage", SecretRef(from_env="A"), ("github",))
    assert tokens_of(Config(agents={"triage": agent}), secrets) == [
        ("value-of-A", Principal("triage", ("github",)))
    ]
    with pytest.raises(SecretError):
        tokens_of(Config(token=SecretRef(from_file=Path("/x"))), secrets)
