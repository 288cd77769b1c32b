"""PostgreSQL is lost and comes back, with calls going on at two sidecars that use it.

``SIDECAR_OUTAGE`` says for how many seconds it is lost (``make outage``: a minute).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from sidecar.admin import AdminError
from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.http import HttpServer, serving
from tests.kit.postgres import Postgres
from tests.kit.postgres import postgres as running_postgres
from tests.peers.postgres import MISSING, programs
from tests.registry.nodes import SOON, Node, place, two
from tests.registry.relay import relay

OUTAGE = float(os.environ.get("SIDECAR_OUTAGE", "4"))
BACK = 20.0
"""Seconds in which everything is as before, once the server answers again: a node looks for a
lost one every 5 s at the latest."""
REFUSED = 10.0
"""Seconds for what is refused at once."""

RULES = """\
  - {id: person, on: call, effect: ask, when: tool.upstream_name == "whoami"}
  - {id: marked, on: result, effect: label, label: marked, when: tool.upstream_name == "fidelity"}
"""

pytestmark = [
    pytest.mark.skipif(programs() is None, reason=MISSING),
    pytest.mark.timeout(180 + 2 * OUTAGE),
]


@pytest.fixture
def own_postgres() -> Iterator[Postgres]:
    """One that may be stopped."""
    with running_postgres() as server:
        yield server


@pytest.fixture
async def upstream() -> AsyncIterator[HttpServer]:
    async with serving(Behaviour(name="late")) as server:
        yield server


class Calling:
    """Calls that go on at a node until ``stop``, each waited for."""

    def __init__(self, node: Node) -> None:
        self.answered = 0
        self.failures: list[BaseException] = []
        self.slowest = 0.0
        self._node = node
        self._goes_on = True
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while self._goes_on:
            began = time.monotonic()
            try:
                assert await self._node.client.text("late__echo", message="on") == "on"
                self.answered += 1
            except Exception as error:  # noqa: BLE001 - told at the end
                self.failures.append(error)
            self.slowest = max(self.slowest, time.monotonic() - began)
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        self._goes_on = False
        await self._task


async def added_within(node: Node, name: str, url: str, seconds: float) -> float:
    """Add until the store takes it; how long that took."""
    began = time.monotonic()
    while True:
        try:
            await node.ask("add", name, url=url)
            return time.monotonic() - began
        except AdminError as error:
            assert error.reason == "store_unavailable", error
            assert time.monotonic() - began < seconds
            await asyncio.sleep(0.1)


async def refused(node: Node, url: str) -> None:
    """What needs the store is refused, and says that it is the store."""
    for what, arguments in (("add", ("x",)), ("remove", ("late",)), ("reconcile", ())):
        began = time.monotonic()
        with pytest.raises(AdminError) as caught:
            await node.ask(what, *arguments, **({"url": url} if what == "add" else {}))
        assert caught.value.reason == "store_unavailable"
        assert "@" not in str(caught.value), "the URL is not repeated"
        assert time.monotonic() - began < REFUSED, "at once"
    asked = await node.client.call("late__whoami")
    assert asked["isError"] is True
    assert asked["_meta"]["sidecar/denied"]["rule"] == "store/unavailable"
    assert "store unavailable" in asked["content"][0]["text"]
    async with aiohttp.ClientSession() as http, http.get(f"{node.sidecar.health}/readyz") as ready:
        assert ready.status == 200


async def labels(node: Node) -> set[str]:
    """Of every principal there is, at this node."""
    return {label["label"] for each in await node.ask("labels") for label in each["labels"]}


async def until_labelled(node: Node, seconds: float) -> float:
    began = time.monotonic()
    while await labels(node) != {"marked"}:
        assert time.monotonic() - began < seconds
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def test_postgres_is_stopped_and_comes_back(
    own_postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    async with two(own_postgres.schema(place()), tmp_path, rules=RULES) as (one, other):
        await one.ask("add", "late", url=upstream.url)
        await other.calls_within("late__echo", SOON)
        calling = [Calling(node) for node in (one, other)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(own_postgres.stop, signal.SIGQUIT)
        lost_at = time.monotonic()
        before = [each.answered for each in calling]
        try:
            # A label that a result brings is kept until it can be written, and counts here.
            marked = await one.client.call("late__fidelity")
            assert marked["_meta"]["sidecar/labels"] == ["marked"]
            assert await labels(one) == {"marked"}
            rounds = 0
            while True:
                for node in (one, other):
                    await refused(node, upstream.url)
                rounds += 1
                if time.monotonic() >= lost_at + OUTAGE:
                    break
                await asyncio.sleep(min(2.0, OUTAGE / 4))
            assert await labels(other) == set()
            meanwhile = [now.answered - then for now, then in zip(calling, before, strict=True)]
            assert min(meanwhile) > 5, "calls went on at both"
        finally:
            await asyncio.to_thread(own_postgres.start)
        lost_for = time.monotonic() - lost_at
        took = await added_within(one, "after", upstream.url, BACK)
        followed = await other.calls_within("after__echo", BACK)
        written = await until_labelled(other, BACK)
        # Both listen again: from here on it is as it was before.
        await other.ask("add", "again", url=upstream.url)
        again = await one.calls_within("again__echo", SOON)
        for each in calling:
            await each.stop()
            assert each.failures == []
        await other.ask("remove", "late")
        await one.unknown_within("late__echo", SOON)
        assert await one.names() == await other.names() == ["after", "again"]
        print(
            f"lost for {lost_for:.0f} s, {rounds} rounds refused, calls meanwhile {meanwhile}, "
            f"slowest {max(each.slowest for each in calling):.2f} s; back: an add after "
            f"{took:.1f} s, called on the other {followed:.1f} s later, labels {written:.1f} s, "
            f"the next add {again:.2f} s"
        )


async def test_what_was_written_while_one_node_was_cut_off(
    postgres: Postgres, upstream: HttpServer, tmp_path: Path
) -> None:
    """Its calls go on; what the other did meanwhile is caught up without a reconciliation."""
    store = postgres.schema(place())
    async with relay(postgres.port) as way:
        around = store.replace(f":{postgres.port}/", f":{way.port}/")
        async with two(store, tmp_path, other_store=around, rules=RULES) as (one, other):
            for name in ("late", "gone"):
                await one.ask("add", name, url=upstream.url)
                await other.calls_within(f"{name}__echo", SOON)
            calling = Calling(other)
            await way.cut()
            await refused(other, upstream.url)
            await one.ask("add", "meanwhile", url=upstream.url)
            await one.ask("remove", "gone")
            await one.calls_within("meanwhile__echo", SOON)
            await one.client.call("late__fidelity")
            await asyncio.sleep(max(0.0, OUTAGE - 3))
            assert await other.names() == ["gone", "late"]
            await way.mend()
            took = await other.calls_within("meanwhile__echo", BACK)
            await other.unknown_within("gone__echo", SOON)
            await until_labelled(other, SOON)
            await calling.stop()
            assert calling.failures == []
            await other.ask("add", "again", url=upstream.url)
            await one.calls_within("again__echo", SOON)
            assert await one.names() == await other.names() == ["again", "late", "meanwhile"]
            print(f"what happened meanwhile was there {took:.1f} s after the cut was mended")
