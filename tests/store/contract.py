"""What every store must do. Another implementation runs it too:

    class TestMine(StoreContract):
        def make(self, tmp_path: Path) -> Store:
            return MyStore(...)

``make`` is called more than once in some tests; with ``shared = True`` the stores that it makes
for one ``tmp_path`` are two views of the same data, as two nodes would have them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from sidecar.ports.store import ABSENT, ANY, Change, Conflict, Record, Store, StoreError


async def take(watch: AsyncIterator[Change], count: int, within: float = 30) -> list[Change]:
    async with asyncio.timeout(within):
        return [await anext(watch) for _ in range(count)]


class StoreContract:
    """Subclass it, define ``make``, and set the two flags."""

    shared = False
    """Two stores made for one path see each other's writes."""
    durable = False
    """What was put is there after closing and opening again."""

    def make(self, tmp_path: Path) -> Store:
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self, tmp_path: Path) -> AsyncIterator[Store]:
        store = self.make(tmp_path)
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        async with self.opened(tmp_path) as store:
            yield store

    # ------------------------------------------------------------------ get, put, delete

    async def test_nothing_is_there_at_first(self, store: Store) -> None:
        assert await store.get("a") is None
        assert await store.list("") == []
        assert await store.delete("a") is False

    async def test_put_returns_what_get_returns(self, store: Store) -> None:
        put = await store.put("calls/1", b"\x00\xffvalue")
        assert (put.key, put.value, put.expires) == ("calls/1", b"\x00\xffvalue", None)
        assert put.version > 0
        assert await store.get("calls/1") == put
        assert await store.get("calls/") is None

    async def test_empty_value(self, store: Store) -> None:
        assert (await store.put("a", b"")).value == b""
        assert (await store.get("a")).value == b""  # type: ignore[union-attr]

    async def test_a_later_change_of_the_callers_buffer_changes_nothing(self, store: Store) -> None:
        buffer = bytearray(b"before")
        await store.put("a", buffer)  # type: ignore[arg-type]
        buffer[:] = b"after!"
        assert (await store.get("a")).value == b"before"  # type: ignore[union-attr]

    async def test_versions_grow_and_are_never_used_twice(self, store: Store) -> None:
        versions = []
        for _ in range(3):
            versions += [(await store.put("a", b"1")).version, (await store.put("a", b"2")).version]
            await store.delete("a")
        assert versions == sorted(set(versions))

    async def test_compare_and_set(self, store: Store) -> None:
        first = await store.put("a", b"1", expected=ABSENT)
        with pytest.raises(Conflict):
            await store.put("a", b"2", expected=ABSENT)
        second = await store.put("a", b"2", expected=first.version)
        with pytest.raises(Conflict):
            await store.put("a", b"3", expected=first.version)
        assert await store.get("a") == second
        third = await store.put("a", b"3", expected=ANY)
        assert third.version > second.version

    async def test_compare_and_set_of_what_is_not_there(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await store.put("a", b"1", expected=7)
        assert await store.get("a") is None
        with pytest.raises(Conflict):
            await store.delete("a", expected=7)
        assert await store.delete("a", expected=ABSENT) is False

    async def test_delete(self, store: Store) -> None:
        record = await store.put("a", b"1")
        with pytest.raises(Conflict):
            await store.delete("a", expected=ABSENT)
        with pytest.raises(Conflict):
            await store.delete("a", expected=record.version + 1)
        assert await store.get("a") == record
        assert await store.delete("a", expected=record.version) is True
        assert await store.get("a") is None
        await store.put("a", b"2")
        assert await store.delete("a") is True

    async def test_of_many_that_compare_and_set_at_once_one_wins(self, store: Store) -> None:
        outcomes = await asyncio.gather(
            *(store.put("a", str(i).encode(), expected=ABSENT) for i in range(20)),
            return_exceptions=True,
        )
        (winner,) = [o for o in outcomes if isinstance(o, Record)]
        assert sum(isinstance(o, Conflict) for o in outcomes) == 19
        assert await store.get("a") == winner

    # ----------------------------------------------------------------------------- lists

    async def test_list_is_by_prefix_and_in_key_order(self, store: Store) -> None:
        keys = ["b/2", "b/10", "a", "b/", "b", "c/1", "b/é", "b0", "b/\U0001f600", "b/\uffff"]
        for key in keys:
            await store.put(key, key.encode())
        listed = [record.key for record in await store.list("b/")]
        assert listed == ["b/", "b/10", "b/2", "b/é", "b/\uffff", "b/\U0001f600"]
        assert [record.key for record in await store.list("")] == sorted(keys)
        assert await store.list("nothing") == []

    async def test_a_prefix_is_no_pattern(self, store: Store) -> None:
        for key in ("a%b", "a_b", "axb", "a*b", "A%b"):
            await store.put(key, b"")
        assert [record.key for record in await store.list("a%")] == ["a%b"]
        assert [record.key for record in await store.list("a_")] == ["a_b"]
        assert [record.key for record in await store.list("A")] == ["A%b"]

    @pytest.mark.parametrize("end", ["\ud7ff", "\U0010ffff", "z\U0010ffff\U0010ffff"])
    async def test_prefixes_at_the_edges_of_unicode(self, store: Store, end: str) -> None:
        keys = [end, end + "a", end + "\U0010ffff", "\ue000"]
        for key in keys:
            await store.put(key, b"")
        expected = sorted(key for key in keys if key.startswith(end))
        assert [record.key for record in await store.list(end)] == expected

    # ------------------------------------------------------------------------ what is refused

    @pytest.mark.parametrize("key", ["", "a\0b", "\ud800", "x" * 1025])
    async def test_what_is_no_key(self, store: Store, key: str) -> None:
        with pytest.raises(ValueError, match="key"):
            await store.put(key, b"")
        with pytest.raises(ValueError, match="key"):
            await store.get(key)
        with pytest.raises(ValueError, match="key"):
            await store.delete(key)

    @pytest.mark.parametrize("expires", [float("nan"), float("inf")])
    async def test_what_is_no_time(self, store: Store, expires: float) -> None:
        with pytest.raises(ValueError, match="expires"):
            await store.put("a", b"", expires=expires)

    # --------------------------------------------------------------------------- expiry

    async def test_what_has_expired_does_not_exist(self, store: Store) -> None:
        past = time.time() - 1
        expired = await store.put("a", b"1", expires=past)
        assert expired.expires == past
        assert await store.get("a") is None
        assert await store.list("") == []
        with pytest.raises(Conflict):
            await store.put("a", b"2", expected=expired.version)
        again = await store.put("a", b"2", expected=ABSENT)
        assert again.version > expired.version
        assert await store.get("a") == again

    async def test_expiring_later(self, store: Store) -> None:
        for life in (0.15, 1.0, 5.0):  # the longer ones on a machine that is too slow
            expires = time.time() + life
            record = await store.put("a", b"1", expires=expires)
            found = await store.get("a")
            if time.time() < expires:
                break
        assert found == record
        await asyncio.sleep(max(0.0, expires - time.time()) + 0.05)
        assert await store.get("a") is None
        assert await store.delete("a") is False

    async def test_writing_anew_replaces_the_expiry(self, store: Store) -> None:
        await store.put("a", b"1", expires=time.time() + 0.05)
        record = await store.put("a", b"2")
        await asyncio.sleep(0.1)
        assert await store.get("a") == record

    # -------------------------------------------------------------------------- watches

    async def test_a_watch_sees_changes_from_now_on(self, store: Store) -> None:
        await store.put("a/0", b"before")
        watch = store.watch("a/")
        one = await store.put("a/1", b"1")
        await store.put("b/1", b"other prefix")
        assert await take(watch, 1) == [Change("a/1", one)]
        await store.delete("a/0")
        assert await take(watch, 1) == [Change("a/0", None)]
        await store.delete("a/0")
        two = await store.put("a/2", b"2")
        assert await take(watch, 1) == [Change("a/2", two)]

    async def test_a_watch_that_waits_is_woken(self, store: Store) -> None:
        watch = store.watch("")
        waiting = asyncio.ensure_future(take(watch, 1))
        await asyncio.sleep(0.02)
        record = await store.put("a", b"1")
        assert await waiting == [Change("a", record)]

    async def test_a_failed_write_is_no_change(self, store: Store) -> None:
        await store.put("a", b"1")
        watch = store.watch("")
        with pytest.raises(Conflict):
            await store.put("a", b"2", expected=ABSENT)
        record = await store.put("b", b"1")
        assert await take(watch, 1) == [Change("b", record)]

    async def test_a_slow_reader_gets_the_newest_of_each_key(self, store: Store) -> None:
        watch = store.watch("")
        for i in range(50):
            a = await store.put("a", str(i).encode())
        b = await store.put("b", b"1")
        await store.put("c", b"1")
        await store.delete("c")
        got = await take(watch, 3)
        assert sorted(got, key=lambda c: c.key) == [
            Change("a", a),
            Change("b", b),
            Change("c", None),
        ]

    async def test_a_watch_sees_what_expires(self, store: Store) -> None:
        watch = store.watch("")
        # Long enough for two writes and a look on a slow machine.
        record = await store.put("a", b"1", expires=time.time() + 0.8)
        await store.put("b", b"1", expires=time.time() + 100)
        assert await take(watch, 2) == [Change("a", record), Change("b", await store.get("b"))]
        assert await take(watch, 1) == [Change("a", None)]

    async def test_two_watches_each_see_everything(self, store: Store) -> None:
        one, two = store.watch("a"), store.watch("")
        record = await store.put("a", b"1")
        assert await take(one, 1) == await take(two, 1) == [Change("a", record)]

    async def test_a_write_whose_caller_left_is_seen(self, store: Store) -> None:
        watch = store.watch("")
        writing = asyncio.ensure_future(store.put("a", b"1"))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert await take(watch, 1) == [Change("a", await store.get("a"))]

    async def test_closing_ends_watches_and_everything_else(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        with pytest.raises(StoreError):
            await store.get("a")
        await store.open()
        watch = store.watch("")
        record = await store.put("a", b"1")
        waiting = asyncio.ensure_future(take(store.watch("never"), 1))
        await asyncio.sleep(0.01)
        await asyncio.gather(store.close(), store.close())
        await store.close()
        assert [change async for change in watch] == [Change("a", record)]
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert [change async for change in store.watch("")] == []
        with pytest.raises(StoreError):
            await store.put("a", b"2")
        with pytest.raises(StoreError):
            await store.list("")

    async def test_what_was_begun_before_closing_is_done(self, tmp_path: Path) -> None:
        store = self.make(tmp_path)
        await store.open()
        writes = [asyncio.ensure_future(store.put(f"a/{i}", b"1")) for i in range(20)]
        await asyncio.sleep(0)
        await store.close()
        assert [record.key for record in await asyncio.gather(*writes)] == [
            f"a/{i}" for i in range(20)
        ]

    # ---------------------------------------------------- for those that last or are shared

    async def test_it_lasts(self, tmp_path: Path) -> None:
        if not self.durable:
            pytest.skip("this store forgets")
        async with self.opened(tmp_path) as store:
            kept = await store.put("a", b"1", expires=time.time() + 100)
            last = await store.put("b", b"1")
            await store.delete("b")
        async with self.opened(tmp_path) as store:
            assert await store.list("") == [kept]
            assert (await store.put("b", b"2")).version > last.version

    async def test_two_of_them_see_each_other(self, tmp_path: Path) -> None:
        if not self.shared:
            pytest.skip("this store belongs to one process")
        async with self.opened(tmp_path) as one, self.opened(tmp_path) as two:
            gone = await one.put("a/gone", b"0")
            async with aclosing(two.watch("a/")) as watch:  # type: ignore[type-var]
                assert await two.list("") == [gone]
                record = await one.put("a/1", b"1")
                await one.put("b/1", b"1")
                await one.delete("a/gone")
                assert await two.get("a/1") == record
                with pytest.raises(Conflict):
                    await two.put("a/1", b"2", expected=ABSENT)
                got = await take(watch, 2)
                assert sorted(got, key=lambda c: c.key) == [
                    Change("a/1", record),
                    Change("a/gone", None),
                ]
                own = await two.put("a/1", b"2", expected=record.version)
                assert await take(watch, 1) == [Change("a/1", own)]

    async def test_two_of_them_count_together(self, tmp_path: Path) -> None:
        if not self.shared:
            pytest.skip("this store belongs to one process")

        async def count(store: Store, times: int) -> None:
            done = 0
            while done < times:
                found = await store.get("n")
                value = b"%d" % (int(found.value) + 1 if found else 1)
                try:
                    await store.put("n", value, expected=found.version if found else ABSENT)
                except Conflict:
                    continue
                done += 1

        async with self.opened(tmp_path) as one, self.opened(tmp_path) as two:
            await asyncio.gather(count(one, 30), count(two, 30), count(two, 30))
            assert (await one.get("n")).value == b"90"  # type: ignore[union-attr]
