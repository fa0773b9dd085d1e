"""The Helm chart, rendered by real helm."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "slicepilot"
HELM = ROOT / "build" / "charts" / "bin" / "helm"
KUBECTL = ROOT / "build" / "cluster" / "bin" / "kubectl"
NAMESPACE = "slicepilot-system"


def template(values: dict[str, Any], namespace: str = NAMESPACE) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values on standard input."""
    command = [str(HELM), "template", "slicepilot", str(CHART), "-n", namespace, "--include-crds", "--values", "-"]
    return subprocess.run(command, input=yaml.safe_dump(values), capture_output=True, text=True, check=False)


def objects(values: dict[str, Any], namespace: str = NAMESPACE) -> dict[str, dict[str, Any]]:
    """What it renders, by kind and name, such as ``DaemonSet/slicepilot-agent``."""
    done = template(values, namespace)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def by_name(text: str) -> dict[str, dict[str, Any]]:
    """Objects of a YAML stream by kind, namespace where there are several of a name, and name."""
    result: dict[str, dict[str, Any]] = {}
    for item in filter(None, yaml.safe_load_all(text)):
        name = f"{item['kind']}/{item['metadata']['name']}"
        result[f"{name}/{item['metadata']['namespace']}" if name in result else name] = item
    return result


def pod_of(rendered: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The specification of the agents' pods."""
    spec: dict[str, Any] = rendered["DaemonSet/slicepilot-agent"]["spec"]["template"]["spec"]
    return spec
