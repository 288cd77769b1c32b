"""Log lines on stderr, for people. Nothing logs an argument value, a header or a secret."""

from __future__ import annotations

import logging
import sys


def configure(level: int = logging.INFO) -> None:
    """One handler on stderr for everything of ours; libraries only from WARNING on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("sidecar").setLevel(level)
