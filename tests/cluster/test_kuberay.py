"""The job that is shipped for KubeRay, by KubeRay's operator: Ray's head, its workers and the submitter are pods.

There is no registry and no name server here. The image is empty, with this machine's programs mounted into it, and the
service of the head is in a hosts file with the address of the head's pod, which a name server would tell, too: the
service is headless.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.runtimes import until
from tests.training.sweeps.test_tune import TRAINING

from .cluster import BUILT, Cluster

ROOT = Path(__file__).parents[2]
NAMESPACE = "sweeps"
USER, GROUP = 1000, 100  # whom the manifest has pods run as
PATIENCE_S = 900.0  # of a busy machine with two cores
MOUNTED = ("/usr", "/bin", "/lib", "/lib64", "/etc/hosts", "/etc/passwd", sys.base_prefix, sys.prefix, str(ROOT))
JOB = ("-n", NAMESPACE, "rayjob/slicepilot-sweep")
CRDS = BUILT.with_name("crds")


def with_programs(pod: dict[str, Any]) -> None:
    """Mount into a pod what the image has: system, Python, the virtual environment, slicepilot, and Ray's home."""
    mounts = {path: {"hostPath": {"path": path}} for path in MOUNTED if Path(path).exists()}
    mounts["/home/ray"] = {"emptyDir": {}}
    [container] = pod["containers"]
    pod["volumes"] = [
        *pod.get("volumes", ()),
        *({"name": f"m{i}", **volume} for i, volume in enumerate(mounts.values())),
    ]
    container["volumeMounts"] = [
        *container.get("volumeMounts", ()),
        *({"name": f"m{i}", "mountPath": path, "readOnly": path != "/home/ray"} for i, path in enumerate(mounts)),
    ]
    path = {"name": "PATH", "value": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    # Ray's image has what its dashboard imports, by which jobs are submitted; the virtual environment has not.
    container["env"] = [*container.get("env", ()), path, {"name": "PYTHONPATH", "value": str(BUILT.with_name("ray"))}]


def documents(entrypoint: str) -> list[dict[str, Any]]:
    """The manifest with another sweep, and for a machine of two cores: less CPU and memory, no wait before it goes."""
    text = (ROOT / "deploy" / "kuberay" / "rayjob.yaml").read_text()
    claim, job = json.loads(json.dumps(list(yaml.safe_load_all(text))))  # no part is shared, as it is by anchors
    spec = job["spec"]
    spec |= {"entrypoint": entrypoint, "ttlSecondsAfterFinished": 5}
    head = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    [workers] = spec["rayClusterSpec"]["workerGroupSpecs"]
    worker = workers["template"]["spec"]
    for pod, limit in ((head, "2"), (worker, "1")):
        few = {"requests": {"cpu": "200m", "memory": "1Gi"}, "limits": {"cpu": limit, "memory": "3Gi"}}
        pod["containers"][0]["resources"] = few
    for pod in (spec["submitterPodTemplate"]["spec"], head, worker):
        with_programs(pod)
    return [claim, job]


@pytest.fixture(name="sweeps", scope="module")
def _sweeps(cluster: Cluster) -> Iterator[Path]:
    """The folder of the volume, with the operator running."""
    if not (BUILT / "ray-operator").exists():
        pytest.skip("needs ray-operator: make k8s-test builds it")
    folder = cluster.folder / "sweeps"
    folder.mkdir(mode=0o770)
    os.chown(folder, USER, GROUP)  # fsGroup does nothing to a folder of the node
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "sweeps"},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "capacity": {"storage": "10Gi"},
            "hostPath": {"path": str(folder)},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl("apply", "--server-side", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
    cluster.kubectl("apply", given=volume)
    access = f"--kubeconfig={cluster.folder}/admin.yaml"
    cluster.unit("ray-operator", str(BUILT / "ray-operator"), access, "--enable-leader-election=false")
    try:
        yield folder
    finally:
        cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=100s", code=None)
        cluster.machine.run("systemctl", "stop", "ray-operator", code=None)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_shipped_job_runs_a_sweep_on_two_workers_and_leaves_its_results(cluster: Cluster, sweeps: Path) -> None:
    (sweeps / "training.yaml").write_text(yaml.safe_dump(TRAINING | {"tracking": "none", "total_steps": 4096}))
    sweep = {"training": "training.yaml", "axes": {"seed": [0, 1]}, "asha": None}
    (sweeps / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    command = "slicepilot tune -c /sweeps/sweep.yaml --out /sweeps/seeds --address auto"
    claim, job = documents(command)
    ray = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    cluster.import_image(ray["image"], ["/bin/bash"], {})
    cluster.kubectl("apply", "-n", NAMESPACE, given=[claim, job])
    head = name_head(cluster)
    cluster.wait("-n", NAMESPACE, "pod", "-l", "ray.io/node-type=head", "--for=condition=Ready", seconds=PATIENCE_S)
    ask = f"import urllib.request; urllib.request.urlopen('http://{head}:8265/api/jobs/')"
    refused = cluster.machine.start(sys.executable, "-c", ask, stderr=subprocess.PIPE).communicate(timeout=60)[1]
    assert "HTTP Error 401" in refused, "orders without the token"

    status = "jsonpath={.status.jobDeploymentStatus}"
    deadline = time.monotonic() + PATIENCE_S
    while (state := cluster.kubectl("get", *JOB, "-o", status)) not in {"Complete", "Failed"}:
        assert time.monotonic() < deadline, told(cluster)
        time.sleep(1)
    assert state == "Complete", told(cluster)
    workers = list(sweeps.glob("seeds/trials/*/worker.json"))
    assert len({json.loads(path.read_text())["node"] for path in workers}) == len(workers) == 2, "one worker had both"
    assert {path.stat().st_uid for path in workers} == {USER}
    pods = partial(cluster.get, "-n", NAMESPACE, "pods", "-l", "ray.io/cluster")
    until(lambda: not pods()["items"], "the Ray cluster stays when its job has ended", seconds=120)
    assert len(list(sweeps.glob("seeds/trials/*/bundle"))) == 2


def name_head(cluster: Cluster) -> str:
    """Put the head's service into the hosts file, as soon as the head's pod has an address; returns the address."""
    deadline = time.monotonic() + PATIENCE_S
    labelled = ("-n", NAMESPACE, "-l", "ray.io/node-type=head")
    while True:
        services, pods = cluster.get("services", *labelled)["items"], cluster.get("pods", *labelled)["items"]
        if services and pods and (address := pods[0]["status"].get("podIP")):
            name = services[0]["metadata"]["name"]
            with (cluster.machine.root / "etc" / "hosts").open("a") as hosts:
                hosts.write(f"{address} {name}.{NAMESPACE}.svc.cluster.local\n")
            return str(address)
        assert time.monotonic() < deadline, told(cluster)
        time.sleep(0.5)


def told(cluster: Cluster) -> str:
    """What happened in the namespace: objects, events, and the ends of what containers and the operator printed."""
    space = ("-n", NAMESPACE)
    shown = [cluster.kubectl("get", "pods,services,rayjobs,rayclusters", *space, "-o", "wide", code=None)]
    shown += [cluster.kubectl("get", "events", *space, "--sort-by=.lastTimestamp", code=None)]
    shown += [cluster.machine.run("sh", "-c", f"tail -v -n 30 /var/log/pods/{NAMESPACE}_*/*/*.log", code=None)]
    shown += [cluster.log("ray-operator")]
    return "\n".join(shown)
