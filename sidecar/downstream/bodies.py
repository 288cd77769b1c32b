"""Reading what a client sent, under the limits of the configuration."""

from __future__ import annotations

from sidecar.config import Limits
from sidecar.model import Json
from sidecar.wire.json import BadJson, TooDeep, decode_request


def read(data: bytes, limits: Limits) -> Json:
    """The JSON of a request.

    Raises:
        BadJson: as ``decode_request``; over a limit, the message names its setting.
    """
    try:
        return decode_request(data, limits.depth)
    except TooDeep:
        raise BadJson(f"the JSON is nested deeper than limits.depth, {limits.depth}") from None
