"""The chart as helm has it, and the same objects without helm: rendered by ourselves, and by kustomize."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from slicepilot.cluster.install.manifests import definitions, in_order, manifests
from slicepilot.cluster.install.removal import CONFIG_MAPS
from slicepilot.cluster.install.template import TemplateError, rendered
from slicepilot.cluster.install.values import EVERYTHING, Values, assigned, schema, values
from slicepilot.configs import ConfigError
from slicepilot.controller.system.privileges import LOOP

from .cases import CASES

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "slicepilot"
HELM = ROOT / "build" / "charts" / "bin" / "helm"
KUBECTL = ROOT / "build" / "cluster" / "bin" / "kubectl"
needs_helm = pytest.mark.skipif(not HELM.exists(), reason="needs helm: make k8s-test builds it")
NAMESPACE = "slices"


def by_name(documents: Iterable[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    found = {(one["kind"], one["metadata"]["name"]): one for one in documents}
    return dict(sorted(found.items()))


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *arguments], capture_output=True, text=True, check=False)


def templated(path: Path, given: dict[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
    """`helm template` with these values."""
    file = path / "values.yaml"
    file.write_text(yaml.safe_dump(given))
    return helm("template", "any", str(CHART), "--namespace", NAMESPACE, "--values", str(file), *options)


@needs_helm
@pytest.mark.parametrize("name", CASES)
def test_helm_makes_the_same_objects(tmp_path: Path, name: str) -> None:
    done = templated(tmp_path, CASES[name], "--include-crds")
    assert done.returncode == 0, done.stderr
    ours = [*definitions(), *manifests(values(CASES[name]), NAMESPACE)]
    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(ours)
    kinds = [one["kind"] for one in in_order(ours)]
    assert kinds[-1] == "DaemonSet"
    assert kinds.index("ServiceAccount") < kinds.index("RoleBinding")


@needs_helm
def test_helm_finds_nothing_wrong() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown mode": ({"highestMode": "on"}, "highestMode"),
    "an unknown value": ({"highMode": "live"}, "highMode"),
    "a value within": ({"image": {"tagg": "1"}}, "tagg"),
    "a profile without a name": ({"seccomp": {"type": "Localhost"}}, "seccomp"),
    "a name without its profile": ({"appArmor": {"localhostProfile": "x"}}, "appArmor"),
    "text for a flag": ({"hostNetwork": "yes"}, "hostNetwork"),
    "text for a number": ({"apiServer": {"port": "6443"}}, "port"),
    "a privileged port": ({"metrics": {"enabled": True, "port": 80}}, "port"),
    "an interval of words": ({"metrics": {"podMonitor": {"interval": "5s\n  x: y"}}}, "interval"),
    "no port": ({"apiServer": {"port": 0}}, "port"),
    "less than loops need to end": ({"terminationGracePeriodSeconds": 5}, "terminationGracePeriodSeconds"),
    "a repository of two lines": ({"image": {"repository": "a\nprivileged: true"}}, "repository"),
    "a folder that leads up": ({"runtime": {"stateFolder": "/run/../etc: {}"}}, "stateFolder"),
    "a tag that is none": ({"image": {"tag": "a b"}}, "tag"),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_cannot_be_are_refused_by_name(name: str) -> None:
    given, field = WRONG[name]
    with pytest.raises(ConfigError, match=field) as refused:
        values(given)
    assert "\n" not in str(refused.value)


@needs_helm
@pytest.mark.parametrize("name", WRONG)
def test_helm_refuses_them_too(tmp_path: Path, name: str) -> None:
    given, field = WRONG[name]
    done = templated(tmp_path, given)
    assert done.returncode != 0
    assert field in done.stderr


def test_the_schema_and_the_defaults_are_those_of_the_values() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == schema(), (
        "python -m slicepilot.cluster.install writes it"
    )
    adapter = TypeAdapter(Values)
    assert adapter.dump_python(Values(), by_alias=True) == yaml.safe_load((CHART / "values.yaml").read_text())


def closed(document: Any) -> bool:
    """Whether each object with named properties takes no others."""
    if isinstance(document, dict):
        mine = "properties" not in document or document.get("type") != "object"
        return (mine or document.get("additionalProperties") is False) and all(map(closed, document.values()))
    return all(map(closed, document)) if isinstance(document, list) else True


def test_the_schema_takes_nothing_that_it_does_not_name() -> None:
    assert closed(schema())


def test_the_container_has_the_capabilities_that_a_loop_is_said_to_need() -> None:
    [daemons] = [one for one in manifests(values(), NAMESPACE) if one["kind"] == "DaemonSet"]
    pod = daemons["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    added = {f"CAP_{name}" for name in context["capabilities"]["add"]}
    assert added == {*LOOP, "CAP_SETPCAP", "CAP_CHOWN"}
    assert context["capabilities"]["drop"] == ["ALL"]
    assert not context["privileged"]
    assert not context["allowPrivilegeEscalation"]
    assert context["readOnlyRootFilesystem"]
    assert pod["hostPID"]
    assert not pod["hostNetwork"]
    paths = {one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    assert not [path for path in paths if path.endswith(".sock") or path in {"/", "/run", "/run/containerd", "/etc"}]


def test_nothing_is_served_unless_somebody_says_so() -> None:
    [daemons] = [one for one in manifests(values(), NAMESPACE) if one["kind"] == "DaemonSet"]
    container = daemons["spec"]["template"]["spec"]["containers"][0]
    assert "ports" not in container
    assert not [one for one in container["args"] if one.startswith("--metrics")]
    assert {one["kind"] for one in manifests(values(CASES["monitors without metrics"]), NAMESPACE)} & {
        *("PodMonitor", "Service", "ServiceMonitor")
    } == set()


def test_a_monitor_of_services_needs_the_service() -> None:
    with pytest.raises(ConfigError, match=r"serviceMonitor\.create with service\.create"):
        values({"metrics": {"enabled": True, "serviceMonitor": {"create": True}}})


def test_the_charts_monitor_is_the_one_that_is_shipped_beside_it() -> None:
    path = ROOT / "deploy" / "kubernetes-monitoring" / "podmonitor.yaml"
    found = by_name(manifests(values({"metrics": {"enabled": True, "podMonitor": {"create": True}}}), NAMESPACE))
    made = found["PodMonitor", "slicepilot-agent"]
    assert made["metadata"].pop("namespace") == NAMESPACE
    assert made == yaml.safe_load(path.read_text())
    pod = found["DaemonSet", "slicepilot-agent"]["spec"]["template"]
    assert made["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    [port] = pod["spec"]["containers"][0]["ports"]
    assert port["name"] == made["spec"]["podMetricsEndpoints"][0]["port"]
    assert f"--metrics=$(POD_IP):{port['containerPort']}" in pod["spec"]["containers"][0]["args"]


def test_nothing_may_act_unless_somebody_says_so() -> None:
    [daemons] = [one for one in manifests(values(), NAMESPACE) if one["kind"] == "DaemonSet"]
    assert "--highest-mode=shadow" in daemons["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.skipif(not KUBECTL.exists(), reason="needs kubectl: make k8s-test builds it")
@pytest.mark.parametrize("name", CASES)
def test_what_is_taken_away_is_all_that_there_can_be(name: str) -> None:
    """Those in other namespaces are looked for: `withdraw`."""
    whole = by_name(manifests(values(EVERYTHING), NAMESPACE)).keys() | {(kind, CONFIG_MAPS) for kind in GRANTS}
    assert by_name(manifests(values(CASES[name]), NAMESPACE)).keys() - {("Namespace", NAMESPACE)} <= whole


def test_kustomize_makes_the_same_objects(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(ROOT / "deploy" / "kustomize")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ours = [*definitions(), *manifests(values({"namespace": {"create": True}}), "slicepilot-system")]
    assert by_name(yaml.safe_load_all(done.stdout)) == by_name(ours), "python -m slicepilot.cluster.install writes it"
    overlay = tmp_path / "kustomization.yaml"
    base = tmp_path / "base"
    base.symlink_to(ROOT / "deploy" / "kustomize")
    overlay.write_text(
        "resources: [base]\nimages: [{name: slicepilot-agent, newName: registry.example/a, newTag: '2'}]\n"
    )
    done = subprocess.run([str(KUBECTL), "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert "image: registry.example/a:2" in done.stdout, done.stderr


GRANTS = ("Role", "RoleBinding")
TEMPLATES = {
    "text": ("a{{ .Values.one }}b", "a1b"),
    "white space": ("a \n {{- .Values.one -}} \n b", "a1b"),
    "kept white space": ("a {{ .Values.one }} b", "a 1 b"),
    "a pipeline": ("{{ .Values.text | quote }}", '"t: \\"u\\""'),
    "a choice": ('{{ if .Values.no }}a{{ else if eq .Values.word "w" }}b{{ else }}c{{ end }}', "b"),
    "a choice within": ("{{ if .Values.one }}a{{ if .Values.no }}b{{ else }}c{{ end }}d{{ end }}", "acd"),
    "none": ("{{ if .Values.empty }}a{{ end }}", ""),
    "a list": ("{{ range .Values.words }}<{{ . }}{{ if $.Values.one }}!{{ end }}>{{ end }}", "<u!><v!>"),
    "a list of none": ("a{{- range .Values.empty }} b{{ end }}", "a"),
    "yaml": ("x:{{ toYaml .Values.map | nindent 2 }}", "x:\n  a: 1\n  b:\n  - 2"),
}
GIVEN = {
    "one": 1,
    "word": "w",
    "text": 't: "u"',
    "no": False,
    "empty": [],
    "words": ["u", "v"],
    "map": {"a": 1, "b": [2]},
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_part_of_the_language(name: str) -> None:
    text, expected = TEMPLATES[name]
    assert rendered(text, {"Values": GIVEN}) == expected


@needs_helm
def test_helm_reads_that_part_alike(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 1.0.0\n")
    for number, (text, _) in enumerate(TEMPLATES.values()):
        body = '{{ define "it" }}' + text + "{{ end }}"
        (tmp_path / "templates" / f"{number}.yaml").write_text(
            body.replace('"it"', f'"it{number}"') + f'made: {{{{ include "it{number}" . | b64enc }}}}\n'
        )
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(GIVEN))
    done = helm("template", "x", str(tmp_path))
    assert done.returncode == 0, done.stderr
    import base64

    made = {
        int(match[1]): base64.b64decode(match[2]).decode()
        for match in re.finditer(r"templates/(\d+)\.yaml\nmade: ?(\S*)", done.stdout)
    }
    assert [made[number] for number in range(len(TEMPLATES))] == [expected for _, expected in TEMPLATES.values()]


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Values.unknown }}",
        "{{ if .Values.one }}a",
        "{{ end }}",
        "{{ range .Values.map }}{{ end }}",
        "{{ range .Values.empty }}",
        "{{ range .Values.words }}{{ .Values.one }}{{ end }}",
        "{{ with .Values.one }}{{ end }}",
        '{{ include "a" . }}',
        "{{ lookup }}",
        "{{ .Values.map }}",
        "{{ .Values.one | }}",
        "{{ if .Values.one }}{{ else whatever }}{{ end }}",
    ],
)
def test_what_is_not_in_that_part_is_an_error(text: str) -> None:
    with pytest.raises(TemplateError):
        rendered(text, {"Values": GIVEN})


def test_what_is_set_is_read_as_yaml_and_named() -> None:
    assert assigned(["a.b=1", "a.c=x", "d="]) == {"a": {"b": 1, "c": "x"}, "d": None}
    assert assigned(["image.tag=1.20", "highestMode=on"]) == {"image": {"tag": "1.20"}, "highestMode": "on"}
    for wrong in ("a", "a b=1", "=1", "a=[", "a[0]=1"):
        with pytest.raises(ConfigError, match="accepted: NAME=VALUE"):
            assigned([wrong])


def test_a_namespace_that_cannot_be_one() -> None:
    with pytest.raises(ConfigError, match="namespace = 'a: b'"):
        manifests(values(), "a: b")


def test_the_chart_installs_the_version_that_this_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"] == chart["version"]
    [daemons] = [one for one in manifests(values(), NAMESPACE) if one["kind"] == "DaemonSet"]
    image = daemons["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image == f"slicepilot-agent:{project['version']}"


def test_the_image_is_of_pins_that_the_agent_is_installed_with() -> None:
    text = (ROOT / "requirements" / "agent.txt").read_text()
    named = set(re.findall(r"^([a-z0-9._-]+)==", text, re.MULTILINE))
    assert {"kubernetes", "numpy", "onnxruntime"} <= named
    assert not named & {"torch", "ray", "mlflow", "pandas", "matplotlib", "stable-baselines3"}
    dockerfile = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert "--require-hashes" in dockerfile
    assert "--no-index" in dockerfile
