"""The admission policies over pods as they come: what is put in, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.k8s import admission, kit
from tests.k8s.kit import needs_kube

pytestmark = needs_kube

Json = dict[str, Any]
ENABLED = {"metadata": {"name": "agents", "labels": {"mcp-sidecar/agents": "enabled"}}}
REQUIRED = {"metadata": {"name": "agents", "labels": {"mcp-sidecar/agents": "required"}}}


def sample(label: str | None = "true", **spec: Any) -> Json:
    labels = {} if label is None else {"mcp-sidecar/inject": label}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **({"labels": labels} if labels else {})},
        "spec": {"containers": [{"name": "agent", "image": "agent:1"}], **spec},
    }


@pytest.fixture(scope="module")
def params() -> Json:
    return kit.one("base", "ConfigMap", "sidecar-inject")


@pytest.fixture(scope="module")
def mutating() -> Json:
    return kit.one("inject", "MutatingAdmissionPolicy")


@pytest.fixture(scope="module")
def validating() -> Json:
    return kit.one("inject", "ValidatingAdmissionPolicy")


def test_a_pod_that_asks_gets_what_the_component_gives(mutating: Json, params: Json) -> None:
    pod = admission.mutate(mutating, sample(), params)
    expected = kit.pod("overlays/example")["spec"]
    assert pod["spec"]["initContainers"] == [kit.sidecar(expected)]
    assert pod["spec"]["volumes"] == expected["volumes"]
    assert pod["spec"]["containers"] == [
        {
            "name": "agent",
            "image": "agent:1",
            "env": [{"name": "MCP_URL", "value": "http://127.0.0.1:8808/mcp"}],
        }
    ]


def test_it_comes_first_and_takes_nothing_away(mutating: Json, params: Json) -> None:
    own = {"name": "data", "emptyDir": {}}
    pod = sample(initContainers=[{"name": "migrate", "image": "m:1"}], volumes=[own])
    pod["spec"]["containers"].append(
        {"name": "other", "image": "o:1", "env": [{"name": "MCP_URL", "value": "http://mine"}]}
    )
    got = admission.mutate(mutating, pod, params)["spec"]
    assert [each["name"] for each in got["initContainers"]] == ["sidecar", "migrate"]
    assert got["volumes"][0] == own
    assert len({each["name"] for each in got["volumes"]}) == 7
    assert got["containers"][1] == pod["spec"]["containers"][1]


def test_what_differs_between_namespaces(mutating: Json) -> None:
    params = {"data": {"image": "registry.example.com/s:2", "memoryLimit": "1Gi"}}
    (sidecar,) = admission.mutate(mutating, sample(), params)["spec"]["initContainers"]
    assert sidecar["image"] == "registry.example.com/s:2"
    assert sidecar["resources"] == {
        "requests": {"cpu": "25m", "memory": "96Mi"},
        "limits": {"memory": "1Gi"},
    }


@pytest.mark.parametrize(
    "pod",
    [
        sample(None),
        sample("false"),
        sample(hostNetwork=True),
        sample(initContainers=[{"name": "sidecar", "image": "x", "restartPolicy": "Always"}]),
    ],
    ids=["not asked", "opted out", "network of the node", "there already"],
)
def test_left_as_it_is(mutating: Json, params: Json, pod: Json) -> None:
    assert admission.mutate(mutating, copy.deepcopy(pod), params) == pod


def test_twice_is_once(mutating: Json, params: Json) -> None:
    once = admission.mutate(mutating, sample(), params)
    assert admission.mutate(mutating, once, params) == once


def test_what_is_put_in_is_admitted(mutating: Json, validating: Json, params: Json) -> None:
    pod = admission.mutate(mutating, sample(), params)
    for namespace in (ENABLED, REQUIRED):
        assert admission.validate(validating, pod, params, namespace) == []


@pytest.mark.parametrize("folder", kit.PODS)
def test_every_overlay_is_admitted_where_it_is_required(
    folder: str, validating: Json, params: Json
) -> None:
    assert admission.validate(validating, kit.pod(folder), params, REQUIRED) == []


def refused(validating: Json, params: Json, change: Json, *, name: str = "") -> str:
    """The one message about an example's pod that is changed: of the agent, or of the pod."""
    pod = copy.deepcopy(kit.pod("overlays/example"))
    if name:
        (container,) = [each for each in kit.containers(pod["spec"]) if each["name"] == name]
        container.update(change)
    else:
        pod["spec"].update(change)
    (message,) = admission.validate(validating, pod, params, REQUIRED)
    return str(message)


def test_without_a_sidecar(validating: Json, params: Json) -> None:
    for pod, namespace in ((sample(), ENABLED), (sample(None), REQUIRED)):
        (message,) = admission.validate(validating, pod, params, namespace)
        assert "no init container" in message
    assert admission.validate(validating, sample(None), params, ENABLED) == []
    assert admission.validate(validating, sample("false"), params, ENABLED) == []
    # Nobody opts out where it is required.
    assert admission.validate(validating, sample("false"), params, REQUIRED) != []


