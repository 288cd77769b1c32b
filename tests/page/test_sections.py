"""The other sections, and being told of what changes in them."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.harness.agent.kit import command, script
from tests.harness.kit import repository
from tests.kit.running import Sidecar
from tests.page.browser import PHONE, Browser
from tests.page.conftest import SERVER, Agent, World, config, token, world_of
from tests.page.test_answering import read

FILE = """
apiVersion: sidecar/v1
kind: Policy
name: mine
rules:
  - id: one
    on: call
    effect: deny
    when: >-
      %s
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "mine.yaml").write_text(FILE % 'args.?text.orValue("") == "never"')
    return tmp_path


@pytest.fixture
def own(folder: Path) -> Iterator[World]:
    """A sidecar of the test's own, with a store that lasts and a server that is down."""
    with socket.socket() as nobody:
        # Bound and not listening: connections are refused for as long as it is.
        nobody.bind(("127.0.0.1", 0))
        more = {
            "servers": {
                "desk": {"command": [*SERVER, "Posts a text."]},
                "down": {"url": f"http://127.0.0.1:{nobody.getsockname()[1]}/mcp"},
            },
            "store": f"sqlite:///{folder}/state.db",
            "policies": [str(folder / "policies")],
            "runtime_servers": {"check": False, "commands": True},
        }
        with world_of(config(folder, **more)) as world:
            yield world


def enter(browser: Browser, world: World, who: str, section: str) -> None:
    browser.fresh(f"{world.page}/#token={token(who)}")
    browser.one("#live.live")
    browser.js(f"location.hash = '#/{section}'")
    browser.one(f"main[data-section={section}]")


def reconfigure(sidecar: Sidecar, **more: object) -> None:
    sidecar.write({**sidecar.config, **more})


def test_servers(own: World, browser: Browser) -> None:
    enter(browser, own, "olga", "servers")
    name, state, about = browser.one(".rows li", "desk").text.splitlines()
    assert (name, state) == ("desk", "ready")
    assert re.fullmatch("stdio, (legacy|modern) era · 3 tools · configured", about)
    browser.one(".rows li", "down")
    browser.one(".rows .chip", "backoff")
    browser.one(".rows .fault", "refused")
    browser.js("window.same = true")
    options = {"command": [sys.executable, "-m", "sidecar.demo.notes"]}
    assert own.ask("PUT", "/v1/servers/notes", body=options)[0] == 201
    browser.one(".rows li", "notes")
    browser.until(lambda: "ready" in browser.one(".rows li", "notes").text)
    assert len(browser.all(".rows button")) == 1, "only what was added can be removed"
    browser.click(".rows button", "Remove")
    browser.click("dialog button", "Cancel")
    browser.gone("dialog")
    browser.click(".rows button", "Remove")
    browser.click("dialog .danger", "Remove")
    browser.one(".notice", "Removed notes.")
    browser.gone(".rows li", "notes")
    assert browser.js("return window.same")


def test_tools_and_what_changed(own: World, browser: Browser) -> None:
    enter(browser, own, "olga", "tools")
    names = "return [...document.querySelectorAll('.rows h2 bdi')].map(x => x.textContent)"
    browser.until(lambda: browser.js(names) == ["desk__post", "desk__fetch", "desk__posted"])
    assert browser.one(".rows li", "desk__post").text.splitlines()[1:2] == ["needs approval"]
    browser.one("#filter").send_keys("FETCH")
    browser.until(lambda: browser.js(names) == ["desk__fetch"])
    browser.one("#filter").send_keys(*[Keys.BACKSPACE] * 5)
    assert browser.all(".chip.bad") == []
    servers = {**own.sidecar.config["servers"], "desk": {"command": [*SERVER, "Wipes a disk."]}}
    reconfigure(own.sidecar, servers=servers)
    browser.one(".rows li .chip.bad", "changed since it was pinned")
    browser.click("summary", "What changed")
    browser.one(".args dt", "description")
    assert "Wipes a disk." in browser.text(".args .changed")
    assert browser.text(".args .changed .was").endswith("Posts a text.")
    enter(browser, own, "vera", "tools")
    browser.one(".rows li .chip.bad")
    assert browser.all(".rows button") == []
    enter(browser, own, "olga", "tools")
    browser.click(".rows button", "Accept this definition")
    browser.click("dialog .danger", "Accept")
    browser.one(".notice", "Pinned desk__post.")
    browser.gone(".chip.bad")


