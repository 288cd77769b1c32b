"""Ancestry: what cannot be seen is refused."""

from __future__ import annotations

import os

import pytest

from sidecar.admin.peer import descends, parent_of


@pytest.mark.parametrize(
    ("parents", "pid", "expected"),
    [
        ({30: 20, 20: 10}, 30, True),
        ({30: 20, 20: 1}, 30, False),
        ({30: 20, 20: 0}, 30, False),
        ({30: 20}, 30, True),  # 20 has gone: it cannot be shown that 30 is a stranger
        ({30: 31, 31: 30}, 30, True),  # never the answer of a loop without end
        ({}, 10, True),
        ({}, 1, False),
    ],
)
def test_descends(parents: dict[int, int], pid: int, expected: bool) -> None:
    assert descends(pid, frozenset({10}), parents.get) is expected


def test_parent_of_is_the_kernels_word() -> None:
    assert parent_of(os.getpid()) == os.getppid()
    assert parent_of(2**22 + 1) is None
