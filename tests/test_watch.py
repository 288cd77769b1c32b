"""Edited, replaced and swapped files are seen; a file in the middle of a write is not read."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.watch import FileWatch, digest

INTERVAL = 0.02


def edit(path: Path) -> None:
    path.write_text("new")


def replace(path: Path) -> None:
    other = path.with_suffix(".tmp")
    other.write_text("new")
    other.rename(path)


def remove(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("change", [edit, replace, remove])
async def test_a_change_is_seen_once(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("old")
    watch = FileWatch([path], INTERVAL)
    change(path)
    await asyncio.wait_for(watch.changed(), 30)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.changed(), 6 * INTERVAL)


async def test_a_config_map_swap_is_seen(tmp_path: Path) -> None:
    """kubelet's AtomicWriter: the file is a link through ``..data``, which is replaced."""
    for version in ("1", "2"):
        (tmp_path / f"..v{version}").mkdir()
        (tmp_path / f"..v{version}" / "sidecar.yaml").write_text(f"version {version}")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "sidecar.yaml").symlink_to("..data/sidecar.yaml")
    watch = FileWatch([tmp_path / "sidecar.yaml"], INTERVAL)
    (tmp_path / "..data_tmp").symlink_to("..v2")
    os.rename(tmp_path / "..data_tmp", tmp_path / "..data")
    await asyncio.wait_for(watch.changed(), 30)


async def test_the_same_content_again_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("same")
    watch = FileWatch([path], INTERVAL)
    replaced = tmp_path / "other"
    replaced.write_text("same")
    replaced.rename(path)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.changed(), 6 * INTERVAL)


async def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "sidecar.yaml"
    # Many writes between two looks; slower on a machine that held up the writer for as long.
    for interval in (0.3, 1.0, 3.0):
        path.write_text("old")
        seen, longest = await written_slowly(path, interval)
        if longest < interval / 2:
            break
    assert seen == "whole"


async def written_slowly(path: Path, interval: float) -> tuple[str, float]:
    """What was there when the change was told, and the longest pause of the writer."""
    watch = FileWatch([path], interval)
    longest = 0.0

    async def write() -> None:
        nonlocal longest
        before = time.monotonic()
        for number in range(40):
            path.write_text(f"part {number}")
            await asyncio.sleep(interval / 15)
            longest, before = max(longest, time.monotonic() - before), time.monotonic()
        path.write_text("whole")

    async def look() -> str:
        await watch.changed()
        return path.read_text()

    _, seen = await asyncio.wait_for(asyncio.gather(write(), look()), 60)
    return seen, longest


async def test_a_pipe_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Opening one waits for whoever writes into it, and that would be for ever."""
    path = tmp_path / "policy.yaml"
    os.mkfifo(path)
    absent = digest([tmp_path / "gone"])
    assert await asyncio.wait_for(asyncio.to_thread(digest, [path]), 30) == absent
    path.unlink()
    path.write_text("now a file")
    assert digest([path]) != absent


def test_a_large_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)
    before = digest([path])
    os.truncate(path, (1 << 40) + 1)
    assert digest([path]) != before
