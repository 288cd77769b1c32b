"""Servers behind a process: eras, death, garbage, caps, cancellation, isolation, the end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest

from sidecar.children import descendants
from sidecar.config import Limits, SecretRef
from sidecar.events import LogMessage, ResourceUpdated
from sidecar.model import Era, RpcError, State, TraceContext, Unavailable
from tests.kit.processes import alive
from tests.upstream.kit import META, MODERN, caller, plain, until

LISTEN = "subscriptions/listen"
BOTH = pytest.mark.parametrize("speaks", ["legacy", "modern"])


async def call(server: Any, name: str, who: Any = None, **arguments: Any) -> Any:
    params = {"name": name, "arguments": arguments}
    return await server.request("tools/call", params, who or caller("s"))


async def text(server: Any, name: str, who: Any = None, **arguments: Any) -> str:
    return str(plain(await call(server, name, who, **arguments))["content"][0]["text"])


@BOTH
async def test_a_call_in_either_era(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, speaks)
    assert [entry.key for entry in server.entries().tools] == ["echo", "pid"]
    for era in Era:
        assert await text(server, "echo", caller("s", era=era), message="hé") == "hé"


async def test_both_eras_in_one_process_means_the_modern_one(make, scripted) -> None:
    server = make(command=scripted("both"))
    await server.settled()
    assert server.status.era is Era.MODERN
    pids = {await text(server, "pid", caller("s", era=era)) for era in Era}
    # Two processes would be two servers: what one is told the other does not know.
    assert len(pids) == 1


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32603, -32000, -32001, -32002])
async def test_no_error_code_decides(make, scripted, code) -> None:
    server = make(command=scripted("legacy", f"discover code={code}"))
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.LEGACY)


async def test_a_server_that_exits_on_the_probe_gets_a_fresh_process(
    make, scripted, tmp_path, watch
) -> None:
    marks = tmp_path / "marks"
    server = make(command=scripted("legacy", "exit on discover", f"marks={marks}"))
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.LEGACY)
    assert len(marks.read_text().split()) == 2
    # Its era is known now: the next start has no probe.
    with pytest.raises(Unavailable):
        await call(server, "exit")
    await until(lambda: watch.states().count("ready") == 2)
    assert len(marks.read_text().split()) == 3


async def test_a_server_silent_on_the_probe_is_initialized_in_place(
    make, scripted, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr("sidecar.upstream.opener.PROBE", 0.2)
    marks = tmp_path / "marks"
    server = make(command=scripted("legacy", "silent on discover", f"marks={marks}"))
    await server.settled()
    assert server.status.era is Era.LEGACY
    assert len(marks.read_text().split()) == 1


async def test_a_server_confused_by_the_probe_gets_a_fresh_process(
    make, scripted, monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr("sidecar.upstream.opener.PROBE", 0.2)
    monkeypatch.setattr("sidecar.upstream.opener.SILENCE", 0.3)
    marks = tmp_path / "marks"
    server = make(command=scripted("legacy", "silent on discover", "confused", f"marks={marks}"))
    await server.settled()
    assert server.status.era is Era.LEGACY
    assert len(marks.read_text().split()) == 2


@pytest.mark.parametrize("speaks", ["modern", "both"])
async def test_a_slow_start_does_not_make_a_modern_server_legacy(
    make, scripted, monkeypatch, speaks
) -> None:
    monkeypatch.setattr("sidecar.upstream.opener.PROBE", 0.1)
    server = make(command=scripted(speaks, "slow start=0.5"))
    await server.settled()
    assert (server.status.state, server.status.era) == (State.READY, Era.MODERN)
    assert await text(server, "echo", message="x") == "x"


async def test_a_configured_era_is_not_probed(make, scripted) -> None:
    server = make(command=scripted("both"), era="legacy")
    await server.settled()
    assert server.status.era is Era.LEGACY
    seen = json.loads(await text(server, "seen"))
    assert [message["method"] for message in seen][:2] == [
        "initialize",
        "notifications/initialized",
    ]


async def test_what_a_modern_process_is_told(make, scripted) -> None:
    server = make(command=scripted("modern"), trusted=True)
    await server.settled()
    trace = TraceContext("00-" + "a" * 32 + "-" + "b" * 16 + "-01", "", "who=me")
    who = caller(era=Era.MODERN, progress=7, log_level="info", trace=trace)
    meta = json.loads(await text(server, "params", who))["_meta"]
    assert meta[META + "protocolVersion"] == MODERN
    assert meta[META + "clientCapabilities"] == {}
    assert meta[META + "logLevel"] == "info"
    assert meta["traceparent"] == trace.traceparent
    assert meta["baggage"] == "who=me"
    assert isinstance(meta["progressToken"], int)


@BOTH
async def test_calls_run_side_by_side(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    # Longer on a machine that is too slow to begin all of them in that time.
    for seconds in (0.3, 1.5, 6.0):
        started = asyncio.get_running_loop().time()
        slow = [asyncio.create_task(call(server, "sleep", seconds=seconds)) for _ in range(6)]
        assert await text(server, "echo", message="x") == "x"
        held_up = any(task.done() for task in slow)
        await asyncio.gather(*slow)
        took = asyncio.get_running_loop().time() - started
        if not held_up and took < 4 * seconds:
            break
    assert not held_up
    assert took < 4 * seconds, "one after the other it is six times as long"


@BOTH
async def test_progress_is_the_callers_in_order_and_before_the_result(
    make, scripted, speaks
) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    got: list[Any] = []
    others: list[Any] = []
    who = caller("s", progress="tok", notify=lambda m, p: got.append((m, p)))
    other = caller("t", progress="tok", notify=lambda m, p: others.append(p))
    both = asyncio.gather(call(server, "progress", who, n=20), call(server, "progress", other, n=3))
    await both
    assert got == [
        ("notifications/progress", {"progressToken": "tok", "progress": n, "x": None})
        for n in range(20)
    ]
    assert len(others) == 3


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"jsonrpc":"2.0","id":ID,"result":{"a":NaN}}', "the JSON is malformed"),
        ('{"result":{"a":NaN},"id":ID,"jsonrpc":"2.0"}', "the JSON is malformed"),
        ('{"jsonrpc":"2.0","id":ID,"result":null}', "either a result or an error"),
        ('{"jsonrpc":"2.0","id":ID,"result":{},"error":{"code":1,"message":""}}', "either"),
        ('{"jsonrpc":"2.0","id":ID}', "either a result or an error"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_not_waited_for(make, scripted, line, why) -> None:
    """A NaN from Python's json.dumps costs its call, and at once, not at the timeout."""
    server = make(command=scripted("modern"))
    await server.settled()
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable) as caught:
            await call(server, "garbled", line=line)
    assert why in caught.value.why
    assert caught.value.ran == "maybe"
    assert server.status.state is State.READY
    # What asks something under the id of a call is no answer to it.
    ask = (
        '{"jsonrpc":"2.0","id":ID,"method":"x","params":[]}\n{"jsonrpc":"2.0","id":ID,"result":{}}'
    )
    assert await call(server, "garbled", line=ask) == {}


