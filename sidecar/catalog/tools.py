"""One tool of the catalog, from its definition and what the operator says of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import cast

import msgspec

from sidecar.catalog.names import catalog_name, matches
from sidecar.catalog.splice import replace
from sidecar.config import AnnotationOverride, ServerConfig
from sidecar.model import Definition, Hints, Tool
from sidecar.wire import json

_DEPTH = 256
_NO_OVERRIDE = AnnotationOverride()
_SAFE = Hints()

# Our name of a hint, and the name it has on the wire.
HINTS = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}


def build(definition: Definition, config: ServerConfig, separator: str) -> Tool:
    """Make the catalog's tool.

    Raises:
        BadJson: the definition is not a JSON object, or nested beyond all reason.
    """
    fields = json.fields(definition.json)
    claimed = _claims(fields.get("annotations"))
    override = _override(definition.key, config)
    hints = _hints(claimed, override, trust=config.hints == "trust")
    gated, gate_set = _gated(definition.key, config, hints)
    own_json = _overridden(definition.json, fields.get("annotations"), override)
    # A harness is its one tool; its name holds no separator, so that no other tool has it.
    harness = config.transport == "acp"
    name = config.name if harness else catalog_name(config.name, definition.key, separator)
    return Tool(
        name=name,
        server=config.name,
        upstream_name=definition.key,
        annotations=MappingProxyType(claimed),
        hints=hints,
        gated=gated,
        gate_set=gate_set,
        trusted=config.trusted,
        digest=json.digest(json.decode(definition.json, _DEPTH)),
        json=replace(own_json, {"name": json.encode(name)}),
        own_json=own_json,
    )


def _claims(annotations: object) -> dict[str, object]:
    """What the server says under our names; what is not of the right type was never said."""
    value = _object(annotations)
    claims: dict[str, object] = {}
    for ours, theirs in HINTS.items():
        if isinstance(value.get(theirs), bool):
            claims[ours] = value[theirs]
    if isinstance(value.get("title"), str):
        claims["title"] = value["title"]
    return claims


def _object(raw: object) -> dict[str, object]:
    if raw is None:
        return {}
    value = json.decode(cast("bytes", raw), _DEPTH)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _override(tool: str, config: ServerConfig) -> AnnotationOverride:
    for pattern, override in config.annotations:
        if matches((pattern,), tool):
            return override
    return _NO_OVERRIDE


def _hints(claimed: Mapping[str, object], override: AnnotationOverride, *, trust: bool) -> Hints:
    """The operator's word, else the server's, else the safe default.

    Under ``hints: restrict`` a claim may only make a tool stricter. Each default is the
    strictest value of its hint already, so no claim of the server's counts then.
    """
    values: dict[str, bool] = {}
    for name in HINTS:
        word = getattr(override, name)
        if word is None and trust:
            word = claimed.get(name)
        values[name] = getattr(_SAFE, name) if word is None else word
    return Hints(**values)


def _gated(tool: str, config: ServerConfig, hints: Hints) -> tuple[bool, bool]:
    """Whether the tool is gated, and whether the operator said so of this very tool.

    Globs gate what they match. What they do not match is not gated, but nobody has vouched for
    it either, so rules that spare what the operator set still apply to it.
    """
    if config.gated is None:
        return not hints.read_only, False
    if isinstance(config.gated, bool):
        return config.gated, True
    gated = matches(config.gated, tool)
    return gated, gated


def _overridden(data: bytes, annotations: object, override: AnnotationOverride) -> bytes:
    """The definition as it came, but for what the operator overrides."""
    words: dict[str, object] = {
        theirs: getattr(override, ours)
        for ours, theirs in HINTS.items()
        if getattr(override, ours) is not None
    }
    changes: dict[str, bytes] = {}
    if override.title is not None:
        # Clients show the tool's own title before that of its annotations: both have to agree.
        words["title"] = override.title
        changes["title"] = json.encode(override.title)
    if not words:
        return data
    if isinstance(annotations, msgspec.Raw) and bytes(annotations).startswith(b"{"):
        held = bytes(annotations)
    else:
        held = b"{}"
    changes["annotations"] = replace(
        held, {key: json.encode(value) for key, value in words.items()}
    )
    return replace(data, changes)
