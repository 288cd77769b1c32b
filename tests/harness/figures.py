"""What works cost: ``python -m tests.harness.figures [files] [works]``, printed as a table.

Beside them what plain git needs for the same, and a clone of its own for each work.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.harness.kit import Desk, commit, git, write


def timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def row(what: str, *milliseconds: float) -> None:
    print(f"| {what} | {statistics.median(milliseconds):.0f} |", flush=True)


def disk(path: Path) -> int:
    """KiB that a directory takes of its own."""
    out = subprocess.run(["du", "-sk", str(path)], capture_output=True, text=True, check=True)
    return int(out.stdout.split()[0])


def fill(desk: Desk, files: int) -> None:
    chance = random.Random(1)
    for number in range(files):
        text = chance.randbytes(3000).hex()
        write(
            desk.repo / f"d{number % 50}" / f"f{number}.txt",
            "\n".join(text[i : i + 60] for i in range(0, 6000, 60)),
        )
    commit(desk.repo, "files")
    git(desk.repo, "gc", "--quiet")


async def measure(directory: Path, files: int, count: int) -> None:
    desk = await Desk(directory).open()
    fill(desk, files)
    loop = asyncio.get_running_loop()
    print(f"| {files} files, {count} works | ms |\n|---|---|")

    times = []
    works = []
    for number in range(count):
        began = loop.time()
        works.append(await desk.work(f"w{number}"))
        times.append((loop.time() - began) * 1000)
    row("make a work", *times)
    plain = []
    for number in range(5):
        args = ("worktree", "add", "--quiet", "-b", f"p{number}", str(directory / f"p{number}"))
        plain.append(timed(functools.partial(git, desk.repo, *args)))
    row("`git worktree add`", *plain)
    os.sync()  # what was never written is removed for nothing
    plain = [timed(functools.partial(shutil.rmtree, directory / f"p{n}")) for n in range(5)]
    row("`rm -r` of it", *plain)
    for kind in ("--shared", "--local"):
        target = directory / f"clone{kind}"
        args = ("clone", "--quiet", kind, str(desk.repo), str(target))
        row(f"`git clone {kind}`", timed(functools.partial(git, directory, *args)))
        print(f"| … KiB in its `.git` | {disk(target / '.git')} |")
    print(f"| … of a worktree | {disk(desk.admin(works[0]))} |")

    async def rounds(what: str, action: Callable[[], object], number: int = 5) -> None:
        found = []
        for _ in range(number):
            began = loop.time()
            await action()  # type: ignore[misc]
            found.append((loop.time() - began) * 1000)
        row(what, *found)

    await rounds("open a work again", lambda: desk.work("w0"))
    await rounds("state of a work", lambda: desk.works.state(works[0].key))
    await rounds(f"sweep, {count} empty", desk.works.sweep)
    for number, work in enumerate(works):
        write(work.path / f"work{number}.txt", "x")
        commit(work.path, "work")
    await rounds(f"sweep, {count} not landed", desk.works.sweep)
    for work in works:
        desk.land(work)
    for work in works:
        write(work.path / "notes", "x")
    await rounds(f"sweep, {count} landed and dirty", desk.works.sweep, 2)
    for work in works:
        (work.path / "notes").unlink()
    await rounds(f"dry run, {count} landed", lambda: desk.works.sweep(dry_run=True), 2)
    os.sync()
    await rounds(f"sweep that removes {count}", desk.works.sweep, 1)
    assert await desk.works.works() == []
    await rounds("sweep of nothing", desk.works.sweep)
    await desk.works.close()


def main() -> None:
    files, count = (int(arg) for arg in (sys.argv[1:] + ["2000", "20"][len(sys.argv) - 1 :]))
    directory = Path(tempfile.mkdtemp())
    try:
        asyncio.run(measure(directory, files, count))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
