"""Chromium and its WebDriver server, from Debian's packages.

``python -m tests.peers.chromium`` (a part of ``make peers``) installs them when they are missing.
"""

from __future__ import annotations

import shutil
import sys

from tests.peers.debian import ensure

PACKAGES = ("chromium", "chromium-driver", "fonts-dejavu-core")
MISSING = (
    "Chromium missing: install Debian's packages chromium and chromium-driver, "
    "or run `make peers` as root"
)


def programs() -> tuple[str, str] | None:
    """The paths of the browser and of its WebDriver server."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    return (browser, driver) if browser is not None and driver is not None else None


if __name__ == "__main__":
    sys.exit(ensure("Chromium", PACKAGES, programs, MISSING))
