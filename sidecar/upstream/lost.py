"""How servers say that they do not know our session any more. No I/O.

The specification has one way (404, 2025-11-25 transports); servers have found others.
"""

from __future__ import annotations

import re

from sidecar.model import RpcError
from sidecar.upstream.faults import HttpStatus
from sidecar.wire.jsonrpc import INVALID_REQUEST

_SESSION_NOT_FOUND = -32001
# What libraries put into answers that they give before they look at a request.
_TRANSPORT = (-32000, _SESSION_NOT_FOUND, INVALID_REQUEST)
_TEXTS = re.compile(
    r"""session\ (?:id\ )?(?:was\ |has\ |is\ |does\ )?
        (?:not\ (?:found|exist|valid|initialized)|terminated|expired|invalid|unknown|closed)
      | (?:no\ valid|invalid|unknown|expired|missing|no\ such)\ (?:mcp[- ])?session
      | mcp-session-id\ header\ is\ required
      | server\ not\ initialized
    """,
    re.IGNORECASE | re.VERBOSE,
)


def by_status(status: HttpStatus, *, had_id: bool) -> bool:
    """Whether an HTTP error means that the session is gone; the request was not run then.

    ``had_id``: the request named a session.
    """
    error = status.error
    if status.status not in (400, 404, 410):
        return False
    answered = error is not None and status.answers and error.code not in _TRANSPORT
    if error is not None and _TEXTS.search(error.message):
        return not answered
    return had_id and status.status != 400 and not answered


def by_error(error: RpcError) -> bool:
    """Whether a JSON-RPC error in a 200 means the same.

    Only with the code and the words that the common libraries use before they look at a
    request: any other error may be a tool's own.
    """
    return error.code == _SESSION_NOT_FOUND and bool(_TEXTS.search(error.message))
