"""A real Prometheus server in the cluster's machine, which scrapes the node's kubelet and its agent."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import ADDRESS, NODE, Cluster
from tests.node.machine import TOOLS, children

DEPLOY = Path(__file__).parents[3] / "deploy"
KUBELET = f"{ADDRESS}:10250"
SCRAPER = "prometheus"
# Of what a server in the cluster is given (https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/).
RIGHTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": SCRAPER, "namespace": "default"}},
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": SCRAPER},
        "rules": [{"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]}],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": SCRAPER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": SCRAPER},
        "subjects": [{"kind": "ServiceAccount", "name": SCRAPER, "namespace": "default"}],
    },
]


class Scraping:
    """A server's answers; ``url`` is in the machine."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster, self.url = cluster, url

    def get(self, path: str, **arguments: str) -> Any:
        query = urllib.parse.urlencode(arguments)
        text = self.cluster.machine.run("curl", "-sS", "--max-time", "10", f"{self.url}{path}?{query}")
        return json.loads(text)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        result: list[dict[str, Any]] = self.get("/api/v1/query", query=expression)["result"]
        return result

    def values(self, expression: str, label: str) -> dict[str, float]:
        return {item["metric"].get(label, ""): float(item["value"][1]) for item in self.query(expression)}

    def targets(self) -> dict[str, tuple[str, str]]:
        """Health and last error, by the name of the job."""
        result = self.get("/api/v1/targets")["activeTargets"]
        return {item["scrapePool"]: (item["health"], item["lastError"]) for item in result}

    def until(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """What a condition gives once it holds."""
        end_s, result, failure = time.monotonic() + seconds, None, ""
        while time.monotonic() < end_s:
            try:
                if result := condition():
                    return result
            except (AssertionError, ValueError) as error:  # curl's exit code; it does not answer yet
                failure = str(error)[:300]
            time.sleep(0.5)
        raise AssertionError(f"{what}: {result} {failure} {self.targets()}")


def token(cluster: Cluster) -> Path:
    """A file with the server's own token, by which it may read nodes' metrics and nothing else."""
    cluster.kubectl("apply", given=RIGHTS)
    path = cluster.folder / "scraper.token"
    path.write_text(cluster.kubectl("-n", "default", "create", "token", SCRAPER, "--duration=2h").strip())
    return path


def kubelet_job(path: str, token_file: Path, name: str, interval: str = "5s") -> dict[str, Any]:
    """A part of ``scrape_configs``; the kubelet of these tests has signed its certificate itself."""
    return {
        "job_name": name,
        "scheme": "https",
        "scrape_interval": interval,
        "metrics_path": path,
        "authorization": {"credentials_file": str(token_file)},
        "tls_config": {"insecure_skip_verify": True},
        "static_configs": [{"targets": [KUBELET], "labels": {"node": NODE}}],
    }


def agent_job(address: str, pod: str = "slicepilot-agent-abcde") -> dict[str, Any]:
    """The agent's, with what a Prometheus operator adds of the PodMonitor: the agent's pod, its namespace, its node."""
    labels = {"instance": NODE, "namespace": "slicepilot-system", "pod": pod, "container": "agent"}
    return {"job_name": "slicepilot", "static_configs": [{"targets": [address], "labels": labels}]}


@contextlib.contextmanager
def scraping(
    cluster: Cluster, jobs: Sequence[dict[str, Any]], rules: Sequence[dict[str, Any]] = ()
) -> Iterator[Scraping]:
    """For a block; ``rules`` are groups."""
    program = shutil.which("prometheus", path=f"{TOOLS / 'bin'}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("needs prometheus: tests/packages.sh")
    folder = cluster.folder / "prometheus"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": list(rules)}))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": list(jobs),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))
    address = "127.0.0.1:9090"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.size=128MB",
        f"--web.listen-address={address}",
        "--log.level=error",
    ]
    environment = {"GOMEMLIMIT": "192MiB", "GOMAXPROCS": "1"}
    log = (folder / "log").open("w")
    with log:
        process = cluster.machine.start(*command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
    server = Scraping(cluster, f"http://{address}")
    try:
        server.until(lambda: server.get("/api/v1/status/runtimeinfo"), 30.0, (folder / "log").read_text())
        yield server
    finally:
        for child in children(process.pid):  # which is in the machine
            os.kill(child, signal.SIGTERM)
        process.wait(20)
        print((folder / "log").read_text()[-2000:])
