"""A pod without a cluster: one network namespace, the sidecar as its user, the agent as another one
with its own mounts; volumes and ConfigMaps as the kubelet lays them, scripts as they are shipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.children.users import SEVEN, limited, needs_users
from tests.k8s.kit import K8S, ROOT
from tests.peers import iptables

AGENT, SIDECAR, AGENTS = 10003, 10001, 10002
FENCE = K8S / "overlays" / "enforce" / "fence.sh"
PREPARE = K8S / "overlays" / "coding-agents" / "prepare.sh"
POLICIES = K8S / "base" / "policies"

# Becomes a user, and says of each place how that goes: "ok", or the name of the errno.
TRIES = """
import errno, json, os, socket, sys
uid, hidden, places = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
if hidden:
    # The agent's container has no such mount.
    import subprocess
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", hidden], check=True)
os.setgroups([]); os.setgid(uid); os.setuid(uid)
found = []
for place in places:
    try:
        if place[0] == "unix":
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(10); s.connect(place[1])
        elif place[0] == "udp":
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.sendto(b"x", (place[1], place[2]))
        else:
            with socket.create_connection((place[1], place[2]), 10):
                pass
        found.append("ok")
    except OSError as problem:
        found.append(errno.errorcode.get(problem.errno, str(problem)))
print(json.dumps(found))
"""
LISTENS = """
import socket, sys, time
kept = []
for host, port in (("127.0.0.1", 9999), ("10.9.9.9", 8808), ("10.9.9.9", 443)):
    s = socket.socket(); s.bind((host, port)); s.listen(); kept.append(s)
print("up", flush=True); sys.stdin.read()
"""
# Where Python is in a folder that is root's alone, other users of the pod need it all the same:
# it is mounted at its place again, without the folders around it.
MOUNTS = """
mount --make-rprivate /
if [ -n "$CLOSED" ]; then
    mkdir "$FOLDER/python" && mount --bind "$PYTHON" "$FOLDER/python"
    mount -t tmpfs -o mode=0755 tmpfs "$CLOSED"
    mkdir -p "$PYTHON" && mount --bind "$FOLDER/python" "$PYTHON"
