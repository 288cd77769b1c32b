"""Chromium and its WebDriver server, from Debian's packages: where they are, how they get there.

``python tests/peers/chromium.py`` (a part of ``make peers``) installs the packages when they are
missing, which needs root and apt; where that is not possible it says so and ends well, and the
tests that need them are skipped with the same reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

INSTALL_TIMEOUT = 500.0
PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
MISSING = (
    "Chromium missing: install Debian's packages chromium and chromium-driver, "
    "or run `make peers` as root"
)


def programs() -> tuple[str, str] | None:
    """The paths of the browser and of its WebDriver server."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser is not None and driver is not None else None


def install() -> None:
    """Raises CalledProcessError or TimeoutExpired."""
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = ["-qq", "-y", "-o", "Dpkg::Use-Pty=0", "--no-install-recommends"]
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", *quiet, *PACKAGES],
    ):
        subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=INSTALL_TIMEOUT,
        )


def main() -> int:
    if programs() is not None:
        return 0
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        print(f"{MISSING}; the tests that need it are skipped.")
        return 0
    print("Installing Chromium for the tests …", flush=True)
    try:
        install()
    except (OSError, subprocess.SubprocessError) as problem:
        print(f"Could not install Chromium: {problem}", file=sys.stderr)
        return 1
    return 0 if programs() is not None else 1


if __name__ == "__main__":
    sys.exit(main())
