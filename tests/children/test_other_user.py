"""``children.user``: what stdio servers and coding agents are, and what they can reach.

The sidecar starts as it would in a pod (see ``users``): root with a few capabilities, and a
worker that is not root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sidecar.admin.client import AdminClient
from tests.children import users
from tests.children.users import CHILD, SEVEN, SIX, WORKER, limited, mask, needs_users
from tests.harness.agent.kit import command, script
from tests.harness.kit import git, repository
from tests.kit import processes
from tests.kit.running import NotReady, Sidecar

pytestmark = needs_users

Json = dict[str, Any]
PROBE = str(Path(users.__file__).with_name("probe.py"))
NONE = "0" * 16


class Pod:
    """A folder as a pod would have it: each place belongs to whom it should."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pod-"))
        self.folder.chmod(0o755)
        self.run = self.made("run", WORKER)
        self.state = self.made("state", WORKER)
        self.home = self.made("home", CHILD)
        self.worktrees = self.made("worktrees", WORKER, 0o755)
        self.secret = self.folder / "secret"
        self.secret.write_text("a-secret-of-the-sidecar\n")
        self.secret.chmod(0o400)
        os.chown(self.secret, WORKER, WORKER)
        self.checkout = repository(self.folder / "billing")
        self.checkout.chmod(0o755)
        self.sessions = self.home / "sessions"

    def made(self, name: str, owner: int, mode: int = 0o700) -> Path:
        path = self.folder / name
        path.mkdir(mode)
        path.chmod(mode)
        os.chown(path, owner, owner)
        return path

    def give_checkout(self) -> None:
        for top, directories, files in os.walk(self.checkout):
            for name in (".", *directories, *files):
                os.chown(Path(top, name), CHILD, CHILD, follow_symlinks=False)

    def config(self, **more: Any) -> Json:
        agent = [users.python(), *command(store=str(self.sessions))[1:]]
        return {
            "servers": {"prober": {"command": [users.python(), PROBE], "gated": False}},
            "harnesses": {"claude": {"command": agent}},
            "checkouts": {"billing": str(self.checkout)},
            "worktrees": str(self.worktrees),
            "store": f"sqlite://{self.state}/state.db",
            "admin": {"listen": f"unix:{self.run}/admin.sock"},
            "children": {"user": CHILD, "home": str(self.home)},
            "credentials": {
                "x": {"from_file": str(self.secret), "origins": ["https://mcp.example.com"]}
            },
            **more,
        }

    @contextmanager
    def sidecar(
        self, capabilities: tuple[str, ...] = SEVEN, *, worker: str = str(WORKER), **more: Any
    ) -> Iterator[Sidecar]:
        sidecar = Sidecar(
            self.config(**more), prefix=tuple(limited(capabilities)), env={"SIDECAR_USER": worker}
        )
        sidecar.file.parent.chmod(0o755)
        sidecar.file.chmod(0o600)
        os.chown(sidecar.file, WORKER, WORKER)
        try:
            yield sidecar.start()
            if sidecar.running:
                sidecar.stop()
        except BaseException:
            print(sidecar.log(), file=sys.stderr)
            raise
        finally:
            sidecar.kill()

    def targets(self, sidecar: Sidecar) -> str:
        return json.dumps(
            {
                "files": [
                    str(self.secret),
                    f"{self.state}/state.db",
                    str(sidecar.file),
                    f"{self.worktrees}/.sidecar/lock",
                ],
                "sockets": [f"{self.run}/admin.sock"],
                "processes": {"worker": sidecar.worker, "supervisor": sidecar.pid},
            }
        )


@pytest.fixture
def pod() -> Iterator[Pod]:
    pod = Pod()
    yield pod
    shutil.rmtree(pod.folder)


