"""What tests of `k8s/` share: what kustomize makes of a folder, once each, and the pods in it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.peers import peers

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
# What is to be deployed as it is; `base` is part of each overlay, and stands alone for inject/.
FOLDERS = (
    "base",
    "inject",
    *sorted(f"overlays/{each.name}" for each in (K8S / "overlays").iterdir()),
)
PODS = tuple(folder for folder in FOLDERS if folder.startswith("overlays/"))
# Native sidecars are on from 1.29; the newest is what kubernetes-validate knows.
OLDEST, NEWEST = "1.29", "1.37"
# From where on admission policies that mutate are there without a feature gate.
POLICIES = "1.36"

Json = dict[str, Any]

needs_kube = pytest.mark.skipif(
    bool(peers.why_missing("kube")), reason=peers.why_missing("kube") or "there"
)


def kubectl(*arguments: str) -> str:
    done = subprocess.run(
        peers.kube("kubectl", *arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def rendered(folder: str) -> tuple[Json, ...]:
    """The manifests of a folder of `k8s/`. Not to be changed."""
    return tuple(yaml.safe_load_all(kubectl("kustomize", str(K8S / folder))))


def one(folder: str, kind: str, name: str | None = None) -> Json:
    (found,) = [
        each
        for each in rendered(folder)
        if each["kind"] == kind and name in (None, each["metadata"]["name"])
    ]
    return found


def workload(folder: str) -> Json:
    (found,) = [each for each in rendered(folder) if "template" in each.get("spec", {})]
    return found


def pod(folder: str) -> Json:
    """The template's pod: `metadata` and `spec`."""
    template = workload(folder)["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", **template}


def containers(spec: Json) -> Iterator[Json]:
    yield from spec.get("initContainers", [])
    yield from spec["containers"]


def sidecar(spec: Json) -> Json:
    (found,) = [each for each in spec["initContainers"] if each["name"] == "sidecar"]
    return found


def config_maps(folder: str) -> dict[str, dict[str, str]]:
    return {
        each["metadata"]["name"]: each["data"]
        for each in rendered(folder)
        if each["kind"] == "ConfigMap"
    }
