"""A newcomer follows what `sidecar demo` prints, through parking and approving on the page."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.page.browser import PHONE, WIDE, Browser
from tests.page.conftest import Agent

MINUTE = 60.0


@pytest.fixture
def told() -> Iterator[str]:
    """What the demo prints, while it runs."""
    command = [sys.executable, "-m", "sidecar", "demo", "--listen", "127.0.0.1:0"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    lines = ""
    try:
        while "Ctrl-C ends it" not in lines:
            line = demo.stdout.readline()
            assert line, lines
            lines += line
        yield lines
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(30)
        demo.stdout.close()


def steps(told: str) -> dict[int, str]:
    """The line below each number."""
    return {int(n): line.strip() for n, line in re.findall(r"^ +(\d)\. .*\n(.*)$", told, re.M)}


def run(command: str) -> str:
    words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *words[1:]],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_approving_takes_less_than_a_minute(told: str, browser: Browser) -> None:
    began = time.monotonic()
    step = steps(told)
    with ThreadPoolExecutor(1) as terminal:
        calling = terminal.submit(run, step[1])
        browser.fresh(step[2])
        browser.one(".call h2", "notes__add")
        assert browser.one(".call .args dd").text == "hello"
        assert browser.one("#who").text == "admin · operator"
        time.sleep(0.7)
        assert not calling.done()
        browser.click(".approve")
        assert calling.result(40) == "noted as number 1\n"
    assert run(step[3]) == "1. hello\n"
    took = time.monotonic() - began
    print(f"a person took {took:.0f} s")
    assert took < 3 * MINUTE, "less than one where nothing else runs"


def test_the_picture_in_the_docs(told: str, browser: Browser) -> None:
    """What it shows is there; with SIDECAR_SHOTS=docs it is taken anew."""
    step = steps(told)
    found = re.search(r"--url (\S+)", step[1])
    assert found is not None
    agent = Agent(found[1])
    try:
        take(browser, agent, step[2])
    finally:
        agent.close()


def take(browser: Browser, agent: Agent, link: str) -> None:
    browser.fresh(link)
    note = "Dinner on Friday:\n- bread\n- {} bottles of milk"
    first = agent.calls("notes__add", {"text": note.format(2)})
    browser.one(".call .answer")
    browser.one("#why").send_keys("fine")
    time.sleep(0.7)
    browser.click(".approve")
    assert first.result(40)[0] == 200
    assert agent.calls("clock__now", {"zone": "UTC"}).result(40)[0] == 200
    waiting = [agent.calls("notes__add", {"text": note.format(12)})]
    browser.one(".call .args .changed mark", "12")
    waiting.append(agent.calls("notes__add", {"text": "Call Anna back."}))
    browser.until(lambda: len(browser.all(".calls li")) == 2)
    browser.one(".call .sources", "clock__now")
    browser.gone(".notice")
    folder = os.environ.get("SIDECAR_SHOTS")
    if folder:
        browser.look((1160, 1040))
        browser.shot(Path(folder) / "approvals.png")
        browser.look(PHONE, "dark")
        browser.shot(Path(folder) / "approvals-phone.png")
        browser.look(WIDE)
    for _ in waiting:
        browser.one(".call .answer")
        time.sleep(0.7)
        browser.click(".approve")
    assert {each.result(40)[0] for each in waiting} == {200}