def test_policy_and_its_last_error(own: World, folder: Path, browser: Browser) -> None:
    enter(browser, own, "vera", "policy")
    revision = browser.one(".digest").text
    assert revision == own.ask("GET", "/v1/policy")[1]["revision"]
    browser.one(".facts", str(folder / "policies"))
    file = folder / "policies" / "mine.yaml"
    file.write_text(FILE % "args.text == <img src=x>")
    browser.one(".alert", "The files as they are now are not in force")
    assert f"{file}:10:" in browser.text(".alert .fault")
    assert browser.one(".digest").text == revision
    file.write_text(FILE % "args.?text.orValue('') == 'no'")
    browser.gone(".alert")
    browser.until(lambda: browser.one(".digest").text != revision)


def test_a_slow_answer_is_not_shown_over_a_newer_one(
    own: World, folder: Path, browser: Browser
) -> None:
    """Two changes in a row, and the answer to the first look arrives after the second change."""
    enter(browser, own, "vera", "policy")
    revision = browser.one(".digest").text
    browser.js(
        """
        const real = window.fetch;
        window.fetch = async (path, ...more) => {
          const answer = await real(path, ...more);
          if (path === "/v1/policy" && !window.held) {
            window.held = true;
            await new Promise((resolve) => (window.release = resolve));
          }
          return answer;
        };
        """
    )
    file = folder / "policies" / "mine.yaml"
    file.write_text(FILE % "args.text == <img src=x>")
    browser.until(lambda: browser.js("return Boolean(window.release)"))
    file.write_text(FILE % "args.?text.orValue('') == 'no'")
    browser.until(lambda: own.ask("GET", "/v1/policy")[1]["revision"] != revision)
    time.sleep(1)  # Until the page has heard of it, and would have looked again.
    browser.js("window.release()")
    browser.until(lambda: browser.one(".digest").text != revision)
    browser.gone(".alert")


def test_works_of_coding_agents(tmp_path: Path, browser: Browser) -> None:
    """An agent that does as it is told, in a real repository; it asks, and a person answers."""
    more = {
        "harnesses": {"claude": {"command": list(command(store=str(tmp_path / "sessions")))}},
        "checkouts": {"billing": str(repository(tmp_path / "billing"))},
        "worktrees": str(tmp_path / "worktrees"),
        "policy": {"shipped": ["coding-agents"]},
    }
    asks = {"toolCallId": "t", "title": "ls", "kind": "execute", "rawInput": {"command": "ls"}}
    with world_of(config(tmp_path, **more)) as world:
        enter(browser, world, "alice", "waiting")
        assert browser.all("#nav-works") == []
        task = script({"ask": asks, "run": "ls"}, {"say": "Done."})
        call = world.agent.calls("claude", {"task": task, "work": "fix-login"})
        world.until_waiting(1, within=60)
        # Nobody has to look for it: it is there once there is one.
        browser.one("#nav-works")
        browser.js("location.hash = '#/works'")
        row = browser.one("main[data-section=works] .rows li", "fix-login")
        browser.one(".rows .chip.warn", "waits for a person")
        for text in ("claude in billing", "asked by agent", "work/claude/agent/fix-login"):
            assert text in row.text
        assert str(tmp_path / "worktrees") in row.text
        browser.press("1")
        assert browser.one(".call h2", "claude__execute")
        for text in ("coding-agents/execute", "fix-login", "ls"):
            browser.one(".call", text)
        read(browser)
        browser.click(".approve")
        status, answer = call.result(60)
        assert (status, answer["structuredContent"]["asks"][0]["answer"]) == (200, "allow")
        browser.one(".notice", "Approved claude__execute")
        browser.js("location.hash = '#/works'")
        browser.one(".rows .chip", "idle")
        assert browser.all(".rows .chip.warn") == []


def test_labels_as_they_come(own: World, browser: Browser) -> None:
    """Told by an event: the page looks by itself only every half minute."""
    enter(browser, own, "olga", "sessions")
    browser.one(".empty", "Nobody has read anything from outside.")
    own.agent.calls("desk__fetch").result(30)
    browser.one(".rows li", "outside")
    browser.click(".rows button", "Forget")
    browser.click("dialog .danger", "Forget")
    browser.one(".empty", "Nobody has read anything from outside.")


def test_it_comes_back_after_a_restart(folder: Path, browser: Browser) -> None:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    more = {"store": f"sqlite:///{folder}/state.db", "parking": {"hold": "1s"}}
    settings = config(folder, **more)
    settings["admin"]["listen"] = f"127.0.0.1:{port}"
    with world_of(settings) as world:
        polled = world.agent.calls("desk__post", {"text": "still here"})
        assert polled.result(40)[0] == 202
        enter(browser, world, "alice", "waiting")
        browser.one(".call", "still here")
        browser.js("window.same = true")
        world.sidecar.stop()
        assert browser.one("#live.lost").text == "Reconnecting …"
        world.sidecar.start()
        assert browser.one("#live.live", within=40).text == "Live"
        browser.one(".calls li", "desk__post")
        time.sleep(0.7)
        browser.click(".approve")
        browser.one(".notice", "Approved desk__post")
        assert browser.js("return window.same")
        # The agent, too, had not heard of the answer; it asks again and gets the result.
        world.agent = Agent(world.sidecar.mcp)
        assert world.agent.calls("desk__post", {"text": "still here"}).result(40)[0] == 200
        assert browser.console() != [], "the browser told of connections that were refused"


