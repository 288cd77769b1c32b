"""The chart and the admission policy say what the manifests they are made from say."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.k8s import kit
from tests.k8s.kit import needs_kube
from tests.peers import peers

pytestmark = needs_kube

CHART = kit.K8S / "chart"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", kit.K8S / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def helm(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        peers.kube("helm", *arguments),
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def by_name(documents: list[Any] | tuple[Any, ...]) -> dict[tuple[str, str], Any]:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}


def test_what_is_generated_is_in_step(generate: ModuleType) -> None:
    program = peers.kube("kubectl")[0]
    for name, text in generate.generated(program).items():
        assert (kit.K8S / name).read_text() == text, f"{name}: run k8s/generate.py"


def test_the_chart_renders_to_what_kustomize_builds(tmp_path: Path) -> None:
    told = helm(tmp_path, "template", "x", str(CHART), "--set", "admission.enabled=true")
    expected = by_name((*kit.rendered("base"), *kit.rendered("inject")))
    assert by_name(list(yaml.safe_load_all(told))) == expected


def test_values_reach_the_manifests(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    config = 'listen: 127.0.0.1:8808\nservers:\n  a: {url: "http://a/{{x}}"}\n'
    values.write_text(
        yaml.safe_dump(
            {"config": config, "networkPolicy": {"enabled": False}, "inject": {"image": "s:2"}}
        )
    )
    told = helm(tmp_path, "template", "x", str(CHART), "-f", str(values))
    found = by_name(list(yaml.safe_load_all(told)))
    assert found["ConfigMap", "sidecar-config"]["data"] == {"sidecar.yaml": config}
    assert found["ConfigMap", "sidecar-inject"]["data"]["image"] == "s:2"
    assert found["ConfigMap", "sidecar-inject"]["data"]["cpu"] == "25m"
    assert {kind for kind, _ in found} == {"ConfigMap", "ServiceAccount"}


def test_what_looks_like_a_number_is_text(tmp_path: Path) -> None:
    told = helm(tmp_path, "template", "x", str(CHART), "--set", "inject.cpu=1,inject.memory=2e8")
    data = by_name(list(yaml.safe_load_all(told)))["ConfigMap", "sidecar-inject"]["data"]
    assert (data["cpu"], data["image"]) == ("1", "mcp-sidecar:0.1.0")
    assert all(isinstance(each, str) for each in data.values())


def test_helm_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    assert "0 chart(s) failed" in helm(tmp_path, "lint", "--strict", str(CHART))
