"""In which mode an agent says it is, and whether it asks in that mode."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from sidecar.harness.profiles import Asking
from sidecar.model import JsonObject

_UNASKED = re.compile(
    r"yolo|bypass|auto|full.?access|accept|dont.?ask|unattended|danger|never|skip", re.I
)
"""What a mode is called in which an agent acts unasked, as agents name theirs."""


def asks(asking: Asking, mode: str, first: str) -> bool:
    """Whether the agent asks in ``mode``, as far as is known. ``first`` is the mode in which
    it was when the run began, empty when it did not say."""
    if mode in asking.modes:
        return True
    return asking.open_ended and (mode == first or not first) and not _UNASKED.search(mode)


def told(payload: JsonObject) -> list[str]:
    """The modes that a result or an update says the agent is in: one of each way to say it.

    ``modes.currentModeId`` of opening a session, ``currentModeId`` of an update, and
    ``configOptions`` of category ``mode``. Two that differ are both returned: one of them is
    not what was asked for.
    """
    found = []
    modes = payload.get("modes")
    if isinstance(modes, dict):
        found.append(modes.get("currentModeId"))
    found += [payload.get("currentModeId"), payload.get("modeId")]
    for item in _options(payload):
        if item.get("category") == "mode" or item.get("id") == "mode":
            found.append(item.get("currentValue"))
    return list(dict.fromkeys(mode for mode in found if isinstance(mode, str)))


def config_option(payload: JsonObject) -> str | None:
    """The id of the configuration option that is the mode, where the session has one."""
    for item in _options(payload):
        id_ = item.get("id")
        if isinstance(id_, str) and (item.get("category") == "mode" or id_ == "mode"):
            return id_
    return None


def _options(payload: JsonObject) -> Iterable[JsonObject]:
    options = payload.get("configOptions")
    for item in options if isinstance(options, list) else ():
        if isinstance(item, dict):
            yield cast("JsonObject", item)