def called(sidecar: Sidecar, tool: str, arguments: Json) -> str:
    request = urllib.request.Request(
        f"{sidecar.rest}/call",
        json.dumps({"name": tool, "args": arguments}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        result = json.load(response)
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


def probed(sidecar: Sidecar, pod: Pod) -> Json:
    return dict(json.loads(called(sidecar, "prober__probe", {"targets": pod.targets(sidecar)})))


def bash(line: str) -> Json:
    call = {"toolCallId": "t", "title": line, "kind": "execute", "rawInput": {"command": line}}
    return {"ask": call, "run": line}


def asked(sidecar: Sidecar, *steps: Json, work: str = "fix-login") -> Json:
    """A task for the scripted agent, and its answer."""
    return dict(json.loads(called(sidecar, "claude", {"task": script(*steps), "work": work})))


REACHED = {
    "secret": "EACCES",
    "state.db": "EACCES",
    "sidecar.yaml": "EACCES",
    "admin.sock": "EACCES",
    "lock": "EACCES",
    **{
        f"{whose} {what}": error
        for whose in ("worker", "supervisor")
        for what, error in (
            ("environ", "EACCES"),
            ("mem", "EACCES"),
            ("fd", "EACCES"),
            ("signal", "EPERM"),
        )
    },
}
"""What a child of another user gets of everything of ours."""


def assert_nobody(found: Json, pod: Pod, bounding: str = NONE) -> None:
    """It is the other user and nothing else, and can become nothing else."""
    assert found["Uid"] == found["Gid"] == [str(CHILD)] * 4
    assert found["Groups"] == []
    capabilities = [found[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")]
    assert capabilities == [[NONE]] * 4
    assert found["CapBnd"] == [bounding]
    assert found["NoNewPrivs"] == ["1"]
    assert (found["HOME"], found["USER"], found["home"]) == (str(pod.home), str(CHILD), "ok")
    assert found["root"] == "EPERM"


def test_a_server_is_nobody_and_reaches_nothing(pod: Pod) -> None:
    pod.give_checkout()
    with pod.sidecar() as sidecar:
        found = probed(sidecar, pod)
        assert_nobody(found, pod)
        assert found["group"] is True
        assert {name: found[name] for name in REACHED} == REACHED
        assert "SIDECAR_USER" not in found["names"] and "TMPDIR" not in found["names"]
        # The same from our side: what it must not reach is ours, and closed.
        for path in (pod.state / "state.db", pod.run / "admin.sock"):
            status = path.stat()
            assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (WORKER, 0o600)
        worker = processes.status(sidecar.worker)
        assert worker["Uid"].split() == [str(WORKER)] * 4
        assert int(worker["CapEff"], 16) == int(worker["CapPrm"], 16) == mask(SEVEN)
        assert int(worker["CapInh"], 16) == int(worker["CapAmb"], 16) == 0
        assert "child processes run as" not in sidecar.log()
        # Signals of ours reach it: it ends when its server is removed.
        children = children_of(sidecar)
        sidecar.write({**sidecar.config, "servers": {}})
        os.chown(sidecar.file, WORKER, WORKER)
        sidecar.signal(signal.SIGHUP)
        until = time.monotonic() + 20
        while processes.left_of(children, 0.1):
            assert time.monotonic() < until, sidecar.log()


def children_of(sidecar: Sidecar) -> list[int]:
    """Those that are the other user."""
    uids = {pid: processes.status(pid)["Uid"].split()[0] for pid in sidecar.family}
    found = [pid for pid, uid in uids.items() if uid == str(CHILD)]
    assert found, uids
    return found


def test_without_setpcap_the_bounding_set_stays_and_is_of_no_use(pod: Pod) -> None:
    pod.give_checkout()
    with pod.sidecar(SIX) as sidecar:
        found = probed(sidecar, pod)
        assert_nobody(found, pod, f"{mask(SIX):016x}")
        assert {name: found[name] for name in REACHED} == REACHED


def test_an_agent_is_nobody_works_in_its_worktree_and_is_swept(pod: Pod) -> None:
    pod.give_checkout()
    with pod.sidecar() as sidecar:
        line = f"{users.python()} {PROBE} '{pod.targets(sidecar)}'"
        answer = asked(sidecar, bash(line), work="look")
        found = json.loads(answer["last_message"].removeprefix("ran it: "))
        assert_nobody(found, pod)
        assert {name: found[name] for name in REACHED} == REACHED

        # Plain git, as an agent runs it: the repository is its own, so no safe.directory.
        commit = "git add -A && git -c user.name=a -c user.email=a@example.org commit -qm Fix"
        steps = [{"write": "new.txt", "text": "new\n"}, bash(f"{commit} && git status --short")]
        answer = asked(sidecar, *steps)
        assert [each["subject"] for each in answer["commits"]] == ["Fix"], answer
        assert answer["dirty"] is False
        worktree = pod.worktrees / "claude" / "billing" / "agent" / "fix-login"
        owners = {path.lstat().st_uid for path in (worktree, *worktree.rglob("*"))}
        assert owners == {CHILD}
        # Our own git reads and writes what belongs to somebody else.
        answer = asked(sidecar, {"write": "more.txt", "text": "x"})
        assert answer["dirty"] is True
        answer = asked(sidecar, bash("rm more.txt && echo gone"))
        assert answer["dirty"] is False

        git(pod.checkout, *SAFE, "merge", "--squash", "work/claude/agent/fix-login")
        git(pod.checkout, *SAFE, "commit", "--quiet", "--message", "Fix (#1)")
        pod.give_checkout()
        swept = AdminClient(sidecar.admin, timeout=60).sweep()
        assert swept["removed"] == [str(worktree)], swept
        assert not worktree.exists()
        assert git(pod.checkout, *SAFE, "branch", "--list", "*fix-login*") == ""
        # A new work, and what of it is ours after the other's branch went.
        answer = asked(sidecar, {"write": "b.txt", "text": "b"}, bash(commit), work="second")
        assert [each["subject"] for each in answer["commits"]] == ["Fix"], answer


SAFE = ("-c", "safe.directory=*")


def test_killed_nothing_of_another_user_is_left(pod: Pod) -> None:
    pod.give_checkout()
    for victim in ("worker", "supervisor"):
        with pod.sidecar() as sidecar:
            probed(sidecar, pod)
            family = children_of(sidecar) + sidecar.family
            os.kill(sidecar.worker if victim == "worker" else sidecar.pid, signal.SIGKILL)
            sidecar.wait()
            left = processes.left_of(family, 20)
            assert not left, [processes.command_line(pid) for pid in left]


def fails(pod: Pod, capabilities: tuple[str, ...] = SEVEN, **more: Any) -> str:
    with pytest.raises(NotReady) as caught, pod.sidecar(capabilities, **more):
        pass
    return str(caught.value)


def test_what_keeps_it_from_starting_is_told(pod: Pod) -> None:
    told = fails(pod)
    assert f"checkout 'billing' ({pod.checkout}): children run as uid {CHILD}" in told
    assert f"chown -R {CHILD}:{CHILD} {pod.checkout}" in told
    told = fails(pod, tuple(name for name in SEVEN if name != "kill"))
    assert "takes the capabilities KILL, which this process has not" in told
    assert "SIDECAR_USER is UID or UID:GID" in fails(pod, worker="nobody")
    without = tuple(name for name in SEVEN if name != "setuid")
    assert "the worker cannot become uid 10001" in fails(pod, without)


@pytest.mark.skipif(users.python() != sys.executable, reason="this Python is for root alone")
def test_without_it_a_child_is_one_of_us_and_that_is_told(pod: Pod) -> None:
    """What docs/security.md lists for the same user."""
    with pod.sidecar(children={}, harnesses={}, checkouts={}) as sidecar:
        found = probed(sidecar, pod)
        assert found["Uid"] == [str(WORKER)] * 4
        # The worker gave up what it needs for other users only.
        assert int(processes.status(sidecar.worker)["CapEff"], 16) == 0
        reached = {name: found[name] for name in REACHED}
        assert reached == {
            **REACHED,
            "secret": "ok",
            "state.db": "ok",
            "sidecar.yaml": "ok",
            "admin.sock": "EPERM",
            "lock": "ENOENT",
            "worker signal": "ok",
        }
        told = [line for line in sidecar.log().splitlines() if "child processes run as" in line]
        assert len(told) == 1
        assert f"(uid {WORKER})" in told[0] and "set children.user" in told[0]
