"""What waits is read and answered on the page, in a browser."""

from __future__ import annotations

import json
import re
import time

from selenium.webdriver.common.keys import Keys

from tests.page.browser import PHONE, Browser
from tests.page.conftest import Enter, World, token

READ = 0.7
"""Seconds until a call that came up by itself can be answered."""


def read(browser: Browser) -> None:
    """Look at the call that is open for as long as the page wants one to."""
    browser.one(".call .answer")
    time.sleep(READ)


def test_a_token_of_nobody_opens_nothing(world: World, browser: Browser) -> None:
    browser.fresh(world.page)
    browser.until(lambda: browser.js("return document.activeElement.id") == "token")
    browser.one("#token").send_keys("wrong")
    browser.click(".sign button")
    assert browser.one(".error").text == "Nobody has this token."
    assert browser.all("#nav") == []
    browser.one("#token").send_keys(Keys.CONTROL, "a")
    browser.one("#token").send_keys(token("alice"), Keys.ENTER)
    assert browser.one("#who", "alice").text == "alice · approver"
    browser.one(".empty", "Nothing waits for an answer.")


def test_the_token_is_in_memory_alone(enter: Enter, browser: Browser) -> None:
    enter("alice")
    assert "token" not in browser.driver.current_url
    kept = "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
    assert token("alice") not in browser.js(kept)
    assert browser.js(kept) == '[{},{},""]'
    browser.driver.refresh()
    browser.one("#token")
    assert browser.all(".calls a") == []
    browser.driver.back()
    assert token("alice") not in browser.driver.current_url


