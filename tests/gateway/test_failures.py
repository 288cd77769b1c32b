"""The failure table: what each failure looks like over MCP and over REST, and what is retried."""

from __future__ import annotations

import asyncio
import random

import pytest

from sidecar.config import Retry
from sidecar.events import Bus
from sidecar.gateway import Gateway
from sidecar.gateway.retry import LONGEST, pause
from sidecar.mcp import errors
from sidecar.model import (
    Caller,
    Entries,
    Fields,
    JsonObject,
    RpcError,
    State,
    Unavailable,
    Unroutable,
)
from tests.gateway.conftest import CONFIG, Serve
from tests.gateway.gates import Keeper, refusal
from tests.gateway.scripted import (
    ALL,
    Scripted,
    caller,
    config,
    offers,
    prompt,
    resource,
    result,
    tool,
)

CALL: JsonObject = {"name": "s__write"}
READ: JsonObject = {"name": "s__read"}
AGAIN: JsonObject = {"name": "s__again"}

OFFER = Entries(
    tools=(
        tool("write"),
        tool("read", annotations={"readOnlyHint": True}),
        tool("again", annotations={"idempotentHint": True}),
    ),
    prompts=(prompt("p"),),
    resources=(resource("f:///x"),),
    capabilities=ALL,
)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("write", "no_separator"),
        ("", "unknown_tool"),
        ("nobody__write", "unknown_server"),
        ("hidden__write", "unknown_server"),
        ("s__nothing", "unknown_tool"),
        ("both", "ambiguous_name"),
    ],
)
async def test_names_that_lead_nowhere(
    gateway: Gateway, serve: Serve, name: str, reason: str
) -> None:
    serve("s", OFFER)
    serve("hidden", OFFER)
    for other in ("b1", "b2"):
        serve(other, offers(["both"]))
    with pytest.raises(Unroutable) as failure:
        await gateway.request("tools/call", {"name": name}, caller("s", "b?"))
    error = errors.of(failure.value)
    assert (error.code, error.data) == (-32602, {"reason": reason})
    assert errors.rest(failure.value)[0] == 404


@pytest.mark.parametrize(
    ("failure", "code", "data", "status"),
    [
        (
            Unavailable("s", "connection lost", ran="maybe"),
            -32603,
            {"reason": "unavailable", "server": "s", "ran": "maybe", "retry_in": None},
            503,
        ),
        (
            Unavailable("s", "not connected", ran="no", retry_in=30.0),
            -32603,
            {"reason": "unavailable", "server": "s", "ran": "no", "retry_in": 30.0},
            503,
        ),
        (RpcError(-32050, "theirs", {"why": 1}), -32050, {"why": 1}, 502),
        (RpcError(-32602, "theirs", None), -32602, None, 502),
    ],
)
async def test_servers_that_fail(
    gateway: Gateway, serve: Serve, failure: Exception, code: int, data: object, status: int
) -> None:
    server = serve("s", OFFER)
    server.answers["tools/call"] = failure
    with pytest.raises(type(failure)) as raised:
        await gateway.request("tools/call", CALL, caller())
    error = errors.of(raised.value)
    assert (error.code, error.data) == (code, data)
    assert errors.rest(raised.value)[0] == status
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("kind", "status"), [("denied", 403), ("parked", 202), ("running", 202), ("expired", 410)]
)
async def test_calls_that_are_answered_by_the_gate(bus: Bus, kind: str, status: int) -> None:
    keeper = Keeper()
    keeper.refuse = refusal(kind)
    gateway = Gateway(CONFIG, bus, gate=keeper)
    gateway.attach(Scripted("s", OFFER), config("s"))
    answer = await gateway.call("s__write", {}, caller())
    assert answer["isError"] is True
    assert set(answer["_meta"]) == {f"sidecar/{kind}", "sidecar/call"}  # type: ignore[call-overload]
    assert errors.rest_status(answer) == status
    await gateway.close()


async def test_a_tools_own_error_and_a_success_are_200(gateway: Gateway, serve: Serve) -> None:
    serve("s", OFFER).answers["tools/call"] = [result(isError=True), result()]
    for _ in range(2):
        assert errors.rest_status(await gateway.call("s__write", {}, caller())) == 200


LOST = Unavailable("s", "connection lost", ran="maybe")
REFUSED = Unavailable("s", "connection refused", ran="no")


@pytest.mark.parametrize(
    ("method", "params", "failure", "attempts"),
    [
        ("tools/call", CALL, LOST, 1),
        ("tools/call", CALL, REFUSED, 3),
        ("tools/call", READ, LOST, 3),
        ("tools/call", AGAIN, LOST, 3),
        ("prompts/get", {"name": "s__p"}, LOST, 3),
        ("resources/read", {"uri": "f:///x"}, LOST, 3),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "s__p"}},
            LOST,
            3,
        ),
        ("tools/call", READ, Unavailable("s", "over a cap", ran="maybe", permanent=True), 1),
        ("tools/call", READ, RpcError(-32603, "theirs"), 1),
        ("tools/call", READ, Unavailable("s", "down", ran="no", retry_in=60.0), 1),
    ],
)
async def test_only_what_may_run_twice_or_did_not_run_is_sent_again(
    gateway: Gateway,
    serve: Serve,
    method: str,
    params: JsonObject,
    failure: Exception,
    attempts: int,
) -> None:
    server = serve("s", OFFER)
    server.answers[method] = failure
    with pytest.raises(type(failure)):
        await gateway.request(method, params, caller())
    assert len(server.asked) == attempts


