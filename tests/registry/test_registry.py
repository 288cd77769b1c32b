"""What the registry makes of the store: which servers run, which do not, and why.

The servers here are stand-ins that only count their starts: real ones are in the other modules.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.config import CredentialConfig, RuntimeServers, SecretRef, ServerConfig
from sidecar.model import NOTHING, Caller, Entries, Fields, JsonObject, ServerStatus, State
from sidecar.ports.store import Record, Store, StoreError
from sidecar.store.memory import MemoryStore
from sidecar.store.sqlite import SqliteStore
from sidecar.upstream import registry as module
from sidecar.upstream.registry import Denial, Registry, Rules
from sidecar.upstream.runtime import NotFound, Refused
from tests.kit.client import eventually

A: JsonObject = {"url": "http://a.example/mcp"}
OPEN = RuntimeServers(check=False)


class Stub:
    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.started = self.ended = False

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def status(self) -> ServerStatus:
        return ServerStatus(self.name, "runtime", self.config.transport, State.CONNECTING)

    def start(self) -> None:
        self.started = True

    def entries(self) -> Entries:
        return NOTHING

    async def settled(self) -> None:
        await asyncio.sleep(0)

    async def request(self, method: str, params: JsonObject, caller: Caller) -> Fields:
        raise NotImplementedError

    async def subscribe(self, uri: str, caller: Caller) -> None: ...
    async def unsubscribe(self, uri: str, caller: Caller) -> None: ...
    async def set_log_level(self, level: str, caller: Caller) -> None: ...
    async def forget(self, isolation: str) -> None: ...
    async def close(self) -> None: ...


class Node:
    """A registry with everything around it."""

    def __init__(self, store: Store, *, shared: bool = False, **rules: Any) -> None:
        self.made: list[Stub] = []
        self.placed = 0
        self.denial: Denial | None = None
        self.checked: list[tuple[str, str]] = []
        given: dict[str, Any] = {
            "configured": {},
            "credentials": {},
            "runtime": OPEN,
            "separator": "__",
            "reconcile": None,
        }
        self.rules = Rules(**(given | rules))
        self.registry = Registry(
            store,
            shared=shared,
            rules=self.rules,
            make=self.make,
            end=self.end,
            placed=self.place,
            check=self.check,
        )

    def make(self, config: ServerConfig) -> Stub:
        self.made.append(Stub(config))
        return self.made[-1]

    def end(self, server: Any) -> None:
        assert not server.ended
        server.ended = True

    def place(self) -> None:
        self.placed += 1

    async def check(self, config: ServerConfig, by: str) -> Denial | None:
        self.checked.append((config.url, by))
        return self.denial

    def configure(self, **changes: Any) -> None:
        self.rules = dataclasses.replace(self.rules, **changes)
        self.registry.configure(self.rules)

    @property
    def names(self) -> list[str]:
        return [server.name for server, _ in self.registry.running()]

    @property
    def states(self) -> dict[str, str]:
        return {each.name: str(each.state) for each in self.registry.servers()}

    def error(self, name: str) -> str:
        return next(e.error or "" for e in self.registry.servers() if e.name == name)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    store = MemoryStore()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def node(store: Store) -> AsyncIterator[Node]:
    node = Node(store)
    await node.registry.start()
    yield node
    await node.registry.close()
    assert all(each.ended for each in node.made)


async def refusal(node: Node, name: str, options: object, reason: str) -> Refused:
    with pytest.raises(Refused) as caught:
        await node.registry.add(name, options)  # type: ignore[arg-type]
    assert caught.value.reason == reason
    return caught.value


# ------------------------------------------------------------------------------ add and remove


async def test_add_remove_and_list(node: Node, store: Store) -> None:
    assert await node.registry.add("b", A, by="uid:root") is True
    assert await node.registry.add("a", {"url": "http://b.example/mcp", "gated": True}) is True
    assert node.names == ["a", "b"]
    assert all(each.started for each in node.made)
    config = node.made[0].config
    assert (config.trusted, config.hints, config.runtime) == (False, "restrict", True)
    assert (config.url, config.gated) == (A["url"], None)
    assert node.made[1].config.gated is True
    record = await store.get("servers/b")
    assert record is not None
    assert json.loads(record.value) == {"by": "uid:root", "options": A, "v": 1}
    await node.registry.remove("b")
    assert node.names == ["a"]
    assert node.made[0].ended
    assert await store.get("servers/b") is None


async def test_adding_again_replaces_and_the_same_disturbs_nothing(node: Node) -> None:
    await node.registry.add("a", A)
    placed = node.placed
    assert await node.registry.add("a", dict(A), by="somebody else") is False
    assert (len(node.made), node.placed) == (1, placed)
    assert await node.registry.add("a", {"url": "http://other.example"}) is False
    assert [each.ended for each in node.made] == [True, False]
    assert node.made[1].started


@pytest.mark.parametrize("name", ["", "no such", "x" * 2000, "a\0b", "ö", "nobody"])
async def test_removing_what_is_not_there(node: Node, name: str) -> None:
    with pytest.raises(NotFound) as caught:
        await node.registry.remove(name)
    assert caught.value.reason == "not_found"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("sidecar", "reserved"), ("a__b", "name"), ("a b", "name"), ("x" * 33, "name"), ("", "name")],
)
async def test_names_that_cannot_be(node: Node, name: str, reason: str) -> None:
    await refusal(node, name, A, reason)


async def test_names_that_differ_in_case_alone(store: Store) -> None:
    node = Node(store, configured={"notes": "server", "Coder": "harness"})
    for name, other in (("NOTES", "notes"), ("coder", "Coder")):
        assert other in str(await refusal(node, name, A, "alike"))
    await node.registry.add("search", A)
    assert "search" in str(await refusal(node, "Search", A, "alike"))
    await refusal(node, "notes", A, "configured")
    assert await node.registry.add("search", {"url": "http://again.example"}) is False
    # Met in the store, under a configuration that has come since.
    node.configure(configured={"SEARCH": "server"})
    assert (node.states, node.names) == ({"search": "failed"}, [])
    assert "differ from SEARCH" in node.error("search")
    node.configure(configured={})
    assert node.names == ["search"]
    await node.registry.close()


async def test_a_key_in_a_query_is_warned_of_and_not_quoted(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await node.registry.add("a", {"url": "http://a.example/mcp?api_key=s3cret"})
    assert "the query of its url looks like it holds a secret" in caplog.text
    assert "s3cret" not in caplog.text
    caplog.clear()
    await node.registry.add("b", {"url": "http://a.example/mcp?tenant=t"})
    assert "secret" not in caplog.text


async def test_the_separator_is_not_in_a_name(store: Store) -> None:
    node = Node(store, separator="-")
    assert "separator" in str(await refusal(node, "a-b", A, "name"))


async def test_faults_of_options_are_told_all_at_once(node: Node) -> None:
    error = await refusal(node, "a", {"url": "x", "nonsense": 1}, "options")
    assert {fault.path for fault in error.faults} == {"url", "nonsense"}
    assert node.made == []


async def test_a_bound_on_how_many(store: Store) -> None:
    node = Node(store, runtime=RuntimeServers(check=False, most=2))
    for name in ("a", "b"):
        await node.registry.add(name, A)
    await refusal(node, "c", A, "too_many")
    await node.registry.add("b", {"url": "http://again.example"})
    await node.registry.remove("a")
    await node.registry.add("c", A)
    assert node.names == ["b", "c"]
    node.configure(runtime=RuntimeServers(check=False, most=1))
    assert len(node.names) == 2, "what runs goes on"
    await node.registry.close()


# ---------------------------------------------------------------------- what is not allowed


async def test_commands(store: Store) -> None:
    command: JsonObject = {"command": ["true"]}
    allowed = RuntimeServers(check=False, commands=True)
    for rules in (OPEN, RuntimeServers(), RuntimeServers(check=True, commands=True)):
        await refusal(Node(store, runtime=rules), "a", command, "commands")
    await refusal(Node(store, runtime=allowed, shared=True), "a", command, "commands")
    node = Node(store, runtime=allowed)
    await node.registry.add("a", command)
    assert node.made[0].config.transport == "stdio"
    # Met by a node that does not allow them.
    other = Node(store)
    await other.registry.reconcile()
    assert (other.states, other.names) == ({"a": "failed"}, [])
    assert "only servers with a url" in other.error("a")


async def test_the_egress_check(store: Store) -> None:
    node = Node(store, runtime=RuntimeServers(check=True))
    await node.registry.add("a", A, by="alice")
    assert node.checked == [(A["url"], "alice")]
    node.denial = Denial("egress/private", "denied by rule egress/private")
    error = await refusal(node, "b", {"url": "http://10.0.0.1/"}, "egress/private")
    assert str(error) == "denied by rule egress/private"
    node.denial = Denial("egress/private", "the address is private", allowable=True)
    error = await refusal(node, "b", {"url": "http://10.0.0.1/"}, "egress/private")
    assert str(error).startswith("the address is private; if it is meant to be reached, allow it")
    assert "runtime_servers: {check: false}" in str(error)
    assert await store.get("servers/b") is None
    assert node.names == ["a"]


async def test_without_a_way_to_check_nothing_is_added_and_nothing_runs(store: Store) -> None:
    await Node(store).registry.add("a", A)
    node = Node(store, runtime=RuntimeServers(check=True))
    node.registry._check = None
    await refusal(node, "b", A, "egress")
    await node.registry.reconcile()
    assert (node.states, node.names) == ({"a": "failed"}, [])


CREDENTIALS = {
    "linear": CredentialConfig(
        "linear",
        SecretRef(from_env="LINEAR", template="Bearer {}"),
        ("https://mcp.linear.app",),
        "authorization",
    )
}


@pytest.mark.parametrize("key", ["credential", "credential_name"])
async def test_a_credential_goes_to_its_own_origins(store: Store, key: str) -> None:
    node = Node(store, credentials=CREDENTIALS)
    await node.registry.add("a", {"url": "https://MCP.linear.app:443/mcp", key: "linear"})
    assert node.made[0].config.headers == {"authorization": CREDENTIALS["linear"].secret}
    for url in (
        "http://mcp.linear.app/mcp",
        "https://mcp.linear.app:8443/mcp",
        "https://mcp.linear.app.evil.example/mcp",
        "https://evil.example/?https://mcp.linear.app",
    ):
        error = await refusal(node, "b", {"url": url, key: "linear"}, "credential")
        assert "may not be sent to this origin" in str(error)
    error = await refusal(node, "b", {"url": "https://mcp.linear.app", key: "none"}, "credential")
    assert "there are: linear" in str(error)
    assert node.names == ["a"]


async def test_a_credential_that_is_taken_away_ends_its_servers(store: Store) -> None:
    node = Node(store, credentials=CREDENTIALS)
    await node.registry.add("a", {"url": "https://mcp.linear.app", "credential": "linear"})
    node.configure(credentials={})
    assert (node.states, node.made[0].ended) == ({"a": "failed"}, True)
    node.configure(credentials=CREDENTIALS)
    assert node.names == ["a"]
    moved = dataclasses.replace(CREDENTIALS["linear"], secret=SecretRef(from_env="OTHER"))
    node.configure(credentials={"linear": moved})
    assert node.made[-1].config.headers == {"authorization": SecretRef(from_env="OTHER")}
    assert [each.ended for each in node.made] == [True, True, False]


# ------------------------------------------------------------------------ configured servers


async def test_a_configured_server_cannot_be_added_or_removed(store: Store) -> None:
    node = Node(store, configured={"git": "server", "claude": "harness"})
    for name in ("git", "claude"):
        await refusal(node, name, A, "configured")
        with pytest.raises(Refused) as caught:
            await node.registry.remove(name)
        assert caught.value.reason == "configured"
    assert await store.list("") == []


async def test_met_in_the_store_a_configured_name_is_shadowed(store: Store) -> None:
    await Node(store).registry.add("git", A)
    node = Node(store, configured={"git": "server"})
    await node.registry.start()
    assert (node.states, node.names, node.made) == ({"git": "shadowed"}, [], [])
    node.configure(configured={})
    assert (node.states, node.names) == ({"git": "connecting"}, ["git"])
    node.configure(configured={"git": "server"})
    assert (node.states, node.names) == ({"git": "shadowed"}, [])
    assert node.made[0].ended
    await node.registry.close()


async def test_a_shadowed_one_can_be_removed_and_the_configured_one_stays(store: Store) -> None:
    """Else it would come to life, unasked, when the file gives the name up."""
    await Node(store).registry.add("git", A)
    node = Node(store, configured={"git": "server"})
    await node.registry.start()
    await node.registry.remove("git")
    assert await store.list("servers/") == []
    with pytest.raises(Refused) as caught:
        await node.registry.remove("git")
    assert caught.value.reason == "configured"
    node.configure(configured={})
    assert (node.states, node.made) == ({}, [])
    await node.registry.close()


async def test_a_record_that_cannot_be_read_fails_alone(store: Store) -> None:
    await store.put("servers/bad", b"\xff")
    await store.put("servers/newer", b'{"v":2,"options":{}}')
    await store.put("servers/wide", b'{"v":1,"options":{"url":"http://a","trusted":true}}')
    await store.put("servers/a__b", b'{"v":1,"options":{"url":"http://a"}}')
    await store.put("servers/good", b'{"v":1,"options":{"url":"http://a"}}')
    node = Node(store)
    found = await node.registry.reconcile()
    assert found.servers == 5
    assert node.names == ["good"]
    assert "can only be false" in node.error("wide")
    assert "cannot be read by this version" in node.error("newer")
    await node.registry.remove("bad")
    await node.registry.close()


# -------------------------------------------------------------------------- following the store


async def test_two_nodes_of_one_file(tmp_path: Path) -> None:
    one, two = SqliteStore(tmp_path / "s.db"), SqliteStore(tmp_path / "s.db")
    await asyncio.gather(one.open(), two.open())
    first, second = Node(one), Node(two)
    await first.registry.start()
    await second.registry.start()
    await first.registry.add("a", A)
    await eventually(lambda: second.names == ["a"], 30)
    await second.registry.add("a", {"url": "http://b.example"})
    await eventually(lambda: len(first.made) == 2 and first.made[1].started, 30)
    await second.registry.remove("a")
    await eventually(lambda: first.names == [] and first.made[1].ended, 30)
    for node in (first, second):
        await node.registry.close()
    await asyncio.gather(one.close(), two.close())


class Deaf(MemoryStore):
    """Its watch never says anything, and it can be lost."""

    lost = False

    def watch(self, prefix: str) -> Any:
        return super().watch("nothing/")

    async def list(self, prefix: str) -> list[Record]:
        self._gone()
        return await super().list(prefix)

    async def get(self, key: str) -> Record | None:
        self._gone()
        return await super().get(key)

    async def delete(self, key: str, **more: Any) -> bool:
        self._gone()
        return await super().delete(key, **more)

    def _gone(self) -> None:
        if self.lost:
            raise StoreError("lost")


@pytest.fixture
async def deaf() -> AsyncIterator[Deaf]:
    store = Deaf()
    await store.open()
    yield store
    await store.close()


async def test_what_a_watch_misses_is_reconciled(deaf: Deaf) -> None:
    node = Node(deaf, reconcile=0.1)
    await node.registry.start()
    other = Node(deaf)
    await other.registry.add("a", A)
    await eventually(lambda: node.names == ["a"], 30)
    await other.registry.remove("a")
    await eventually(lambda: node.names == [], 30)
    node.configure(reconcile=None)
    await other.registry.add("b", A)
    await asyncio.sleep(0.3)
    assert node.names == []
    found = await node.registry.reconcile()
    assert (found.added, found.removed, found.servers) == (("b",), (), 1)
    again = await node.registry.reconcile()
    assert again.as_json() == {"added": [], "removed": [], "changed": [], "servers": 1}
    for each in (node, other):
        await each.registry.close()


async def test_a_lost_store_ends_nothing(deaf: Deaf, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(deaf, reconcile=0.05)
    await node.registry.start()
    await node.registry.add("a", A)
    deaf.lost = True
    for asked in (
        node.registry.add("b", A),
        node.registry.remove("a"),
        node.registry.reconcile(),
    ):
        with pytest.raises(StoreError):
            await asked
    await asyncio.sleep(0.2)
    assert node.names == ["a"]
    deaf.lost = False
    await node.registry.add("b", A)
    assert node.names == ["a", "b"]
    await node.registry.close()


async def test_a_store_that_is_lost_at_first_is_followed_later(deaf: Deaf) -> None:
    await Node(deaf).registry.add("a", A)
    deaf.lost = True
    node = Node(deaf)
    await node.registry.start()
    assert node.names == []
    deaf.lost = False
    await eventually(lambda: node.names == ["a"], 30)
    await node.registry.close()


async def test_many_are_one_change_and_start_a_few_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: set[Stub] = set()
    most = 0

    async def settled(self: Stub) -> None:
        nonlocal most
        waiting.add(self)
        most = max(most, len(waiting))
        await asyncio.sleep(0.01)
        waiting.discard(self)

    monkeypatch.setattr(Stub, "settled", settled)
    for i in range(200):
        await store.put(f"servers/s{i}", b'{"v":1,"options":{"url":"http://a"}}')
    node = Node(store)
    await node.registry.start()
    assert (len(node.names), node.placed) == (200, 1)
    await eventually(lambda: all(each.started for each in node.made), 30)
    assert most <= module.AT_ONCE
    # A new one does not queue behind them.
    await node.registry.add("new", A)
    assert node.made[-1].started
    await node.registry.close()
