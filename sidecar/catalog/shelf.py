"""One server's part of the catalog, built anew when its lists change, and only then."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sidecar.catalog.names import catalog_name, fingerprint, offered, safe_name, shown
from sidecar.catalog.splice import replace
from sidecar.catalog.templates import Template
from sidecar.catalog.tools import build
from sidecar.config import ServerConfig
from sidecar.model import NOTHING, Definition, Entries, Tool
from sidecar.wire import json

Kind: TypeAlias = Literal["tools", "prompts", "resources", "templates"]
KINDS: tuple[Kind, ...] = ("tools", "prompts", "resources", "templates")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing on offer.

    ``key`` is the server's own name, URI or template, ``name`` what it is called in the merged
    catalog (the same for resources and templates). ``json`` and ``own_json`` are what a list
    shows under the one and the other; ``source`` is the definition as it came.
    """

    server: str
    key: str
    name: str
    json: bytes
    own_json: bytes
    source: bytes
    tool: Tool | None = None
    template: Template | None = None


class Shelf:
    """What one server offers, ready to be listed and looked up. Immutable once built."""

    def __init__(self, config: ServerConfig, entries: Entries, separator: str) -> None:
        self.config = config
        self.entries = entries
        self.separator = separator
        self.rows: dict[Kind, tuple[Entry, ...]] = dict.fromkeys(KINDS, ())
        self.by_key: dict[Kind, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self.by_name: dict[Kind, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self.faults: list[str] = []
        self._marks: dict[Kind, bytes] = {}
        self._prints: dict[str, list[Entry]] | None = None

    @classmethod
    def build(
        cls, config: ServerConfig, entries: Entries, separator: str, old: Shelf | None = None
    ) -> Shelf:
        """Build from complete lists, taking over from ``old`` whatever did not change.

        What cannot be offered is left out and told in ``faults``, for a person to read.
        """
        shelf = cls(config, entries, separator)
        same = old is not None and old.config == config and old.separator == separator
        for kind in KINDS:
            before: Mapping[str, Entry] = old.by_key[kind] if old is not None and same else {}
            rows = tuple(shelf._entries(kind, before))
            if old is not None and same and rows == old.rows[kind]:
                rows = old.rows[kind]
            shelf.rows[kind] = rows
        return shelf

    def _entries(self, kind: Kind, before: Mapping[str, Entry]) -> Iterable[Entry]:
        make: Callable[[Definition], Entry] = {
            "tools": self._tool,
            "prompts": self._prompt,
            "resources": self._resource,
            "templates": self._template,
        }[kind]
        definitions: tuple[Definition, ...] = getattr(self.entries, kind)
        by_key, by_name = self.by_key[kind], self.by_name[kind]
        for definition in definitions:
            if kind == "tools" and not offered(self.config, definition.key):
                continue
            entry = before.get(definition.key)
            if entry is None or entry.source != definition.json:
                try:
                    entry = make(definition)
                except json.BadJson as error:
                    self._fault(kind, definition.key, f"its definition cannot be read: {error}")
                    continue
            other = by_name.get(entry.name)
            if other is not None:
                self._fault(
                    kind,
                    definition.key,
                    "the server lists that twice"
                    if other.key == entry.key
                    else f"{shown(other.key)} already has the name {entry.name}",
                )
                continue
            by_key[definition.key] = entry
            by_name[entry.name] = entry
            yield entry

    def _fault(self, kind: Kind, key: str, why: str) -> None:
        self.faults.append(f"{kind}: {shown(key)} is not offered: {why}")

    def _tool(self, definition: Definition) -> Entry:
        tool = build(definition, self.config, self.separator)
        return Entry(
            tool.server,
            definition.key,
            tool.name,
            tool.json,
            tool.own_json,
            definition.json,
            tool,
        )

    def _prompt(self, definition: Definition) -> Entry:
        name = catalog_name(self.config.name, definition.key, self.separator)
        renamed = replace(definition.json, {"name": json.encode(name)})
        return Entry(
            self.config.name, definition.key, name, renamed, definition.json, definition.json
        )

    def _resource(self, definition: Definition) -> Entry:
        key, data = definition.key, definition.json
        return Entry(self.config.name, key, key, data, data, data)

    def _template(self, definition: Definition) -> Entry:
        key, data = definition.key, definition.json
        return Entry(
            self.config.name, key, key, data, data, data, template=Template(definition.key)
        )

    def mark(self, kind: Kind) -> bytes:
        """A digest of the keys in their order: equal marks, equal walks."""
        mark = self._marks.get(kind)
        if mark is None:
            digest = hashlib.sha256()
            for entry in self.rows[kind]:
                digest.update(entry.key.encode("utf-8", "surrogatepass") + b"\0")
            mark = self._marks[kind] = digest.digest()
        return mark

    def by_safe_name(self, name: str, separator: str) -> Entry | None:
        """The tool whose safe form under another separator this is."""
        if self._prints is None:
            self._prints = {}
            for entry in self.rows["tools"]:
                self._prints.setdefault(fingerprint(entry.server, entry.key), []).append(entry)
        for entry in self._prints.get(name[-8:], ()):
            if safe_name(entry.server, entry.key, separator) == name:
                return entry
        return None

    @property
    def harness(self) -> bool:
        """Whether it is a coding agent."""
        return self.config.transport == "acp"

    @property
    def told(self) -> bool:
        """Whether the server has ever told what it offers."""
        return self.entries is not NOTHING

    def has(self, capability: str) -> bool:
        """Whether the server declared the capability."""
        return self.entries.capabilities.get(capability) is not None
