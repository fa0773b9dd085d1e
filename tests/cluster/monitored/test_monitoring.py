"""A real Prometheus server on a real cluster, and what the kubelet and the agent say of five UPF pods under traffic."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.agents import NODE, RunningAgent
from tests.cluster.cluster import ADDRESS, Cluster
from tests.cluster.upfs import NAMESPACE
from tests.node.machine import children

from .scraping import DEPLOY, Scraping
from .setting import COUNT, LOOP, MBPS, PORT, SLICES, WITHIN_S

pytestmark = pytest.mark.slow


def test_the_kubelet_and_the_agent_are_scraped(server: Scraping) -> None:
    server.until(
        lambda: {health for health, _ in server.targets().values()} == {"up"}, WITHIN_S, "not all targets are up"
    )
    assert server.targets().keys() == {"slicepilot", "kubelet", "cadvisor"}
    assert server.query("kubelet_running_pods")


def test_each_slice_says_whose_it_is(server: Scraping) -> None:
    server.until(lambda: len(server.query("slicepilot_slice_valid == 1")) == COUNT, WITHIN_S, "not measured")
    result = server.query("rate(slicepilot_slice_carried_bytes_total[15s])")
    assert sorted(item["metric"]["slice"] for item in result) == SLICES
    for item in result:
        assert item["metric"]["sliceset"] == "video"
        assert item["metric"]["sliceset_namespace"] == NAMESPACE
        assert item["metric"]["loop"] == LOOP
        # Those of the target are the agent's pod, by which an alert says where to look.
        assert (item["metric"]["namespace"], item["metric"]["instance"]) == ("slicepilot-system", NODE)
        assert 0.5 * MBPS < 8e-6 * float(item["value"][1]) < 1.5 * MBPS


def test_the_agent_says_how_it_does(server: Scraping) -> None:
    def value(query: str) -> float:
        [item] = server.query(query)
        return float(item["value"][1])

    assert value("slicepilot_agent_lease_held") == 1
    assert value(f'slicepilot_agent_loop_up{{loop="{LOOP}"}}') == 1
    assert value('slicepilot_agent_slicesets{reason="LoopRunning"}') == 1
    assert value(f'slicepilot_agent_loop_starts_total{{loop="{LOOP}"}}') == 1
    assert value(f'slicepilot_agent_loop_failures_total{{loop="{LOOP}"}}') == 0
    heard = server.values("time() - slicepilot_agent_heard_timestamp_seconds < 120", "list")
    assert heard.keys() >= {"slicesets", "pods", "nodes"}
    assert value('slicepilot_agent_api_requests_total{verb="GET",code="200"}') >= 6
    assert value("time() - slicepilot_agent_told_timestamp_seconds") < 10


def test_recording_rules_and_dashboards_have_data_of_these_slices(server: Scraping) -> None:
    recorded = yaml.safe_load((DEPLOY / "prometheus" / "recording.yaml").read_text())["groups"][0]["rules"]
    names = [rule["record"] for rule in recorded]
    server.until(lambda: all(server.query(name) for name in names), 90.0, "recording rules without data")
    assert sorted(server.values("slice:slicepilot_slice_carried_bits:rate1m", "slice")) == SLICES
    assert server.query("slicepilot_nodes:up")[0]["value"][1] == "1"
    filled = {"$__rate_interval": "15s", "$instance": ".*", "$sliceset": ".*", "$slice": ".*", "$namespace": ".*"}
    empty = []
    for name in ("slicepilot.json", "slicepilot-cluster.json", "slicepilot-kubernetes.json"):
        document = json.loads((DEPLOY / "grafana" / name).read_text())
        for panel in document["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"]
                for variable, text in filled.items():
                    query = query.replace(variable, text)
                # What is shown where something happens has data beneath; in shadow no supervisor is there.
                if "supervisor" not in query and not server.query(query.removesuffix(" > 0")):
                    empty.append(f"{name}: {panel['title']}: {query}")
    assert empty == []


def test_an_alert_names_the_command_in_the_pod_that_explains_it(cluster: Cluster, server: Scraping) -> None:
    def firing() -> list[dict[str, Any]]:
        alerts = server.get("/api/v1/alerts")["alerts"]
        return [
            item
            for item in alerts
            if item["state"] == "firing" and item["labels"]["alertname"] == "SlicepilotDelayPromiseBroken"
        ]

    [alert] = server.until(firing, WITHIN_S, "no alert")
    assert alert["labels"]["slice"] == "slice1"
    command = shlex.split(alert["annotations"]["explain"])
    in_pod = ["kubectl", "-n", "slicepilot-system", "exec", "slicepilot-agent-abcde", "--"]
    assert command[: len(in_pod)] == in_pod
    program = command[len(in_pod) :]
    assert program[:4] == ["slicepilot", "explain", "--name", LOOP]
    reported = cluster.machine.run(*program)
    assert "slice1" in reported
    print(reported)


def test_who_serves_has_no_rights_and_the_agent_asks_no_more_often(running: RunningAgent, cluster: Cluster) -> None:
    [server] = [
        child
        for child in children(running.pid)
        if b"cluster.metrics.process" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    status = Path(f"/proc/{server}/status").read_text()
    for line in ("Uid:\t65534", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"):
        assert line in status
    [memory] = re.findall(r"VmRSS:\s+(\d+) kB", status)
    sizes, seconds = [], []
    for _ in range(5):
        started_s = time.monotonic()
        text = cluster.machine.run("curl", "-sS", f"http://{ADDRESS}:{PORT}/metrics")
        seconds.append(time.monotonic() - started_s)
        sizes.append(len(text))
        time.sleep(1.2)
    print(f"memory {int(memory) / 1024:.0f} MiB; {max(sizes)} bytes; scrapes of {[f'{s:.3f}' for s in seconds]} s")
