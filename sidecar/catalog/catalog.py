"""What all servers together offer, and which of them a name or a URI belongs to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sidecar.catalog.names import closest, fits, safe_name, shown
from sidecar.catalog.pages import Page, Pages
from sidecar.catalog.shelf import KINDS, Entry, Kind, Shelf
from sidecar.catalog.views import EVERYTHING, View
from sidecar.config import ServerConfig
from sidecar.model import NOTHING, Entries, NoRoute, Tool, Unavailable, Unroutable

log = logging.getLogger("sidecar.catalog")

_SERVER_LENGTH = 64
_WARNED = 4096
_NAMED = 8


class Untold(Unavailable):
    """A server that has never told what it has: nobody can say whether there is such a name."""

    def __init__(
        self,
        server: str,
        why: str = "it has not told yet what it has",
        *,
        retry_in: float | None = None,
    ) -> None:
        super().__init__(server, why, ran="no", retry_in=retry_in)


@dataclass(frozen=True, slots=True)
class Diff:
    """What is other than before; tools by catalog name."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    prompts: bool = False
    resources: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.prompts or self.resources)


class Catalog:
    """Pure: it is told what servers offer, and answers from that. Nothing here waits."""

    def __init__(self, separator: str = "__", pages: Pages | None = None) -> None:
        """``separator`` is of ``_`` and ``-`` only, and no server's name holds it."""
        if not separator or separator.strip("_-"):
            raise ValueError("the separator has to be of _ and -")
        self.separator = separator
        self._shelves: dict[str, Shelf] = {}
        self._names: dict[str, Entry] = {}
        self._pages = pages or Pages()
        self._warned: set[str] = set()

    # ---------------------------------------------------------------------- which servers

    def place(self, configs: Sequence[ServerConfig]) -> None:
        """The servers there are, in this order. Those not named go, with all they offered."""
        shelves: dict[str, Shelf] = {}
        for config in configs:
            old = self._shelves.get(config.name)
            if old is not None and old.config == config:
                shelves[config.name] = old
            else:
                entries = NOTHING if old is None else old.entries
                shelves[config.name] = self._build(config, entries, old)
        self._shelves = shelves
        self._index()

    def update(self, server: str, entries: Entries) -> Diff:
        """A server's lists as they are now. Only this server's part is built anew."""
        old = self._shelves[server]
        if old.entries is entries:
            return Diff()
        new = self._build(old.config, entries, old)
        self._shelves[server] = new
        if new.rows["tools"] is not old.rows["tools"]:
            for entry in old.rows["tools"]:
                self._names.pop(entry.name, None)
            self._claim(new)
        if entries.resources:
            self._warn_of_shared(new)
        return _diff(old, new)

    def remove(self, server: str) -> None:
        """The server is gone; its names lead nowhere. Unknown servers are ignored."""
        self.place([s.config for name, s in self._shelves.items() if name != server])

    def _build(self, config: ServerConfig, entries: Entries, old: Shelf | None) -> Shelf:
        shelf = Shelf.build(config, entries, self.separator, old)
        for fault in shelf.faults:
            self._warn(f"server {config.name}: {fault}")
        return shelf

    def _warn(self, text: str) -> None:
        """Once for each thing: servers list again and again."""
        if text not in self._warned:
            if len(self._warned) >= _WARNED:
                self._warned.clear()
            self._warned.add(text)
            log.warning("%s", text)

    def _index(self) -> None:
        self._names = {}
        for shelf in self._shelves.values():
            self._claim(shelf)

    def _claim(self, shelf: Shelf) -> None:
        """Enter the shelf's names. No other server can have one of them: a server's name ends
        in a letter or digit and does not hold the separator, which has neither."""
        for entry in shelf.rows["tools"]:
            self._names[entry.name] = entry

    def _rank(self, server: str) -> int:
        return list(self._shelves).index(server)

    def _warn_of_shared(self, shelf: Shelf) -> None:
        mine = shelf.by_key["resources"].keys()
        for other in self._shelves.values():
            if other is not shelf and (shared := mine & other.by_key["resources"].keys()):
                first, second = sorted((shelf.config.name, other.config.name), key=self._rank)
                self._warn(
                    f"servers {first} and {second} list the same resources "
                    f"({shown(min(shared))}); they are read from {first}, "
                    f"and from {second} at /mcp/{second}"
                )

    # ------------------------------------------------------------------------- what there is

    def shelf(self, server: str) -> Shelf | None:
        """One server's part."""
        return self._shelves.get(server)

    def shelves(self, view: View = EVERYTHING) -> list[Shelf]:
        """The visible servers' parts, in order."""
        return [shelf for name, shelf in self._shelves.items() if self.sees(view, name)]

    def sees(self, view: View, server: str) -> bool:
        """Whether there is such a server, or harness, in the view."""
        shelf = self._shelves.get(server)
        return shelf is not None and view.sees(server, harness=shelf.harness)

    def tools(self, view: View = EVERYTHING) -> list[Tool]:
        """Every tool of the view, in order."""
        return [e.tool for s in self.shelves(view) for e in s.rows["tools"] if e.tool]

    def tool(self, name: str) -> Tool | None:
        """The tool with this catalog name."""
        entry = self._names.get(name)
        return entry.tool if entry is not None else None

    def page(
        self,
        kind: Kind,
        view: View,
        cursor: str | None = None,
        *,
        listed: Callable[[str], bool] | None = None,
        offers: Callable[[Entry], bool] | None = None,
        shown: Callable[[Entry, bytes], bytes | None] | None = None,
    ) -> Page:
        """One page of a list.

        ``listed`` says of a server whether it is up, ``offers`` of an entry whether this
        caller is shown it, ``shown`` what a harness's definition is to this caller, if anything.
        Raises BadCursor.
        """
        shelves = [s for s in self.shelves(view) if listed is None or listed(s.config.name)]
        own = view.server is not None
        return self._pages.page(kind, shelves, cursor, own=own, offers=offers, shown=shown)

    # ---------------------------------------------------------------------------- routing

    def route_tool(self, name: str, view: View, separator: str | None = None) -> Entry:
        """The tool of this name among what the view shows.

        ``separator`` is the caller's own between server and tool, in the place of ours.

        Raises:
            Unroutable: with a message that says what to do next.
            Untold: the named server has never told what it has.
        """
        if view.server is not None:
            entry = self._own("tools", name, view)
        elif separator is not None and separator != self.separator:
            entry = self._by_separator(name, view, separator)
        else:
            entry = self._names.get(name)
            if entry is not None and not self.sees(view, entry.server):
                entry = None
        if entry is None:
            raise self._lost("tools", name, view, separator or self.separator)
        return entry

    def route_prompt(self, name: str, view: View) -> Entry:
        """The prompt of this name among what the view shows. Raises Unroutable, Untold."""
        entry: Entry | None
        if view.server is not None:
            entry = self._own("prompts", name, view)
        else:
            found = (s.by_name["prompts"].get(name) for s in self.shelves(view))
            entry = next((entry for entry in found if entry is not None), None)
        if entry is None:
            raise self._lost("prompts", name, view, self.separator)
        return entry

    def route_resource(self, uri: str, view: View) -> str:
        """The server of a URI: the first that lists it, else the first with a template for it,
        else the only one that has resources at all. Raises Unroutable."""
        shelves = self.shelves(view)
        for shelf in shelves:
            if uri in shelf.by_key["resources"]:
                return shelf.config.name
        for shelf in shelves:
            for entry in shelf.rows["templates"]:
                if entry.template is not None and entry.template.matches(uri):
                    return shelf.config.name
        return self._only("resources", shelves, f"the resource {shown(uri)}")

    def route_template(self, uri: str, view: View) -> str:
        """The server of a URI template, as a completion names it. Raises Unroutable."""
        shelves = self.shelves(view)
        for kind in ("templates", "resources"):
            for shelf in shelves:
                if uri in shelf.by_key[kind]:
                    return shelf.config.name
        return self._only("completions", shelves, f"the resource template {shown(uri)}")

    def _only(self, capability: str, shelves: Sequence[Shelf], what: str) -> str:
        able = [shelf.config.name for shelf in shelves if shelf.has(capability)]
        if len(able) == 1:
            return able[0]
        if not able:
            raise Unroutable("unknown_resource", f"no server here has {what}")
        raise Unroutable(
            "unknown_resource",
            f"no server lists {what}, and any of {_names(able)} could have it: "
            "ask that server alone, at /mcp/SERVER",
        )

    def _own(self, kind: Kind, name: str, view: View) -> Entry | None:
        shelf = self._shelves.get(view.server or "")
        if shelf is None or not self.sees(view, shelf.config.name):
            raise self._no_server(view.server or "", view)
        return shelf.by_key[kind].get(name)

    def _by_separator(self, name: str, view: View, separator: str) -> Entry | None:
        named = self._shelves.get(name)
        if named is not None and named.harness and self.sees(view, name):
            return named.by_key["tools"].get(name)
        for server, rest in _splits(name, separator):
            shelf = self._shelves.get(server)
            if shelf is not None and not shelf.harness and self.sees(view, server):
                entry = shelf.by_key["tools"].get(rest)
                if entry is not None:
                    return entry
        for shelf in self.shelves(view):
            entry = shelf.by_safe_name(name, separator)
            if entry is not None:
                return entry
        return None

    def lists_resource(self, uri: str, view: View) -> bool:
        """Whether some visible server lists this very URI."""
        return any(uri in shelf.by_key["resources"] for shelf in self.shelves(view))

    def separated(self, entry: Entry, view: View, separator: str) -> str:
        """The name of a tool under a caller's own separator: one that leads back to it, and
        fits a model API unless the separator itself does not."""
        if self._shelves[entry.server].harness:
            return entry.name
        plain = f"{entry.server}{separator}{entry.key}"
        fitting = fits(plain) or not fits(separator)
        if fitting and self._by_separator(plain, view, separator) is entry:
            return plain
        return safe_name(entry.server, entry.key, separator)

    # ----------------------------------------------------------------- what to say of a miss

    def _lost(self, kind: Kind, name: str, view: View, separator: str) -> Unroutable | Untold:
        thing = "tool" if kind == "tools" else "prompt"
        unknown: NoRoute = "unknown_tool" if kind == "tools" else "unknown_prompt"
        shelves = self.shelves(view)
        if view.server is not None:
            if not all(shelf.told for shelf in shelves):
                return Untold(view.server)
            near = closest(name, (e.key for s in shelves for e in s.rows[kind]))
            return Unroutable(
                unknown, f"server {view.server} has no {thing} {shown(name)}" + _perhaps(near)
            )

        def label(entry: Entry) -> str:
            if separator == self.separator or kind != "tools" or entry.name == entry.server:
                return entry.name
            return f"{entry.server}{separator}{entry.key}"

        def labels(of: Sequence[Shelf]) -> Iterator[str]:
            return (label(entry) for shelf in of for entry in shelf.rows[kind])

        if separator not in name:
            same = [label(s.by_key[kind][name]) for s in shelves if name in s.by_key[kind]]
            if len(same) > 1:
                return Unroutable(
                    "ambiguous_name",
                    f"several servers have a {thing} {shown(name)}: say which, as one of "
                    f"{_names(same)}",
                )
            called = f"{thing}s of servers are called SERVER{separator}{thing.upper()} here"
            if same:
                return Unroutable(
                    "no_separator", f"{shown(name)} names no server: {called}" + _perhaps(same)
                )
            # A harness is called by its name alone: one that is not there and one that this
            # caller may not use are told alike.
            near = closest(name, labels(shelves))
            return Unroutable(
                unknown,
                f"there is no {thing} {shown(name)} that you may use; {called}" + _perhaps(near),
            )
        for server, rest in _splits(name, separator):
            shelf = self._shelves.get(server)
            if shelf is not None and self.sees(view, server):
                if not shelf.told:
                    return Untold(server)
                near = closest(name, labels([shelf])) or closest(name, labels(shelves))
                return Unroutable(
                    unknown, f"server {server} has no {thing} {shown(rest)}" + _perhaps(near)
                )
        server = name.split(separator, 1)[0]
        return self._no_server(server, view, closest(name, labels(shelves)))

    def _no_server(self, server: str, view: View, near: Sequence[str] = ()) -> Unroutable:
        everything = View(view.globs, None, view.harnesses)
        there = [name for name in self._shelves if self.sees(everything, name)]
        text = f"there is no server {shown(server)} here"
        if near:
            text += _perhaps(near)
        elif there:
            text += f": there are {_names(there)}"
        return Unroutable("unknown_server", text)


def _splits(name: str, separator: str) -> Iterator[tuple[str, str]]:
    """Every reading of the name as server and rest, the longest server first."""
    end = name.rfind(separator, 0, _SERVER_LENGTH + len(separator))
    while end > 0:
        yield name[:end], name[end + len(separator) :]
        end = name.rfind(separator, 0, end + len(separator) - 1)


def _perhaps(names: Sequence[str]) -> str:
    return f"; did you mean {_names(names)}?" if names else "; list what there is first"


def _names(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _diff(old: Shelf, new: Shelf) -> Diff:
    before, after = old.by_name["tools"], new.by_name["tools"]
    return Diff(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name, e in after.items() if name in before and before[name] != e),
        prompts=old.rows["prompts"] is not new.rows["prompts"],
        resources=any(old.rows[kind] is not new.rows[kind] for kind in KINDS[2:]),
    )