async def test_a_retry_that_works_is_the_answer(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", OFFER)
    server.answers["tools/call"] = [LOST, LOST, result("third time")]
    answer = await gateway.request("tools/call", READ, caller())
    assert b"third time" in bytes(answer["content"])  # type: ignore[call-overload]
    sent = [params for _, params, _ in server.asked]
    assert sent == [{"name": "read"}] * 3


async def test_the_operators_hints_decide_and_a_restricted_servers_do_not(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", OFFER, hints="restrict")
    server.answers["tools/call"] = LOST
    with pytest.raises(Unavailable):
        await gateway.request("tools/call", READ, caller())
    assert len(server.asked) == 1


async def test_an_attempt_that_may_have_run_is_not_forgotten_by_the_next(
    gateway: Gateway, serve: Serve
) -> None:
    """Sent, lost, and then not even connected: it may have run all the same."""
    server = serve("s", OFFER)
    lost = Unavailable("s", "connection lost", ran="maybe")
    down = Unavailable("s", "not connected", ran="no", retry_in=9.0)
    server.answers["tools/call"] = [lost, down]
    with pytest.raises(Unavailable) as failure:
        await gateway.request("tools/call", AGAIN, caller())
    assert len(server.asked) == 2
    assert (failure.value.why, failure.value.ran, failure.value.retry_in) == (
        "not connected",
        "maybe",
        9.0,
    )


async def test_a_server_removed_between_two_attempts_may_have_run_the_first(
    gateway: Gateway, serve: Serve
) -> None:
    server = serve("s", OFFER)

    async def lose(method: str, params: JsonObject, who: Caller) -> Fields:
        gateway.set_servers([])
        raise Unavailable("s", "connection lost", ran="maybe")

    server.answer = lose
    with pytest.raises(Unavailable) as failure:
        await gateway.request("tools/call", AGAIN, caller())
    assert (failure.value.why, failure.value.ran) == ("the server was removed", "maybe")


async def test_no_retry_goes_past_the_deadline(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", OFFER)
    server.answers["tools/call"] = LOST
    now = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable):
        await gateway.request("tools/call", READ, caller(deadline=now))
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("failure", "attempt", "given", "low", "high"),
    [
        (REFUSED, 1, {}, 0.1, 0.2),
        (REFUSED, 2, {}, 0.2, 0.4),
        (REFUSED, 3, {}, None, None),
        (LOST, 1, {"repeatable": False}, None, None),
        (REFUSED, 1, {"repeatable": False}, 0.1, 0.2),
        (Unavailable("s", "x", ran="no", retry_in=1.5), 1, {}, 1.5, 1.5),
        (Unavailable("s", "x", ran="no", retry_in=LONGEST + 1), 1, {}, None, None),
        (Unavailable("s", "x", ran="no", permanent=True), 1, {}, None, None),
        (REFUSED, 1, {"deadline": 100.05}, None, None),
        (REFUSED, 1, {"deadline": 100.5}, 0.1, 0.2),
        (REFUSED, 12, {"retry": Retry(20, 0.2)}, None, None),
    ],
)
def test_pause(
    failure: Unavailable,
    attempt: int,
    given: dict[str, object],
    low: float | None,
    high: float | None,
) -> None:
    random.seed(7)
    terms: dict[str, object] = {"retry": Retry(3, 0.2), "repeatable": True, "deadline": None}
    terms |= given
    waits = [pause(failure, attempt, now=100.0, **terms) for _ in range(50)]  # type: ignore[arg-type]
    if low is None or high is None:
        assert waits == [None] * 50
    else:
        assert all(w is not None and low <= w <= high for w in waits)
        assert low == high or len(set(waits)) > 10


async def test_a_server_that_is_down_costs_its_own_calls_only(
    gateway: Gateway, serve: Serve
) -> None:
    """A tool that was listed before stays callable, and its call says what is the matter."""
    down, up = serve("s", OFFER), serve("up", OFFER)
    down.becomes(State.BACKOFF)
    down.answers["tools/call"] = Unavailable("s", "not connected", ran="no", retry_in=9.0)
    with pytest.raises(Unavailable) as failure:
        await gateway.request("tools/call", CALL, caller())
    assert failure.value.retry_in == 9.0
    await gateway.request("tools/call", {"name": "up__write"}, caller())
    assert len(up.asked) == 1


async def test_late_tools_are_callable_without_listing_them(gateway: Gateway, serve: Serve) -> None:
    server = serve("s", offers(["early"]))
    server.lists(offers(["early", "late_tool"]))
    await gateway.request("tools/call", {"name": "s__late_tool"}, caller())
    # And what is no longer listed is no longer there, whether or not anybody was told.
    server.lists(offers(["late_tool"]))
    with pytest.raises(Unroutable):
        await gateway.request("tools/call", {"name": "s__early"}, caller())


# ------------------------------------------------------- before a server has told what it has


async def test_a_name_needs_no_list_before_it_is_used(gateway: Gateway, bus: Bus) -> None:
    """The first call waits for the first attempt of its server, as a first list would."""
    late = Scripted("late", state=State.CONNECTING, bus=bus)
    gateway.attach(late, config("late"))
    call = asyncio.create_task(gateway.request("tools/call", {"name": "late__x"}, caller()))
    await asyncio.sleep(0.02)
    assert not call.done()
    late.becomes(State.READY, offers(["x"]))
    assert "content" in await call


async def test_a_server_that_never_told_is_unavailable_not_unknown(
    gateway: Gateway, bus: Bus
) -> None:
    gateway.attach(Scripted("hang", state=State.CONNECTING, bus=bus), config("hang"))
    for who in (caller(), caller(server="hang")):
        name = "x" if who.server else "hang__x"
        with pytest.raises(Unavailable) as failed:
            await asyncio.wait_for(gateway.request("tools/call", {"name": name}, who), 30)
        assert (failed.value.server, failed.value.ran) == ("hang", "no")
