"""The admission policies by the API server's own code, beside what our engine makes of them.

`make test-k8s`: builds `apiserver/` with Go (its modules are some 200 MB, and take minutes of CPU).
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.k8s import admission, kit
from tests.k8s.kit import needs_kube
from tests.k8s.test_admission import ENABLED, REQUIRED, sample

HERE = Path(__file__).with_name("apiserver")
ASKED = bool(os.environ.get("SIDECAR_K8S"))
pytestmark = [
    needs_kube,
    pytest.mark.skipif(not ASKED, reason="run `make test-k8s`"),
    pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed"),
    pytest.mark.timeout(3000),
]

Json = dict[str, Any]


def changed(change: Json, name: str = "") -> Json:
    pod = copy.deepcopy(kit.pod("overlays/example"))
    if name:
        (container,) = [each for each in kit.containers(pod["spec"]) if each["name"] == name]
        container.update(change)
    else:
        pod["spec"].update(change)
    return pod


def cases() -> list[tuple[Json, Json]]:
    two = sample(
        initContainers=[{"name": "migrate", "image": "m:1"}],
        volumes=[{"name": "data", "emptyDir": {}}],
    )
    two["spec"]["containers"].append(
        {"name": "other", "image": "o:1", "env": [{"name": "MCP_URL", "value": "http://mine"}]}
    )
    debug = {
        "name": "d",
        "image": "x:1",
        "volumeMounts": [{"name": "sidecar-secrets", "mountPath": "/s"}],
    }
    mount = {"volumeMounts": [{"name": "sidecar-run", "mountPath": "/r"}]}
    fenced = copy.deepcopy(kit.pod("overlays/enforce"))
    fenced["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0}
    unlabelled = copy.deepcopy(kit.pod("overlays/example"))
    del unlabelled["metadata"]["labels"]["mcp-sidecar/inject"]
    return [
        (fenced, ENABLED),
        (unlabelled, ENABLED),
        (unlabelled, REQUIRED),
        (sample(), ENABLED),
        (sample(), REQUIRED),
        (sample(None), ENABLED),
        (sample(None), REQUIRED),
        (sample("false"), ENABLED),
        (sample("false"), REQUIRED),
        (sample(hostNetwork=True), ENABLED),
        (two, ENABLED),
        *((kit.pod(folder), REQUIRED) for folder in kit.PODS),
        (changed({"image": "nginx:1"}, "sidecar"), REQUIRED),
        (changed({"restartPolicy": None}, "sidecar"), REQUIRED),
        (changed({"shareProcessNamespace": True}), REQUIRED),
        (changed({"volumes": [{"name": "n", "hostPath": {"path": "/"}}]}), REQUIRED),
        (changed({"ephemeralContainers": [debug]}), REQUIRED),
        (changed(mount, "agent"), REQUIRED),
        (changed({"securityContext": {"runAsUser": 10001}}, "agent"), REQUIRED),
        (changed({"securityContext": {"privileged": True}}, "agent"), REQUIRED),
    ]


def without_nothing(value: Any) -> Any:
    """Go writes no empty fields, but for that of an empty emptyDir."""
    match value:
        case dict():
            return {
                key: without_nothing(each)
                for key, each in value.items()
                if key == "emptyDir" or each not in (None, {}, [])
            }
        case list():
            return [without_nothing(each) for each in value]
    return value


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("apiserver") / "evaluate"
    subprocess.run(["go", "build", "-o", str(path), "."], cwd=HERE, check=True, timeout=2700)
    return path


def test_the_api_server_sees_it_as_we_do(program: Path) -> None:
    params = kit.one("base", "ConfigMap", "sidecar-inject")
    mutating = kit.one("inject", "MutatingAdmissionPolicy")
    validating = kit.one("inject", "ValidatingAdmissionPolicy")
    asked = []
    for pod, namespace in cases():
        named = {**pod, "metadata": {**pod["metadata"], "name": "p", "namespace": "agents"}}
        asked.append({"Pod": named, "Params": params, "Namespace": namespace})
    done = subprocess.run(
        [str(program)],
        input=json.dumps({"Mutating": mutating, "Validating": validating, "Cases": asked}),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    injected = refused = 0
    for case, theirs in zip(asked, json.loads(done.stdout), strict=True):
        assert "error" not in theirs, theirs["error"]
        ours = admission.mutate(mutating, case["Pod"], params)
        injected += ours != case["Pod"]
        denied = admission.validate(validating, ours, params, case["Namespace"])
        refused += bool(denied)
        assert theirs["denied"] == denied
        assert without_nothing(theirs["pod"]["spec"]) == without_nothing(ours["spec"])
    assert (injected, refused) == (3, 13)
