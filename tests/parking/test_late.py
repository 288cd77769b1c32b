"""People and logs hear why: of answers that come too late, and of webhooks that take nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from sidecar.cli.calls import _readable, _too_late
from sidecar.parking import WrongState
from sidecar.parking.webhook import Hook
from tests.parking.kit import Node, meta, moment, store, virtually
from tests.parking.test_webhook import Receiver, hook, parked, receiver, until

__all__ = ["hook", "receiver"]


@virtually
async def test_whoever_answers_what_was_cancelled_is_told_why() -> None:
    async with Node(await store()) as node:
        id = meta(await node.call(), "parked")["id"]
        node.redefine(description="another")
        for _ in range(100):
            if not node.rows("waiting"):
                break
            await moment()
        with pytest.raises(WrongState) as late:
            await node.approve(id)
        assert late.value.why == "it is cancelled: the tool's definition has changed"


def test_the_command_line_says_why_too() -> None:
    gone = {"state": "cancelled", "ended": "the tool's definition has changed"}
    assert str(_too_late({**gone})) == (
        "the call is cancelled already: the tool's definition has changed; nothing has changed"
    )
    done = {"state": "done", "ended": "ok", "answered_by": "bob", "way": "token"}
    assert str(_too_late({**done})) == (
        "the call is done already, answered by bob (token); nothing has changed"
    )


async def test_the_log_says_of_which_call_nobody_was_told(
    receiver: Receiver, hook: Callable[..., Hook], caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [302]
    with caplog.at_level(logging.WARNING, "sidecar.parking"):
        hook().tell(parked(7))
        await until(lambda: caplog.records)
    assert "parked call id-7 was not taken: it answered 302" in caplog.text


def test_the_command_line_shows_all_times_alike() -> None:
    result = {"call": "c1", "target": "s__t", "at": 1_800_000_000.25}
    held = {"label": "outside", "at": 1_800_000_000.0, "until": 1_800_086_400.5}
    assert _readable([{**held, "results": [result]}, {"label": "own"}]) == [
        {
            "label": "outside",
            "at": "2027-01-15T08:00:00.000Z",
            "until": "2027-01-16T08:00:00.500Z",
            "results": [{"call": "c1", "target": "s__t", "at": "2027-01-15T08:00:00.250Z"}],
        },
        {"label": "own"},
    ]
