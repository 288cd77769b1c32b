"""Arguments, names and texts that attack whoever reads them, and sites that attack the page."""

from __future__ import annotations

import socket
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.page.browser import PHONE, Browser
from tests.page.conftest import Enter, World, token

SCRIPTS = {
    "script": "<script>window.pwned = 1</script>",
    "image": '<img src=x onerror="window.pwned = 1">',
    "svg": "<svg onload=window.pwned=1><style>*{display:none}</style></svg>",
    "closing": '"></textarea></title></script><iframe srcdoc="<script>top.pwned=1</script>">',
    "url": "javascript:window.pwned=1//",
    "template": "{{constructor.constructor('window.pwned=1')()}} ${window.pwned=1} <%= 7*7 %>",
    "<b onclick=window.pwned=1>key</b>": {"<i>inner</i>": ["<u>item</u>"]},
    "__proto__": {"polluted": "<b>yes</b>"},
    "constructor": "a key like any other",
}


def shown(browser: Browser, key: str) -> str:
    """What stands beside an argument, as it is drawn."""
    script = """
      for (const term of document.querySelectorAll(".call .args dt"))
        if (term.firstElementChild?.textContent === arguments[0]) return term.nextSibling.innerText;
    """
    return str(browser.js(script, key))


def test_each_rule_that_asks_says_why(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__fetch").result(40)
    world.agent.calls("desk__post", {"text": "x"})
    enter("alice")
    rules = (
        "return [...document.querySelectorAll('.call ul.plain li')].map((each) => each.innerText)"
    )
    browser.one(".call .args")
    assert browser.js(rules)[:4] == [
        "gating/gated",
        "approval is needed: desk__post may change something",
        "labels/after-outside",
        "approval is needed: content from outside was read before desk__post",
    ]


def test_markup_is_text(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", SCRIPTS)
    enter("alice")
    browser.one(".call .args")
    for key, value in SCRIPTS.items():
        if isinstance(value, str):
            assert shown(browser, key) == value
    assert shown(browser, "<i>inner</i>") == "1.\n<u>item</u>"
    assert shown(browser, "polluted") == "<b>yes</b>"
    # The description of the tool is hostile as well.
    assert "<img src=x onerror=alert(1)> Posts U+202Etxt.exeU+202C, {{7*7}} ${7*7} </script>" in (
        browser.text(".call .about")
    )
    names = "script, style, img, svg, iframe, textarea, b, i, u, object, embed, base, meta"
    assert browser.js(f"return document.body.querySelectorAll('{names}').length") == 0
    assert browser.js("return [window.pwned, {}.polluted, document.title]") == [
        None,
        None,
        "(1) sidecar",
    ]


UNSEEN = {
    "override": ("invoice\u202egnp.exe", "invoiceU+202Egnp.exe"),
    "isolates": ("a\u2066b\u2069c\u200fd", "aU+2066bU+2069cU+200Fd"),
    "zero width": ("pay\u200bpal\u2060\ufeff", "payU+200BpalU+2060U+FEFF"),
    "spaces": ("rm\u00a0-rf\u3000/", "rmU+00A0-rfU+3000/"),
    "controls": ("a\rb\x1b[2Kc\x00d\x7fe\u0085f", "aU+000DbU+001B[2KcU+0000dU+007FeU+0085f"),
    "tags": ("hi\U000e0041\U000e0042", "hiU+E0041U+E0042"),
    "private": ("x\ue000y\U0010ffffz", "xU+E000yU+10FFFFz"),
    "fillers": ("a\u3164b\u115fc\u2800d", "aU+3164bU+115FcU+2800d"),
    "soft hyphen": ("ad\u00admin", "adU+00ADmin"),
    "separators": ("one\u2028two\u2029", "oneU+2028twoU+2029"),
    "marks": ("z" + "\u0335" * 40 + "algo", "z40 combining marksalgo"),
    "honest": ("Zoë says: 日本語 \U0001f600 ✔️ שלום", "Zoë says: 日本語 \U0001f600 ✔️ שלום"),
    "lines": ("one\ntwo", "one\ntwo"),
    "k\u202eey\u200b": ("v", "v"),
}


def test_what_cannot_be_seen_is_shown(enter: Enter, world: World, browser: Browser) -> None:
    world.agent.calls("desk__post", {key: value for key, (value, _) in UNSEEN.items()})
    enter("alice")
    browser.one(".call .args")
    drawn = {key: shown(browser, key) for key in UNSEEN if key.isprintable()}
    assert drawn == {key: want for key, (_, want) in UNSEEN.items() if key.isprintable()}
    assert browser.one(".call .args", "kU+202EeyU+200B")
    title = browser.js("return document.querySelector('.unseen').title")
    assert title == "right-to-left override"


def test_numbers_and_keys_are_those_that_are_sent(
    enter: Enter, world: World, browser: Browser
) -> None:
    exact = {
        "large": 12345678901234567890,
        "precise": 9007199254740993,
        "real": 1.0,
        "exponent": 1e300,
        "10": "ten",
        "9": "nine",
        "yes": True,
        "nothing": None,
        "text": "true",
        "empty": "",
        "no items": [],
        "no keys": {},
    }
    world.agent.calls("desk__post", exact)
    enter("alice")
    browser.one(".call .args")
    order = browser.js(
        "return [...document.querySelectorAll('.read > .args > div > dt')].map(x => x.innerText)"
    )
    assert order == list(exact)
    drawn = [shown(browser, key) for key in exact]
    assert drawn[:3] == ["12345678901234567890", "9007199254740993", "1.0"]
    assert float(drawn[3]) == 1e300
    assert drawn[4:] == ["ten", "nine", "true", "null", "true", "empty text", "[ ]", "{ }"]
    values = "[...document.querySelectorAll('.read > .args > div > dd > *')]"
    assert browser.js(f"return {values}.map(x => x.className)")[6:9] == ["word", "word", "string"]


def test_long_values_are_folded_and_can_all_be_read(
    enter: Enter, world: World, browser: Browser
) -> None:
    text = "begin " + "".join(f"{i:06d} " for i in range(8_000)) + "the end"
    lines = "\n".join(f"line {i}" for i in range(100))
    deep: dict[str, Any] = {"bottom": "reached"}
    for _ in range(20):
        deep = {"down": deep}
    many = [f"item {i}" for i in range(500)]
    args = {"text": text, "lines": lines, "deep": deep, "many": many}
    world.agent.calls("desk__post", args)
    enter("alice")
    browser.one(".call .args")
    assert "begin 000000" in shown(browser, "text")
    assert shown(browser, "text").endswith("the end")
    assert f"{len(text) - 820:,} more characters" in shown(browser, "text")
    assert "line 13" in shown(browser, "lines")
    assert "line 14\n" not in shown(browser, "lines")
    assert "460 more entries" in shown(browser, "many")
    assert "reached" not in browser.text(".call")
    assert "4 parts of this call are folded" in browser.text(".folded")
    browser.press("e")
    assert browser.text(".folded") == ""
    assert browser.all(".fold") == []
    assert shown(browser, "text") == text
    assert shown(browser, "lines") == lines
    assert "item 499" in shown(browser, "many")
    assert "reached" in browser.text(".call")


def test_a_difference_in_the_middle_of_a_long_text_is_in_view(
    enter: Enter, world: World, browser: Browser
) -> None:
    words = [f"word{i}" for i in range(5_000)]
    world.agent.calls("desk__post", {"text": " ".join(words)})
    (first,) = world.until_waiting(1)
    world.answer(first["id"], "approve", "bob")
    world.until_waiting(0)
    words[2_500] = "EVIL"
    world.agent.calls("desk__post", {"text": " ".join(words)})
    enter("alice")
    assert browser.one(".call mark").text == "EVIL"
    assert "word2499 EVIL word2501" in shown(browser, "text")
    assert browser.text(".was mark") == "word2500"


@pytest.mark.parametrize("size", [PHONE, (320, 640), (1280, 860)], ids=["phone", "small", "wide"])
def test_nothing_is_wider_than_the_screen(
    enter: Enter, world: World, browser: Browser, size: tuple[int, int]
) -> None:
    wide = {"W" * 300: "x" * 500, "nested": {"a": {"b": {"c": {"d": "y" * 200}}}}, "n": 10**60}
    world.agent.calls("desk__post", wide)
    (waiting,) = world.until_waiting(1)
    enter("alice", size=size)
    for section in (
        f"waiting/{waiting['id']}",
        "history",
        "sessions",
        "servers",
        "tools",
        "policy",
    ):
        browser.js(f"location.hash = '#/{section}'")
        browser.one(f"main[data-section={section.partition('/')[0]}]")
        if section.startswith("waiting"):
            browser.one(".call .args")
            browser.press("e")
            browser.one(".call .args", "y" * 200)
            browser.one(".call .args", "W" * 300)
        for part in ("document.documentElement", "document.querySelector('main')"):
            overflow = browser.js(f"const e = {part}; return e.scrollWidth - e.clientWidth")
            assert overflow <= 0, section
    assert browser.one("#live")


# ------------------------------------------------------------------------------- other sites


def test_the_policy_is_in_force(enter: Enter, world: World, browser: Browser) -> None:
    """The tests of this folder hold that the page itself violates nothing; here is that anything
    which did would be told."""
    enter("alice")
    script = """
      const told = arguments[0];
      const seen = [];
      document.addEventListener("securitypolicyviolation", (e) => seen.push(e.effectiveDirective));
      const script = document.createElement("script");
      try { script.textContent = "window.pwned = 1"; document.head.append(script); }
      catch (e) { seen.push(e.name); }
      try { document.body.innerHTML = "<b>x</b>"; } catch (e) { seen.push(e.name); }
      const style = document.createElement("style");
      style.textContent = "body { display: none }";
      document.head.append(style);
      document.querySelector("main").setAttribute("style", "display: none");
      const image = document.createElement("img");
      image.src = "http://127.0.0.1:9/x.png";
      fetch("http://127.0.0.1:9/").catch(() => {});
      setTimeout(() => told([seen, window.pwned ?? null]), 300);
    """
    seen, pwned = browser.driver.execute_async_script(script)
    assert pwned is None
    assert {"TypeError", "style-src-elem", "style-src-attr", "img-src", "connect-src"} <= set(seen)
    assert browser.js("return getComputedStyle(document.querySelector('main')).display") != "none"
    browser.console()


ATTACK = """<!doctype html><title>somewhere else</title>
<form id=f method=post enctype="text/plain" action="%(approve)s">
<input name='{"why": "' value='"}'></form>
<iframe name=frame id=frame src="%(page)s"></iframe>
<script>
window.done = (async () => {
  const found = [];
  const bearer = {authorization: "Bearer %(token)s"};
  const json = {"content-type": "application/json"};
  for (const [mode, headers, type] of [
    ["no-cors", {}, "text/plain"], ["cors", {}, "text/plain"],
    ["cors", json], ["cors", {...json, ...bearer}],
  ]) try {
    const r = await fetch("%(approve)s", {method: "POST", mode, headers, body: '{"why": "csrf"}'});
    found.push(r.type + " " + r.status);
  } catch (e) { found.push(e.name); }
  try { const r = await fetch("%(calls)s", {headers: bearer}); found.push(await r.text()); }
  catch (e) { found.push(e.name); }
  return found;
})();
</script>"""


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, dict[str, str]]]:
    """A site of another origin; its page is what the dictionary makes of ATTACK."""
    given: dict[str, str] = {}

    class Site(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = (ATTACK % given).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://localhost:{server.server_port}/", given
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_another_site_answers_nothing(
    world: World, browser: Browser, elsewhere: tuple[str, dict[str, str]]
) -> None:
    url, given = elsewhere
    world.agent.calls("desk__post", {"text": "forged"})
    (waiting,) = world.until_waiting(1)
    given["page"] = world.page + "/"
    given["calls"] = world.page + "/v1/calls"
    given["approve"] = f"{given['calls']}/{waiting['id']}/approve"
    # Even one that knows a token: it would be a page of another origin all the same.
    given["token"] = token("alice")
    browser.fresh(url)
    found = browser.js("return window.done")
    assert found == ["opaque 0", "TypeError", "TypeError", "TypeError", "TypeError"]
    browser.js(
        "document.getElementById('f').target = 'frame'; document.getElementById('f').submit()"
    )
    time.sleep(0.5)
    assert [call["state"] for call in world.waiting()] == ["waiting"]
    frame = browser.js(
        "try { return document.getElementById('frame').contentDocument?.body?.innerText ?? '' }"
        "catch { return 'closed' }"
    )
    assert frame in ("closed", "")
    assert any("frame-ancestors" in line for line in browser.console())


def test_a_rebound_name_shows_nothing(world: World, browser: Browser) -> None:
    port = urllib.parse.urlsplit(world.page).port
    browser.fresh(f"http://rebound.test:{port}/")
    assert "this host is not served here" in browser.text()
    browser.fresh(f"http://localhost:{port}/")
    browser.one("#token")


def test_two_hosts_are_none(world: World) -> None:
    url = urllib.parse.urlsplit(world.page)
    with socket.create_connection(("127.0.0.1", url.port or 0), timeout=60) as sock:
        sock.sendall(b"GET /v1/me HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n")
        assert sock.recv(100).split()[1] == b"400"
