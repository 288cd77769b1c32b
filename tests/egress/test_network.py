"""The whole sidecar in networks of its own: public addresses that are really dialled.

Two network namespaces, joined by a pair of interfaces. One holds the sidecar at 203.0.113.2 with
the other as its gateway; the other is the internet: 93.184.216.34, 8.8.8.8, 10.9.9.9 and the
gateway, with servers on ports 80 and 9000, and a DNS server that changes its mind. Nothing of it
touches the machine's own network, and what is mounted over /etc/resolv.conf is seen here alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCENE = Path(__file__).with_name("network_scene.py")


def able() -> bool:
    """Whether this user may make network namespaces here."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    made = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.timeout(180)
@pytest.mark.skipif(not able(), reason="needs root and network namespaces")
def test_the_internet_and_what_is_not(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "-n", "-m", sys.executable, str(SCENE), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "all as it should be"