def test_a_sidecar_that_is_none(validating: Json, params: Json) -> None:
    assert "none of those" in refused(validating, params, {"image": "nginx:1"}, name="sidecar")
    pod = copy.deepcopy(kit.pod("overlays/example"))
    del kit.sidecar(pod["spec"])["restartPolicy"]
    (message,) = admission.validate(validating, pod, params, REQUIRED)
    assert "needs restartPolicy" in message


@pytest.mark.parametrize("what", ["hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"])
def test_what_the_pod_shares(what: str, validating: Json, params: Json) -> None:
    assert what in refused(validating, params, {what: True})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"volumeMounts": [{"name": "sidecar-run", "mountPath": "/r"}]}, "mounts"),
        ({"securityContext": {"runAsUser": 10001}}, "10001"),
        ({"securityContext": {"privileged": True}}, "capabilities"),
        ({"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}, "capabilities"),
        ({"securityContext": {"capabilities": {"add": ["SETUID"]}}}, "capabilities"),
    ],
)
def test_an_agent_that_could_get_at_it(
    change: Json, word: str, validating: Json, params: Json
) -> None:
    assert word in refused(validating, params, change, name="agent")


def test_the_nodes_files_are_no_way_in(validating: Json, params: Json) -> None:
    volumes = copy.deepcopy(kit.pod("overlays/example")["spec"]["volumes"])
    volumes.append({"name": "node", "hostPath": {"path": "/var/lib/kubelet"}})
    assert "hostPath" in refused(validating, params, {"volumes": volumes})


def test_a_debug_container_is_no_way_in(validating: Json, params: Json) -> None:
    debug = {
        "name": "d",
        "image": "mcp-sidecar:0.1.0",
        "volumeMounts": [{"name": "sidecar-secrets"}],
    }
    assert "mounts" in refused(validating, params, {"ephemeralContainers": [debug]})


def test_the_uid_of_the_pod_counts_where_a_container_says_none(
    validating: Json, params: Json
) -> None:
    pod = copy.deepcopy(kit.pod("overlays/example"))
    pod["spec"]["securityContext"]["runAsUser"] = 10001
    del pod["spec"]["containers"][0]["securityContext"]["runAsUser"]
    (message,) = admission.validate(validating, pod, params, REQUIRED)
    assert "10001" in message


@pytest.mark.parametrize(
    "security",
    [
        {},
        {"runAsUser": 0, "allowPrivilegeEscalation": False},
        # Whom the image says: perhaps the sidecar's own uid.
        {"allowPrivilegeEscalation": False},
        {"runAsUser": 10003},
    ],
)
def test_behind_the_fence_nobody_can_become_the_sidecar(
    security: Json, validating: Json, params: Json
) -> None:
    pod = copy.deepcopy(kit.pod("overlays/enforce"))
    pod["spec"]["containers"][0]["securityContext"] = security
    (message,) = admission.validate(validating, pod, params, ENABLED)
    assert "the fence tells by its uid" in message
    # Without a fence it is Pod Security's to say.
    pod["spec"]["initContainers"] = [kit.sidecar(pod["spec"])]
    assert admission.validate(validating, pod, params, ENABLED) == []


def test_a_pod_from_before_is_not_held_up(validating: Json, params: Json) -> None:
    """A Job's controller takes its finalizer off: refused, the pod and its Job would never end."""
    before = sample(None)
    before["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    after = sample(None)
    assert admission.validate(validating, after, params, REQUIRED, before) == []
    after["spec"]["ephemeralContainers"] = [{"name": "d", "image": "x:1"}]
    assert len(admission.validate(validating, after, params, REQUIRED, before)) == 1
    # Who is labelled later has no sidecar either.
    assert len(admission.validate(validating, sample(), params, ENABLED, sample(None))) == 1


def test_the_label_that_the_network_policy_knows_stays(validating: Json, params: Json) -> None:
    pod = copy.deepcopy(kit.pod("overlays/example"))
    before = copy.deepcopy(pod)
    del pod["metadata"]["labels"]["mcp-sidecar/inject"]
    for old in (None, before):
        (message,) = admission.validate(validating, pod, params, REQUIRED, old)
        assert "NetworkPolicy" in message
    assert admission.validate(validating, pod, params, ENABLED) == []


def test_bindings_name_their_policies_and_fail_closed() -> None:
    for kind in ("Mutating", "Validating"):
        policy = kit.one("inject", f"{kind}AdmissionPolicy")
        binding = kit.one("inject", f"{kind}AdmissionPolicyBinding")
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["paramRef"] == {
            "name": "sidecar-inject",
            "parameterNotFoundAction": "Deny",
        }
