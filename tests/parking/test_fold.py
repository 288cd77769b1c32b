"""What ``sidecar calls show`` leaves out until it is asked for."""

from __future__ import annotations

from typing import Any

from sidecar.cli.calls import FOLDED, _fold


def test_folded_values_are_not_printed() -> None:
    call: dict[str, Any] = {
        "folded": ["/password", "/list/1/key", "/gone/far", "/list/9"],
        "args": {"password": "p", "list": [1, {"key": "k", "b": 2}], "user": "u"},
        "compared": {
            "args": {"password": {"old": "p"}, "list": [1]},
            "differences": [
                {"path": "/password/old", "before": "p"},
                {"path": "/list/1/key", "now": "k"},
                {"path": "/passwords", "before": 1, "now": 2},
            ],
        },
    }
    assert _fold(call) == {
        "folded": call["folded"],
        "args": {"password": FOLDED, "list": [1, {"key": FOLDED, "b": 2}], "user": "u"},
        "compared": {
            "args": {"password": FOLDED, "list": [1]},
            "differences": [
                {"path": "/password/old", "before": FOLDED},
                {"path": "/list/1/key", "now": FOLDED},
                {"path": "/passwords", "before": 1, "now": 2},
            ],
        },
    }
    assert call["args"]["password"] == "p", "the call itself stays as it is"
    assert _fold({"args": {"a": 1}}) == {"args": {"a": 1}}
