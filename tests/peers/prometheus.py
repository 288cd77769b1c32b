"""Prometheus, from Debian's package: where it is, and how it gets there.

``python tests/peers/prometheus.py`` (a part of ``make test-otel``) unpacks the package into
``.peers/prometheus`` when it is missing: nothing is installed and no service starts. Where that
is not possible it says so and ends well, and the tests that need it are skipped with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TIMEOUT = 300.0
PEERS = Path(__file__).resolve().parents[2] / ".peers" / "prometheus"
MISSING = (
    "Prometheus missing: install Debian's package prometheus, or run `make test-otel` where "
    "apt-get is"
)


def programs() -> tuple[str, str] | None:
    """The paths of the server and of ``promtool``."""
    own = PEERS / "usr" / "bin"
    found = [
        shutil.which(name) or shutil.which(str(own / name)) for name in ("prometheus", "promtool")
    ]
    return (found[0], found[1]) if found[0] and found[1] else None


def install() -> None:
    """Raises CalledProcessError, TimeoutExpired or OSError."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["apt-get", "download", "-qq", "prometheus"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=TIMEOUT,
        )
        [package] = Path(folder).glob("prometheus_*.deb")
        PEERS.mkdir(parents=True, exist_ok=True)
        subprocess.run(["dpkg-deb", "-x", str(package), str(PEERS)], check=True, timeout=TIMEOUT)


def main() -> int:
    if programs() is not None:
        return 0
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        print(f"{MISSING}; the tests that need it are skipped.")
        return 0
    print("Unpacking Prometheus for the tests …", flush=True)
    try:
        install()
    except (OSError, ValueError, subprocess.SubprocessError) as problem:
        print(f"Could not get Prometheus: {problem}", file=sys.stderr)
        return 1
    return 0 if programs() is not None else 1


if __name__ == "__main__":
    sys.exit(main())
