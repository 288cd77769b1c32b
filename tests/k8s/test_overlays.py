"""Every folder of `k8s/` renders, is valid, and says what it is meant to say."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from sidecar.config import load
from sidecar.policy import files as policy_files
from tests.k8s import kit
from tests.k8s.kit import FOLDERS, NEWEST, OLDEST, PODS, POLICIES, Json, needs_kube
from tests.peers import peers

pytestmark = needs_kube

# Documents on stdin as JSON lines of [version, document]; what is wrong comes out.
VALIDATE = """
import json, sys, kubernetes_validate
for line in sys.stdin:
    version, document = json.loads(line)
    name = document["kind"] + " " + document["metadata"]["name"]
    try:
        used = kubernetes_validate.validate(document, version, strict=True)
        if not used.startswith(version):
            print(f"{name}: judged by {used} for want of {version}")
    except Exception as problem:
        print(f"{name} in {version}: {(str(problem) or repr(problem)).splitlines()[0]}")
"""

# Why a container is not what Pod Security calls restricted.
ROOT_CONTAINERS = {
    ("overlays/enforce", "fence"): ["NET_ADMIN"],
    ("overlays/coding-agents", "prepare"): [
        "CHOWN",
        "FOWNER",
        "DAC_OVERRIDE",
        "SETUID",
        "SETGID",
    ],
    ("overlays/coding-agents", "sidecar"): [
        "SETUID",
        "SETGID",
        "KILL",
        "SETPCAP",
        "CHOWN",
        "FOWNER",
        "DAC_OVERRIDE",
    ],
}
HAVE_SECRETS = ("overlays/postgres", "overlays/coding-agents")
RESTRICTED_VOLUMES = {"configMap", "secret", "projected", "emptyDir", "persistentVolumeClaim"}


def test_every_manifest_is_valid_in_the_oldest_and_in_the_newest_version() -> None:
    asked = [
        (version, document)
        for folder in FOLDERS
        for version in ((POLICIES, NEWEST) if folder == "inject" else (OLDEST, NEWEST))
        for document in kit.rendered(folder)
    ]
    assert len(asked) > 40
    # The judge judges: a field that does not exist, and one of the wrong type.
    broken = json.loads(json.dumps(kit.workload("overlays/example")))
    broken["spec"]["template"]["spec"]["initContainers"][0]["restartpolicy"] = "Always"
    typed = json.loads(json.dumps(kit.workload("overlays/example")))
    typed["spec"]["replicas"] = "1"
    lines = "\n".join(json.dumps(each) for each in [*asked, (OLDEST, broken), (NEWEST, typed)])
    done = subprocess.run(
        peers.kube("python", "-c", VALIDATE),
        input=lines,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    told = done.stdout.splitlines()
    assert len(told) == 2, done.stdout
    assert "restartpolicy" in told[0] and OLDEST in told[0]
    assert "replicas" in told[1] or "integer" in told[1]


@pytest.mark.parametrize("folder", PODS)
def test_the_sidecar_is_a_native_one_with_probes_and_resources(folder: str) -> None:
    spec = kit.pod(folder)["spec"]
    names = [each["name"] for each in spec["initContainers"]]
    # Only what prepares the pod for it comes before.
    assert names[:1] == ["sidecar"] or (folder, names[0]) in ROOT_CONTAINERS
    assert names.index("sidecar") == len(names) - 1
    sidecar = kit.sidecar(spec)
    assert sidecar["restartPolicy"] == "Always"
    assert "lifecycle" not in sidecar
    config = yaml.safe_load(kit.config_maps(folder)["sidecar-config"]["sidecar.yaml"])
    host, _, port = config["health"]["listen"].rpartition(":")
    # The kubelet asks at the pod's address.
    assert host == "0.0.0.0"
    probes = {
        name: sidecar[name]["httpGet"]
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert {name: each["path"] for name, each in probes.items()} == {
        "startupProbe": "/readyz",
        "readinessProbe": "/readyz",
        "livenessProbe": "/livez",
    }
    assert {each["port"] for each in probes.values()} == {int(port)}
    assert [each["containerPort"] for each in sidecar["ports"]] == [int(port)]
    # It has to be through with its calls before the kubelet's patience is.
    grace = float(config["drain"]["grace"].removesuffix("s"))
    assert grace + 10 <= spec["terminationGracePeriodSeconds"]
    # A pod of somebody's own may say nothing, which is 30 s.
    assert grace + 10 <= 30


@pytest.mark.parametrize("folder", PODS)
def test_every_container_has_resources_a_tag_and_restricted_security(folder: str) -> None:
    spec = kit.pod(folder)["spec"]
    of_pod = spec["securityContext"]
    for container in kit.containers(spec):
        name = container["name"]
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name
        _, _, tag = container["image"].rpartition(":")
        assert tag not in ("", "latest") and "/" not in tag, name
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["capabilities"]["drop"] == ["ALL"], name
        assert "privileged" not in security, name
        seccomp = security.get("seccompProfile", of_pod.get("seccompProfile"))
        assert seccomp == {"type": "RuntimeDefault"}, name
        added = security["capabilities"].get("add")
        if (folder, name) in ROOT_CONTAINERS:
            assert security["runAsUser"] == 0
            assert added == ROOT_CONTAINERS[folder, name]
        else:
            assert added is None, name
            assert security.get("runAsNonRoot", of_pod["runAsNonRoot"]) is True, name
            assert security["runAsUser"] > 10000, name
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec)
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    assert kinds <= RESTRICTED_VOLUMES


@pytest.mark.parametrize("folder", PODS)
def test_the_agent_is_another_user_and_has_nothing_of_the_sidecar(folder: str) -> None:
    spec = kit.pod(folder)["spec"]
    sidecar, (agent,) = kit.sidecar(spec), spec["containers"]
    assert agent["securityContext"]["runAsUser"] not in (0, 10001, 10002)
    assert "volumeMounts" not in agent
    assert spec["automountServiceAccountToken"] is False
    assert {"name": "MCP_URL", "value": "http://127.0.0.1:8808/mcp"} in agent["env"]
    mounted = {each["name"] for each in sidecar["volumeMounts"]}
    claims = kit.workload(folder)["spec"].get("volumeClaimTemplates", [])
    there = {each["name"] for each in [*spec["volumes"], *[claim["metadata"] for claim in claims]]}
    assert mounted <= there
    # Socket and state are in memory, and bounded.
    volumes = {each["name"]: each for each in spec["volumes"]}
    for name in ("sidecar-run", "sidecar-state"):
        assert volumes[name]["emptyDir"]["medium"] == "Memory"
        assert volumes[name]["emptyDir"]["sizeLimit"].endswith("Mi")


def test_coding_agents_cannot_read_configuration_and_secrets() -> None:
    spec = kit.pod("overlays/coding-agents")["spec"]
    assert spec["securityContext"]["fsGroup"] == 10001
    volumes = {each["name"]: each for each in spec["volumes"]}
    assert volumes["sidecar-secrets"]["projected"]["defaultMode"] == 0o440
    assert volumes["sidecar-config"]["configMap"]["defaultMode"] == 0o440
    sidecar = kit.sidecar(spec)
    assert {"name": "SIDECAR_USER", "value": "10001:10001"} in sidecar["env"]
    config = yaml.safe_load(
        kit.config_maps("overlays/coding-agents")["sidecar-config"]["sidecar.yaml"]
    )
    assert config["children"]["user"] == 10002
    assert kit.workload("overlays/coding-agents")["kind"] == "StatefulSet"


def test_a_job_ends_with_its_agent() -> None:
    job = kit.workload("overlays/job")
    assert job["kind"] == "Job"
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("folder", PODS)
def test_the_fence_around_the_pod_is_of_this_pod(folder: str) -> None:
    labels = kit.pod(folder)["metadata"]["labels"]
    policy = kit.one(folder, "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    blocks = [
        to["ipBlock"] for rule in policy["egress"] for to in rule.get("to", []) if "ipBlock" in to
    ]
    assert {"169.254.0.0/16", "10.0.0.0/8"} <= set(blocks[0]["except"])


@pytest.mark.parametrize("folder", ["base", *PODS])
def test_its_configuration_and_its_policies_load(folder: str, tmp_path: Path) -> None:
    """By the sidecar's own loader, laid out as the volumes are."""
    maps = kit.config_maps(folder)
    policies, secrets = tmp_path / "policies", tmp_path / "secrets"
    policies.mkdir()
    secrets.mkdir()
    for name, text in maps["sidecar-policies"].items():
        (policies / name).write_text(text)
    text = maps["sidecar-config"]["sidecar.yaml"]
    for number, name in enumerate(("token", "store-key", "agent", "anthropic")):
        # A key of the store is 32 bytes; any text is a token.
        (secrets / name).write_text("MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZW" + f"{number}=\n")
    told = text.replace("/secrets/", f"{secrets}/").replace("/etc/sidecar-policies", str(policies))
    told = told.replace("/checkouts/", f"{tmp_path}/")
    path = tmp_path / "sidecar.yaml"
    path.write_text(told)
    loaded = load(path, environ={"PATH": "/usr/bin"})
    assert str(loaded.admin.listen) == "unix:/run/sidecar/private/admin.sock"
    assert str(loaded.listen) == "127.0.0.1:8808"
    assert len(policy_files.find([policies])) == 2
    assert _checked(policies) == 0
    environment = (
        {each["name"] for each in kit.sidecar(kit.pod(folder)["spec"])["env"]}
        if folder in PODS
        else set()
    )
    assert ("PGPASSWORD" in environment) == loaded.store.startswith("postgresql:")


