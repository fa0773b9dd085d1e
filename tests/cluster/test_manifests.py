"""The chart's objects are accepted by a real API server, field by field, in a dry run that stores nothing."""

from __future__ import annotations

import yaml

from tests.charts.cases import CASES
from tests.charts.chart import objects

from .agents import SYSTEM
from .cluster import BUILT, Cluster


def test_the_server_accepts_every_case_in_a_dry_run(cluster: Cluster) -> None:
    cluster.kubectl("apply", given={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    folder = cluster.folder / "cases"
    folder.mkdir()
    for number, values in enumerate(CASES.values()):
        rendered = objects(values).values()
        # Definitions of the Prometheus operator are not on this server.
        known = [item for item in rendered if not item["apiVersion"].startswith("monitoring.coreos.com/")]
        (folder / f"{number}.yaml").write_text(yaml.safe_dump_all(known))
    apply = f"{BUILT}/kubectl --kubeconfig {cluster.folder}/admin.yaml apply --server-side --dry-run=server"
    script = f"for file in {folder}/*.yaml; do {apply} --force-conflicts -f $file; done"
    cluster.machine.run("bash", "-ec", script, timeout_s=120)
    assert "slicepilot" not in cluster.kubectl("get", "clusterroles,ds", "-A", "-o", "name")


def test_the_server_refuses_a_field_that_does_not_exist(cluster: Cluster) -> None:
    daemons = objects({}, "default")["DaemonSet/slicepilot-agent"]
    daemons["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    assert cluster.kubectl("apply", "--server-side", "--dry-run=server", given=daemons, code=None) == ""
