"""Random operations: memory and sqlite give the same answers, versions included."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidecar.ports.store import ABSENT, ANY, Change, Conflict, Record
from sidecar.store.memory import MemoryStore
from sidecar.store.sqlite import SqliteStore
from sidecar.store.watching import Watch
from tests.kit.examples import examples

T = TypeVar("T")

KEYS = st.sampled_from(["a", "a/", "a/b", "a/b/c", "a0", "é", "\U0010ffff", "b"])
VALUES = st.binary(max_size=20)
EXPECTED = st.one_of(st.just(ANY), st.just(ABSENT), st.integers(1, 12))
LIFETIME = st.one_of(st.none(), st.integers(-2, 5))


class Both(RuleBasedStateMachine):
    """Time stands still but for ``tick``."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "s.db"
        self.stores = (
            MemoryStore(clock=lambda: self.now),
            SqliteStore(path, clock=lambda: self.now),
        )
        self.watches: list[Watch] = []
        self.truth: dict[str, Record] = {}

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    @initialize()
    def open(self) -> None:
        for store in self.stores:
            self.run(store.open())
        self.watches = [self.run(self.watch(store)) for store in self.stores]

    async def watch(self, store: MemoryStore | SqliteStore) -> Watch:
        return store.watch("a")

    def same(self, *coroutines: Coroutine[object, object, T]) -> T | str:
        answers: list[T | str] = []
        for coroutine in coroutines:
            try:
                answers.append(self.run(coroutine))
            except Conflict as conflict:
                answers.append(str(conflict))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(key=KEYS, value=VALUES, expected=EXPECTED, lifetime=LIFETIME)
    def put(self, key: str, value: bytes, expected: int, lifetime: int | None) -> None:
        expires = None if lifetime is None else self.now + lifetime
        answer = self.same(
            *(s.put(key, value, expected=expected, expires=expires) for s in self.stores)
        )
        if isinstance(answer, Record):
            self.truth[key] = answer

    @rule(key=KEYS, value=VALUES)
    def put_over(self, key: str, value: bytes) -> None:
        """With the version that is there, which random numbers seldom hit."""
        found = self.same(*(s.get(key) for s in self.stores))
        expected = found.version if isinstance(found, Record) else ABSENT
        answer = self.same(*(s.put(key, value, expected=expected) for s in self.stores))
        assert isinstance(answer, Record)
        self.truth[key] = answer

    @rule(key=KEYS, expected=EXPECTED)
    def delete(self, key: str, expected: int) -> None:
        if self.same(*(s.delete(key, expected=expected) for s in self.stores)) is True:
            del self.truth[key]

    @rule(prefix=st.one_of(st.just(""), KEYS))
    def list(self, prefix: str) -> None:
        listed = self.same(*(s.list(prefix) for s in self.stores))
        live = [r for r in self.truth.values() if r.expires is None or r.expires > self.now]
        assert listed == sorted((r for r in live if r.key.startswith(prefix)), key=lambda r: r.key)

    @rule(seconds=st.integers(1, 3))
    def tick(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def watched(self) -> None:
        """What the watches tell last of each key is the truth about it, expiry apart."""
        for watch in self.watches:
            told: dict[str, Change] = {}
            while watch._waiting:
                change = self.run(anext(watch))
                told[change.key] = change
            for key, change in told.items():
                there = self.truth.get(key)
                if change.record is not None:
                    assert change.record == there
                elif there is not None:
                    assert there.expires is not None
                    assert there.expires <= self.now

    @invariant()
    def every_key(self) -> None:
        if self.watches:
            for key in ("a", "a/b", "b"):
                self.same(*(s.get(key) for s in self.stores))

    def teardown(self) -> None:
        for store in self.stores:
            self.run(store.close())
        self.loop.close()
        self.folder.cleanup()


TestBoth = Both.TestCase
TestBoth.settings = settings(
    max_examples=examples(40),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
