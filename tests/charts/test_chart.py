"""The Helm chart and the kustomize base: rendered by helm and kubectl, linted, and refused with wrong values."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from typing import Any

import pytest
import yaml

from slicepilot.controller.actuators.cilium.endpoints import STATE
from slicepilot.controller.actuators.cilium.throttle import PIN
from slicepilot.controller.system.privileges import LOOP

from .cases import CASES
from .chart import CHART, HELM, KUBECTL, ROOT, by_name, objects, pod_of, template

needs_helm = pytest.mark.skipif(not HELM.exists(), reason="needs helm: make k8s-test builds it")
needs_kubectl = pytest.mark.skipif(not KUBECTL.exists(), reason="needs kubectl: make k8s-test builds it")

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown mode": ({"highestMode": "on"}, "highestMode"),
    "an unknown value": ({"highMode": "live"}, "highMode"),
    "an unknown nested value": ({"image": {"tagg": "1"}}, "tagg"),
    "a profile without a name": ({"seccomp": {"type": "Localhost"}}, "seccomp"),
    "a name without its profile": ({"appArmor": {"localhostProfile": "x"}}, "appArmor"),
    "text for a flag": ({"hostNetwork": "yes"}, "hostNetwork"),
    "text for a number": ({"apiServer": {"port": "6443"}}, "port"),
    "a privileged port": ({"metrics": {"enabled": True, "port": 80}}, "port"),
    "YAML in an interval": ({"metrics": {"podMonitor": {"interval": "5s\n  x: y"}}}, "interval"),
    "no port": ({"apiServer": {"port": 0}}, "port"),
    "less time than loops need to end": ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
    "YAML in a repository": ({"image": {"repository": "a\nprivileged: true"}}, "repository"),
    "a folder that leads up": ({"runtime": {"stateFolder": "/run/../etc: {}"}}, "stateFolder"),
    "a space in a tag": ({"image": {"tag": "a b"}}, "tag"),
}


@needs_helm
@pytest.mark.parametrize("name", WRONG)
def test_wrong_values_are_refused_by_name(name: str) -> None:
    given, field = WRONG[name]
    done = template(given)
    assert done.returncode != 0
    assert field in done.stderr


@needs_helm
def test_the_chart_passes_lint() -> None:
    done = subprocess.run([str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def paths(document: Any, within: str = "") -> set[str]:
    """Paths of values that are no mappings, or empty."""
    if not isinstance(document, dict) or not document:
        return {within}
    return {path for key, value in document.items() for path in paths(value, f"{within}/{key}")}


def test_the_schema_names_every_value_and_admits_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node

    def named(node: dict[str, Any], within: str = "") -> set[str]:
        node = resolved(node)
        if "properties" not in node:
            return {within}
        assert node["additionalProperties"] is False, within
        return {path for key, value in node["properties"].items() for path in named(value, f"{within}/{key}")}

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values["resources"]["requests"] = {}  # names of resources are free
    assert named(schema) - {"/global"} == paths(values)


@needs_helm
def test_the_container_has_the_capabilities_that_a_loop_needs_and_nothing_is_served_or_acts_by_default() -> None:
    pod = pod_of(objects({}))
    [container] = pod["containers"]
    context = container["securityContext"]
    assert {f"CAP_{name}" for name in context["capabilities"]["add"]} == {*LOOP, "CAP_SETPCAP", "CAP_CHOWN"}
    assert context["capabilities"]["drop"] == ["ALL"]
    assert not context["privileged"]
    assert not context["allowPrivilegeEscalation"]
    assert context["readOnlyRootFilesystem"]
    assert pod["hostPID"]
    assert not pod["hostNetwork"]
    folders = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    assert not [path for path in folders if path.endswith(".sock") or path in {"/", "/run", "/run/containerd", "/etc"}]
    assert "--highest-mode=shadow" in container["args"]
    assert "ports" not in container
    assert not [argument for argument in container["args"] if argument.startswith("--metrics")]
    chart, version = yaml.safe_load((CHART / "Chart.yaml").read_text()), metadata.version("slicepilot")
    assert chart["appVersion"] == version == chart["version"]
    assert container["image"] == f"slicepilot-agent:{version}"


@needs_helm
def test_with_cilium_agents_see_its_map_and_its_endpoints_where_a_loop_looks_for_them() -> None:
    pod = pod_of(objects(CASES["cilium"]))
    [container] = pod["containers"]
    mounts = {item["mountPath"]: item for item in container["volumeMounts"]}
    of_host = {item["name"]: item["hostPath"]["path"] for item in pod["volumes"] if "hostPath" in item}
    for path in (PIN.parents[2], STATE):
        mount = mounts[str(path)]
        assert of_host[mount["name"]] == str(path)
        assert mount["readOnly"]
        assert mount["mountPropagation"] == "HostToContainer", "what is mounted later is seen as well"
    assert pod["hostNetwork"], "the other ends of the pods' links are there"
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert not {str(PIN.parents[2]), str(STATE)} & {
        item["mountPath"] for item in pod_of(objects({}))["containers"][0]["volumeMounts"]
    }


@needs_helm
def test_a_pod_monitor_selects_the_agents_pods_and_needs_metrics() -> None:
    assert "PodMonitor/slicepilot-agent" not in objects(CASES["monitor without metrics"])
    rendered = objects({"metrics": {"enabled": True, "podMonitor": {"create": True}}})
    monitor, template = (
        rendered["PodMonitor/slicepilot-agent"],
        rendered["DaemonSet/slicepilot-agent"]["spec"]["template"],
    )
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    [port] = template["spec"]["containers"][0]["ports"]
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    assert port["name"] == endpoint["port"]
    assert f"--metrics=$(POD_IP):{port['containerPort']}" in template["spec"]["containers"][0]["args"]
    # The alert rules and dashboards select this job.
    assert {"targetLabel": "job", "replacement": "slicepilot"} in endpoint["relabelings"]


@needs_helm
@needs_kubectl
def test_the_kustomize_base_has_the_charts_objects(tmp_path: Any) -> None:
    def built(folder: Any) -> str:
        done = subprocess.run([str(KUBECTL), "kustomize", str(folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert by_name(built(ROOT / "deploy" / "kustomize")) == objects({"namespace": {"create": True}}), (
        "run deploy/kustomize/render.sh"
    )
    (tmp_path / "base").symlink_to(ROOT / "deploy" / "kustomize")
    (tmp_path / "kustomization.yaml").write_text(
        "resources: [base]\nimages: [{name: slicepilot-agent, newName: registry.example/a, newTag: '2'}]\n"
    )
    assert "image: registry.example/a:2" in built(tmp_path)


def test_the_image_is_of_pins_that_the_agent_is_installed_with() -> None:
    text = (ROOT / "requirements" / "agent.txt").read_text()
    named = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
    assert {"kubernetes", "numpy", "onnxruntime"} <= named
    assert not named & {"torch", "ray", "mlflow", "pandas", "matplotlib", "stable-baselines3"}
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert "--require-hashes" in dockerfile
    assert "--no-index" in dockerfile
