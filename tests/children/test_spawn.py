"""What a child is given, and what is said when it cannot be started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sidecar import children, processes

PYTHON = sys.executable


@asynccontextmanager
async def running(code: str, **options: object) -> AsyncIterator[children.Child]:
    env = options.pop("env", {})
    child = await children.spawn([PYTHON, "-c", code], env=env, name="t", **options)  # type: ignore[arg-type]
    try:
        yield child
    finally:
        await child.end(1)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - there is nothing that could tell us
            await asyncio.sleep(0.01)


async def test_environment_is_six_names_and_env_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("TERM", "dumb")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    async with running(code, env={"A": "1", "LANG": "C.UTF-8"}) as child:
        got = json.loads(await child.stdout.read())
    got.pop("LC_CTYPE", None)  # Python sets it for itself in the C locale
    expected = {key: os.environ[key] for key in children.INHERITED if key in os.environ}
    assert got == {**expected, "A": "1", "LANG": "C.UTF-8"}


async def test_a_session_no_descriptors_no_blocked_or_ignored_signals() -> None:
    code = """
import json, os
status = dict(l.split(":", 1) for l in open("/proc/self/status"))
print(json.dumps({
    "sid": os.getsid(0), "pgid": os.getpgid(0), "pid": os.getpid(),
    "fds": sorted(os.listdir("/proc/self/fd"), key=int)[:-1],
    "blocked": int(status["SigBlk"], 16),
}))
"""
    leak, other = os.pipe()
    os.set_inheritable(leak, True)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        async with running(code) as child:
            got = json.loads(await child.stdout.read())
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask | {
            signal.SIGTERM,
            signal.SIGUSR1,
        }
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(leak)
        os.close(other)
    assert got == {
        "sid": child.pid,
        "pgid": child.pid,
        "pid": child.pid,
        "fds": ["0", "1", "2"],
        "blocked": 0,
    }


async def test_the_kernel_kills_it_when_its_parent_dies() -> None:
    if not children._dies_with_us():
        pytest.skip("no setpriv with --pdeathsig on this machine")
    code = """
import ctypes
value = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(value))
print(value.value)
"""
    async with running(code) as child:
        assert await child.stdout.read() == b"9\n"


async def test_works_without_setpriv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_dies_with_us", lambda: ())
    async with running("print('here')") as child:
        assert await child.stdout.read() == b"here\n"


async def test_cwd(tmp_path: Path) -> None:
    async with running("import os; print(os.getcwd())", cwd=tmp_path) as child:
        assert await child.stdout.read() == os.fsencode(tmp_path) + b"\n"


async def test_a_line_of_any_length_comes_in_chunks() -> None:
    size = 20 << 20
    code = f"import sys; sys.stdout.write('x' * {size})"
    async with running(code) as child:
        got = 0
        while chunk := await child.stdout.read(1 << 16):
            got += len(chunk)
    assert got == size


async def test_stdin_reaches_it_and_back() -> None:
    async with running("import sys; print(sys.stdin.readline().upper())") as child:
        child.stdin.write(b"hello\n")
        await child.stdin.drain()
        assert (await child.stdout.readline()) == b"HELLO\n"


async def test_stderr_is_kept_bounded_and_never_blocks_it() -> None:
    code = "import os; os.write(2, b'a' * 3_000_000 + b' the end \\xff'); print('done')"
    async with running(code) as child:
        assert await child.stdout.readline() == b"done\n"
        await child.wait()
        await until(lambda: child.tail().endswith(" the end \ufffd"))
    assert len(child.tail()) == (64 << 10) + 1
    assert child.tail().startswith("…aaa")


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
async def test_status(code: str, status: int) -> None:
    async with running(code) as child:
        assert await child.wait() == status
        assert child.returncode == status


async def failure(*command: str, **options: object) -> str:
    with pytest.raises(children.SpawnError) as caught:
        await children.spawn(command, name="git", **{"env": {}, **options})  # type: ignore[arg-type]
    return str(caught.value)


async def test_unknown_command_names_server_and_command_but_no_argument() -> None:
    said = await failure("no-such-command", "--token=s3cret")
    assert said == (
        "server 'git': command 'no-such-command' is not on PATH; install it or give its full path"
    )


async def test_what_is_no_server_is_called_what_it_is() -> None:
    said = await failure("/no/such", called="coding agent")
    assert said.startswith("coding agent 'git': command '/no/such' does not exist")


async def test_path_of_env_is_the_one_that_counts(tmp_path: Path) -> None:
    said = await failure("sleep", "1", env={"PATH": str(tmp_path)})
    assert "'sleep' is not on PATH" in said


async def test_missing_file() -> None:
    assert "command '/no/such' does not exist" in await failure("/no/such", "s3cret")


async def test_missing_directory(tmp_path: Path) -> None:
    said = await failure("sleep", "1", cwd=tmp_path / "gone")
    assert said == f"server 'git': its working directory {tmp_path / 'gone'} does not exist"


async def test_not_executable(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text("hello")
    assert "may not be run" in await failure(str(path))


@pytest.mark.parametrize("setpriv", [True, False])
async def test_interpreter_of_a_script_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setpriv: bool
) -> None:
    if not setpriv:
        monkeypatch.setattr(children, "_dies_with_us", lambda: ())
    path = tmp_path / "script"
    path.write_text("#!/no/such/interpreter\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    assert "or the interpreter it names does not" in await failure(str(path))


async def test_nul_in_arguments() -> None:
    said = await failure("sleep", "s3cret\0")
    assert "NUL" in said
    assert "s3cret" not in said


async def test_a_cancelled_spawn_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pids: list[int] = []

    async def hang(child: children.Child) -> None:
        pids.append(child.pid)
        await asyncio.sleep(60)

    monkeypatch.setattr(children.Child, "_connect", hang)
    task = asyncio.create_task(children.spawn(["sleep", "60"], env={}, name="t"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: (process := processes.read(pids[0])) is None or process.dead)


async def test_descendants_are_all_and_parents_come_first() -> None:
    child = await children.spawn(["/bin/sh", "-c", "sh -c 'sleep 60; :' & wait"], env={}, name="t")
    try:
        await until(lambda: len(children.descendants(child.pid)) == 2)
        found = children.descendants(child.pid)
        table = processes.table()
        assert table[found[0]].parent == child.pid
        assert table[found[1]].parent == found[0]
        assert child.pid in children.descendants(os.getpid())
    finally:
        await child.end(0.1)
