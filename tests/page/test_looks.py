"""How the page looks: accessible by axe-core's judgement, in the light and in the dark.

With SIDECAR_SHOTS=FOLDER, pictures of the sections are written there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import PHONE, WIDE, Browser
from tests.page.conftest import Enter, World, token
from tests.peers.peers import NODE_MODULES, why_missing

SECTIONS = ["waiting", "history", "sessions", "servers", "tools", "policy"]
SCHEMES = ["light", "dark"]
SIZES = {"wide": WIDE, "phone": PHONE}


def faults(browser: Browser) -> list[str]:
    """What axe-core has against the page as it is, each as its rule and the element."""
    if not browser.js("return Boolean(window.axe)"):
        browser.js((NODE_MODULES / "axe-core" / "axe.min.js").read_text())
    script = """
      const told = arguments[0];
      axe.run(document).then(told, (error) => told(`${error}`));
    """
    found = browser.driver.execute_async_script(script)
    assert isinstance(found, dict), found
    assert len(found["passes"]) > 10
    sure = [(each, node) for each in found["violations"] for node in each["nodes"]]
    return [f"{each['id']}: {node['html'][:160]} {node['failureSummary']}" for each, node in sure]


@pytest.fixture(scope="module", autouse=True)
def axe() -> None:
    if missing := why_missing("node"):
        pytest.skip(missing)


@pytest.fixture
def busy(world: World) -> Iterator[World]:
    """Something to be seen in every section."""
    world.agent.calls("desk__fetch").result(40)
    for n, answer in enumerate(("approve", "deny")):
        world.agent.calls(
            "desk__post", {"text": f"note {n}", "to": ["anna", "ben"], "urgent": True}
        )
        (waiting,) = world.until_waiting(1)
        world.answer(waiting["id"], answer, "bob", "as agreed")
        world.until_waiting(0)
    world.agent.calls("desk__post", {"text": "Dear Anna,\nsee you at\u202e noon.", "urgent": False})
    world.agent.calls("desk__post", {"text": "x" * 5_000})
    world.until_waiting(2)
    yield world


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("size", SIZES)
def test_every_section_is_accessible(
    busy: World, enter: Enter, browser: Browser, size: str, scheme: str
) -> None:
    enter("olga", size=SIZES[size], scheme=scheme)
    for section in SECTIONS:
        browser.js(f"location.hash = '#/{section}'")
        browser.one(f"main[data-section={section}] :is(li, dl)")
        shoot(browser, f"{section}-{size}-{scheme}")
        assert faults(browser) == [], section
    browser.js("location.hash = '#/waiting'")
    browser.click(".calls a")
    browser.one(".call .args")
    shoot(browser, f"call-{size}-{scheme}")
    assert faults(browser) == []
    browser.click("#help")
    browser.one("dialog")
    shoot(browser, f"help-{size}-{scheme}")
    assert faults(browser) == []


@pytest.mark.parametrize("scheme", SCHEMES)
def test_signing_in_is_accessible(world: World, browser: Browser, scheme: str) -> None:
    browser.fresh(world.page, scheme=scheme)
    browser.one("#token").send_keys("wrong")
    browser.click(".sign button")
    browser.one(".error", "Nobody")
    shoot(browser, f"sign-{scheme}")
    assert faults(browser) == []


def test_axe_finds_what_is_wrong(enter: Enter, world: World, browser: Browser) -> None:
    """The tests above can fail."""
    enter("alice")
    script = """
      const button = document.createElement("button");
      button.append(document.createElement("i"));
      document.querySelector("main").append(button);
    """
    browser.js(script)
    assert [fault.partition(":")[0] for fault in faults(browser)] == ["button-name"]


def luminance(browser: Browser, selector: str) -> float:
    """Of the background, from 0 to 255."""
    script = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    color = browser.js(script, selector)
    red, green, blue = (float(part) for part in color[4:-1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_dark_is_dark_and_light_is_light(world: World, browser: Browser) -> None:
    browser.fresh(f"{world.page}/#token={token('vera')}", scheme="light")
    browser.one("#who")
    assert min(luminance(browser, "body"), luminance(browser, "header")) > 230
    browser.look(WIDE, "dark")
    assert max(luminance(browser, "body"), luminance(browser, "header")) < 40


def test_what_matters_fits_on_a_phone(busy: World, enter: Enter, browser: Browser) -> None:
    enter("alice", size=PHONE)
    browser.click(".calls a")
    browser.one(".call .answer")
    script = """
      const box = document.querySelector(arguments[0]).getBoundingClientRect();
      return [box.left, box.top, box.right, box.bottom, box.height];
    """
    width, height = PHONE
    for what in ("#why", ".approve", ".deny"):
        left, top, right, bottom, tall = browser.js(script, what)
        assert left >= 0 and right <= width and top > 0 and bottom <= height, what
        assert tall >= 40, "fingers need room"


def shoot(browser: Browser, name: str) -> None:
    folder: Any = os.environ.get("SIDECAR_SHOTS")
    if folder:
        browser.shot(Path(folder) / f"{name}.png")