fi
echo up
exec cat
"""


def closed(folder: Path) -> str:
    """The outermost folder on the way there that others may not enter."""
    way = [each for each in (*reversed(folder.parents), folder) if not each.stat().st_mode & 0o001]
    return str(way[0]) if way else ""


def no_network_namespace() -> str:
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return "only root, with util-linux and iproute2, can make a pod"
    done = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "no namespaces can be made here"


WHY_NOT = no_network_namespace()
pytestmark = [needs_users, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "it can")]


class Pod:
    """Its namespaces live as long as its first process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pod-"))
        self.folder.chmod(0o755)
        python = Path(sys.base_prefix)
        self.others: list[subprocess.Popen[str]] = []
        self.first = subprocess.Popen(
            ["unshare", "-n", "-m", "sh", "-ec", MOUNTS],
            env={
                **os.environ,
                "PYTHON": str(python),
                "CLOSED": closed(python),
                "FOLDER": str(self.folder),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.first.stdout is not None
        assert self.first.stdout.readline() == "up\n"
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", "10.9.9.9/32", "dev", "lo")

    def inside(self, *command: str) -> list[str]:
        return ["nsenter", "--target", str(self.first.pid), "--net", "--mount", *command]

    def run(self, *command: str, **env: str) -> str:
        done = subprocess.run(
            self.inside(*command),
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *command: str, **env: str) -> str:
        """A process of the pod; its first line."""
        process = subprocess.Popen(
            self.inside(*command),
            env={**os.environ, **env},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.others.append(process)
        assert process.stdout is not None
        return process.stdout.readline()

    def volume(self, name: str) -> Path:
        """An emptyDir: everybody may write there."""
        path = self.folder / name
        path.mkdir()
        path.chmod(0o777)
        return path

    def config_map(self, name: str, files: dict[str, str]) -> Path:
        """As the kubelet does it: names are links into `..data`, a link to what is of one time."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix="..2026_", dir=path))
        new.chmod(0o755)
        for each, text in files.items():
            (new / each).write_text(text)
            (new / each).chmod(0o644)
        (path / "..data_tmp").symlink_to(new.name)
        (path / "..data_tmp").rename(path / "..data")
        for each in files:
            if not (path / each).is_symlink():
                (path / each).symlink_to(f"..data/{each}")
        return path

    def tries(self, uid: int, *places: tuple[Any, ...], hidden: str = "") -> list[str]:
        command = ["unshare", "-m", sys.executable, "-c", TRIES, str(uid), hidden]
        return list(json.loads(self.run(*command, json.dumps(places))))

    def close(self) -> None:
        for process in self.others:
            process.terminate()
        for process in self.others:
            process.communicate(timeout=30)
        self.first.communicate(timeout=30)
        shutil.rmtree(self.folder)


@pytest.fixture
def pod() -> Iterator[Pod]:
    pod = Pod()
    try:
        yield pod
    finally:
        pod.close()


def sidecar(pod: Pod) -> Path:
    """The sidecar of `k8s/base`, its volumes in a folder; the answer is the run folder."""
    run, state = pod.volume("run"), pod.volume("state")
    policies = pod.config_map("policies", {p.name: p.read_text() for p in POLICIES.iterdir()})
    text = (K8S / "base" / "sidecar.yaml").read_text()
    for told, here in (
        ("/run/sidecar", run),
        ("/var/lib/sidecar", state),
        ("/etc/sidecar-policies", policies),
    ):
        assert told in text
        text = text.replace(told, str(here))
    config = pod.config_map("config", {"sidecar.yaml": text})
    line = pod.start(
        *limited(SEVEN),
        sys.executable,
        "-m",
        "sidecar",
        "run",
        SIDECAR_USER=f"{SIDECAR}:{SIDECAR}",
        SIDECAR_CONFIG=str(config / "sidecar.yaml"),
        OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=p,sidecar.agent=",
    )
    assert line.startswith("sidecar ready mcp=http://127.0.0.1:8808/mcp"), line
    return run


def test_an_agent_reaches_the_agent_listener_and_not_the_admin_socket(pod: Pod) -> None:
    run = sidecar(pod)
    socket = ("unix", str(run / "private" / "admin.sock"))
    listener, health = ("tcp", "127.0.0.1", 8808), ("tcp", "10.9.9.9", 8810)
    assert pod.tries(AGENT, listener, health, socket) == ["ok", "ok", "EACCES"]
    assert pod.tries(AGENT, socket, hidden=str(run)) == ["ENOENT"]
    # Nothing of the agent's listener is at the pod's address.
    assert pod.tries(AGENT, ("tcp", "10.9.9.9", 8808)) == ["ECONNREFUSED"]
    # As the kubelet asks, at the pod's address.
    code = "import urllib.request, sys; print(urllib.request.urlopen(sys.argv[1]).status)"
    for path in ("livez", "readyz"):
        url = f"http://10.9.9.9:8810/{path}"
        assert pod.run(sys.executable, "-c", code, url).strip() == "200"


@pytest.mark.skipif(iptables.program() is None, reason=iptables.MISSING)
def test_with_the_fence_it_reaches_nothing_else(pod: Pod) -> None:
    sidecar(pod)
    assert pod.start(sys.executable, "-c", LISTENS) == "up\n"
    listener = ("tcp", "127.0.0.1", 8808)
    elsewhere = [
        ("tcp", "127.0.0.1", 9999),
        ("tcp", "127.0.0.1", 8810),
        ("tcp", "10.9.9.9", 8808),
        ("tcp", "10.9.9.9", 443),
    ]
    datagram = ("udp", "10.9.9.9", 53)
    assert pod.tries(AGENT, *elsewhere, datagram) == ["ok"] * 5
    # As shipped, with the one capability that its container has; and again, as after a restart.
    fenced = [*limited(("net_admin",)), "sh", str(FENCE)]
    for _ in range(2):
        pod.run(*fenced)
        assert pod.tries(AGENT, listener) == ["ok"]
        assert pod.tries(AGENT, *elsewhere) == ["ECONNREFUSED"] * 4
        assert pod.tries(AGENT, datagram) == ["EPERM"]
        assert pod.tries(SIDECAR, listener, *elsewhere, datagram) == ["ok"] * 6
    # Somebody else in the pod is an agent too, root included.
    assert pod.tries(0, listener, elsewhere[0]) == ["ok", "ECONNREFUSED"]


def test_prepare_gives_each_volume_to_whom_it_is_for(tmp_path: Path) -> None:
    root = Path(tempfile.mkdtemp(prefix="prepare-"))
    root.chmod(0o755)
    try:
        for name in (
            "run/sidecar",
            "var/lib/sidecar",
            "worktrees",
            "home/agents",
            "checkouts",
            "tmp",
        ):
            (root / name).mkdir(parents=True)
            (root / name).chmod(0o2777)
        origin = root / "origin.git"
        subprocess.run(["git", "init", "-q", "--bare", str(origin)], check=True)
        # Git clones nothing of somebody else's from the same machine.
        for top, folders, files in os.walk(origin):
            for name in (".", *folders, *files):
                os.chown(Path(top, name), AGENTS, AGENTS)
        command = [*limited(("chown", "fowner", "dac_override", "setuid", "setgid")), "sh"]
        env = {"PATH": os.environ["PATH"], "ROOT": str(root), "REPOSITORY": f"file://{origin}"}
        for _ in range(2):
            subprocess.run([*command, str(PREPARE)], env=env, check=True, capture_output=True)
        found = {
            name: (os.stat(root / name).st_uid, oct(os.stat(root / name).st_mode & 0o1777))
            for name in ("run/sidecar", "var/lib/sidecar", "worktrees", "home/agents", "tmp")
        }
        assert found == {
            "run/sidecar": (SIDECAR, "0o700"),
            "var/lib/sidecar": (SIDECAR, "0o700"),
            "worktrees": (SIDECAR, "0o711"),
            "home/agents": (AGENTS, "0o700"),
            "tmp": (0, "0o1777"),
        }
        for each in (root / "checkouts/billing", root / "checkouts/billing/.git/HEAD"):
            assert (each.stat().st_uid, each.stat().st_gid) == (AGENTS, AGENTS)
    finally:
        shutil.rmtree(root)
