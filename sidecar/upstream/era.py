"""Which era a server speaks, told from its answers. No I/O.

No single error code decides: old servers answer an unknown first request with whatever their
library has at hand, so anything but positive evidence of the modern era means ``initialize``.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sidecar.mcp.errors import MODERN_CODES, UNSUPPORTED_VERSION
from sidecar.mcp.versions import LATEST_LEGACY, LEGACY_VERSIONS, MODERN_VERSION
from sidecar.model import Era, Fields, JsonObject, RpcError
from sidecar.upstream.leg import Hello
from sidecar.upstream.prepare import CAPABILITIES, ME
from sidecar.wire import json
from sidecar.wire.json import BadJson

INITIALIZE: Final[JsonObject] = {
    "protocolVersion": LATEST_LEGACY,
    "capabilities": CAPABILITIES,
    "clientInfo": {"name": ME.name, "version": ME.version},
}
"""The params of our ``initialize``."""


class NotSpoken(Exception):
    """The server speaks, but not this era. The message says what it said instead."""


def of_error(error: RpcError) -> Era | None:
    """What an error to ``server/discover`` or ``initialize`` says of the era, if anything."""
    if error.code not in MODERN_CODES:
        return None
    if error.code == UNSUPPORTED_VERSION:
        data = _plain(error.data)
        supported = data.get("supported") if isinstance(data, dict) else None
        if isinstance(supported, list) and supported and MODERN_VERSION not in supported:
            return Era.LEGACY if any(v in LEGACY_VERSIONS for v in supported) else None
    return Era.MODERN


def of_discover(fields: Fields) -> Hello:
    """Read a ``server/discover`` result.

    Raises:
        NotSpoken: it does not list the modern version, or is no such result at all.
    """
    versions = _plain(fields.get("supportedVersions"))
    if not isinstance(versions, list):
        raise NotSpoken("its answer to server/discover lists no versions")
    if MODERN_VERSION not in versions:
        raise NotSpoken(f"its answer to server/discover does not list {MODERN_VERSION}")
    return Hello(Era.MODERN, MODERN_VERSION, *_offer(fields))


def of_initialize(fields: Fields) -> Hello:
    """Read an ``initialize`` result.

    Raises:
        NotSpoken: the version it chose is none of ours, or it is no such result at all.
    """
    version = _plain(fields.get("protocolVersion"))
    if not isinstance(version, str):
        raise NotSpoken("its answer to initialize has no protocolVersion")
    if version not in LEGACY_VERSIONS:
        raise NotSpoken(f"its answer to initialize is in no version we speak ({version[:32]!r})")
    return Hello(Era.LEGACY, version, *_offer(fields))


def _offer(fields: Fields) -> tuple[JsonObject, str]:
    capabilities = _plain(fields.get("capabilities"))
    instructions = _plain(fields.get("instructions"))
    return (
        capabilities if isinstance(capabilities, dict) else {},
        instructions if isinstance(instructions, str) else "",
    )


def _plain(value: object) -> object:
    """A field as plain JSON; what cannot be read counts as absent."""
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return json.decode(value)
    except BadJson:
        return None
