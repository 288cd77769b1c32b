"""What a worker's ``zoo`` is made of: ``animals.py KIND MARKER FD`` writes a byte when it is what
it is to be."""

from __future__ import annotations

import os
import signal
import sys
import time


def main() -> None:
    kind, told = sys.argv[1], int(sys.argv[3])
    if kind == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if kind == "daemon":
        if os.fork():
            return
        os.setsid()
        between = os.getpid()
        if os.fork():
            return
        while os.getppid() == between:
            time.sleep(0.001)
    os.write(told, b".")
    os.close(told)
    time.sleep(60)


if __name__ == "__main__":
    main()