def _checked(policies: Path) -> int:
    from sidecar.cli import main

    return main(["policy", "check", str(policies)])


def test_what_identifies_the_pod_reaches_telemetry() -> None:
    environment: list[Json] = kit.sidecar(kit.pod("overlays/example")["spec"])["env"]
    names = [each["name"] for each in environment]
    attributes = next(each for each in environment if each["name"] == "OTEL_RESOURCE_ATTRIBUTES")
    for word in ("POD_NAME", "POD_NAMESPACE", "POD_UID", "NODE_NAME", "AGENT_NAME"):
        assert f"$({word})" in attributes["value"]
        # A variable is put in only where it was told before.
        assert names.index(word) < names.index("OTEL_RESOURCE_ATTRIBUTES")


def test_the_kustomization_of_the_docs(tmp_path: Path) -> None:
    """Somebody's own folder, made as docs/kubernetes.md says."""
    page = (kit.ROOT / "docs" / "kubernetes.md").read_text()
    (text,) = [
        block.partition("```")[0]
        for block in page.split("```text\n")
        if block.startswith("apiVersion: kustomize")
    ]
    here = os.path.relpath(kit.ROOT, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(text.replace("../mcp-sidecar", here))
    example = kit.K8S / "overlays" / "example"
    (tmp_path / "my-agent.yaml").write_text((example / "agent.yaml").read_text())
    (tmp_path / "sidecar.yaml").write_text((example / "sidecar.yaml").read_text())
    made = list(yaml.safe_load_all(kit.kubectl("kustomize", str(tmp_path))))
    (deployment,) = [each for each in made if each["kind"] == "Deployment"]
    sidecar = kit.sidecar(deployment["spec"]["template"]["spec"])
    assert sidecar["image"] == "registry.example.com/mcp-sidecar:0.1.0"
    assert {each["metadata"]["namespace"] for each in made} == {"agents"}
    (config,) = [each for each in made if each["metadata"]["name"] == "sidecar-config"]
    assert "tickets" in config["data"]["sidecar.yaml"]
    # What injection puts in, and what admission asks for, is the image that the component has.
    (inject,) = [each for each in made if each["metadata"]["name"] == "sidecar-inject"]
    assert inject["data"]["image"] == sidecar["image"]
    assert inject["data"]["memoryLimit"] == sidecar["resources"]["limits"]["memory"]


def test_secrets_that_overlays_need_are_told() -> None:
    """Every Secret, and every file of `sidecar-secrets`, without which a pod would not start."""
    page = (kit.ROOT / "docs" / "kubernetes.md").read_text()
    rows = {line.split("|")[1].strip(" `"): line for line in page.splitlines() if "|" in line}
    needed = 0
    for folder in PODS:
        told = rows[folder.removeprefix("overlays/")] if folder in HAVE_SECRETS else ""
        spec = kit.pod(folder)["spec"]
        names = {
            (each["valueFrom"]["secretKeyRef"]["name"], each["valueFrom"]["secretKeyRef"]["key"])
            for container in kit.containers(spec)
            for each in container.get("env", [])
            if "secretKeyRef" in each.get("valueFrom", {})
        }
        text = kit.config_maps(folder)["sidecar-config"]["sidecar.yaml"]
        values = " ".join(each.get("value", "") for each in kit.sidecar(spec)["env"])
        files = set(re.findall(r"/secrets/([\w.-]+)", f"{text} {values}")) - {"token"}
        for word in (*(each for pair in names for each in pair), *files):
            assert f"`{word}`" in told, (folder, word)
            needed += 1
    assert needed >= 8


def test_the_policy_that_mutates_is_not_there_before_its_time() -> None:
    """What the docs say of the version from which on it may be used, the schemas say too."""
    line = json.dumps(("1.35", kit.one("inject", "MutatingAdmissionPolicy")))
    done = subprocess.run(
        peers.kube("python", "-c", VALIDATE),
        input=line,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert "SchemaNotFound" in done.stdout
