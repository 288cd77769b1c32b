"""docs/egress.md is true: its files load, and its commands print what it shows, in its order."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from sidecar.cli import main
from sidecar.config import load
from sidecar.egress import own, proxy
from sidecar.egress.follow import MOST_HOPS

PAGE = (Path(__file__).parents[2] / "docs" / "egress.md").read_text()
PARTS = re.compile(r"^(?:`([\w.]+)`:\n\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIDECAR_CONFIG", raising=False)
    monkeypatch.setattr(own, "gateways", frozenset)
    ran, printed = 0, ""
    for name, kind, body in PARTS.findall(PAGE):
        if kind == "sh":
            words = shlex.split(body)
            assert words[0] == "sidecar"
            code = main(words[1:])
            printed = capsys.readouterr().out
            assert code == (4 if "may not be dialled" in printed else 0)
            ran += 1
        elif kind == "text":
            assert printed == body
        else:
            assert name, f"a block of {kind} without a file's name"
            (tmp_path / name).write_text(body)
    assert ran == 5
    (tmp_path / "token").write_text("t0ken")
    file = tmp_path / "proxy.yaml"
    file.write_text(file.read_text().replace("/secrets/app", str(tmp_path / "token")))
    config = load(file, environ={})
    assert (config.proxy_listen is not None, list(config.proxy.clients)) == (True, ["app"])


def test_numbers_that_the_page_tells() -> None:
    assert f"at most {['', '', '', '', '', 'five'][MOST_HOPS]}," in PAGE
    assert f"There are {proxy.HEAD_WAIT:.0f} s for a request's head and" in PAGE
    assert f"{proxy.CONNECT_WAIT:.0f} s to connect." in PAGE
    assert f"`{own.NODE_VARIABLE}`" in PAGE
