"""Labels of all principals: in memory, and in the store before a labelled result leaves."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from sidecar.config import LabelsConfig
from sidecar.events import Bus, LabelsChanged
from sidecar.gate.labels import (
    EVERY_SESSION,
    NONE,
    Account,
    Source,
    brought,
    covers,
    decode,
    encode,
    ended,
    inherited,
    join,
    without_expired,
)
from sidecar.gate.mirror import PATIENCE, Mirror
from sidecar.model import Caller, JsonObject
from sidecar.ports.store import ABSENT, Conflict, Record, Store, StoreError

log = logging.getLogger("sidecar.gate")

PREFIX: Final = "labels/"
INHERITED: Final = 3600.0
"""Seconds: a new session begins with its principal's labels that are not older."""
MOST_WAITING: Final = 1000
"""Labels that wait for a store that is lost; beyond, results that bring more are denied."""
MOST_SESSIONS: Final = 100_000
_SLACK: Final = 60.0
_MOMENT: Final = 1.0
_TRIES: Final = 8
_FIRST, _LONGEST = 0.1, 5.0
_FAREWELL: Final = 1.0
_LONGEST_NAME: Final = 800


@dataclass(slots=True, eq=False)
class _Book:
    """One principal's. ``stored`` is what the store is known to hold, at ``version``."""

    principal: str
    key: str
    account: Account = NONE
    stored: Account = NONE
    version: int = ABSENT
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    shown: tuple[str, ...] = ()
    shown_until: float = 0.0


