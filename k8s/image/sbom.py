"""A bill of materials of the image, as CycloneDX 1.6 on stdout.

What is in it: the Python packages of the running environment (and of ``--python`` folders), the
Debian packages of a dpkg status file, the npm packages below a ``node_modules``, and what no
package manager knows: the running Python, and what ``--program`` names. Standard library only; it
is run while the image is built, and says the same for the same content.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

SPEC = "1.6"
# Trove classifiers and free texts are no SPDX expressions; what is one has its own field.
LICENSE_FIELD = "License-Expression"

Component = dict[str, object]


def component(kind: str, name: str, version: str, purl: str, licence: str | None) -> Component:
    """One entry; ``kind`` tells of which world it is."""
    found: Component = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "properties": [{"name": "mcp-sidecar:source", "value": kind}],
    }
    if licence:
        found["licenses"] = [{"expression": licence}]
    return found


def python(folders: list[str]) -> Iterator[Component]:
    """The distributions of ``site-packages`` folders."""
    for each in distributions(path=folders):
        name = _normal(each)
        purl = f"pkg:pypi/{quote(name)}@{quote(each.version)}"
        yield component("python", name, each.version, purl, each.metadata[LICENSE_FIELD])


def _normal(distribution: Distribution) -> str:
    return distribution.metadata["Name"].lower().replace("_", "-").replace(".", "-")


def debian(status: Path) -> Iterator[Component]:
    """The packages that a dpkg status file says are installed."""
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = {
            key: value.strip()
            for line in paragraph.splitlines()
            if not line.startswith(" ")
            for key, _, value in [line.partition(":")]
        }
        if fields.get("Status", "").split()[-1:] != ["installed"]:
            continue
        name, version = fields["Package"], fields["Version"]
        where = quote(fields.get("Architecture", "all"))
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={where}"
        yield component("debian", name, version, purl, None)


def node(modules: Path) -> Iterator[Component]:
    """The npm packages below a ``node_modules``, those inside one another as well."""
    for manifest in sorted(modules.rglob("package.json")):
        inside = manifest.parent.parent
        if inside.name != "node_modules" and inside.parent.name != "node_modules":
            continue
        about = json.loads(manifest.read_text(encoding="utf-8"))
        name, version = about.get("name"), about.get("version")
        if not isinstance(name, str) or not isinstance(version, str):
            continue
        licence = about.get("license")
        purl = f"pkg:npm/{quote(name, safe='/')}@{quote(version)}"
        yield component("node", name, version, purl, licence if isinstance(licence, str) else None)


def programs(named: list[str]) -> Iterator[Component]:
    """The running interpreter, and each NAME=VERSION; a ``v`` before the number is dropped."""
    for each in (f"python={platform.python_version()}", *named):
        name, _, version = each.partition("=")
        version = version.removeprefix("v")
        purl = f"pkg:generic/{quote(name)}@{quote(version)}"
        yield component("program", name, version, purl, None)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--debian", type=Path, help="such as /var/lib/dpkg/status")
    parser.add_argument("--python", type=Path, action="append", default=[], help="an environment")
    parser.add_argument("--node", type=Path, help="a node_modules")
    parser.add_argument("--program", action="append", default=[], help="NAME=VERSION")
    asked = parser.parse_args(arguments)
    folders = [sysconfig.get_path("purelib")]
    for environment in asked.python:
        folders += [str(each) for each in sorted(environment.glob("lib/python3*/site-packages"))]
    found = [*python(folders), *programs(asked.program)]
    if asked.debian:
        found += debian(asked.debian)
    if asked.node:
        found += node(asked.node)
    once = {str(each["bom-ref"]): each for each in found}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC,
        "version": 1,
        "metadata": {"component": {"type": "container", "name": "mcp-sidecar"}},
        "components": [once[ref] for ref in sorted(once)],
    }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
