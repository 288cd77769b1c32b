"""A headless Chromium, driven through WebDriver."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.peers.chromium import programs

T = TypeVar("T")

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
    "--host-resolver-rules=MAP rebound.test 127.0.0.1",
)
WIDE = (1280, 860)
PHONE = (390, 844)
WAIT = 25.0
"""Seconds; the page looks by itself after 30, and what it is told of must not wait for that."""


class Browser:
    """One browser with a profile of its own. ``close`` ends it and removes the profile."""

    def __init__(self) -> None:
        found = programs()
        assert found is not None, "skip the test when there is no Chromium"
        browser, driver = found
        self._profile = Path(tempfile.mkdtemp(prefix="sidecar-chromium-"))
        options = ChromeOptions()
        options.binary_location = browser
        for flag in FLAGS:
            options.add_argument(flag)
        options.add_argument(f"--user-data-dir={self._profile}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=Service(driver))
        self.driver.set_script_timeout(60)

    def close(self) -> None:
        self.driver.quit()
        shutil.rmtree(self._profile, ignore_errors=True)

    # ------------------------------------------------------------------------------ going there

    def fresh(self, url: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
        """A page as it is when it is opened for the first time, of this size."""
        # Another document first: a new fragment alone would not load the page again.
        self.driver.get("about:blank")
        self.look(size, scheme)
        self.console()
        self.driver.get(url)

    def look(self, size: tuple[int, int], scheme: str = "light") -> None:
        width, height = size
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # --------------------------------------------------------------------------------- looking

    def js(self, script: str, *arguments: Any) -> Any:
        """The value of a function's body, in the page."""
        return self.driver.execute_script(script, *arguments)

    def until(self, check: Callable[[], T], what: str = "", within: float = WAIT) -> T:
        """The first true value of ``check``, asked again and again."""
        end = time.monotonic() + within
        while True:
            try:
                if value := check():
                    return value
            except StaleElementReferenceException:
                pass  # It was renewed while it was looked at.
            if time.monotonic() > end:
                raise AssertionError(f"not within {within} s: {what or check}\n{self.text()}")
            time.sleep(0.03)

    def all(self, selector: str) -> list[WebElement]:
        return [
            each for each in self.driver.find_elements(By.CSS_SELECTOR, selector) if _seen(each)
        ]

    def one(self, selector: str, text: str = "", within: float = WAIT) -> WebElement:
        """The first element that can be seen, and holds ``text``."""

        def find() -> WebElement | None:
            return next((each for each in self.all(selector) if text in each.text), None)

        return self.until(find, f"{selector} with {text!r}", within)  # type: ignore[return-value]

    def gone(self, selector: str, text: str = "") -> None:
        self.until(
            lambda: not any(text in each.text for each in self.all(selector)),
            f"{selector} with {text!r} is still there",
        )

    def text(self, selector: str = "body") -> str:
        found = self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)
        return str(found)

    def console(self) -> list[str]:
        """What the console said since it was asked last."""
        return [str(entry["message"]) for entry in self.driver.get_log("browser")]

    def shot(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))

    # ---------------------------------------------------------------------------------- doing

    def press(self, *keys: str) -> None:
        """Keys, to whatever has the focus."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def click(self, selector: str, text: str = "") -> None:
        self.one(selector, text).click()

    def sign_in(self, token: str) -> None:
        self.one("#token").send_keys(token)
        self.click(".sign button")
        self.one("#nav")


def _seen(element: WebElement) -> bool:
    try:
        return element.is_displayed()
    except StaleElementReferenceException:
        return False
