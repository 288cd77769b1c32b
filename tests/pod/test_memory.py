"""Bounds that fit into the memory of a container, by a cgroup tree of files."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar import memory
from sidecar.config.types import Limits
from sidecar.memory import MIB
from tests.kit.running import running

V1 = "9:name=systemd:/\n4:memory:/kubepods/pod1\n2:cpu,cpuacct:/kubepods/pod1\n"


def tree(root: Path, cgroup: str, **files: str) -> Path:
    """``proc/self/cgroup``, and files of ``sys/fs/cgroup`` by their paths."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for path, text in files.items():
        file = root / "sys/fs/cgroup" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "268435456"}, 256 * MIB),
        ("0::/\n", {"memory.max": "max"}, None),
        ("0::/\n", {}, None),
        ("0::/a/b\n", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000),
        ("0::/a/b\n", {"a/memory.max": "2000", "a/b/memory.max": "1000"}, 1000),
        ("0::/../b\n", {"memory.max": "max", "b/memory.max": "1000"}, None),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        (V1, {"memory/memory.limit_in_bytes": "134217728"}, 128 * MIB),
        (V1, {"memory/kubepods/memory.limit_in_bytes": "134217728"}, 128 * MIB),
        (V1 + "0::/\n", {"memory/memory.limit_in_bytes": "5000", "memory.max": "max"}, 5000),
        ("nonsense\n", {"memory.max": "0"}, None),
        ("", {"memory.max": "\u0663"}, None),
    ],
)
def test_the_limit(
    tmp_path: Path, cgroup: str, files: dict[str, str], expected: int | None
) -> None:
    assert memory.limit(tree(tmp_path, cgroup, **files)) == expected


def test_without_files_there_is_no_limit(tmp_path: Path) -> None:
    assert memory.limit(tmp_path) is None


@pytest.mark.parametrize(
    ("limit", "result", "requests"),
    [
        (64 * MIB, 16 * MIB // 12, 64),
        (128 * MIB, 32 * MIB // 12, 128),
        (256 * MIB, 160 * MIB // 12, 640),
        (1024 * MIB, 16 * MIB, 1024),
    ],
)
def test_what_fits(limit: int, result: int, requests: int) -> None:
    fitted = memory.fitted(Limits(), limit)
    assert (fitted.result, fitted.event, fitted.line, fitted.in_flight) == (
        result,
        result,
        result,
        requests,
    )
    assert fitted.body == min(result, 4 * MIB)


def test_what_is_set_stays() -> None:
    limits = Limits(result=64 * MIB, in_flight=5000, given=frozenset({"result", "in_flight"}))
    fitted = memory.fitted(limits, 128 * MIB)
    assert (fitted.result, fitted.in_flight, fitted.event) == (64 * MIB, 5000, 32 * MIB // 12)
    assert memory.fitted(limits, None) is limits


@given(st.integers(1, 1 << 45))
def test_no_default_grows_and_each_is_of_use(limit: int) -> None:
    fitted, full = memory.fitted(Limits(), limit), Limits()
    for name in ("body", "result", "event", "line"):
        assert memory.LEAST_RESULT <= getattr(fitted, name) <= getattr(full, name)
    assert memory.LEAST_REQUESTS <= fitted.in_flight <= full.in_flight
    more = memory.fitted(Limits(), limit * 2)
    assert (more.result, more.in_flight) >= (fitted.result, fitted.in_flight)


def test_the_line() -> None:
    assert memory.told(memory.fitted(Limits(), 256 * MIB), 256 * MIB) == (
        "memory is limited to 256 MiB: at most 640 requests at once (limits.in_flight), results of "
        "13.3 MiB (limits.result) and bodies of 4.0 MiB (limits.body)"
    )


async def test_the_sidecar_holds_to_it(http: aiohttp.ClientSession, tmp_path: Path) -> None:
    """By a program of one line in front of ``sidecar run``, which says where the files are."""
    root = tree(tmp_path, "0::/\n", **{"memory.max": str(128 * MIB)})
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sidecar.memory as m\n"
        f"from pathlib import Path\nm.limit.__defaults__ = (Path({str(root)!r}),)\n"
    )
    async with running({"limits": {"event": "5MiB"}}, env={"PYTHONPATH": str(site)}) as sidecar:
        assert "memory is limited to 128 MiB: at most 128 requests at once" in sidecar.log()
        headers = {"Content-Type": "application/json", "Content-Length": str(3 * MIB)}
        async with http.post(sidecar.mcp, headers=headers, data=b"x" * (3 * MIB)) as response:
            assert response.status == 413
            assert str(32 * MIB // 12) in await response.text()