@BOTH
async def test_garbage_costs_itself_and_one_warning(make, scripted, speaks, caplog) -> None:
    server = make(command=scripted(speaks, "chatty"))
    await server.settled()
    for _ in range(3):
        await call(server, "garbage")
    assert await text(server, "echo", message="x") == "x"
    assert server.status.state is State.READY
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert sum("no JSON-RPC" in warning for warning in warnings) == 1
    assert sum("nobody asked" in warning for warning in warnings) == 1
    assert all(warning.startswith("server up: ") for warning in warnings)
    assert "Starting" not in caplog.text


@BOTH
async def test_a_result_that_is_no_object(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    with pytest.raises(Unavailable, match="result that cannot be read"):
        await call(server, "text")


@BOTH
async def test_an_error_is_the_servers_own(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    with pytest.raises(RpcError) as caught:
        await call(server, "error")
    assert (caught.value.code, caught.value.message) == (-32050, "no")
    assert json.loads(bytes(caught.value.data)) == {"why": None}


@pytest.mark.parametrize("tool", ["big", "big last"])
async def test_a_line_over_the_cap_fails_the_call_that_it_answers(make, scripted, tool) -> None:
    server = make(command=scripted("legacy"), limits=Limits(line=100_000))
    await server.settled()
    other = asyncio.create_task(call(server, "sleep", seconds=0.3))
    third = asyncio.create_task(call(server, "sleep", seconds=0.3))
    with pytest.raises(Unavailable) as caught:
        await call(server, tool, size=1_000_000)
    assert "limits.line" in caught.value.why
    assert caught.value.permanent
    await asyncio.gather(other, third)
    assert await text(server, "echo", message="x") == "x"


async def test_a_result_over_the_cap(make, scripted) -> None:
    server = make(command=scripted("legacy"), limits=Limits(result=100_000))
    await server.settled()
    with pytest.raises(Unavailable, match=r"limits\.result"):
        await call(server, "big", size=1_000_000)


async def test_twelve_mebibytes_in_one_line(make, scripted) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    assert len(plain(await call(server, "big", size=12 << 20))["x"]) == 12 << 20


@BOTH
async def test_cancelling_tells_the_server_and_discards_the_late_answer(
    make, scripted, speaks, caplog
) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    task = asyncio.create_task(call(server, "sleep", seconds=1.0))

    async def sent() -> list[Any]:
        seen = json.loads(await text(server, "seen"))
        return [m["id"] for m in seen if m.get("params", {}).get("name") == "sleep"]

    while not await sent():  # noqa: ASYNC110  the child knows, and is asked
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    # A line goes after the other: what is asked now comes after what was told.
    seen = json.loads(await text(server, "seen"))
    cancelled = [m for m in seen if m.get("method") == "notifications/cancelled"]
    assert [m["params"]["requestId"] for m in cancelled] == await sent()
    await asyncio.sleep(1.1)
    assert await text(server, "echo", message="x") == "x"
    assert "nobody asked" not in caplog.text


async def test_a_time_out_cancels(make, scripted) -> None:
    server = make(command=scripted("legacy"), timeout=0.5)
    await server.settled()
    with pytest.raises(Unavailable) as caught:
        await call(server, "sleep", seconds=0.9)
    assert caught.value.ran == "maybe"
    await asyncio.sleep(0.05)
    seen = json.loads(await text(server, "seen"))
    assert any(m.get("method") == "notifications/cancelled" for m in seen)


@BOTH
async def test_requests_of_the_server_are_answered(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    answers = {m["id"]: m for m in json.loads(await text(server, "ask"))}
    assert answers[1]["result"] == {"roots": []}
    assert answers["p"]["result"] == {}
    assert answers[3]["error"]["code"] == -32601


# ----------------------------------------------------------------------------- life and death


@BOTH
async def test_death_fails_what_waits_at_once_and_it_comes_back(
    make, scripted, speaks, watch
) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    pid = int(await text(server, "pid"))
    waiting = [asyncio.create_task(call(server, "sleep", seconds=30)) for _ in range(3)]
    while (await text(server, "seen")).count('"name": "sleep"') < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    started = asyncio.get_running_loop().time()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert asyncio.get_running_loop().time() - started < 20
    assert [(type(r), r.ran) for r in results] == [(Unavailable, "maybe")] * 3
    assert "signal 9" in results[0].why
    # The next call finds it down, and waits for it, since it is about to come back.
    assert int(await text(server, "pid")) != pid
    assert watch.states()[:4] == ["connecting", "ready", "backoff", "connecting"]
    assert watch.counts()[:2] == [2, 0]
    # What was listed stays known.
    assert [entry.key for entry in server.entries().tools] == ["echo", "pid"]


async def test_a_call_after_death_between_calls_is_served(make, scripted, watch) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    pid = int(await text(server, "pid"))
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not alive(pid))
    # Until it is known: what is written to a dead one meanwhile may have run, as far as we know.
    await until(lambda: "backoff" in watch.states())
    for _ in range(20):  # As the gateway does: what surely did not run is sent again.
        try:
            assert await text(server, "echo", message="x") == "x"
            break
        except Unavailable as error:
            assert error.ran == "no"
            await asyncio.sleep(0.1)
    else:
        pytest.fail("it did not come back")


async def test_a_command_that_does_not_exist(make) -> None:
    server = make(command=("no-such-command-anywhere",))
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "no-such-command-anywhere" in str(server.status.error)
    assert server.status.retry_in is not None
    with pytest.raises(Unavailable) as caught:
        await call(server, "echo")
    assert caught.value.ran == "no"


async def test_a_server_that_exits_at_once_is_tried_again_ever_later(
    make, scripted, watch, tmp_path
) -> None:
    marks = tmp_path / "marks"
    server = make(command=scripted("legacy", f"marks={marks}", "exit at once"))
    await server.settled()
    assert "status 7" in str(server.status.error)
    await until(lambda: watch.states().count("backoff") >= 3)
    delays = [event.retry_in for event in watch.events if getattr(event, "retry_in", None)]
    assert all(delay <= 0.5 * 2**n for n, delay in enumerate(delays))
    assert watch.counts() == []


async def test_the_environment_is_the_childs_and_the_configured_one(
    make, scripted, monkeypatch
) -> None:
    monkeypatch.setenv("SECRET_OF_OURS", "x")
    monkeypatch.setenv("TOKEN", "t")
    server = make(
        command=scripted("legacy"),
        env={"A": SecretRef(literal="a"), "T": SecretRef(from_env="TOKEN", template="<{}>")},
    )
    await server.settled()
    env = json.loads(await text(server, "env"))
    assert env["A"] == "a"
    assert env["T"] == "<t>"
    assert "SECRET_OF_OURS" not in env


async def test_a_missing_secret_is_named(make, scripted) -> None:
    server = make(command=scripted("legacy"), env={"T": SecretRef(from_env="NOT_THERE")})
    await server.settled()
    assert server.status.state is State.BACKOFF
    assert "env.T" in str(server.status.error)


# ---------------------------------------------------------------------------------- isolation


async def test_one_process_for_all_unless_told_otherwise(make, scripted) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    assert [await text(server, "count", caller(s)) for s in "xxyx"] == ["1", "2", "3", "4"]


@BOTH
async def test_a_process_for_each_caller(make, scripted, speaks) -> None:
    server = make(command=scripted(speaks), isolation="session")
    await server.settled()
    assert [await text(server, "count", caller(s)) for s in "xxyx"] == ["1", "2", "1", "3"]
    pid = int(await text(server, "pid", caller("x")))
    await server.forget("x")
    assert not alive(pid)
    assert await text(server, "count", caller("x")) == "1"


async def test_a_callers_dead_process_is_replaced(make, scripted) -> None:
    server = make(command=scripted("legacy"), isolation="session")
    await server.settled()
    with pytest.raises(Unavailable):
        await call(server, "exit", caller("x"))
    assert await text(server, "count", caller("x")) == "1"
    assert server.status.state is State.READY


# ----------------------------------------------------------------------------- notifications


@BOTH
async def test_a_storm_of_changes_is_one_or_two_listings(make, scripted, speaks, watch) -> None:
    server = make(command=scripted(speaks))
    await server.settled()
    await asyncio.sleep(0.2)
    before = len(watch.counts())
    await call(server, "grow", times=5)
    await until(lambda: len(server.entries().tools) == 3)
    await asyncio.sleep(0.3)
    changes = [event for event in watch.events if getattr(event, "added", None) == ("extra0",)]
    assert len(changes) == 1
    assert changes[0].count == 3
    assert changes[0].name == "sc"
    assert len(watch.counts()) == before + 1
    seen = json.loads(await text(server, "seen"))
    assert [m.get("method") for m in seen].count("tools/list") <= 3


@BOTH
async def test_resources_are_watched_once_and_again_after_a_restart(
    make, scripted, speaks, watch
) -> None:
    server = make(command=scripted(speaks))
    await server.settled()

    async def subscriptions() -> list[str]:
        seen = json.loads(await text(server, "seen"))
        if speaks == "legacy":
            return [m["params"]["uri"] for m in seen if m.get("method") == "resources/subscribe"]
        asked = [m["params"]["notifications"] for m in seen if m.get("method") == LISTEN]
        return asked[-1].get("resourceSubscriptions", []) if asked else []

    async def until_subscribed(*uris: str) -> None:
        async with asyncio.timeout(30):
            while await subscriptions() != list(uris):  # noqa: ASYNC110  the child is asked
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)
        assert await subscriptions() == list(uris)

    await server.subscribe("u://1", caller("a"))
    await server.subscribe("u://1", caller("b"))
    await until_subscribed("u://1")
    await call(server, "update", uri="u://1")
    await until(lambda: watch.of(ResourceUpdated))
    event = watch.of(ResourceUpdated)[0]
    assert (event.server, event.uri, event.params) == ("up", "u://1", {"uri": "u://1"})
    with pytest.raises(Unavailable):
        await call(server, "exit")
    await until(lambda: watch.states().count("ready") == 2)
    await until_subscribed("u://1")
    await server.unsubscribe("u://1", caller("a"))
    await server.unsubscribe("u://unknown", caller("a"))
    await server.forget("b")
    if speaks == "legacy":

        async def taken_back() -> int:
            seen = json.loads(await text(server, "seen"))
            return [m.get("method") for m in seen].count("resources/unsubscribe")

        async with asyncio.timeout(30):
            while not await taken_back():  # noqa: ASYNC110  the child is asked
                await asyncio.sleep(0.02)
        assert await taken_back() == 1
    else:
        await until_subscribed()


async def test_a_log_message_that_is_nobodys_is_an_event(make, scripted, watch) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    await call(server, "log")
    assert [event.params["data"] for event in watch.of(LogMessage)] == ["hello"]


async def test_a_modern_log_message_is_its_only_callers(make, scripted, watch) -> None:
    server = make(command=scripted("modern"))
    await server.settled()
    got: list[Any] = []
    who = caller(era=Era.MODERN, log_level="info", notify=lambda m, p: got.append(p))
    await call(server, "log", who)
    assert [params["data"] for params in got] == ["hello"]
    assert watch.of(LogMessage) == []


async def test_the_lowest_level_of_all_is_asked_for(make, scripted) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    await server.set_log_level("error", caller("a"))
    await server.set_log_level("info", caller("b"))
    await server.set_log_level("warning", caller("c"))
    await server.forget("b")
    await call(server, "echo", caller("d", log_level="debug"))
    await call(server, "echo", caller("d", log_level="debug"))
    seen = json.loads(await text(server, "seen"))
    levels = [m["params"]["level"] for m in seen if m.get("method") == "logging/setLevel"]
    assert levels == ["error", "info", "warning", "debug"]


# ------------------------------------------------------------------------------------ the end


@BOTH
async def test_close_ends_the_whole_tree(make, scripted, speaks, monkeypatch) -> None:
    monkeypatch.setattr("sidecar.upstream.stdio.GRACE", 0.2)
    server = make(command=scripted(speaks, "ignore sigterm"))
    await server.settled()
    pid = int(await text(server, "pid"))
    tree = {pid, *descendants(pid)}
    assert len(tree) == 2
    waiting = asyncio.create_task(call(server, "sleep", seconds=30))
    await asyncio.sleep(0.05)
    await asyncio.gather(server.close(), server.close())
    with pytest.raises(Unavailable):
        await waiting
    assert not any(alive(one) for one in tree)
    with pytest.raises(Unavailable, match="closed") as caught:
        await call(server, "echo")
    assert caught.value.ran == "no"
    await server.settled()
    await server.close()


async def test_close_before_and_while_it_connects(make, scripted) -> None:
    never = make(command=scripted("legacy"), start=False)
    await never.close()
    never.start()
    await never.settled()
    slow = make(command=scripted("legacy", "slow start=30"))
    await asyncio.sleep(0.1)
    started = asyncio.get_running_loop().time()
    await slow.close()
    assert asyncio.get_running_loop().time() - started < 25


async def test_whoever_waits_for_close_may_give_up(make, scripted) -> None:
    server = make(command=scripted("legacy"))
    await server.settled()
    pid = int(await text(server, "pid"))
    closing = asyncio.create_task(server.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await server.close()
    assert not alive(pid)