class Ledger:
    """``of`` and ``note`` never wait; ``add`` returns when the store has it, or never will."""

    def __init__(
        self,
        store: Store,
        config: LabelsConfig,
        *,
        clock: Callable[[], float] = time.time,
        bus: Bus | None = None,
    ) -> None:
        """``clock`` is in seconds since the epoch; ``bus`` is told of what changes."""
        self._store = store
        self._config = config
        self._clock = clock
        self._bus = bus or Bus()
        self._books: dict[str, _Book] = {}
        self._keys: dict[str, str] = {}
        self._sessions: dict[tuple[str, str], None] = {}
        self._waiting: dict[str, _Book] = {}
        self._lost = False
        self._wake = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._mirror = Mirror(store, PREFIX, self._told, self._gone)

    async def start(self) -> None:
        """Read what is stored. Raises StoreError."""
        await self._mirror.start()
        self._writer = asyncio.create_task(self._write_waiting(), name="labels")

    async def close(self) -> None:
        """Write what waits, as far as the store takes it within a second. Idempotent."""
        await self._mirror.close()
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.cancel()
        await asyncio.gather(writer, return_exceptions=True)
        try:
            async with asyncio.timeout(_FAREWELL):
                for book in list(self._waiting.values()):
                    await self._write(book)
        except (StoreError, TimeoutError):
            log.error("labels of %d principals could not be stored", len(self._waiting))

    def reconfigure(self, config: LabelsConfig) -> None:
        """Other settings, also for the labels that are there."""
        self._config = config
        for book in self._books.values():
            book.shown_until = 0.0

    # ------------------------------------------------------------------------------- reading

    def of(self, caller: Caller) -> tuple[str, ...]:
        """The caller's labels, in order."""
        if self._config.scope == "session" and caller.session:
            self.begin(caller.principal.name, caller.session)
            book = self._books.get(caller.principal.name)
            return () if book is None else self._of_session(book, caller.session)
        book = self._books.get(caller.principal.name)
        if book is None:
            return ()
        now = self._clock()
        if now >= book.shown_until:
            self._show(book, now)
        return book.shown

    def begin(self, principal: str, session: str) -> None:
        """A session begins, with its principal's labels of the last hour. Idempotent."""
        key = (principal, session)
        if key in self._sessions or self._config.scope != "session":
            return
        if len(self._sessions) >= MOST_SESSIONS:
            # It begins anew when it is seen again.
            self.end(*next(iter(self._sessions)))
        self._sessions[key] = None
        book = self._books.get(principal)
        if book is not None:
            since = self._clock() - INHERITED
            book.account = join(book.account, inherited(book.account, session, since))

    def end(self, principal: str, session: str) -> None:
        """The session is gone; what it gathered is what a new one may begin with."""
        if self._sessions.pop((principal, session), self) is None:
            book = self._books.get(principal)
            if book is not None:
                book.account = self._folded(principal, book.account)

    def _folded(self, principal: str, account: Account) -> Account:
        return ended(account, lambda session: (principal, session) in self._sessions)

    def _life(self) -> float:
        """Longer than the ttl by more than the store may be behind."""
        return self._config.ttl + 1.25 * self._slack()

    def _slack(self) -> float:
        """How much older than the truth the store may be: a label lasts that much longer, and
        need not be written for each result."""
        return min(_SLACK, self._config.ttl / 20)

    def _show(self, book: _Book, now: float) -> None:
        life = self._life()
        alive = {key: e for key, e in book.account.entries.items() if e.at + life > now}
        book.shown = tuple(sorted({label for label, _ in alive}))
        book.shown_until = min((e.at + life for e in alive.values()), default=float("inf"))

    def _of_session(self, book: _Book, session: str) -> tuple[str, ...]:
        since = self._clock() - self._life()
        found = {
            label
            for (label, of), entry in book.account.entries.items()
            if of in (session, EVERY_SESSION) and entry.at > since
        }
        return tuple(sorted(found))

    # ------------------------------------------------------------------------------- writing

    async def add(self, caller: Caller, labels: Iterable[str], call: str, target: str) -> bool:
        """A result brings labels. ``False``: they cannot be kept, the result must not leave."""
        if self._fresh(caller, labels, target):
            return True
        book, news = self._bring(caller, labels, call, target)
        if self._kept(book, news):
            self._remember(book, news)
            return True
        known = self._known(book, news)
        if not self._lost:
            self._remember(book, news)
            try:
                await self._write(book)
            except StoreError as error:
                self._lose(error)
            else:
                return True
        return self._wait(book, news, known)

    def note(self, caller: Caller, labels: Iterable[str], call: str, target: str) -> bool:
        """As ``add`` for what cannot wait; the store hears of it right after."""
        if self._fresh(caller, labels, target):
            return True
        book, news = self._bring(caller, labels, call, target)
        if self._kept(book, news):
            self._remember(book, news)
            return True
        return self._wait(book, news, self._known(book, news))

    def _bring(
        self, caller: Caller, labels: Iterable[str], call: str, target: str
    ) -> tuple[_Book, Account]:
        name = caller.principal.name
        book = self._book(name)
        # A caller without a session is every session: its own labels count for all of them.
        session = caller.session if self._config.scope == "session" else EVERY_SESSION
        if session:
            self.begin(name, session)
        # What was cleared does not come back by a clock that stands still.
        now = max(self._clock(), book.account.cleared + 1e-3)
        return book, brought(labels, session, Source(now, call, target))

    def _fresh(self, caller: Caller, labels: Iterable[str], target: str) -> bool:
        """Whether the same brought the same a moment ago: a moment is within the slack."""
        book = self._books.get(caller.principal.name)
        if book is None or self._config.scope == "session":
            return False
        since = self._clock() - min(_MOMENT, self._slack() / 2)
        entries, stored = book.account.entries, book.stored.entries
        for label in labels:
            key = (label, EVERY_SESSION)
            entry = entries.get(key)
            if entry is None or entry.at < since or entry.sources[-1].target != target:
                return False
            held = stored.get(key)
            if held is None or held.at < entry.at - self._slack() / 2:
                return False
        return True

    def _book(self, principal: str) -> _Book:
        book = self._books.get(principal)
        if book is None:
            book = self._books[principal] = _Book(principal, _key(principal))
            self._keys[book.key] = principal
        return book

    def _kept(self, book: _Book, news: Account) -> bool:
        return covers(book.stored, news, self._slack())

    def _remember(self, book: _Book, news: Account) -> None:
        expired, before = self._clock() - self._life(), book.account
        book.account = join(without_expired(before, expired), news)
        book.shown_until = 0.0
        if before.entries.keys() != book.account.entries.keys():
            self._changed(book)

    def _changed(self, book: _Book) -> None:
        labels = tuple(sorted({label for label, _ in book.account.entries}))
        self._bus.publish(LabelsChanged(principal=book.principal, labels=labels))

    def _known(self, book: _Book, news: Account) -> bool:
        """Whether the news are but a later time."""
        return covers(book.account, news, float("inf"))

    def _wait(self, book: _Book, news: Account, known: bool) -> bool:
        waiting = sum(len(each.account.entries) for each in self._waiting.values())
        if waiting + len(news.entries) > MOST_WAITING and not known:
            return False
        self._remember(book, news)
        self._waiting[book.principal] = book
        self._wake.set()
        return True

    async def _write(self, book: _Book) -> None:
        """Raises StoreError. Whoever waits for the lock may find that it is written already."""
        async with book.lock:
            for _ in range(_TRIES):
                account = book.account
                if covers(book.stored, account, self._slack()):
                    break
                expires = account.latest + self._life()
                try:
                    async with asyncio.timeout(PATIENCE):
                        record = await self._store.put(
                            book.key,
                            encode(book.principal, account),
                            expected=book.version,
                            expires=expires,
                        )
                except TimeoutError:
                    raise StoreError("the store does not answer") from None
                except Conflict:
                    await self._read(book)
                    continue
                book.version, book.stored = record.version, account
            else:
                raise StoreError("labels change faster than they can be written")
        self._waiting.pop(book.principal, None)

    async def _read(self, book: _Book) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                record = await self._store.get(book.key)
        except TimeoutError:
            raise StoreError("the store does not answer") from None
        if record is None:
            book.version, book.stored = ABSENT, NONE
        else:
            self._told(record)

    def _lose(self, error: StoreError) -> None:
        if not self._lost:
            self._lost = True
            log.warning("labels cannot be stored (%s); they are kept until they can be", error)

    async def _write_waiting(self) -> None:
        wait = _FIRST
        while True:
            if not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            try:
                for book in list(self._waiting.values()):
                    await self._write(book)
            except StoreError as error:
                self._lose(error)
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LONGEST)
                continue
            wait = _FIRST
            if self._lost:
                self._lost = False
                log.warning("labels are stored again")

    # -------------------------------------------------------------------- what others write

    def _told(self, record: Record) -> None:
        try:
            principal, account = decode(record.value)
        except ValueError as error:
            log.error("%s: %s", record.key, error)
            return
        book = self._book(principal)
        if record.version < book.version:
            return
        book.version, book.stored = record.version, account
        self._remember(book, self._folded(principal, account))

    def _gone(self, key: str) -> None:
        """Expired, or deleted by hand."""
        book = self._books.get(self._keys.get(key, ""))
        if book is None:
            return
        book.version, book.stored = ABSENT, NONE
        if book.principal not in self._waiting and not book.lock.locked():
            del self._books[book.principal], self._keys[key]

    # ------------------------------------------------------------------------ for a person

    def listing(self) -> list[JsonObject]:
        """``[{principal, labels: [{label, session, at, until, results: [{call, target, at}]}]}]``

        Times are seconds since the epoch; ``session`` is there where labels are a session's.
        """
        now, life = self._clock(), self._life()
        found: list[JsonObject] = []
        for principal, book in sorted(self._books.items()):
            labels: list[JsonObject] = []
            for (label, session), entry in sorted(book.account.entries.items()):
                if entry.at + life <= now:
                    continue
                shown: JsonObject = {
                    "label": label,
                    "at": entry.at,
                    "until": entry.at + life,
                    "results": [
                        {"call": s.call, "target": s.target, "at": s.at} for s in entry.sources
                    ],
                }
                labels.append({**shown, "session": session} if session else shown)
            if labels:
                found.append({"principal": principal, "labels": labels})
        return found

    async def clear(self, principal: str) -> bool:
        """Forget a principal's labels; whether there were any. Raises StoreError: they stay."""
        book = self._books.get(principal)
        if book is None or not book.account.entries:
            return False
        before = book.account
        book.account = Account(max(self._clock(), before.latest))
        try:
            await self._write(book)
        except StoreError:
            # What came meanwhile counts as well.
            book.account = join(before, Account(0.0, book.account.entries))
            raise
        finally:
            book.shown_until = 0.0
        self._changed(book)
        return True


def _key(principal: str) -> str:
    name = quote(principal, safe="")
    if len(name) > _LONGEST_NAME:
        # No quoted name is that long, so that it is nobody else's key.
        name = "%" + hashlib.sha256(name.encode()).hexdigest()
    return PREFIX + name
