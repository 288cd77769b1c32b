"""What the Dockerfile names is there and fits together. No engine builds it here."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from sidecar import __version__
from sidecar.config import load
from tests.k8s.kit import K8S, ROOT

TEXT = (ROOT / "Dockerfile").read_text()
IMAGE = K8S / "image"
LOCKS = ("requirements.txt", "build.txt", "tools.txt")


def instructions() -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.MULTILINE))
    lines = [line for line in joined.splitlines() if line.strip()]
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]


def stages() -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for word, rest in instructions():
        if word == "FROM":
            found[rest.partition(" AS ")[2] or "default"] = [(word, rest)]
        elif found:
            list(found.values())[-1].append((word, rest))
    return found


def pinned(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.]+)", (IMAGE / name).read_text(), re.MULTILINE))


def test_stages_and_pinned_bases() -> None:
    assert list(stages()) == ["build", "tools", "slim", "node", "full", "fence", "default"]
    versions = dict(rest.split("=") for word, rest in instructions() if word == "ARG")
    for tag in versions.values():
        # Exact: three numbers and the distribution.
        assert re.fullmatch(r"\d+\.\d+\.\d+-(bookworm-slim|slim-bookworm)", tag)
    for word, rest in instructions():
        if word == "FROM":
            base = rest.split()[0]
            assert base in stages() or re.fullmatch(r"\w+:\$\{(PYTHON|NODE)\}", base), base


def test_what_is_copied_is_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().split()
    kept = {each.removeprefix("!") for each in ignored if each.startswith("!")}
    copied = [
        source
        for word, rest in instructions()
        if word == "COPY" and not rest.startswith("--from=")
        for source in rest.split()[:-1]
    ]
    assert len(copied) >= 8
    for source in copied:
        assert (ROOT / source).exists(), source
        assert any(source == each or source.startswith(each + "/") for each in kept), source
    # And nothing else is: no .git, no tests, no secrets of whoever builds.
    assert ignored[0] == "*"
    # What the package's build reads is there.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {project["readme"], *project["license-files"]} <= kept


def test_it_runs_as_nobody_by_the_console_script() -> None:
    slim = stages()["slim"]
    assert ("USER", "10001:10001") in slim
    assert stages()["full"][-1] == ("USER", "10001:10001")
    (entry,) = [json.loads(rest) for word, rest in slim if word == "ENTRYPOINT"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert entry == ["/opt/sidecar/bin/sidecar"] and "sidecar" in project["scripts"]
    # A verb that has a supervisor around it: it is PID 1.
    from sidecar.__main__ import SUPERVISED

    (command,) = [json.loads(rest) for word, rest in slim if word == "CMD"]
    assert command[0] in SUPERVISED
    labels = " ".join(rest for word, rest in slim if word == "LABEL")
    assert f'image.version="{__version__}"' in labels
    assert f'licenses="{project["license"]}"' in labels


def test_every_image_finds_its_programs_and_has_a_bill_of_its_own() -> None:
    """An ENV is for the stages below too: Debian's programs of root are in sbin."""
    (path,) = [
        match[1]
        for word, rest in stages()["slim"]
        if word == "ENV" and (match := re.search(r"\bPATH=(\S+)", rest))
    ]
    assert {"/opt/sidecar/bin", "/usr/local/bin", "/usr/sbin", "/usr/bin"} <= set(path.split(":"))
    for name in ("full", "fence"):
        (made,) = [rest for word, rest in stages()[name] if word == "RUN" and "apt-get" in rest]
        bills = [rest for word, rest in stages()[name] if word == "RUN" and "sbom.py" in rest]
        assert "> /opt/sidecar/sbom.cdx.json" in bills[-1], name
        # After what is installed, or the bill leaves it out.
        if bills[-1] == made:
            assert made.index("apt-get install") < made.index("sbom.py"), name


def test_its_own_configuration_loads() -> None:
    loaded = load(IMAGE / "sidecar.yaml", environ={"PATH": "/usr/bin"})
    assert str(loaded.health) == "0.0.0.0:8810"
    assert str(loaded.admin.listen) == "unix:/run/sidecar/private/admin.sock"
    # Kubernetes ends a pod after 30 s where its manifest says nothing.
    assert loaded.drain_grace + 10 <= 30
    (made,) = [rest for word, rest in stages()["slim"] if word == "RUN"]
    assert "/run/sidecar /var/lib/sidecar" in made


@pytest.mark.parametrize("name", LOCKS)
def test_locks_have_hashes_and_no_address(name: str) -> None:
    text = (IMAGE / name).read_text()
    assert len(pinned(name)) >= 1
    assert "://" not in text
    for entry in re.split(r"\n(?=\S)", text.strip()):
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry.splitlines()[0]


def test_the_lock_has_what_the_package_asks_for() -> None:
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    locked = pinned("requirements.txt")
    wanted = [*project["dependencies"], *extras["client"], *extras["postgres"], *extras["seal"]]
    for text in wanted:
        each = Requirement(text)
        if each.name != project["name"]:
            assert locked[each.name] in each.specifier, text
    assert Requirement("setuptools>=77").specifier.contains(pinned("build.txt")["setuptools"])


def test_bill_of_materials(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text(
        "Package: git\nStatus: install ok installed\nArchitecture: amd64\n"
        "Version: 1:2.39.5-0+deb12u2\n"
        "Description: x\n more: of it\n\n"
        "Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    npm = tmp_path / "node_modules" / "npm"
    (npm / "node_modules" / "@a" / "b").mkdir(parents=True)
    (npm / "package.json").write_text(
        '{"name": "npm", "version": "10.9.3", "license": "Artistic-2.0"}'
    )
    (npm / "node_modules/@a/b/package.json").write_text('{"name": "@a/b", "version": "1.0.0"}')
    command = [sys.executable, str(IMAGE / "sbom.py"), "--debian", str(status)]
    command += ["--node", str(tmp_path / "node_modules"), "--program", "node=v22.20.0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    bill = json.loads(done.stdout)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    purls = [each["purl"] for each in bill["components"]]
    assert purls == sorted(set(purls))
    assert f"pkg:pypi/aiohttp@{version('aiohttp')}" in purls
    assert "pkg:deb/debian/git@1%3A2.39.5-0%2Bdeb12u2?arch=amd64" in purls
    assert {"pkg:npm/npm@10.9.3", "pkg:npm/%40a/b@1.0.0"} <= set(purls)
    # Neither of the two is a package of Debian's there, and both have holes that are looked for.
    assert {"pkg:generic/node@22.20.0", f"pkg:generic/python@{platform.python_version()}"} <= set(
        purls
    )
    assert '--program "node=$(node --version)"' in TEXT
    assert not any("gone" in each for each in purls)
    assert done.stdout == subprocess.run(command, capture_output=True, text=True, check=True).stdout
