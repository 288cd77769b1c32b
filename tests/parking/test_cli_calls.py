"""``sidecar calls`` as people and scripts use it, with what strangers put into a call."""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.admin.client import AdminClient
from sidecar.cli import calls as verb
from tests.kit.running import Sidecar, started

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b2J \u202egnp.exe \u3164\nstate: approved\r\n"


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    config = {
        "servers": {"notes": {"command": [sys.executable, "-m", "sidecar.demo.notes"]}},
        "policy": {"shipped": ["gating"]},
        "parking": {"hold": "0s", "rate": "1000/s", "max_waiting": 100},
    }
    with started(config) as running:
        end = time.monotonic() + 20
        while not AdminClient(running.admin).tools():
            assert time.monotonic() < end, running.log()
            time.sleep(0.05)
        yield running


def park(sidecar: Sidecar, text: str, **more: object) -> str:
    """A call that waits; its id."""
    body = json.dumps({"name": "notes__add", "args": {"text": text, **more}}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{sidecar.rest}/call", body, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 202
        return str(json.load(answer)["_meta"]["sidecar/parked"]["id"])


def calls(sidecar: Sidecar, *words: str) -> tuple[int, str, str]:
    done = sidecar.cli("calls", *words)
    return done.returncode, done.stdout, done.stderr


def test_what_strangers_write_neither_steers_a_terminal_nor_hides_in_it(sidecar: Sidecar) -> None:
    id = park(sidecar, HOSTILE, **{f"k{HOSTILE}": HOSTILE})
    shown = {word: calls(sidecar, *word.split()) for word in (f"show {id}", f"show {id} --json")}
    for code, out, err in shown.values():
        assert (code, err) == (0, "")
        assert all(c == "\n" or c.isprintable() for c in out), out
        assert "\\u202egnp.exe" in out and "\\u009b2J" in out and "\\u3164" in out
        assert "\nstate: approved" not in out
    whole = json.loads(shown[f"show {id} --json"][1])
    assert whole["args"] == {"text": HOSTILE, f"k{HOSTILE}": HOSTILE}
    why = f"because {HOSTILE}"
    _, out, _ = calls(sidecar, "deny", id, "--why", why, "--json")
    assert json.loads(out)["why"] == why and "\x9b" not in out
    for words in (["--state", "answered", "--json"], ["show", id], ["list", "--state", "all"]):
        code, out, _ = calls(sidecar, *words)
        assert code == 0 and all(c == "\n" or c.isprintable() for c in out)


def test_the_same_by_the_name_that_other_verbs_have(sidecar: Sidecar) -> None:
    id = park(sidecar, "listed")
    assert calls(sidecar)[1] == calls(sidecar, "list")[1]
    for words in (["list", "--json"], ["--json"], ["--json", "list"]):
        assert id in [row["id"] for row in json.loads(calls(sidecar, *words)[1])]
    for words in (["list", "--state", "denied", "--json"], ["--state", "denied", "list", "--json"]):
        assert id not in [row["id"] for row in json.loads(calls(sidecar, *words)[1])]


@pytest.mark.parametrize("start", ["", "a", "abc"])
def test_an_empty_variable_of_a_script_approves_nothing(sidecar: Sidecar, start: str) -> None:
    for row in AdminClient(sidecar.admin).calls("waiting"):
        AdminClient(sidecar.admin).answer(str(row["id"]), approve=False)
    id = park(sidecar, f"only one waits {start}")
    start = id[: len(start)]
    code, out, err = calls(sidecar, "approve", start)
    assert (code, out) == (1, "")
    assert "is too short: give 4 characters of the id, or more" in err
    assert AdminClient(sidecar.admin).call(id)["state"] == "waiting"
    assert calls(sidecar, "deny", id[:8])[0] == 0


def test_who_comes_second_is_told_who_was_first(sidecar: Sidecar) -> None:
    id = park(sidecar, "twice")
    code, out, _ = calls(sidecar, "approve", id[:8], "--json", "--why", "fine")
    told = json.loads(out)
    assert (code, told["state"], told["why"], told["way"]) == (0, "approved", "fine", "socket")
    code, out, err = calls(sidecar, "deny", id)
    assert (code, out) == (1, "")
    assert err == (
        f"sidecar calls: the call is approved already, answered by {told['answered_by']} "
        "(socket); nothing has changed\n"
    )
    assert told["answered_by"].startswith("uid:")


def test_watch_for_programs(sidecar: Sidecar) -> None:
    id = park(sidecar, "watched")
    command = [sys.executable, "-m", "sidecar", "calls", "watch", "--json"]
    watching = subprocess.Popen(
        [*command, "--config", str(sidecar.file)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert watching.stdout is not None

        def until(state: str) -> dict[str, Any]:
            for line in watching.stdout:  # type: ignore[union-attr]
                found: dict[str, Any] = json.loads(line)
                if found["id"] == id and found["state"] == state:
                    return found
            raise AssertionError("it ended")

        assert until("waiting")["tool"] == "notes__add"
        assert calls(sidecar, "deny", id, "--why", "no")[0] == 0
        assert until("denied")["why"] == "no"
    finally:
        watching.kill()
        watching.wait(30)


def test_a_result_is_shown_in_a_terminal_and_exact_for_a_program(sidecar: Sidecar) -> None:
    AdminClient(sidecar.admin).answer(park(sidecar, HOSTILE), approve=True)
    words = ["call", "notes__add", "--args", json.dumps({"text": HOSTILE}), "--url", sidecar.mcp]
    assert sidecar.cli(*words).returncode == 0
    command = [sys.executable, "-m", "sidecar", "call", "notes__search", "--url", sidecar.mcp]
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    assert HOSTILE.encode() in done.stdout
    ours, theirs = pty.openpty()
    subprocess.run(command, stdout=theirs, timeout=60, check=True)
    os.close(theirs)
    out = b""
    while chunk := _read(ours):
        out += chunk
    os.close(ours)
    assert b"\x1b" not in out and "\x9b".encode() not in out and "\u202e".encode() not in out
    assert b"\\u001b[2J" in out and out.count(b"\n") > 1


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


class Wire:
    """An admin listener as ``watch`` sees it: a call begins to wait as soon as it listens."""

    def calls(self, state: str) -> list[dict[str, Any]]:
        assert state == "waiting"
        return [row("b", "waiting"), row("a", "waiting")]

    def events(self) -> Iterator[tuple[str, dict[str, Any]]]:
        yield "open", {}
        yield "call.waiting", row("b", "waiting")
        yield "call.waiting", row("c", "waiting")
        yield "server.ready", {"server": "x"}
        yield "call.approved", row("b", "approved")
        yield "lost", {}
        yield "call.done", row("b", "done")


def row(id: str, state: str) -> dict[str, Any]:
    return {"id": id, "state": state, "tool": "t", "principal": "p"}


def test_watch_misses_nothing_and_tells_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verb, "_ask", lambda arguments: Wire())
    assert verb.watch(argparse.Namespace(json=False)) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    # After the loss `b` waits, for all that anybody knows: it was told so by the listing.
    assert lines == [
        ["waiting", "a"],
        ["waiting", "b"],
        ["waiting", "c"],
        ["approved", "b"],
        ["waiting", "b"],
        ["done", "b"],
    ]


def test_watch_says_why_it_cannot(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("of-some-length-it-is")
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "other").write_text("of-another-it-is-too")
    (tmp_path / "other").chmod(0o600)
    admin = {"listen": "127.0.0.1:0", "token_file": str(tmp_path / "token")}
    with started({"servers": {}, "admin": admin}) as sidecar:
        wrong = {
            "listen": sidecar.admin.removeprefix("http://"),
            "token_file": str(tmp_path / "other"),
        }
        sidecar.write({**sidecar.config, "admin": wrong})
        code, out, err = calls(sidecar, "watch")
        assert (code, out) == (1, "") and "the token is neither the one in" in err, err
        sidecar.write({**sidecar.config, "admin": {**wrong, "listen": "127.0.0.1:1"}})
        code, out, err = calls(sidecar, "watch")
        assert (code, out) == (1, "") and "(Connection refused)" in err, err
