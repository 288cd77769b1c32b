"""``sidecar``: a small supervisor around the verbs that start processes, none around others."""

from __future__ import annotations

import sys

SUPERVISED = ("run", "demo", "stdio", "acp", "harness")


def main() -> int:
    """The console script."""
    arguments = sys.argv[1:]
    if arguments and arguments[0] in SUPERVISED and sys.platform == "linux":
        from sidecar.supervisor import supervise

        status = supervise()
        if status is not None:
            return status
    try:
        # Not before the fork: what the worker needs would weigh on the supervisor too.
        from sidecar.cli import main as command_line

        return command_line(arguments)
    except KeyboardInterrupt:  # while it was still being imported
        return 130


if __name__ == "__main__":
    sys.exit(main())
