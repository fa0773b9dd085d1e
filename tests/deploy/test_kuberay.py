"""What is shipped for KubeRay: Ray's version is the pinned one, pods may do nothing that they need not."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml

from slicepilot.cli.registry import commands
from slicepilot.configs.backends import load_target
from slicepilot.training.sweeps.config import SweepConfig

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy" / "kuberay"
MANIFEST = list(yaml.safe_load_all((DEPLOY / "rayjob.yaml").read_text()))


def pinned(package: str) -> str:
    [version] = re.findall(rf"^{package}==(\S+)", (ROOT / "requirements" / "dev.txt").read_text(), re.MULTILINE)
    return str(version)


def job() -> dict[str, Any]:
    [result] = [document["spec"] for document in MANIFEST if document["kind"] == "RayJob"]
    return dict(result)


def pods() -> Iterator[dict[str, Any]]:
    cluster = job()["rayClusterSpec"]
    yield job()["submitterPodTemplate"]["spec"]
    yield cluster["headGroupSpec"]["template"]["spec"]
    for group in cluster["workerGroupSpecs"]:
        yield group["template"]["spec"]


def test_ray_is_the_pinned_one_everywhere() -> None:
    assert job()["rayClusterSpec"]["rayVersion"] == pinned("ray")
    images = [container["image"] for pod in pods() for container in pod["containers"]]
    assert len(images) == 3
    assert {image.rpartition(":")[2] for image in images} == {pinned("ray")}
    built_from = re.search(r"^FROM rayproject/ray:(\S+)-py311-cpu$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert built_from is not None
    assert built_from[1] == pinned("ray")
    named = re.findall(r"slicepilot-ray:([\d.]+)", (DEPLOY / "Dockerfile").read_text() + str(MANIFEST))
    assert set(named) == {pinned("ray")}


def test_pods_may_do_nothing_that_they_need_not() -> None:
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        for container in pod["containers"]:
            rights = container["securityContext"]
            assert (rights["privileged"], rights["allowPrivilegeEscalation"]) == (False, False)
            assert rights["capabilities"] == {"drop": ["ALL"]}
            for kind in ("requests", "limits"):
                assert container["resources"][kind].keys() == {"cpu", "memory"}
        assert all("hostPath" not in volume for volume in pod.get("volumes", ()))
    assert job()["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_the_job_is_a_command_that_there_is() -> None:
    program, name, *arguments = shlex.split(job()["entrypoint"])
    assert program == "slicepilot"
    single = typer.Typer()
    single.command()(load_target(commands()[name].target))
    given = typer.main.get_command(single).make_context(name, arguments).params
    assert given["address"] == "auto"
    assert str(given["out"]).startswith("/sweeps/")
    assert SweepConfig.from_yaml(given["config"]).cpus_per_trial <= 4
