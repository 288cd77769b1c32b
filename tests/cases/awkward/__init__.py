"""One made-up MCP server that misbehaves on command.

It speaks both eras over Streamable HTTP and stdio, and the old HTTP+SSE. Everything it does
wrong is a field of ``Behaviour``; everything it saw is in ``Awkward.seen``. Tests run it inside
their own loop (``http.serving``), or as a child process: ``python -m tests.cases.awkward``.
"""

from tests.cases.awkward.behaviour import Behaviour
from tests.cases.awkward.http import serving
from tests.cases.awkward.server import Awkward, Seen

__all__ = ["Awkward", "Behaviour", "Seen", "serving"]
