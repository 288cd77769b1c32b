"""What a principal has gathered of trust labels: data, and how two accounts of it become one.

``join`` is commutative, associative and idempotent. So results that come at the same time, two
sidecars on one store, and a write that has to be made again all come to the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from sidecar.model import JsonObject
from sidecar.wire import json

MOST_SOURCES: Final = 8
"""Results that are kept as the reason of one label, the latest ones."""
MOST_ENTRIES: Final = 512
"""Labels of one principal, each session's counted; beyond, they become the principal's own."""

OUTSIDE: Final = "outside"
EVERY_SESSION: Final = ""
"""The session of a label that counts for all of them."""
ENDED: Final = "-"
"""The session of labels of sessions that are gone: what a new one may begin with."""


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """A result that brought a label: when (seconds since the epoch), which call, of what."""

    at: float
    call: str
    target: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A label: when it was last brought, and by which results, the latest last."""

    at: float
    sources: tuple[Source, ...] = ()


Key = tuple[str, str]
"""Label and session."""


@dataclass(frozen=True, slots=True)
class Account:
    """All labels of one principal. What was brought at ``cleared`` or before does not count."""

    cleared: float = 0.0
    entries: Mapping[Key, Entry] = field(default_factory=dict)

    @property
    def latest(self) -> float:
        """When anything was last said of it."""
        return max((entry.at for entry in self.entries.values()), default=self.cleared)


NONE: Final = Account()


def brought(labels: Iterable[str], session: str, source: Source) -> Account:
    """What one result adds."""
    return Account(0.0, {(label, session): Entry(source.at, (source,)) for label in labels})


def join(one: Account, other: Account) -> Account:
    """Both together."""
    cleared = max(one.cleared, other.cleared)
    entries: dict[Key, Entry] = {}
    for account in (one, other):
        for key, entry in account.entries.items():
            if entry.at > cleared:
                held, valid = entries.get(key), _since(entry, cleared)
                entries[key] = valid if held is None else _both(held, valid)
    if len(entries) > MOST_ENTRIES:
        entries = _wide(entries)
    return Account(cleared, entries)


def _since(entry: Entry, cleared: float) -> Entry:
    if not entry.sources or entry.sources[0].at > cleared:
        return entry
    return Entry(entry.at, tuple(source for source in entry.sources if source.at > cleared))


def _both(one: Entry, other: Entry) -> Entry:
    sources = sorted({*one.sources, *other.sources})[-MOST_SOURCES:]
    return Entry(max(one.at, other.at), tuple(sources))


def _wide(entries: Mapping[Key, Entry]) -> dict[Key, Entry]:
    """The labels of sessions as labels of the principal: too much, never too little."""
    wide: dict[Key, Entry] = {}
    for (label, _), entry in entries.items():
        key = (label, EVERY_SESSION)
        held = wide.get(key)
        wide[key] = entry if held is None else _both(held, entry)
    return wide


def without_expired(account: Account, before: float) -> Account:
    """Without what was last brought at ``before`` or earlier."""
    entries = {key: entry for key, entry in account.entries.items() if entry.at > before}
    return account if len(entries) == len(account.entries) else Account(account.cleared, entries)


def ended(account: Account, alive: Callable[[str], bool]) -> Account:
    """The labels of sessions that are not ``alive``, as those of sessions that are gone."""
    entries: dict[Key, Entry] = {}
    for (label, session), entry in account.entries.items():
        key = (label, session if session in (EVERY_SESSION, ENDED) or alive(session) else ENDED)
        held = entries.get(key)
        entries[key] = entry if held is None else _both(held, entry)
    return Account(account.cleared, entries)


def inherited(account: Account, session: str, since: float) -> Account:
    """What a session that begins now has from those before it: what is not older than
    ``since``."""
    entries: dict[Key, Entry] = {}
    for (label, _), entry in account.entries.items():
        if entry.at >= since:
            held = entries.get((label, session))
            entries[label, session] = entry if held is None else _both(held, entry)
    return Account(0.0, entries)


def covers(stored: Account, wanted: Account, slack: float) -> bool:
    """Whether ``stored`` says all that ``wanted`` does, each label ``slack`` s older at most."""
    return stored.cleared >= wanted.cleared and all(
        key in stored.entries and stored.entries[key].at >= entry.at - slack
        for key, entry in wanted.entries.items()
    )


def encode(principal: str, account: Account) -> bytes:
    """For the store."""
    return json.encode(
        {
            "principal": principal,
            "cleared": account.cleared,
            "labels": [
                {
                    "label": label,
                    "session": session,
                    "at": entry.at,
                    "results": [[s.at, s.call, s.target] for s in entry.sources],
                }
                for (label, session), entry in sorted(account.entries.items())
            ],
        }
    )


def decode(data: bytes) -> tuple[str, Account]:
    """Principal and account, as ``encode`` wrote them. Raises ValueError."""
    value = json.decode(data)
    try:
        read = cast("JsonObject", value)
        entries: dict[Key, Entry] = {}
        for each in cast("list[JsonObject]", read["labels"]):
            sources = cast("list[tuple[float, str, str]]", each["results"])
            entries[str(each["label"]), str(each["session"])] = Entry(
                float(cast("float", each["at"])),
                tuple(Source(float(at), str(call), str(target)) for at, call, target in sources),
            )
        return str(read["principal"]), Account(float(cast("float", read["cleared"])), entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("a record of labels cannot be read") from error