def test_many_calls_are_shown_by_and_by(own: World, browser: Browser) -> None:
    for n in range(120):
        own.agent.calls("desk__post", {"n": n})
        if n % 40 == 39:
            own.until_waiting(n + 1) if n < 50 else time.sleep(1)
    browser.fresh(f"{own.page}/#token={token('alice')}")
    browser.until(lambda: browser.text("#nav-waiting .count").strip() == "120")
    browser.one(".status", "The first 50 of 120")
    assert browser.js("return document.querySelectorAll('.calls li').length") == 50
    browser.click(".overview > button", "Show 50 more")
    browser.until(lambda: browser.js("return document.querySelectorAll('.calls li').length") == 100)
    browser.js("document.querySelectorAll('.calls a')[99].click()")
    browser.one(".call .args")
    browser.press("j")
    browser.until(lambda: browser.js("return document.querySelectorAll('.calls li').length") == 120)
    assert browser.all(".overview > button") == []
    assert browser.text(".status") == ""


def test_a_link_to_a_call(own: World, browser: Browser) -> None:
    own.agent.calls("desk__post", {"text": "by link"})
    (waiting,) = own.until_waiting(1)
    enter(browser, own, "alice", "servers")
    browser.js(f"location.hash = '#/waiting/{waiting['id']}'")
    browser.one(".call", "by link")
    browser.js("location.hash = '#/waiting/no-such-call'")
    browser.one(".detail .empty", "There is no such call")
    browser.look(PHONE)
    browser.js("location.hash = '#/history/%2e%2e%2fservers'")
    browser.one(".detail .empty", "There is no such call")


def test_what_is_hidden_and_what_is_folded(folder: Path, browser: Browser) -> None:
    args = {"text": "log in", "pin": "1234-5678", "login": {"password": "hunter2", "user": "anna"}}
    trusted = {"desk": {"command": [*SERVER, "Posts."], "trusted": True}}
    parking = {"hold": "50s", "redact": ["password"]}
    with world_of(config(folder, servers=trusted, parking=parking)) as world:
        world.agent.calls("desk__post", args)
        enter(browser, world, "alice", "waiting")
        browser.one(".call", "log in")
        html = "return document.documentElement.innerHTML"
        assert "hunter2" not in browser.js(html)
        assert "[hidden]" in browser.text(".call .args")
        assert "Hidden by parking.redact: /login/password" in browser.text(".call")
        assert "1234-5678" not in browser.js(html)
        browser.click(".call .fold", "write-only")
        browser.one(".call .args", "1234-5678")
        assert browser.text(".folded") == ""
    folder.joinpath("again").mkdir()
    with world_of(config(folder / "again")) as world:
        # A server that is not trusted folds nothing away.
        world.agent.calls("desk__post", args)
        enter(browser, world, "alice", "waiting")
        assert "1234-5678" in browser.one(".call .args", "hunter2").text


def test_a_tool_that_changed_since(own: World, browser: Browser) -> None:
    own.agent.calls("desk__post", {"text": "as ever"})
    (first,) = own.until_waiting(1)
    own.answer(first["id"], "approve", "bob")
    own.until_waiting(0)
    own.agent.calls("desk__post", {"text": "once more"})
    own.until_waiting(1)
    enter(browser, own, "alice", "waiting")
    browser.one(".call", "once more")
    assert "The tool has changed" not in browser.text(".call")
    servers = {**own.sidecar.config["servers"], "desk": {"command": [*SERVER, "Wipes a disk."]}}
    reconfigure(own.sidecar, servers=servers)
    # What was asked for is not there any more; the agent's call asks anew.
    browser.one(".outcome.cancelled")
    browser.until(lambda: len(browser.all(".calls li")) == 1)
    browser.press("j")
    browser.one(".call h3", "The tool has changed")
    assert "Wipes a disk." in browser.text(".call .args .changed")
    assert "Posts a text." in browser.text(".call .args .changed .was")
    browser.click("summary", "More")
    browser.one(".facts dd a", "cancelled")


def test_a_page_that_is_left_keeps_no_connection(own: World, browser: Browser) -> None:
    """A browser opens six connections to a host: pages in its memory must not hold them all."""
    for _ in range(8):
        enter(browser, own, "alice", "waiting")
        browser.driver.get("about:blank")
    for _ in range(3):
        browser.driver.back()
    browser.driver.get("about:blank")
    enter(browser, own, "alice", "policy")
    browser.one(".digest")
