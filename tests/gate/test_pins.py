"""P3: a definition that changes is told from one that is only written otherwise."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sidecar.gate import pins
from sidecar.gate.pins import Pins
from sidecar.model import Definition, Tool
from sidecar.store import open_store
from tests.gate.conftest import Begin
from tests.gate.kit import Frail, World, denial, rules
from tests.gateway.scripted import caller, offers, tool

NO_CHANGED = rules("id: same, on: call, effect: deny, when: 'tool.changed', message: '\"changed\"'")


def written(text: str) -> Definition:
    return Definition(json.loads(text)["name"], text.encode())


FIRST = (
    '{"name": "x", "description": "one", "inputSchema": {"type": "object", "a": 1, "b": [1, 2]}}'
)
TURNED = (
    '{"inputSchema": {"b": [1, 2], "a": 1, "type": "object"},  "description": "one", "name": "x"}'
)
OTHER = (
    '{"name": "x", "description": "two", "inputSchema": {"type": "object", "a": 1, "b": [1, 2]}}'
)
ORDER = (
    '{"name": "x", "description": "one", "inputSchema": {"type": "object", "a": 1, "b": [2, 1]}}'
)


@pytest.mark.parametrize(("second", "changed"), [(TURNED, False), (OTHER, True), (ORDER, True)])
async def test_only_a_change_of_what_it_says_is_a_change(
    begin: Begin, second: str, changed: bool
) -> None:
    world = await begin(NO_CHANGED)
    server = world.serve("s", offers([written(FIRST)]))
    assert denial(await world.call("s__x", caller())) is None
    server.lists(offers([written(second)]))
    refused = denial(await world.call("s__x", caller()))
    assert (refused is not None) is changed
    (row,) = world.house.pins.listing(world.gateway.tools())
    assert row["changed"] is changed
    assert (row["pinned"] != row["digest"]) is changed
    if changed:
        await world.house.pins.pin(world.gateway.tools()[0])
        assert denial(await world.call("s__x", caller())) is None
        # And back again is a change as well.
        server.lists(offers([written(FIRST)]))
        assert denial(await world.call("s__x", caller())) is not None


async def test_a_tool_that_changes_before_it_is_ever_called_has_changed(begin: Begin) -> None:
    world = await begin(NO_CHANGED)
    server = world.serve("s", offers([written(FIRST)]))
    server.lists(offers([written(FIRST)]))
    await until_pinned(world, 1)
    server.lists(offers([written(OTHER)]))
    assert denial(await world.call("s__x", caller()))["rule"] == "p0/same"


async def until_pinned(world: World, count: int) -> None:
    for _ in range(100):
        rows = world.house.pins.listing(world.gateway.tools())
        if sum("pinned" in row for row in rows) == count:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not {count} tools were pinned")


async def test_runtime_servers_ask_when_a_tool_changes_and_configured_ones_do_not(
    begin: Begin,
) -> None:
    world = await begin(shipped=("gating",))
    read = {"readOnlyHint": True}

    def define(text: str) -> Definition:
        return tool("x", description=text, annotations=read)

    for name, runtime in (("added", True), ("own", False)):
        server = world.serve(name, offers([define("one")]), runtime=runtime)
        assert denial(await world.call(f"{name}__x", caller())) is None
        server.lists(offers([define("two")]))
    assert denial(await world.call("own__x", caller())) is None
    assert denial(await world.call("added__x", caller()))["rule"] == "gating/changed"
    await world.house.pins.pin(world.gateway.tools()[0])
    assert denial(await world.call("added__x", caller())) is None


async def test_pins_outlive_a_restart_and_a_server_that_goes_and_comes_back(
    begin: Begin, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/state.db"
    for text, denied in ((FIRST, False), (TURNED, False), (OTHER, True)):
        store = open_store(url)
        await store.open()
        world = await begin(NO_CHANGED, store=store)
        world.serve("s", offers([written(text)]))
        assert (denial(await world.call("s__x", caller())) is not None) is denied
        world.gateway.detach("s")
        world.serve("s", offers([written(text)]))
        assert (denial(await world.call("s__x", caller())) is not None) is denied
        await world.close()
        await store.close()


async def test_a_store_that_cannot_be_read_denies_what_was_never_pinned(begin: Begin) -> None:
    store = Frail()
    await store.open()
    world = await begin(store=store)
    server = world.serve("s", offers(["old"]))
    assert denial(await world.call("s__old", caller())) is None
    store.lost = True
    server.lists(offers(["old", "new"]))
    refused = denial(await world.call("s__new", caller()))
    assert refused["rule"] == "store/unavailable"
    assert "store unavailable" in refused["message"]
    assert world.decided[-1].decision.error is not None
    # What is known is decided from memory.
    assert denial(await world.call("s__old", caller())) is None
    store.lost = False
    await asyncio.sleep(pins._SULK)
    assert denial(await world.call("s__new", caller())) is None


async def test_a_pin_that_cannot_be_read_denies_until_it_is_made_anew(begin: Begin) -> None:
    store = Frail()
    await store.open()
    await store.put("pins/s/x", b"{nonsense")
    world = await begin(store=store)
    world.serve("s", offers(["x"]))
    assert denial(await world.call("s__x", caller()))["rule"] == "store/unavailable"
    await world.house.pins.pin(world.gateway.tools()[0])
    assert denial(await world.call("s__x", caller())) is None


async def test_callers_of_a_new_tool_wait_for_one_write(begin: Begin) -> None:
    store = Frail()
    await store.open()
    world = await begin(store=store)
    world.serve("s", offers(["x"]))
    await asyncio.gather(*(world.call("s__x", caller()) for _ in range(20)))
    assert store.puts == ["pins/s/x"]


async def test_two_sidecars_pin_one_definition(begin: Begin) -> None:
    store = Frail()
    await store.open()
    one = await begin(NO_CHANGED, store=store)
    two = await begin(NO_CHANGED, store=store)
    one.serve("s", offers([written(FIRST)]))
    two.serve("s", offers([written(OTHER)]))
    await one.house.pins.see_all(one.gateway.tools())
    await two.house.pins.see_all(two.gateway.tools())
    assert denial(await one.call("s__x", caller())) is None
    assert denial(await two.call("s__x", caller())) is not None
    await two.house.pins.pin(two.gateway.tools()[0])
    await asyncio.sleep(0.02)
    assert denial(await two.call("s__x", caller())) is None
    assert denial(await one.call("s__x", caller())) is not None


async def test_a_server_cannot_fill_the_store(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins, "MOST", 10)
    world = await begin(NO_CHANGED)
    server = world.serve("s", offers([f"t{n}" for n in range(10)]))
    await world.house.pins.see_all(world.gateway.tools())
    server.lists(offers([f"u{n}" for n in range(10)]))
    await world.house.pins.see_all(world.gateway.tools())
    assert denial(await world.call("s__u1", caller()))["rule"] == "p0/same"
    server.lists(offers(["t3"]))
    assert denial(await world.call("s__t3", caller())) is None


@pytest.mark.parametrize("name", ["a/b", "ä", "x" * 3000, "%", "..", "a\nb"])
async def test_any_name_can_be_pinned(name: str) -> None:
    store = Frail()
    await store.open()
    made = Pins(store)
    await made.start()
    one = Tool("n", "s", name, {}, None, False, False, False, "d" * 64, b"{}", b"{}")  # type: ignore[arg-type]
    assert await made.see(one)
    assert made.changed(one) is False
    again = Pins(store)
    await again.start()
    assert again.changed(one) is False
    await made.close()
    await again.close()


async def test_a_change_is_told_in_the_log_once(
    begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    world = await begin()
    server = world.serve("s", offers([written(FIRST)]))
    await world.house.pins.see_all(world.gateway.tools())
    server.lists(offers([written(OTHER)]))
    for _ in range(3):
        await world.house.pins.see_all(world.gateway.tools())
    told = [record.getMessage() for record in caplog.records if "s__x" in record.getMessage()]
    assert len(told) == 1
    assert "sidecar tools pin s__x" in told[0]