def test_signing_out(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", {"text": "secret plan"})
    enter("alice")
    browser.one(".call", "secret plan")
    browser.click("#leave")
    browser.one("#token")
    assert "secret plan" not in browser.js("return document.documentElement.innerHTML")


def test_approve(enter: Enter, world: World, browser: Browser) -> None:
    call = world.agent.calls("desk__post", {"text": "hello, world"})
    enter("alice")
    browser.one(".call", "hello, world")
    assert browser.one(".call h2").text == "desk__post"
    assert "agent asked" in browser.text(".asks")
    assert re.search("expires in (23 h 59|24 h 0) min( ·|$)", browser.text(".asks"))
    assert "gating/gated" in browser.text(".call")
    chips = [chip.text for chip in browser.all(".call .chips .chip")]
    assert chips == ["server desk, not trusted", "changes something"]
    read(browser)
    browser.click(".approve")
    status, answer = call.result(40)
    assert (status, answer["content"][0]["text"]) == (200, "posted 1")
    browser.one(".notice", "Approved desk__post of agent.")
    browser.one(".empty", "Nothing waits for an answer.")
    browser.press("2")
    browser.one(".outcome", "It ran: ok")
    assert browser.one(".outcome strong").text == "Approved"
    assert "by alice" in browser.text(".outcome")


def test_deny_with_a_reason(enter: Enter, world: World, browser: Browser) -> None:
    call = world.agent.calls("desk__post", {"text": "all customers"})
    enter("bob")
    browser.one(".call", "all customers")
    browser.one("#why").send_keys("not to everybody, please")
    time.sleep(READ)
    browser.click(".deny")
    status, answer = call.result(40)
    assert status == 403
    assert "not to everybody, please" in json.dumps(answer)
    browser.press("2")
    browser.one(".calls .chip.denied")
    browser.one(".outcome.denied", "Reason: not to everybody, please")
    assert "Denied by bob" in browser.text(".outcome")


def test_what_comes_and_goes_is_seen_without_a_reload(
    enter: Enter, world: World, browser: Browser
) -> None:
    enter("alice")
    browser.one(".empty", "Nothing waits for an answer.")
    browser.js("window.same = true")
    world.agent.calls("desk__post", {"text": "first"})
    browser.one(".call", "first")
    world.agent.calls("desk__post", {"text": "second"})
    browser.until(lambda: len(browser.all(".calls li")) == 2)
    assert browser.one("#nav-waiting .count").text == "2"
    assert browser.driver.title == "(2) sidecar"
    # What is being read stays open, whatever comes, and a reason that is being written too.
    browser.one("#why").send_keys("because")
    first = world.until_waiting(2)
    world.agent.calls("desk__post", {"text": "third"})
    browser.until(lambda: len(browser.all(".calls li")) == 3)
    assert "first" in browser.text(".call")
    assert browser.one("#why").get_attribute("value") == "because"
    # Somebody else answers the one that is open: it is said so, and nothing takes its place.
    open_id = browser.one(".call").get_attribute("data-key")
    assert open_id in [call["id"] for call in first]
    assert world.answer(str(open_id), "deny", "bob", "mine")[0] == 200
    browser.one(".outcome.denied", "Denied by bob")
    assert browser.all(".answer") == []
    browser.until(lambda: len(browser.all(".calls li")) == 2)
    # The agent hangs up: the rest is gone.
    world.agent.close()
    browser.one(".calls", "") if browser.all(".calls li") else None
    browser.until(lambda: not browser.all(".calls li"))
    assert browser.js("return window.same")


def test_two_people_answer_one_call(enter: Enter, world: World, browser: Browser) -> None:
    call = world.agent.calls("desk__post", {"text": "once"})
    (waiting,) = world.until_waiting(1)
    enter("alice")
    read(browser)
    # The page has not heard of bob's answer when alice presses.
    browser.js("window.fetch = ((real) => (...a) => window.held ?? real(...a))(window.fetch)")
    assert world.answer(waiting["id"], "approve", "bob")[0] == 200
    browser.js("document.querySelector('.deny')?.click()")
    browser.one(".outcome", "Approved")
    assert "by bob" in browser.text(".outcome")
    assert call.result(40)[0] == 200


def test_a_viewer_looks_and_answers_nothing(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", {"text": "look at me"})
    (waiting,) = world.until_waiting(1)
    enter("vera")
    browser.one(".call", "look at me")
    browser.one(".foot", "You are signed in as a viewer")
    assert browser.all(".answer, .approve, .deny") == []
    browser.press("a", Keys.ENTER)
    for what in ("approve", "deny"):
        status, problem = world.answer(waiting["id"], what, "vera")
        assert (status, problem["reason"]) == (403, "role")
    assert [call["state"] for call in world.waiting()] == ["waiting"]


def test_the_keyboard_alone(enter: Enter, world: World, browser: Browser) -> None:
    calls = [world.agent.calls("desk__post", {"text": f"number {i}"}) for i in range(1)]
    world.until_waiting(1)
    for i in range(1, 4):
        calls.append(world.agent.calls("desk__post", {"text": f"number {i}"}))
        world.until_waiting(i + 1)
    browser.fresh(world.page)
    browser.one("#token")
    browser.press(token("alice"), Keys.ENTER)
    browser.one(".call", "number 0")
    browser.press("j")
    browser.one(".call", "number 1")
    browser.press("j", "j", "j", "k")
    browser.one(".call", "number 2")
    read(browser)
    browser.press("a")
    assert browser.js("return document.activeElement.id") == "why"
    browser.one(".hint", "Enter to approve")
    browser.press(Keys.ESCAPE)
    assert browser.js("return document.activeElement.tagName") == "A"
    assert len(world.waiting()) == 4
    browser.press("d", "too late", Keys.ENTER)
    assert calls[2].result(40)[0] == 403
    browser.one(".call", "number 3")
    time.sleep(READ)
    browser.press("a", Keys.ENTER)
    assert calls[3].result(40)[0] == 200
    browser.one(".call", "number 1")
    browser.press("?")
    browser.one("dialog", "approve: write a reason")
    browser.press("d")
    assert browser.js("return document.activeElement.id") != "why"
    browser.press(Keys.ESCAPE)
    browser.gone("dialog")
    browser.press("4")
    browser.one("main[data-section=servers] h2", "desk")
    browser.press("1")
    browser.one(".call", "number 0")


def test_no_key_answers_what_nobody_has_read(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", {"text": "one"})
    world.agent.calls("desk__post", {"text": "two"})
    world.until_waiting(2)
    enter("alice")
    browser.one(".call .answer")
    browser.press("a", Keys.ENTER)
    time.sleep(READ)
    assert len(world.waiting()) in (1, 2)
    left = len(world.waiting())
    # Held down, Enter and the letters are one press.
    hold = """
      const to = document.activeElement;
      for (const key of ["a", "Enter", "d", "Enter"])
        to.dispatchEvent(new KeyboardEvent("keydown", {key, repeat: true, bubbles: true}));
    """
    browser.js(hold)
    time.sleep(READ)
    assert len(world.waiting()) == left


def test_single_keys_can_be_switched_off(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", {"text": "one"})
    world.until_waiting(1)
    enter("alice")
    read(browser)
    browser.click("#help")
    browser.click("#keys-on")
    browser.press(Keys.ESCAPE)
    browser.press("a")
    assert browser.js("return document.activeElement.id") != "why"
    browser.click("#help")
    browser.click("#keys-on")
    browser.press(Keys.ESCAPE)
    browser.js("document.activeElement.blur()")
    browser.press("a")
    assert browser.js("return document.activeElement.id") == "why"
    browser.js("localStorage.clear()")


def test_compared_with_the_call_approved_before(
    enter: Enter, world: World, browser: Browser
) -> None:
    before = {"text": "Dear Anna,\nthe fee is 100 EUR.", "to": "anna", "n": 1, "tags": ["a", "b"]}
    world.agent.calls("desk__post", before)
    (first,) = world.until_waiting(1)
    world.answer(first["id"], "approve", "bob")
    world.until_waiting(0)
    now = {"text": "Dear Anna,\nthe fee is 900 EUR.", "n": 1, "tags": ["a", "c"], "cc": "eve"}
    world.agent.calls("desk__post", now)
    enter("alice")
    told = browser.one(".compare").text
    assert told.startswith("Compared with the call approved ")
    assert told.endswith("by bob: 2 changed, 1 new, 1 gone, 1 the same.")
    by_mark = {
        mark: [each.text.split()[0] for each in browser.all(f".read > .args > .{mark} > dt")]
        for mark in ("changed", "new", "gone", "same")
    }
    assert by_mark == {"changed": ["text", "tags"], "new": ["cc"], "gone": ["to"], "same": ["n"]}
    marks = [each.text for each in browser.all(".read > .args > .changed mark")]
    assert marks == ["900", "100"]


def test_labels_and_the_results_that_brought_them(
    enter: Enter, world: World, browser: Browser
) -> None:
    assert world.agent.calls("desk__fetch").result(40)[0] == 200
    world.agent.calls("desk__post", {"text": "what I read"})
    enter("olga")
    browser.one(".call h3", "Labels of agent")
    browser.one(".call .chip.label", "outside")
    browser.one(".call .sources li", "desk__fetch")
    browser.one(".calls .chip.label", "outside")
    browser.press("3")
    browser.one("main[data-section=sessions] .sources li", "desk__fetch")
    browser.click(".rows button", "Forget")
    browser.click("dialog .danger", "Forget")
    browser.one(".notice", "Forgot the labels of agent.")
    browser.one(".empty", "Nobody has read anything from outside.")


def test_on_a_phone(enter: Enter, world: World, browser: Browser) -> None:
    call = world.agent.calls("desk__post", {"text": "from the road"})
    world.agent.calls("desk__post", {"text": "another"})
    world.until_waiting(2)
    enter("alice", size=PHONE)
    browser.until(lambda: len(browser.all(".calls li")) == 2)
    assert browser.all(".call") == []
    link = next(
        each["id"]
        for each in world.waiting()
        if world.ask("GET", f"/v1/calls/{each['id']}")[1]["args"]["text"] == "from the road"
    )
    browser.click(f'.calls a[href="#/waiting/{link}"]')
    browser.one(".call", "from the road")
    assert browser.all(".calls li") == []
    browser.click(".back")
    browser.until(lambda: len(browser.all(".calls li")) == 2)
    browser.click(f'.calls a[href="#/waiting/{link}"]')
    read(browser)
    browser.click(".approve")
    assert call.result(40)[0] == 200
    browser.until(lambda: len(browser.all(".calls li")) == 1)
